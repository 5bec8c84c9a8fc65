"""Memory of tasks that is no method of the library: variants that Figure 4 of the SMVR paper asks about.

TaskMemory     values per task, by one of three corrections, and one gradient for all tasks together
ProductSPIDER  Nested-SPIDER with one estimate of the whole product of Jacobians, which are too large
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import pull_through
from nestax.chain.problem import Problem
from nestax.parts import matrix_free
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate, Trackers
from nestax.parts.restarts import Restarting
from nestax.parts.settings import Setting, at
from nestax.parts.tables import fill_table, visit_table
from nestax.parts.tracking import average, storm


class TaskState(eqx.Module):
    """``table``: w and the values of every task at its last visit."""

    w: PyTree
    table: tuple[PyTree, ...]
    grad: PyTree
    count: Array


class TaskMemory(AbstractEstimator):
    """Values of every visited task m, and from them z, the mean over these tasks of J_1ᵀ ⋯ J_Kᵀ.

    With f and J from one batch, x = u^{i-1} (w for i = 1), and "old" a task's last visit:

        values="average"    u = (1−β) u_old + β f(x)                                     MOML
        values="linear"     u = (1−β) u_old + β f(x_old) + J(x_old)(x − x_old)
        values="storm"      u = f(x) + (1−β)(u_old − f(x_old))

        gradient="raw"      v = z(w, u)
        gradient="average"  v = (1−β) v_old + β z(w, u)
        gradient="storm"    v = z(w, u) + (1−β)(v_old − z(w_old, u_old)),  w_old of the step before

    ("storm", "storm") is MSVR on K levels: noise between tasks is averaged over steps as well, which
    memory of the gradient of every task does not do. With B = M it is SMVR in every task.
    ("linear", "average") is NLASG with its derivatives at the weights of now.

    Wang, Yuan, Ying, Yang: Memory-based optimization methods for model-agnostic meta-learning and
    personalized federated learning, JMLR 2023 (one inner step).
    """

    beta: Setting
    values: str = eqx.field(static=True)
    gradient: str = eqx.field(static=True)
    blocks: ClassVar = "table"
    about: ClassVar = About("jiang2022msvr", certainty="a variant for an experiment; INFERRED")

    @property
    def passes(self):
        return {"value": Calls(2, 2)}

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        def start(chain: Problem, own: Batches) -> Any:
            inputs, pulls = [w], []
            for level, batch in zip(chain.levels, own, strict=True):
                f, pull = level.value_and_pull(inputs[-1], batch["value"])
                inputs.append(level.project(f))
                pulls.append(pull)
            *inputs, value = inputs
            return (value, pull_through(pulls, value)), tuple(inputs)

        (value, grad), table = fill_table(problem, batches, start)
        return Estimate(value, grad, {}), TaskState(w, table, grad, jnp.zeros((), jnp.int32))

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: TaskState):
        beta = at(self.beta, state.count + 1)

        def move(chain: Problem, own: Batches, row: tuple[PyTree, ...]) -> Any:
            new, pulls, tails = [w], [], []
            before = (state.w, *row[1:])
            for i, (level, batch) in enumerate(zip(chain.levels, own, strict=True)):
                f, pull = level.value_and_pull(new[i], batch["value"])
                pulls.append(pull)
                if self.gradient == "storm":
                    tails.append(level.value_and_pull(before[i], batch["value"])[1])
                if i < len(chain.levels) - 1:
                    tracked = self._tracked(level, batch["value"], f, new[i], row[i], row[i + 1], beta)
                    new.append(level.project(tracked))
            tail = pull_through(tails, f) if tails else None
            return (f, pull_through(pulls, f), tail), tuple(new)

        (value, z, tail), table, _ = visit_table(problem, batches, state.table, move)
        grad = z
        if self.gradient == "average":
            grad = average(state.grad, beta, z)
        elif self.gradient == "storm":
            grad = storm(z, 1 - beta, state.grad, tail)
        return Estimate(value, grad, {}), TaskState(w, table, grad, state.count + 1)

    def _tracked(self, level: Any, batch: Any, f: Any, new: Any, old: Any, u: Any, beta: Any) -> PyTree:
        """u^i from f at the new input, the input of the last visit, and what u^i was there."""
        if self.values == "average":
            return average(u, beta, f)
        if self.values == "storm":
            return storm(f, 1 - beta, u, level.value(old, batch))
        f_old, push, _ = level.value_and_maps(old, batch)
        moved = push(jax.tree.map(jnp.subtract, new, old))
        return jax.tree.map(jnp.add, average(u, beta, f_old), moved)

    def trackers(self, state: TaskState):
        return Trackers(state.w, state.table[1:])


class ProductSPIDER(Restarting):
    """Values by Nested-SPIDER, and v_t = v_{t-1} + ∏J(new) − ∏J(old) between restarts."""

    about: ClassVar = About("zhang2021nested", certainty="products for Jacobians; INFERRED")

    @property
    def passes(self):
        return {"value": Calls(2, 2)}

    def restart(self, problem: Problem, w: PyTree, batches: Batches, count: Array):
        forward = matrix_free.first_forward(problem, w, batches, "reuse")
        return self._read(
            forward, matrix_free.mean_of_products(forward.heads, forward.last, None), count
        )

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: Any):
        forward = matrix_free.track_forward(problem, w, batches, "reuse", jnp.ones(()), state)
        new = matrix_free.mean_of_products(forward.heads, forward.last, None)
        old = matrix_free.mean_of_products(forward.tails, forward.last, None)
        return self._read(forward, storm(new, 1.0, state.grad, old), state.count + 1)

    def _read(self, forward: Any, grad: PyTree, count: Array):
        return Estimate(forward.last, grad, {}), SpiderState(
            forward.inputs, None, forward.last, grad, count
        )

    def trackers(self, state: Any):
        return Trackers(state.inputs[0], (*state.inputs[1:], state.last))


class SpiderState(eqx.Module):
    inputs: tuple[PyTree, ...]
    before: None
    last: Array
    grad: PyTree
    count: Array
