"""COVER and its stage-wise form RECOVER: STORM on the inner value and its Jacobian, two levels.

Qi, Guo, Xu, Jin, Yang: An online method for a class of distributionally robust optimization with
non-convex objectives, NeurIPS 2021.

symbol   here       meaning
w_t      w          weights
u_t      value[0]   running value of g
V_t      jac        running Jacobian of g, with the same draws
η_t      lr         k/(w_0 + σ²t)^{1/3}, here lr·(1 + t/offset)^{-1/3}
β_t      beta       c·η_t²
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import Jacobian, pull_through
from nestax.chain.problem import Problem
from nestax.errors import POSITIVE, UNIT
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate
from nestax.parts.settings import Setting, at, count, scaled, setting
from nestax.parts.tracking import storm
from nestax.steps import Descent


class COVERState(eqx.Module):
    w: PyTree
    value: tuple[PyTree, PyTree]
    jac: Jacobian
    count: Array


class COVER(AbstractEstimator):
    """COVER for F = f ∘ g with a deterministic f.

        u_t = g(w_t; ξ) + (1−β_t)(u_{t-1} − g(w_{t-1}; ξ)),   V_t likewise with J_g
        v_t = V_tᵀ ∇f(u_t)

    Args:
        beta: forgetting rate in (0, 1], a number or a schedule; None means (1 + t/offset)^{-2/3}/2.
        offset: after how many steps the published schedules begin to fall.
        lr: η_0 of η_t = η_0·(1 + t/offset)^{-1/3}; 0.1 by default.
    """

    beta: Setting | None = setting(UNIT, default=None)
    offset: float = setting(POSITIVE, default=100.0, converter=float, static=True)
    about: ClassVar = About(
        "qi2021recover", "ε⁻³", "mean-squared smooth draws", "one value, one Jacobian", 2, "SMVR", True
    )
    passes: ClassVar = {"value": Calls(2, 2)}

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        offset = self.offset
        return {"beta": lambda count: 0.5 * (1 + count / offset) ** (-2 / 3)}

    def published_step(self, problem: Problem):
        offset = self.offset
        return Descent(scaled(self.lr, 0.1, lambda count: (1 + count / offset) ** (-1 / 3)))

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        g = problem.levels[0]
        u, V = g.value_and_jac(w, batches[0]["value"])
        return self._read(problem, w, g.project(u), V, jnp.zeros((), jnp.int32))

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: COVERState):
        keep = 1 - at(self.beta, state.count + 1)
        g = problem.levels[0]
        xi = batches[0]["value"]
        g_new, J_new = g.value_and_jac(w, xi)
        g_old, J_old = g.value_and_jac(state.w, xi)
        u = g.project(storm(g_new, keep, state.value[0], g_old))
        V = storm(J_new, keep, state.jac, J_old)
        return self._read(problem, w, u, V, state.count + 1)

    def _read(self, problem: Problem, w: PyTree, u: PyTree, V: Jacobian, count: Array):
        value, pull_f = problem.levels[1].value_and_pull(u, None)
        grad = pull_through([V.pull, pull_f], value)
        return Estimate(value, grad, {}), COVERState(w, (u, value), V, count)


class RECOVER(COVER):
    """RECOVER: COVER in stages of doubling length, for objectives that satisfy a PL inequality.

    In stage s = 0, 1, … the forgetting rate is beta/2^s and the learning rate lr/2^{s/2}; a stage
    starts from the weights and trackers that the one before ended with.

    Args:
        beta: forgetting rate of the first stage, a number in (0, 1], or a schedule for all.
        first_stage: steps of the first stage.
        lr: learning rate of the first stage; 0.1 by default.
    """

    beta: Setting | None = setting(UNIT, default=0.5)
    first_stage: int = count(default=1000)
    about: ClassVar = About(
        "qi2021recover",
        "F − F* ≤ ε: 1/(με)",
        "PL inequality, mean-squared smooth draws",
        "one value, one Jacobian",
        2,
        "SMVR",
        True,
    )

    def stage(self, count: Array) -> Array:
        """⌊log₂(1 + count/first_stage)⌋ in integers: stages have lengths T, 2T, 4T, …"""
        number = 31 - jax.lax.clz((count // self.first_stage + 1).astype(jnp.int32))
        return number.astype(count.dtype)

    def defaults(self, problem: Problem, horizon: Any, sizes: tuple[int, ...]):
        halved = scaled(self.beta, 0.5, lambda count: 0.5 ** self.stage(count))
        this = dataclasses.replace(self, beta=halved)
        return AbstractEstimator.defaults(this, problem, horizon, sizes)

    def published_step(self, problem: Problem):
        return Descent(scaled(self.lr, 0.1, lambda count: 0.5 ** (self.stage(count) / 2)))
