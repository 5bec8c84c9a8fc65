"""C-SAGA: a table with the last value and Jacobian of every row, two levels.

Zhang, Xiao: A composite randomized incremental gradient method, ICML 2019.

symbol    here               meaning
x         w                  weights
α_j       –                  weights at which row j was seen last; not stored
g_j(α_j)  table              its value and Jacobian then, one entry per row
S         batch["value"]     the rows of this step
y, z      value[0], jac      estimates of g(x) and J_g(x)
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

import nestax.trees as trees
from nestax.chain.jacobian import Jacobian, pull_through
from nestax.chain.problem import Problem
from nestax.draws.source import Population
from nestax.errors import ProblemError
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate


class CSAGAState(eqx.Module):
    """``table`` and ``mean`` hold pairs (value, Jacobian): one per row, and their average."""

    w: PyTree
    value: tuple[PyTree, PyTree]
    jac: Jacobian
    table: Any
    mean: Any


class CSAGA(AbstractEstimator):
    """C-SAGA for F = f ∘ g + r, g an average over n rows and f deterministic.

        y = mean of the table + avg_S[g_j(x) − g_j(α_j)],   z likewise with Jacobians
        v = zᵀ ∇f(y);   then the entries of S are replaced

    The table takes n·d_1·(1 + d) numbers, and the start one pass over the rows.

    Args:
        lr: of the proximal step; 0.1 by default.
    """

    about: ClassVar = About(
        "zhang2019csaga",
        "n + n^⅔ ε⁻²",
        "finite populations",
        "n values and Jacobians",
        2,
        "SnapshotSMVR",
        True,
        True,
    )
    passes: ClassVar = {"value": Calls(1, 1)}
    refresh_batch: ClassVar = "population"

    def check(self, problem: Problem):
        super().check(problem)
        source = problem.levels[0].source
        if not isinstance(source, Population) or source.weights is not None:
            raise ProblemError(
                "CSAGA needs an inner level whose rows count equally: use SnapshotSMVR instead."
            )

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        rows: Any = batches[0]["value"]
        table = problem.levels[0].value_and_jac_each(w, rows)
        mean = jax.tree.map(lambda x: jnp.mean(x, axis=0), table)
        return self._read(problem, w, mean, table, mean)

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: CSAGAState):
        batch: Any = batches[0]["value"]
        index = trees.row_numbers(batch.index)
        new = problem.levels[0].value_and_jac_each(w, batch)
        old = jax.tree.map(lambda x: x[index], state.table)
        change = jax.tree.map(jnp.subtract, new, old)
        estimate = jax.tree.map(lambda m, c: m + jnp.mean(c, axis=0), state.mean, change)
        # A row drawn twice is replaced once, so it moves the mean of the table once.
        once = 1 / jnp.sum(index[:, None] == index[None, :], axis=1)
        rows = jax.tree.leaves(state.table)[0].shape[0]
        mean = jax.tree.map(
            lambda m, c: m + jnp.tensordot(once.astype(c.dtype), c, 1) / rows, state.mean, change
        )
        table = jax.tree.map(lambda t, n: t.at[index].set(n), state.table, new)
        return self._read(problem, w, estimate, table, mean)

    def _read(self, problem: Problem, w: PyTree, estimate: tuple, table: Any, mean: Any):
        g, f = problem.levels
        y = g.project(estimate[0])
        z = estimate[1]
        value, pull_f = f.value_and_pull(y, None)
        grad = pull_through([z.pull, pull_f], value)
        return Estimate(value, grad, {}), CSAGAState(w, (y, value), z, table, mean)
