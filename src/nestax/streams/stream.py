"""Rows fed from the host, in the order in which they come."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from nestax.draws.rows import Batch
from nestax.draws.source import AbstractSource
from nestax.errors import ProblemError
from nestax.streams.items import Items
from nestax.streams.readers import Arrays, Parquet, Reader


class Hidden:
    """A thing of the host that is no part of a compiled program: equal to every other one."""

    def __init__(self, thing: Any):
        self.thing = thing

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hidden)

    def __repr__(self) -> str:
        return "…"


class Stream(AbstractSource):
    """Rows that need not fit into memory, read in their order while the run computes.

    The rows of a step are those that follow the rows of the step before, so that they depend neither on
    the seed nor on how a run is cut into pieces. Order matters: shuffle what is sorted before you
    stream it. Give levels that read the same rows one and the same Stream; they take turns, so that
    their draws are independent.

    Args:
        data: NumPy arrays with a common leading axis, such as ``np.load(path, mmap_mode="r")``, or a
            tree of them; the path of a Parquet file; or an iterator, for example over a Grain loader.
            Arrays and files begin again at their end, an iterator ends the run.
        columns: of a Parquet file, which must hold numbers; a row is a vector of them. None means all.
        batches: every item of the iterator is a batch of rows, along a leading axis, and not one row.
            Batches may be of any sizes; what a step takes is its batch size.

    rows: what is at hand: the first row, in a run the rows of the next steps.
    first: the step that ``starts`` begins with.
    starts: where the rows of every step begin; outside of a run there are none.
    """

    rows: PyTree
    first: Int[Array, ""]
    starts: Int[Array, " steps"]
    hidden: Hidden = eqx.field(static=True)
    fed: ClassVar = True

    def __init__(self, data: Any, *, columns: Sequence[str] | None = None, batches: bool = False):
        reader = reader_of(data, None if columns is None else list(columns), batches)
        rows, why = reader.read(0, 1)
        if why is not None:
            raise ProblemError(why)
        self.rows = jax.tree.map(jnp.asarray, rows)
        self.first = jnp.zeros((), jnp.int32)
        self.starts = jnp.zeros(0, jnp.int32)
        self.hidden = Hidden(reader)

    @property
    def reader(self) -> Reader:
        return self.hidden.thing

    def holding(self, rows: PyTree, first: Any, starts: Any) -> "Stream":
        """Returns this stream with other rows at hand."""
        new = (self._like(rows), jnp.asarray(first, jnp.int32), jnp.asarray(starts, jnp.int32))
        return eqx.tree_at(lambda s: (s.rows, s.first, s.starts), self, new)

    def some(self, count: int) -> Batch:
        """Returns the first rows, at most so many."""
        return Batch(self._like(self.reader.read(0, count).rows))

    def _like(self, rows: PyTree) -> PyTree:
        return jax.tree.map(lambda x, old: jnp.asarray(x, old.dtype), rows, self.rows)

    def draw(self, key: Array, step: Array, size: int) -> Batch:
        return self.draw_pass(0, key, step, size)

    def draw_pass(self, number: int, key: Array, step: Array, size: int) -> Batch:
        del key
        if not self.starts.size:
            raise ProblemError(
                "a Stream has no rows at hand here: draws from it are made by nx.minimize, nx.sweep, "
                "nx.check and nx.evaluate."
            )
        start = self.starts.at[step - self.first].get(mode="clip") + number * size
        return Batch(jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), self.rows))

    def population(self) -> Batch:
        raise ProblemError(
            "a Stream has no population at hand: leave exact columns out of record=, use a method that "
            "does not average over the population, and evaluate weights with nx.evaluate(problem, w)."
        )

    def example(self) -> PyTree:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self.rows)


def reader_of(data: Any, columns: list[str] | None, batches: bool) -> Reader:
    """Makes the reader for what a user calls data."""
    if isinstance(data, Reader):
        return data
    if isinstance(data, str | Path):
        return Parquet(data, columns)
    if columns is not None:
        raise ProblemError("columns= is for Parquet files: choose columns of arrays by indexing them.")
    if _is_iterator(data):
        return Items(data, batches)
    if batches:
        raise ProblemError("batches= is for iterators: arrays and files are rows already.")
    return Arrays(data)


def _is_iterator(data: Any) -> bool:
    tree = isinstance(data, list | tuple | dict) or hasattr(data, "__array__")
    return not tree and hasattr(data, "__iter__")
