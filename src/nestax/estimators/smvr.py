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

from nestax.errors import check_setting, choose
from nestax.estimator import About, AbstractEstimator, Batches, Calls, Estimate, Trackers
from nestax.jacobian import Jacobian, into_ball, pull_through
from nestax.problem import Problem
from nestax.steps.descent import FALLING_BETA, descent_beside
from nestax.tracking import as_setting, at, per_level, storm


class SMVRState(eqx.Module):
    """Trackers of every level, the weights they belong to, and how often each ball was active.

    The Jacobian of a deterministic level is not tracked, so it is None.
    """

    w: PyTree
    value: tuple[PyTree, ...]
    jac: tuple[Jacobian | None, ...]
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
            level, or None for no projection. A ball too small to hold the true Jacobian biases the
            gradient; ``ball_active`` in the records says how often it was active.
        ball: "frobenius" (rescales; cheap) or "spectral" (clips singular values).
    """

    beta: Any = eqx.field(default=None, converter=as_setting)
    radius: Any = eqx.field(default=None, converter=as_setting)
    ball: str = eqx.field(default="frobenius", static=True)
    about: ClassVar = About(
        "jiang2022smvr", "ε⁻³", "mean-squared smooth draws", "values, Jacobians", instead="AdjointSMVR"
    )

    @property
    def passes(self):
        return {"value": Calls(2, 2)}

    def __check_init__(self):
        check_setting("beta", self.beta, "in (0, 1]", lambda b: (b > 0) & (b <= 1))
        check_setting("radius", self.radius, "positive", lambda r: r > 0)
        choose("ball", self.ball, ("frobenius", "spectral"))

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        return {"beta": FALLING_BETA}

    def published_step(self, problem: Problem):
        return descent_beside(self.beta, self.lr)

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        value, jac, active, x = [], [], [], w
        for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
            f, J = level.value_and_jac(x, batch["value"])
            x = level.project(f)
            V, hit = self._project(problem, i, J)
            value.append(x)
            jac.append(V)
            active.append(hit)
        return self._read(problem, w, value, jac, jnp.asarray(active), jnp.zeros((), jnp.int32))

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: SMVRState):
        keep = 1 - at(self.beta, state.count + 1)
        value, jac, active, new, old = [], [], [], w, state.w
        for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
            u, V = level.value_and_jac(new, batch["value"])
            if not level.deterministic:
                f_old, J_old = level.value_and_jac(old, batch["value"])
                u = storm(u, keep, state.value[i], f_old)
                V = storm(self._shape(V), keep, state.jac[i], self._shape(J_old))
            u = level.project(u)
            V, hit = self._project(problem, i, V)
            value.append(u)
            jac.append(V)
            active.append(hit)
            new, old = u, state.value[i]
        hits = None if state.active is None else state.active + jnp.asarray(active)
        return self._read(problem, w, value, jac, hits, state.count + 1)

    def _shape(self, jac: Jacobian) -> Jacobian:
        """A sampled Jacobian with the blocks that a projected one has."""
        if self.radius is None:
            return jac
        return jac.filled(jac.dense()) if self.ball == "spectral" else jac.scalable()

    def _project(self, problem: Problem, i: int, jac: Jacobian) -> tuple[Jacobian, Array | bool]:
        if self.radius is None:
            return jac, False
        return into_ball(jac, per_level(self.radius, i, len(problem.levels)), self.ball)

    def _read(self, problem: Problem, w: PyTree, value: list, jac: list, active: Any, count: Array):
        hits = None if self.radius is None else jnp.asarray(active, jnp.int32)
        aux = {} if hits is None else {"ball_active": (hits / (count + 1)).astype(value[-1].dtype)}
        tracked = zip(problem.levels, jac, strict=True)
        kept = tuple(None if level.deterministic else V for level, V in tracked)
        state = SMVRState(w, tuple(value), kept, hits, count)
        return Estimate(value[-1], pull_through([V.pull for V in jac], value[-1]), aux), state

    def trackers(self, state: SMVRState):
        return Trackers(state.w, state.value, state.jac)
