"""SARAH-Compositional: recursive differences for the inner value, its Jacobian and the gradient.

Yuan, Lian, Li, Liu, Hu: Efficient smooth non-convex stochastic compositional optimization via
stochastic recursive gradient descent, NeurIPS 2019.

symbol         here              meaning
x_t            w                 weights
g_t, G_t, F_t  value, jac, grad  running value, Jacobian and gradient
q, L           period, restart_batch  steps between restarts, draws at a restart
"""

from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import Jacobian, pull_through
from nestax.chain.problem import Problem
from nestax.parts.estimator import About, Batches, Calls, Estimate
from nestax.parts.restarts import Restarting
from nestax.parts.tracking import storm


class SARAHCState(eqx.Module):
    w: PyTree
    value: tuple[PyTree, PyTree]
    jac: Jacobian
    grad: PyTree
    count: Array


class SARAHC(Restarting):
    """SARAH-Compositional for F = f ∘ g; a plain step of constant length.

        every q steps: g_t, G_t averages over L draws at x_t, F_t = G_tᵀ∇f(g_t) over L draws
        otherwise:     g_t = g_{t-1} + g(x_t; j) − g(x_{t-1}; j),   G_t likewise
                       F_t = F_{t-1} + G_tᵀ∇f(g_t; i) − G_{t-1}ᵀ∇f(g_{t-1}; i)

    Args:
        period, restart_batch: see ``nestax.parts.Restarting``; for finite populations
            restart_batch="population" and a period of the order of √(m + n).
        lr: 0.1 by default.
    """

    about: ClassVar = About(
        "yuan2019sarahc",
        "ε⁻³",
        "mean-squared smooth draws, large batches",
        "value, Jacobian, gradient",
        2,
        "NestedSPIDER",
    )
    passes: ClassVar = {"value": Calls(2, 2)}

    def restart(self, problem: Problem, w: PyTree, batches: Batches, count: Array):
        g, f = problem.levels
        value, G = g.value_and_jac(w, batches[0]["value"])
        value = g.project(value)
        outer, pull_f = f.value_and_pull(value, batches[1]["value"])
        return self._read(w, value, f.project(outer), G, pull_through([G.pull, pull_f], outer), count)

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: SARAHCState):
        g, f = problem.levels
        j, i = (batch["value"] for batch in batches)
        g_new, J_new = g.value_and_jac(w, j)
        g_old, J_old = g.value_and_jac(state.w, j)
        value = g.project(storm(g_new, 1.0, state.value[0], g_old))
        G = storm(J_new, 1.0, state.jac, J_old)
        outer, pull_new = f.value_and_pull(value, i)
        _, pull_old = f.value_and_pull(state.value[0], i)
        new = pull_through([G.pull, pull_new], outer)
        old = pull_through([state.jac.pull, pull_old], outer)
        grad = storm(new, 1.0, state.grad, old)
        return self._read(w, value, f.project(outer), G, grad, state.count + 1)

    def _read(self, w: PyTree, value: PyTree, outer: Array, G: Jacobian, grad: PyTree, count: Array):
        return Estimate(outer, grad, {}), SARAHCState(w, (value, outer), G, grad, count)
