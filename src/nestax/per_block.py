"""Any method with a memory of its own for every block."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax import trees
from nestax.blocks import over_blocks
from nestax.chain import mean_of_visited, visit_blocks, visited_in
from nestax.errors import ProblemError, SettingError, choose
from nestax.estimator import AbstractEstimator, Batches, Calls, Estimate, Trackers
from nestax.problem import Problem
from nestax.step import AbstractStep

STORES = ("float32", "bfloat16", "float16")


class PerBlock(AbstractEstimator):
    """An estimator that runs in every block by itself; ∇F is the average over the visited blocks.

    A block remembers the trackers of its last visit and the weights w that they belong to, so two-point
    corrections reach back to that visit however long ago it was. A step costs what the estimator costs
    in the visited blocks, whatever the number of blocks; memory is one state of the estimator per
    block, and the start visits all blocks once.

    Args:
        estimator: for a chain without blocks, such as ``nx.AdjointSMVR(beta=0.3)``. Its schedules count
            the visits of a block.
        store: floating-point type of the table, "float32", "bfloat16" or "float16"; None means that of
            the weights. Rounding at every visit adds noise of that precision to the trackers.
    """

    estimator: AbstractEstimator
    store: str | None = eqx.field(default=None, static=True)
    blocks: ClassVar = "table"

    def __check_init__(self):
        if not isinstance(self.estimator, AbstractEstimator) or self.estimator.blocks == "table":
            raise SettingError(
                "nx.PerBlock takes an estimator for chains without blocks, such as nx.AdjointSMVR(); "
                f"got {self.estimator!r}."
            )
        if self.lr is not None:
            raise SettingError("set lr on the estimator inside nx.PerBlock, not on nx.PerBlock itself.")
        if self.store is not None:
            choose("store", self.store, STORES)

    @property
    def passes(self) -> dict[str, Calls]:
        return self.estimator.passes

    @property
    def outer_passes(self) -> dict[str, Calls]:
        return self.estimator.outer_passes

    @property
    def lag(self) -> int:
        return self.estimator.lag

    @property
    def period(self) -> int | None:
        return self.estimator.period

    @property
    def refresh_batch(self) -> int | str | None:
        return self.estimator.refresh_batch

    def check(self, problem: Problem) -> None:
        if problem.blocks is None:
            raise ProblemError(
                "nx.PerBlock needs levels with nx.Blocks as data, and this chain has none: use "
                f"nx.{type(self.estimator).__name__} alone."
            )
        if self.refresh_batch == "population":
            raise ProblemError(
                f"{type(self.estimator).__name__} looks at the whole population, which visits to a few "
                "blocks do not: give it a number as restart_batch, or pass problem.every_block()."
            )
        self.estimator.check(problem.block(0))

    def published_step(self, problem: Problem) -> AbstractStep:
        return self.estimator.published_step(problem)

    def defaults(self, problem: Problem, horizon: Array | int, sizes: tuple[int, ...]) -> Any:
        blocks: Any = problem.blocks
        visits = jnp.maximum(1, jnp.asarray(horizon) * blocks.visit // blocks.blocks)
        return PerBlock(self.estimator.defaults(problem, visits, sizes), self.store)

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        """Visits all blocks, some at a time."""
        blocks: Any = problem.blocks
        if visited_in(batches).shape[0] != blocks.blocks:
            raise SettingError(
                "the start of nx.PerBlock visits every block: draw_batches(..., every_block=True)."
            )
        start = lambda chain, own: self.estimator.init(chain, w, own)
        some = lambda which: jax.tree.map(lambda x: x[which], batches)
        shapes = jax.eval_shape(lambda: visit_blocks(problem, some(jnp.arange(1)), start))
        estimate = jax.tree.map(lambda s: jnp.zeros(s.shape[1:], s.dtype), shapes[0])
        table = jax.tree.map(
            lambda s: jnp.zeros((blocks.blocks, *s.shape[1:]), self._stored(s.dtype)), shapes[1]
        )

        def group(which: Array, new: Array, carry: Any) -> Any:
            total, table = carry
            each, rows = visit_blocks(problem, some(which), start)
            share = lambda x: jnp.tensordot(new.astype(x.dtype), x, 1) / blocks.blocks
            return jax.tree.map(lambda t, x: t + share(x), total, each), _written(table, which, rows)

        return over_blocks(blocks.blocks, blocks.visit, group, (estimate, table))

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: PyTree):
        move = lambda chain, own, row: self.estimator.update(chain, w, own, row)
        return self._visit(problem, batches, state, move)

    def refresh(self, problem: Problem, w: PyTree, batches: Batches, state: PyTree):
        move = lambda chain, own, row: self.estimator.refresh(chain, w, own, row)
        return self._visit(problem, batches, state, move)

    def _visit(
        self, problem: Problem, batches: Batches, table: PyTree, move: Any
    ) -> tuple[Estimate, PyTree]:
        visited = visited_in(batches)
        rows = jax.tree.map(lambda t: t[visited], table)
        if self.store is not None:
            rows = trees.cast(rows, problem.dtype)
        each, rows = visit_blocks(problem, batches, move, rows)
        return mean_of_visited(each), _written(table, visited, rows)

    def _stored(self, dtype: Any) -> Any:
        return self.store if self.store and jnp.issubdtype(dtype, jnp.floating) else dtype

    def trackers(self, state: PyTree) -> Trackers:
        """Along a leading axis, that of the blocks."""
        return jax.vmap(self.estimator.trackers)(state)


def _written(table: PyTree, blocks: Array, rows: PyTree) -> PyTree:
    """The table with the rows of some blocks replaced."""
    return jax.tree.map(lambda t, r: t.at[blocks].set(r.astype(t.dtype)), table, rows)
