"""The averaged projected step of the NASA family."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem
from nestax.errors import POSITIVE, UNIT
from nestax.parts.settings import Setting, at, setting
from nestax.parts.step_rule import AbstractStep
from nestax.parts.tracking import average


def one_then_root(count: Array, horizon: Array) -> Array:
    """τ_0 = 1, then 1/√N for a run of N steps: the schedule of the NASA family."""
    return jnp.where(count == 0, 1.0, horizon**-0.5)


class Averaged(AbstractStep):
    """w_{k+1} = w_k + τ_k (y_k − w_k) with y_k = prox(w_k − lr·z_k), lr = 1/β in the papers.

    y minimises <z, y − w> + β/2·‖y − w‖² over the feasible set. The effective step is lr·τ.
    Reference: Ghadimi, Ruszczyński, Wang, SIAM J. Optim. 2020.

    Args:
        lr: 1/β > 0, a number or a schedule.
        tau: τ in (0, 1], a number or a schedule; None means τ_0 = 1, then 1/√N over N steps.
    """

    lr: Setting = setting(POSITIVE)
    tau: Setting | None = setting(UNIT, default=None, missing=one_then_root)

    def update(self, problem: Problem, w: PyTree, grad: PyTree, aux: dict[str, Array], state: Any):
        lr = at(self.lr, state)
        y = problem.proximal(jax.tree.map(lambda x, z: x - lr * z, w, grad), lr)
        return average(w, at(self.tau, state), y), state + 1
