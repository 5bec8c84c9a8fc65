"""SARAH, SPIDER and SpiderBoost: recursive gradient differences with restarts, one level.

Nguyen, Liu, Scheinberg, Takáč: SARAH, ICML 2017. Fang, Li, Lin, Zhang: SPIDER, NeurIPS 2018. Wang, Ji,
Zhou, Liang, Tarokh: SpiderBoost, NeurIPS 2019. One estimator, three ways to restart and to step.

symbol   here           meaning
x_t      w              weights
v_t      grad           running gradient
q        period         steps between restarts
B, b     restart_batch, batch_size   draws at a restart, and in between
"""

from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem
from nestax.errors import POSITIVE
from nestax.parts.estimator import About, Batches, Calls, Estimate, Trackers
from nestax.parts.plug_in import value_and_gradient
from nestax.parts.restarts import Restarting, steps_per_pass
from nestax.parts.settings import Setting, setting
from nestax.parts.tracking import storm
from nestax.steps import Bounded


class SpiderState(eqx.Module):
    w: PyTree
    value: Array
    grad: PyTree
    count: Array


class SpiderBoost(Restarting):
    """SpiderBoost for F = E f(w; ξ) + r: a proximal step of constant length.

        at a restart:  v_t = ∇f_B(x_t)
        otherwise:     v_t = v_{t-1} + ∇f_b(x_t) − ∇f_b(x_{t-1})

    The value is tracked in the same way.

    Args:
        period, restart_batch: see ``nestax.parts.Restarting``.
        lr: of order 1/(2L); 0.1 by default.
    """

    about: ClassVar = About(
        "wang2019spiderboost", "ε⁻³", "smooth draws, large batches", "one gradient", 1, "NestedSPIDER"
    )
    passes: ClassVar = {"value": Calls(2, 2)}

    def restart(self, problem: Problem, w: PyTree, batches: Batches, count: Array):
        return self._read(problem, w, value_and_gradient(problem, w, batches), count)

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: SpiderState):
        new = value_and_gradient(problem, w, batches)
        old = value_and_gradient(problem, state.w, batches)
        # Nothing is forgotten, so errors add up along the differences until the next restart.
        tracked = storm(new, 1.0, (state.value, state.grad), old)
        return self._read(problem, w, tracked, state.count + 1)

    def _read(self, problem: Problem, w: PyTree, tracked: tuple[Array, PyTree], count: Array):
        value = problem.levels[0].project(tracked[0])
        grad = tracked[1]
        return Estimate(value, grad, {}), SpiderState(w, value, grad, count)

    def trackers(self, state: SpiderState):
        return Trackers(state.w, (state.value,))


class SPIDER(SpiderBoost):
    """SPIDER: the estimator of ``SpiderBoost`` with steps no longer than lr·ε.

    Args:
        period, restart_batch: see ``nestax.parts.Restarting``.
        eps: ε of the step; None means 1/√T over T steps.
        lr: 1/L of the step; 0.5 by default.
    """

    eps: Setting | None = setting(POSITIVE, default=None)
    about: ClassVar = About(
        "fang2018spider", "ε⁻³", "smooth draws, large batches", "one gradient", 1, "NestedSPIDER"
    )

    def published_step(self, problem: Problem):
        return Bounded(0.5 if self.lr is None else self.lr, self.eps)


class SARAH(SpiderBoost):
    """SARAH: restarts from the full gradient every epoch, and a step of constant length.

    Args:
        period: steps of an epoch; None means one pass of mini-batches over the rows.
        lr: 0.1 by default.
    """

    restart_batch: Any = eqx.field(default="population", static=True)
    about: ClassVar = About(
        "nguyen2017sarah",
        "n + √n ε⁻²",
        "finite populations",
        "one gradient",
        1,
        "SnapshotSMVR",
        finite=True,
    )

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        return {"period": steps_per_pass(problem, sizes)}
