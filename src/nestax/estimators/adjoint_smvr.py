"""Adjoint SMVR: SMVR without Jacobians. Values forward, adjoints backward, each by STORM.

An extension of SMVR to sizes at which no Jacobian can be stored: value tracking along the chain
w → u^1 → ⋯ → u^{K−1} → p^K → ⋯ → p^1 of length 2K−1 (INFERRED; no paper was followed). Gao: A doubly
recursive stochastic compositional gradient descent method for federated multi-level compositional
optimization, ICML 2024, had an estimator of Jacobian-vector products before; only its abstract was read.

symbol   here                       meaning
u_t^i    inputs[i], last            running value of level i
p_t^i    adjoint[i]                 running adjoint, estimates J_i(u^{i-1})ᵀ p^{i+1}; p^{K+1} = 1
ζ_t^i    batch["value" or "grad"]   draws of the backward pass, see `mode`
R_i      radius                     ball that holds p^i
v_t      grad                       p_t^1
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem
from nestax.errors import POSITIVE, UNIT
from nestax.parts.estimator import About, AbstractEstimator, Batches, Estimate, Trackers
from nestax.parts.matrix_free import MODES, Forward, first_forward, passes_of, track_forward
from nestax.parts.settings import Setting, at, choice, per_level, setting
from nestax.parts.tracking import storm
from nestax.steps.descent import descent_beside, falling_beta


class AdjointState(eqx.Module):
    """``inputs`` are (w, u^1, …, u^{K-1}); ``before`` are those of the step before, where it lags."""

    inputs: tuple[PyTree, ...]
    before: tuple[PyTree, ...] | None
    last: Array
    adjoint: tuple[PyTree, ...]
    count: Array


class AdjointSMVR(AbstractEstimator):
    """Matrix-free SMVR: one STORM adjoint per level.

        p_t^i = Π[ G_i(u_t^{i-1}, p_t^{i+1}; ζ)
                   + (1−β)(p_{t-1}^i − G_i(u_{t-1}^{i-1}, p_{t-1}^{i+1}; ζ)) ]

    with G_i(u, p; ζ) = J_i(u; ζ)ᵀp. Memory and time are linear in the sizes of the levels.

    Args:
        beta: forgetting rate in (0, 1], a number or a schedule; None as for ``SMVR``.
        mode: "lagged", "fresh" or "reuse", which is biased; see ``nestax.parts.matrix_free``.
        radius: ball that holds each adjoint, one number or one per level; None for none.
    """

    beta: Setting | None = setting(UNIT, default=None)
    mode: str = choice(*MODES, default="lagged")
    radius: Setting | None = setting(POSITIVE, default=None)
    about: ClassVar = About(
        "jiang2022smvr",
        "ε⁻³",
        "mean-squared smooth draws",
        "values, adjoints",
        also="gao2024recursive",
        certainty="an extension of SMVR; INFERRED",
    )
    passes: ClassVar[Any] = property(lambda self: passes_of(self.mode))
    lag: ClassVar[Any] = property(lambda self: 1 if self.mode == "lagged" else 0)

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        return {"beta": falling_beta()}

    def published_step(self, problem: Problem):
        return descent_beside(self.beta, self.lr)

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        forward = first_forward(problem, w, batches, self.mode)
        p = jnp.ones_like(forward.last)
        adjoint = []
        for i, pull in reversed(list(enumerate(forward.heads))):
            p = self._project(pull(p), i, len(forward.heads))
            adjoint.insert(0, p)
        return self._read(forward, forward.inputs, adjoint, jnp.zeros((), jnp.int32))

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: AdjointState):
        keep = 1 - at(self.beta, state.count + 1)
        forward = track_forward(problem, w, batches, self.mode, keep, state)
        p_new = p_old = jnp.ones_like(forward.last)
        adjoint = []
        for i, level in reversed(list(enumerate(problem.levels))):
            p = forward.heads[i](p_new)
            if not level.deterministic:
                p = storm(p, keep, state.adjoint[i], forward.tails[i](p_old))
            p_new = self._project(p, i, len(forward.heads))
            p_old = state.adjoint[i]
            adjoint.insert(0, p_new)
        return self._read(forward, state.inputs, adjoint, state.count + 1)

    def _project(self, p: PyTree, i: int, levels: int) -> PyTree:
        if self.radius is None:
            return p
        size = optax.tree.norm(p)
        radius = per_level(self.radius, i, levels)
        return optax.tree.scale(jnp.where(size > radius, radius / size, 1.0), p)

    def _read(self, forward: Forward, before: tuple, adjoint: list, count: Array):
        older = before if self.lag else None
        state = AdjointState(forward.inputs, older, forward.last, tuple(adjoint), count)
        return Estimate(forward.last, adjoint[0], {}), state

    def trackers(self, state: AdjointState):
        w = state.inputs[0] if state.before is None else state.before[0]
        return Trackers(w, (*state.inputs[1:], state.last), adjoint=state.adjoint)
