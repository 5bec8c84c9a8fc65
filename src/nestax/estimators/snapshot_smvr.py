"""Snapshot SMVR for finite sums: SMVR whose fresh part is an SVRG sample.

By analogy with PMFS of Jiang et al. (ICML 2024, journal version), applied to every value and every
Jacobian; the published SMVR-FS (IEEE TPAMI 2025) was not read, so this form is INFERRED.

symbol   here        meaning
x_s^i    at[i]       input of level i at the last snapshot
ḡ_i      full[i]     population means of value and Jacobian of level i at x_s^i
h_t      h           g(x_t; ξ) − g(x_s; ξ) + ḡ, for g the value and the Jacobian
u, v     value, jac  (1−β)·tracked + β·h + (1−β)(g(x_t; ξ) − g(x_{t-1}; ξ))
"""

from typing import ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import Jacobian, pull_through
from nestax.chain.problem import Problem
from nestax.errors import UNIT
from nestax.parts.estimator import About, Batches, Calls, Estimate
from nestax.parts.restarts import Snapshots
from nestax.parts.settings import Setting, at, setting


class SnapshotState(eqx.Module):
    w: PyTree
    value: tuple[PyTree, ...]
    jac: tuple[Jacobian | None, ...]
    at: tuple[PyTree, ...]
    full: tuple[tuple[PyTree, Jacobian] | None, ...]
    count: Array


class SnapshotSMVR(Snapshots):
    """SMVR with snapshots: linear convergence where the population is finite.

    Every ``period`` steps all levels are averaged over the whole population, which makes the
    trackers exact; in between each step evaluates its batch at three points. The start is exact.

    Args:
        beta: forgetting rate in (0, 1]; 0.01 is a good start.
        period: steps between snapshots; None means one pass of mini-batches over the population.
    """

    beta: Setting = setting(UNIT, default=0.01)
    about: ClassVar = About(
        "jiang2025revisiting",
        "√n ε⁻²",
        "finite populations",
        "values, Jacobians, twice",
        finite=True,
        certainty="by analogy with PMFS; the paper was not read",
    )
    passes: ClassVar = {"value": Calls(3, 3)}

    def restart(self, problem: Problem, w: PyTree, batches: Batches, count: Array):
        at = []
        full = []
        x = w
        for level, batch in zip(problem.levels, batches, strict=True):
            at.append(x)
            full.append(level.value_and_jac(x, batch["value"]))
            x = level.project(full[-1][0])
        value = [level.project(f) for level, (f, _) in zip(problem.levels, full, strict=True)]
        return self._read(problem, w, value, [J for _, J in full], tuple(at), tuple(full), count)

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: SnapshotState):
        beta = at(self.beta, state.count + 1)

        def track(new, old, snapshot, full, tracked):
            # Next to the snapshot the draws cancel: what is left is the population mean.
            h = new - snapshot + full
            return (1 - beta) * (tracked + new - old) + beta * h

        value = []
        jac = []
        new = w
        old = state.w
        for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
            u, V = level.value_and_jac(new, batch["value"])
            if not level.deterministic:
                at_old = level.value_and_jac(old, batch["value"])
                at_snapshot = level.value_and_jac(state.at[i], batch["value"])
                tracked = (state.value[i], state.jac[i])
                u, V = jax.tree.map(track, (u, V), at_old, at_snapshot, state.full[i], tracked)
            u = level.project(u)
            value.append(u)
            jac.append(V)
            new = u
            old = state.value[i]
        return self._read(problem, w, value, jac, state.at, state.full, state.count + 1)

    def _read(self, problem, w, value, jac, at, full, count):
        stochastic = [not level.deterministic for level in problem.levels]
        jacs, at, full = (
            tuple(x if s else None for s, x in zip(stochastic, trackers, strict=True))
            for trackers in (jac, at, full)
        )
        state = SnapshotState(w, tuple(value), jacs, at, full, count)
        return Estimate(value[-1], pull_through([V.pull for V in jac], value[-1]), {}), state
