"""SMVR: Stochastic Multi-level Variance Reduction, Algorithm 1 of Jiang et al., ICML 2022.

symbol      here            meaning
w_t         w               weights
ξ_t^i       batch["value"]  draws of level i at step t, independent across levels
u_t^i       value[i]        running value of level i, estimates f_i(u_t^{i-1})
v_t^i       jac[i]          running Jacobian of level i, estimates ∇f_i(u_t^{i-1})ᵀ
β_t         beta            forgetting rate; keep = 1 − β_t survives
Π_{L_f}     radius, ball    projection of every Jacobian onto a ball
v_t         grad            v_t^1 ⋯ v_t^K, the gradient estimate
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import Jacobian, pull_through
from nestax.chain.problem import Problem
from nestax.errors import POSITIVE, UNIT
from nestax.parts.balls import Ball, Held, RunningRadius
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate
from nestax.parts.settings import Setting, at, choice, per_level, setting
from nestax.parts.tracking import storm
from nestax.steps.descent import descent_beside, falling_beta


class SMVRState(eqx.Module):
    """Trackers of every level, the weights they belong to, and what is remembered of every ball.

    The Jacobian of a deterministic level is not tracked, so it is None; so are balls that are not asked
    for.
    """

    w: PyTree
    value: tuple[PyTree, ...]
    jac: tuple[Jacobian | None, ...]
    held: tuple[Held | None, ...]
    count: Array


class SMVR(AbstractEstimator):
    """Dense SMVR: a STORM estimate of every level's value and of every level's Jacobian.

        u_t^i = f_i(u_t^{i-1}; ξ) + (1−β)(u_{t-1}^i − f_i(u_{t-1}^{i-1}; ξ))
        v_t^i = Π[ J_i(u_t^{i-1}; ξ) + (1−β)(v_{t-1}^i − J_i(u_{t-1}^{i-1}; ξ)) ]

    One batch per level and step, evaluated at two points. Deterministic levels are evaluated at
    one point, which gives the same result as long as the ball holds their Jacobian.

    Args:
        beta: forgetting rate in (0, 1], a number or a schedule; 1 is ``Plain``. None means the shape of
            the theory, 0.1·(1 + t/100)^(−2/3), with a learning rate that falls like (1 + t/100)^(−1/3).
        radius: radius of the ball that holds each Jacobian: one number for all levels, one per
            level, or None for no projection; with neither beta nor radius ten times the running mean
            of the drawn Jacobians' norms. A ball too small to hold the true Jacobian biases the
            gradient; ``ball_active`` in the records says how often it was active.
        ball: "frobenius" (rescales; cheap) or "spectral" (clips singular values).
    """

    beta: Setting | None = setting(UNIT, default=None)
    radius: Setting | RunningRadius | None = setting(POSITIVE, default=None)
    ball: str = choice("frobenius", "spectral", default="frobenius")
    about: ClassVar = About(
        "jiang2022smvr", "ε⁻³", "mean-squared smooth draws", "values, Jacobians", instead="AdjointSMVR"
    )
    passes: ClassVar = {"value": Calls(2, 2)}

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        if self.beta is not None:
            return {}
        return {"beta": falling_beta(), "radius": RunningRadius()}

    def published_step(self, problem: Problem):
        return descent_beside(self.beta, self.lr)

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        nothing = (None,) * len(problem.levels)
        # A count of −1, so that the first estimate is number 0 like that of every other method.
        empty = SMVRState(w, nothing, nothing, nothing, jnp.full((), -1, jnp.int32))
        return self._track(problem, w, batches, empty)

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: SMVRState):
        return self._track(problem, w, batches, state, 1 - at(self.beta, state.count + 1))

    def _track(self, problem: Problem, w: PyTree, batches: Batches, state: SMVRState, keep: Any = None):
        """Tracks every level in turn; ``keep`` is None at the start, where there is nothing to keep."""
        value = []
        jac = []
        held = []
        new = w
        old = state.w
        for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
            ball = None
            if self.radius is not None:
                radius: Any = self.radius
                if not isinstance(radius, RunningRadius):
                    radius = per_level(radius, i, len(problem.levels))
                ball = Ball(radius, self.ball)
            u, drawn = level.value_and_jac(new, batch["value"])
            V = drawn
            if keep is not None and not level.deterministic:
                f_old, J_old = level.value_and_jac(old, batch["value"])
                u = storm(u, keep, state.value[i], f_old)
                shape = ball.shape if ball else lambda J: J
                V = storm(shape(drawn), keep, state.jac[i], shape(J_old))
            remembered = None
            if ball:
                V, remembered = ball.hold(V, drawn, state.held[i], level.deterministic)
            value.append(level.project(u))
            jac.append(V)
            held.append(remembered)
            new = value[-1]
            old = state.value[i]
        # From the outermost level inwards: vectors are multiplied, and never two Jacobians.
        grad = pull_through([V.pull for V in jac], value[-1])
        kept = (None if v.deterministic else V for v, V in zip(problem.levels, jac, strict=True))
        state = SMVRState(w, tuple(value), tuple(kept), tuple(held), state.count + 1)
        return Estimate(value[-1], grad, self._activity(state)), state

    def _activity(self, state: SMVRState) -> dict[str, Array]:
        """At what share of the steps each ball was active."""
        if self.radius is None:
            return {}
        often = jnp.stack([held.active for held in state.held if held is not None])
        return {"ball_active": (often / (state.count + 1)).astype(state.value[-1].dtype)}
