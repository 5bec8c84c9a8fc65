"""The step of bounded length that SPIDER and Nested-SPIDER take."""

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
from nestax.parts.tracking import average


class Bounded(AbstractStep):
    """w_{t+1} = w_t + γ_t (x̃ − w_t), x̃ = prox_{η r}(w_t − η v_t), γ_t = min{1/2, η ε/‖x̃ − w_t‖}.

    No step is longer than η ε. Without constraint this is w − η·min{1/2, ε/‖v‖}·v.
    Reference: Zhang, Xiao, SIAM J. Optim. 2021; Fang et al., NeurIPS 2018.

    Args:
        lr: η > 0, of the order of 1/L_F; a number or a schedule.
        eps: ε > 0, the accuracy aimed at; a number or a schedule. None means 1/√T over T steps, as many
            as the theory asks for at that accuracy.
    """

    lr: Setting = setting(POSITIVE)
    eps: Setting | None = setting(POSITIVE, default=None, missing=lambda _, horizon: horizon**-0.5)

    def update(self, problem: Problem, w: PyTree, grad: PyTree, aux: dict[str, Array], state: Any):
        lr = at(self.lr, state)
        eps = at(self.eps, state)
        target = problem.proximal(jax.tree.map(lambda x, v: x - lr * v, w, grad), lr)
        length = optax.tree.norm(trees.as_average(optax.tree.sub(target, w)))
        # min{1/2, ηε/length} without a quotient where the length is 0.
        share = jnp.where(length > 2 * lr * eps, lr * eps / jnp.maximum(length, lr * eps), 0.5)
        return average(w, share.astype(problem.dtype), target), state + 1
