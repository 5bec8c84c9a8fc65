"""Draws given other draws: F(w) = E_ξ f(E_{η|ξ} g(w; η, ξ), ξ), a block for every outer draw ξ.

The outer draws are rows, each of which comes back, or a simulator, whose draws never do. The inner
ones are simulated given ξ, or are rows of one list that all blocks share. So pairs of rows, sets of rows
at risk and answers to a query are implied: nothing is stored for a pair.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.draws.blocks import AbstractBlocks, Block, Visits
from nestax.draws.rows import HERE, Batch, arrived
from nestax.draws.source import AbstractSource, Sampler, checked_rows
from nestax.errors import ProblemError, check_count, is_traced

#: So many pairs can be seen side by side.
MOST_PAIRS = 2**24


class Conditional(AbstractBlocks):
    """Blocks that are outer draws ξ, each with inner draws η of its own; a step visits some ξ.

    A level on it is ``fn(x, (ξ, η), *args)``; with no inner draws, ``fn(x, ξ, *args)``: such a level is
    exact once ξ is known. A step draws ``batch_size`` inner draws for every outer one. All levels of a
    chain are about the same ξ, so all of them get the same ``outer``.

    Args:
        outer: rows, one a block, none visited twice in a step; or an ``nx.Sampler``, whose draws never
            come back, so that no method can remember anything of them.
        inner: ``fn(ξ, key)``, a simulator; or rows, any of which may stand beside any ξ; None for a
            level that sees ξ alone.
        visit: how many outer draws a step makes.
        ranges: (first, count) where the rows of ``inner`` that belong to a block are those from
            ``first`` on, so many: two arrays with a number for each block.
        shared: whether all outer draws of a step see the same inner rows, or the same keys. What a
            level computes of a row alone, such as the score of a model, is then computed once, for
            visit + batch_size rows in place of visit·batch_size. Without bias, but less averages out.
    """

    outer: PyTree
    inner: PyTree
    first: Array | None
    count: Array | None
    visit: int = eqx.field(static=True)
    shared: bool = eqx.field(static=True)
    simulated: bool = eqx.field(static=True)
    #: Rows of the longest range.
    longest: int = eqx.field(static=True)
    #: Pairs in all; None where something is simulated.
    pairs: int | None = eqx.field(static=True)

    def __init__(
        self,
        outer: Any,
        inner: Any = None,
        *,
        visit: int,
        ranges: tuple[Any, Any] | None = None,
        shared: bool = False,
    ):
        self.outer = outer if isinstance(outer, Sampler) else _rows("outer", outer)
        self.visit = check_count("visit", visit)
        if self.blocks is not None:
            self.holder = arrived(self.outer, "blocks")
        if self.blocks is not None and self.visit > self.blocks:
            raise ProblemError(
                f"visit must be at most the number of outer rows, {self.blocks}; got {visit}."
            )
        inner = inner.fn if isinstance(inner, Sampler) else inner
        self.simulated = callable(inner) and not any(map(trees.is_array, jax.tree.leaves(inner)))
        self.inner = inner if self.simulated or inner is None else _rows("inner", inner)
        self.shared = bool(shared)
        self.first = self.count = self.pairs = None
        self.longest = 0
        if ranges is not None and (self.simulated or inner is None or self.blocks is None):
            raise ProblemError("ranges say which rows belong to which: give rows as outer and as inner.")
        if self.simulated or inner is None:
            return
        rows = self._inner_rows
        self.longest = rows
        if ranges is not None:
            first, count = _ranges(ranges, self.blocks, rows)
            self.first = trees.on_device(first)
            self.longest = int(count.max())
            if (count != count[0]).any():
                self.count = trees.on_device(count)
            if shared:
                raise ProblemError("blocks with ranges of their own cannot share rows: shared=False.")
            self.pairs = int(count.sum(dtype=np.int64))
        elif self.blocks is not None:
            self.pairs = self.blocks * rows

    @property
    def draws(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner is not None

    @property
    def blocks(self) -> int | None:
        if isinstance(self.outer, Sampler):
            return None
        return jax.tree.leaves(self.outer)[0].shape[0]

    @property
    def held(self) -> PyTree:
        return None if isinstance(self.outer, Sampler) else (self.outer, self.first, self.count)

    @property
    def _inner_rows(self) -> int:
        return jax.tree.leaves(self.inner)[0].shape[0]

    @property
    def size(self) -> int | None:
        return self.pairs

    @property
    def weighted(self) -> bool:
        return self.count is not None

    @property
    def simulates(self) -> bool:
        return self.simulated

    def given(self, number: Any) -> PyTree:
        """ξ of a block, from its number or its key."""
        if isinstance(self.outer, Sampler):
            return self.outer.fn(number)
        return jax.tree.map(lambda x: x[number], self.outer)

    def seen(self, *draw: PyTree) -> PyTree:
        """With the first ξ: what a level would be given."""
        first = self.given(jax.random.key(0) if self.blocks is None else 0)
        return (first, *draw) if draw else first

    def seen_of_all(self, *draw: PyTree) -> PyTree:
        return (self.outer, *draw) if draw else self.outer

    def axes_of_all(self, batched: bool) -> Any:
        return (0, 1 if batched else 0) if self.draws else 0

    def draw_in(self, blocks: Array, key: Array, step: Array, size: int) -> Visits:
        key = jax.random.fold_in(key, step)
        shape = (size,) if self.shared else (len(blocks), size)
        if self.simulated:
            return Visits(blocks, jax.random.split(key, shape), self.shared)
        if self.first is None:
            return Visits(blocks, jax.random.randint(key, shape, 0, self._inner_rows), self.shared)
        count = self.longest if self.count is None else self.count[blocks][:, None]
        return Visits(blocks, self.first[blocks][:, None] + jax.random.randint(key, shape, 0, count))

    def batch(self, visit: Visits) -> Batch:
        if self.simulated:
            outer = self.given(visit.blocks)
            return Batch(jax.vmap(lambda key: self.inner(outer, key))(visit.index))
        return Batch(HERE.take(self.inner, visit.index), visit.index)

    def block(self, number: Any) -> "Given":
        outer = self.given(number)
        if self.inner is None:
            return Given(outer, None)
        if self.simulated:
            return Given(outer, Sampler(jax.tree_util.Partial(self.inner, outer)))
        if self.first is None:
            return Given(outer, Block(self.inner, None))
        # Beyond the end of a short range stand rows of others, which have no weight.
        places = jnp.minimum(self.first[number] + jnp.arange(self.longest), self._inner_rows - 1)
        rows = jax.tree.map(lambda x: x[places], self.inner)
        return Given(outer, Block(rows, None if self.count is None else self.count[number]))

    def every_row(self) -> Batch:
        if self.simulated or self.blocks is None:
            raise ProblemError(
                "a simulator has no population, so nothing exact can be computed from it: leave exact "
                "columns out of record=, or estimate F(w) with nx.evaluate(problem, w, draws=...)."
            )
        if self.pairs is not None and self.pairs > MOST_PAIRS:
            raise ProblemError(
                f"{self.pairs:,} pairs of rows are too many to be seen side by side: use "
                "problem.value(w), which goes through them in parts, or nx.evaluate(..., draws=...)."
            )
        places = jnp.arange(self.longest)[:, None] + (0 if self.first is None else self.first)
        places = jnp.broadcast_to(places, (self.longest, self.blocks))
        return Batch(jax.tree.map(lambda x: x[places], self.inner), many=True)

    def example(self) -> PyTree:
        if self.simulated:
            outer = jax.eval_shape(lambda: self.given(jax.random.key(0) if self.blocks is None else 0))
            return jax.eval_shape(self.inner, outer, jax.random.key(0))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self.inner)


class Given(AbstractSource):
    """One outer draw, and the source of its inner draws; None where a level sees the outer one alone."""

    outer: PyTree
    of: AbstractSource | None

    @property
    def draws(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.of is not None

    def seen(self, *draw: PyTree) -> PyTree:
        return (self.outer, *draw) if draw else self.outer

    def _inner(self) -> AbstractSource:
        assert self.of is not None
        return self.of

    def draw(self, key: Array, step: Array, size: int) -> Batch:
        return self._inner().draw(key, step, size)

    def population(self) -> Any:
        return self._inner().population()

    def example(self) -> PyTree:
        return self._inner().example()

    @property
    def size(self) -> int | None:
        return self._inner().size

    @property
    def weighted(self) -> bool:
        return self.of is not None and self.of.weighted


def _rows(name: str, data: Any) -> PyTree:
    """Rows on the device."""
    if isinstance(data, AbstractSource):
        raise ProblemError(
            f"{name} of nx.Conditional must be rows or a simulator; got nx.{type(data).__name__}."
        )
    if name == "outer" and callable(data) and not hasattr(data, "shape"):
        raise ProblemError("outer of nx.Conditional is a function: pass nx.Sampler(fn), fn(key).")
    try:
        return jax.tree.map(trees.on_device, checked_rows(data))
    except ProblemError as error:
        raise ProblemError(f"{name} of nx.Conditional: {error}") from None


def _ranges(ranges: Any, blocks: Any, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """First row and number of rows of every block, on the host."""
    if not isinstance(ranges, tuple) or len(ranges) != 2 or any(map(is_traced, ranges)):
        raise ProblemError(
            "ranges must be two arrays, (first, count), with a number for each outer row."
        )
    first, count = (np.asarray(x) for x in ranges)
    whole = all(x.dtype.kind in "iu" and x.shape == (blocks,) for x in (first, count))
    if not whole:
        raise ProblemError(
            f"ranges must be two arrays of whole numbers, (first, count), of shape ({blocks},); got "
            f"{first.shape} and {count.shape}."
        )
    if (count < 1).any():
        raise ProblemError(f"outer row {np.argmin(count)} has no inner rows in its range: leave it out.")
    wrong = (first < 0) | (first + count > rows)
    if wrong.any():
        raise ProblemError(
            f"the range of outer row {np.argmax(wrong)} reaches beyond the {rows:,} inner rows."
        )
    return first.astype(np.int32), count.astype(np.int32)
