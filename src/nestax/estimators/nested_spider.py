"""Nested-SPIDER: large batches every so often, differences in between, for values and Jacobians.

Zhang, Xiao: Multilevel composite stochastic optimization via nested variance reduction, SIAM J. Optim.
2021; its outer loop NPAG is the step rule ``nx.steps.Bounded``.

symbol   here           meaning
y_t^i    value[i]       running value of level i
Z_t^i    jac[i]         running Jacobian of level i
q        period         steps between restarts, of order 1/ε
B        restart_batch  draws per level at a restart, of order 1/ε²
b        batch_size     draws per level in between, of order 1/ε
"""

from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import Jacobian, pull_through
from nestax.chain.problem import Problem
from nestax.errors import POSITIVE
from nestax.parts.estimator import About, Batches, Calls, Estimate
from nestax.parts.restarts import Restarting
from nestax.parts.settings import Setting, setting
from nestax.parts.tracking import storm
from nestax.steps import Bounded


class NestedSPIDERState(eqx.Module):
    w: PyTree
    value: tuple[PyTree, ...]
    jac: tuple[Jacobian | None, ...]
    count: Array


class NestedSPIDER(Restarting):
    """Nested-SPIDER.

        at a restart:  y_t^i = f_{i,B}(y_t^{i-1}),  Z_t^i = J_{i,B}(y_t^{i-1})
        otherwise:     y_t^i = y_{t-1}^i + f_{i,b}(y_t^{i-1}) − f_{i,b}(y_{t-1}^{i-1}),  Z^i likewise
        v_t = Z_t^1ᵀ ⋯ Z_t^Kᵀ

    Args:
        period, restart_batch: see ``nestax.parts.Restarting``. For finite populations of n rows
            the published choice is restart_batch="population", period = batch_size = √n.
        eps: ε of the step, which is never longer than lr·ε; None means 1/√T over T steps.
        lr: η of the step, of order 1/L_F; 0.5 by default.
    """

    eps: Setting | None = setting(POSITIVE, default=None)
    about: ClassVar = About(
        "zhang2021nested", "ε⁻³", "mean-squared smooth draws, large batches", "values, Jacobians"
    )
    passes: ClassVar = {"value": Calls(2, 2)}

    def published_step(self, problem: Problem):
        return Bounded(0.5 if self.lr is None else self.lr, self.eps)

    def restart(self, problem: Problem, w: PyTree, batches: Batches, count: Array):
        value = []
        jac = []
        x = w
        for level, batch in zip(problem.levels, batches, strict=True):
            f, J = level.value_and_jac(x, batch["value"])
            x = level.project(f)
            value.append(x)
            jac.append(J)
        return self._read(problem, w, value, jac, count)

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: NestedSPIDERState):
        value = []
        jac = []
        new = w
        old = state.w
        for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
            y, Z = level.value_and_jac(new, batch["value"])
            if not level.deterministic:
                f_old, J_old = level.value_and_jac(old, batch["value"])
                y = storm(y, 1.0, state.value[i], f_old)
                Z = storm(Z, 1.0, state.jac[i], J_old)
            new = level.project(y)
            old = state.value[i]
            value.append(new)
            jac.append(Z)
        return self._read(problem, w, value, jac, state.count + 1)

    def _read(self, problem: Problem, w: PyTree, value: list, jac: list, count: Array):
        tracked = zip(problem.levels, jac, strict=True)
        kept = tuple(None if level.deterministic else Z for level, Z in tracked)
        state = NestedSPIDERState(w, tuple(value), kept, count)
        return Estimate(value[-1], pull_through([Z.pull for Z in jac], value[-1]), {}), state
