"""Any method with a memory of its own for every block."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.problem import Problem
from nestax.errors import ProblemError, SettingError, choose
from nestax.parts.estimator import About, AbstractEstimator, Batches, Trackers
from nestax.parts.step_rule import AbstractStep
from nestax.parts.tables import fill_table, visit_table
from nestax.steps.descent import step_of

STORES = ("float32", "bfloat16", "float16")


class PerBlock(AbstractEstimator):
    """An estimator that runs in every block by itself; ∇F is the average over the visited blocks.

    A block remembers the trackers of its last visit and the weights w that they belong to, so two-point
    corrections reach back to that visit however long ago it was. A step costs what the estimator costs
    in the visited blocks, whatever the number of blocks; memory is one state of the estimator per
    block, and the start visits all blocks once.

    Args:
        estimator: for a chain without blocks, such as ``nx.AdjointSMVR(beta=0.3, mode="fresh")``. Its
            schedules count the visits of a block. One that lags by a step, as mode="lagged" does, lags
            by a visit here, and a block's gradient is then about M/B steps old.
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
    def about(self) -> About:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.estimator.about

    @property
    def output(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.estimator.output

    passes: ClassVar[Any] = property(lambda self: self.estimator.passes)
    outer_passes: ClassVar[Any] = property(lambda self: self.estimator.outer_passes)
    lag: ClassVar[Any] = property(lambda self: self.estimator.lag)
    period: ClassVar[Any] = property(lambda self: self.estimator.period)
    refresh_batch: ClassVar[Any] = property(lambda self: self.estimator.refresh_batch)

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
        if problem.endless:
            super().check(problem)  # refuses
        self.estimator.check(problem.block(0))

    def published_step(self, problem: Problem) -> AbstractStep:
        return step_of(self.estimator, problem)

    def defaults(self, problem: Problem, horizon: Array | int, sizes: tuple[int, ...]) -> Any:
        blocks: Any = problem.blocks
        visits = jnp.maximum(1, jnp.asarray(horizon) * blocks.visit // blocks.blocks)
        return PerBlock(self.estimator.defaults(problem, visits, sizes), self.store)

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        def start(chain: Problem, draws: Batches) -> Any:
            return self.estimator.init(chain, w, draws)

        return fill_table(problem, batches, start, self.store)

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: PyTree):
        return self._visit(self.estimator.update, problem, w, batches, state)

    def refresh(self, problem: Problem, w: PyTree, batches: Batches, state: PyTree):
        """Of the visited blocks; others go on until a visit falls on such a step."""
        return self._visit(self.estimator.refresh, problem, w, batches, state)

    def _visit(self, method: Any, problem: Problem, w: PyTree, batches: Batches, state: PyTree):
        def move(chain: Problem, draws: Batches, row: PyTree) -> Any:
            return method(chain, w, draws, self._loaded(row, w))

        return visit_table(problem, batches, state, move)[:2]

    def _loaded(self, row: PyTree, w: PyTree) -> PyTree:
        """Returns a row of the table in the dtype of the weights."""
        return row if self.store is None else trees.cast(row, jax.tree.leaves(w)[0].dtype)

    def believed(self, problem: Problem, state: PyTree) -> dict[str, Array]:
        """Root mean squares over the blocks with an error bar; the gradient's is left out."""

        def squares(block: Problem, row: PyTree) -> dict[str, tuple[Array, Array]]:
            bars = self.estimator.believed(block, self._loaded(row, problem.w0))
            known = {name: jnp.isfinite(x).astype(x.dtype) for name, x in bars.items() if x.ndim}
            return {name: (jnp.nan_to_num(bars[name]) ** 2, share) for name, share in known.items()}

        means = problem.mean_over_blocks(squares, state)
        return {name: jnp.sqrt(square / share) for name, (square, share) in means.items()}

    def trackers(self, state: PyTree) -> Trackers:
        """Along a leading axis, that of the blocks."""
        return jax.vmap(self.estimator.trackers)(state)
