"""The normalised step, whose length does not depend on the scale of the objective."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.problem import Problem
from nestax.errors import POSITIVE
from nestax.parts.settings import Setting, at, setting
from nestax.parts.step_rule import AbstractStep


class Normalized(AbstractStep):
    """w_{t+1} = prox(w_t − η v_t/‖v_t‖).

    With η = β = T^{-2/3} over T steps this needs no constant of the problem (published for
    coupled two-level problems; for a chain of levels INFERRED). Start from a batch of about T^{1/3}.
    Reference: Jiang et al., MSVR, journal version.

    Args:
        lr: η > 0; None means T^{-2/3}.
    """

    lr: Setting | None = setting(POSITIVE, default=None, missing=lambda _, horizon: horizon ** (-2 / 3))

    def update(self, problem: Problem, w: PyTree, grad: PyTree, aux: dict[str, Array], state: Any):
        size = optax.tree.norm(trees.as_average(grad))
        # A gradient of 0 stays where it is instead of dividing by its length.
        lr = at(self.lr, state) / jnp.where(size > 0, size, 1)
        moved = jax.tree.map(lambda x, v: x - (lr * v).astype(x.dtype), w, grad)
        return problem.proximal(moved, lr.astype(problem.dtype)), state + 1
