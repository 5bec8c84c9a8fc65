"""VRSC-PG: SVRG for the inner value, its Jacobian and the gradient, two levels, finite populations.

Huo, Gu, Liu, Huang: Accelerated method for stochastic composition optimization with nonsmooth
regularization, AAAI 2018.

symbol       here           meaning
x            w              weights
x̃            at             weights of the last snapshot
g̃, G̃, ∇F̃     full           population value, Jacobian and gradient there
ĝ, Ĝ, v      value[0], …    estimates at x
A, b         batch["value"] draws of g and of f
"""

from typing import ClassVar

import equinox as eqx
from jaxtyping import PyTree

from nestax.chain.jacobian import Jacobian, pull_through
from nestax.chain.problem import Problem
from nestax.parts.estimator import About, Batches, Calls, Estimate
from nestax.parts.restarts import Snapshots
from nestax.parts.tracking import storm


class VRSCPGState(eqx.Module):
    w: PyTree
    value: tuple[PyTree, PyTree]
    jac: Jacobian
    at: PyTree
    full: tuple[PyTree, Jacobian, PyTree]


class VRSCPG(Snapshots):
    """VRSC-PG for F = f ∘ g + r, both averages over finitely many rows.

        ĝ = g̃ + avg_A[g_j(x) − g_j(x̃)],   Ĝ likewise with Jacobians
        v = ∇F̃ + avg_b[Ĝᵀ∇f_i(ĝ) − G̃ᵀ∇f_i(g̃)]

    Args:
        period: steps between snapshots; None means one pass of mini-batches over the rows.
        lr: of the proximal step; 0.1 by default.
    """

    about: ClassVar = About(
        "huo2018vrscpg",
        "n + n^⅔ ε⁻²",
        "finite populations",
        "value, Jacobian, gradient",
        2,
        "SnapshotSMVR",
        finite=True,
    )
    passes: ClassVar = {"value": Calls(2, 2)}

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        g, f = problem.levels
        value, G = g.value_and_jac(w, batches[0]["value"])
        value = g.project(value)
        outer, pull_f = f.value_and_pull(value, batches[1]["value"])
        grad = pull_through([G.pull, pull_f], outer)
        state = VRSCPGState(w, (value, f.project(outer)), G, w, (value, G, grad))
        return Estimate(state.value[1], grad, {}), state

    def refresh(self, problem: Problem, w: PyTree, batches: Batches, state: VRSCPGState):
        return self.init(problem, w, batches)

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: VRSCPGState):
        g, f = problem.levels
        rows, outer_rows = (batch["value"] for batch in batches)
        g_new, J_new = g.value_and_jac(w, rows)
        g_at, J_at = g.value_and_jac(state.at, rows)
        g_full, G_full, grad_full = state.full
        # SVRG is STORM around the snapshot instead of the step before, with nothing forgotten.
        value = g.project(storm(g_new, 1.0, g_full, g_at))
        G = storm(J_new, 1.0, G_full, J_at)
        outer, pull_new = f.value_and_pull(value, outer_rows)
        _, pull_full = f.value_and_pull(g_full, outer_rows)
        new = pull_through([G.pull, pull_new], outer)
        old = pull_through([G_full.pull, pull_full], outer)
        grad = storm(new, 1.0, grad_full, old)
        state = VRSCPGState(w, (value, f.project(outer)), G, state.at, state.full)
        return Estimate(state.value[1], grad, {}), state
