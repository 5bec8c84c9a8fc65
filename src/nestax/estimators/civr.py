"""CIVR: composite incremental variance reduction, two levels with a deterministic outer one.

Zhang, Xiao: A stochastic composite gradient method with incremental variance reduction, NeurIPS 2019.

symbol   here           meaning
x_i      w              weights
y_i      value[0]       running value of g
z_i      jac            running Jacobian of g
τ        period         steps of an epoch
B, S     restart_batch, batch_size   draws at the start of an epoch, and within it
"""

from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import Jacobian, pull_through
from nestax.chain.problem import Problem
from nestax.parts.estimator import About, Batches, Calls, Estimate
from nestax.parts.restarts import Restarting
from nestax.parts.tracking import storm


class CIVRState(eqx.Module):
    w: PyTree
    value: tuple[PyTree, PyTree]
    jac: Jacobian
    count: Array


class CIVR(Restarting):
    """CIVR for F = f ∘ g + r with a deterministic f; a proximal step of constant length.

        start of an epoch: y, z averages over B draws
        within it:         y_i = y_{i-1} + g_S(x_i) − g_S(x_{i-1}),   z_i likewise with J_g
        v_i = z_iᵀ ∇f(y_i)

    Args:
        period, restart_batch: see ``nestax.parts.Restarting``; for finite populations of n rows
            restart_batch="population" and period = batch_size = √n.
        lr: 0.1 by default.
    """

    about: ClassVar = About(
        "zhang2019civr",
        "ε⁻³",
        "mean-squared smooth draws, large batches",
        "one value, one Jacobian",
        2,
        "NestedSPIDER",
        True,
    )
    passes: ClassVar = {"value": Calls(2, 2)}

    def restart(self, problem: Problem, w: PyTree, batches: Batches, count: Array):
        g = problem.levels[0]
        y, z = g.value_and_jac(w, batches[0]["value"])
        return self._read(problem, w, g.project(y), z, count)

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: CIVRState):
        g = problem.levels[0]
        draws = batches[0]["value"]
        g_new, J_new = g.value_and_jac(w, draws)
        g_old, J_old = g.value_and_jac(state.w, draws)
        # Nothing is forgotten: the differences add up to the value at the start of the epoch.
        y = g.project(storm(g_new, 1.0, state.value[0], g_old))
        z = storm(J_new, 1.0, state.jac, J_old)
        return self._read(problem, w, y, z, state.count + 1)

    def _read(self, problem: Problem, w: PyTree, y: PyTree, z: Jacobian, count: Array):
        value, pull_f = problem.levels[1].value_and_pull(y, None)
        grad = pull_through([z.pull, pull_f], value)
        return Estimate(value, grad, {}), CIVRState(w, (y, value), z, count)
