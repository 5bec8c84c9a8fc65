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
from nestax.parts.balls import Ball, RunningRadius
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate, Trackers
from nestax.parts.settings import POSITIVE, UNIT, Setting, at, choice, setting
from nestax.parts.tracking import storm
from nestax.steps.descent import descent_beside, falling_beta


class SMVRState(eqx.Module):
    """Trackers of every level, the weights they belong to, and how often each ball was active.

    The Jacobian of a deterministic level is not tracked, so it is None; so are sizes nobody asks for.
    """

    w: PyTree
    value: tuple[PyTree, ...]
    jac: tuple[Jacobian | None, ...]
    sizes: tuple[Array | None, ...]
    active: Array | None
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

    @property
    def passes(self):
        return {"value": Calls(2, 2)}

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        radius = {"radius": RunningRadius()} if self.beta is None else {}
        return {"beta": falling_beta()} | radius

    def published_step(self, problem: Problem):
        return descent_beside(self.beta, self.lr)

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        ball, tracked, x = Ball(self.radius, self.ball, len(problem.levels)), [], w
        for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
            f, J = level.value_and_jac(x, batch["value"])
            x, size = level.project(f), ball.size(level, None, J)
            tracked.append((x, *ball.hold(i, J, size), size))
        return self._read(problem, w, tracked, 0, jnp.zeros((), jnp.int32))

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: SMVRState):
        ball, tracked = Ball(self.radius, self.ball, len(problem.levels)), []
        keep, new, old = 1 - at(self.beta, state.count + 1), w, state.w
        for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
            u, V = level.value_and_jac(new, batch["value"])
            size = ball.size(level, state.sizes[i], V)
            if not level.deterministic:
                f_old, J_old = level.value_and_jac(old, batch["value"])
                u = storm(u, keep, state.value[i], f_old)
                V = storm(ball.shape(V), keep, state.jac[i], ball.shape(J_old))
            u = level.project(u)
            tracked.append((u, *ball.hold(i, V, state.sizes[i]), size))
            new, old = u, state.value[i]
        return self._read(problem, w, tracked, state.active, state.count + 1)

    def _read(self, problem: Problem, w: PyTree, tracked: list, before: Any, count: Array):
        value, jac, hit, sizes = zip(*tracked, strict=True)
        hits = None if self.radius is None else before + jnp.asarray(hit, jnp.int32)
        aux = {} if hits is None else {"ball_active": (hits / (count + 1)).astype(value[-1].dtype)}
        levels = zip(problem.levels, jac, strict=True)
        kept = tuple(None if level.deterministic else V for level, V in levels)
        state = SMVRState(w, value, kept, sizes, hits, count)
        return Estimate(value[-1], pull_through([V.pull for V in jac], value[-1]), aux), state

    def trackers(self, state: SMVRState):
        return Trackers(state.w, state.value, state.jac)
