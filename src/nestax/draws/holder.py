"""Who holds rows: arrays with a common leading axis, one entry for a row or a block.

In the ordinary case one device holds all of them. Where several do (``nestax.devices.rows``) the same
verbs read, add up and visit rows where they lie, so that nobody who uses them has to know.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, PyTree


class Holder(eqx.Module):
    """Reads, adds up and visits rows; a tree without leaves, and so a part of a program's structure.

    Functions that are handed over may close over arrays.
    """

    def parts(self, count: int) -> int:
        """Into how many parts of one size so many rows are summed."""
        raise NotImplementedError

    def take(self, rows: PyTree, index: Array) -> PyTree:
        """``rows[index]``; the numbers are in range."""
        raise NotImplementedError

    def total_and_rows(
        self, fn: Callable[[PyTree], tuple[PyTree, PyTree]], rows: PyTree
    ) -> tuple[PyTree, PyTree]:
        """``fn(part) = (term, new rows)`` of all parts: the sum of the terms, and all new rows."""
        raise NotImplementedError

    def total(self, fn: Callable[[PyTree], PyTree], rows: PyTree) -> PyTree:
        """Σ ``fn(part)`` over the parts of some rows."""
        return self.total_and_rows(lambda part: (fn(part), ()), rows)[0]

    def visit(
        self,
        fn: Callable[[PyTree, Array, PyTree, PyTree], tuple[PyTree, PyTree]],
        rows: PyTree,
        table: PyTree,
        index: Array,
        each: PyTree,
    ) -> tuple[PyTree, PyTree]:
        """``fn(rows, number, row, one) = (outcome, new row)`` for each of some rows.

        Returns the outcomes, in the order of ``index``, and the table with its new rows.

        Args:
            rows: what is read; ``number`` says where the row is among those that ``fn`` is given.
            table: what is read and replaced, with as many rows; it may be empty.
            index: the numbers of the rows, none of them twice.
            each: arrays with an entry for each of ``index``, of which ``one`` belongs to the row.
        """
        raise NotImplementedError


class Here(Holder):
    """One device holds all rows, and visits them side by side."""

    def parts(self, count: int) -> int:
        return 1

    def take(self, rows: PyTree, index: Array) -> PyTree:
        return jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), rows)

    def total_and_rows(
        self, fn: Callable[[PyTree], tuple[PyTree, PyTree]], rows: PyTree
    ) -> tuple[PyTree, PyTree]:
        return fn(rows)

    def visit(
        self, fn: Callable[..., Any], rows: PyTree, table: PyTree, index: Array, each: PyTree
    ) -> tuple[PyTree, PyTree]:
        old = self.take(table, index)
        outcomes, new = jax.vmap(lambda *one: fn(rows, *one))(index, old, each)
        # New rows that do not depend on old ones, such as the weights, could be written before those are
        # read, and to be able to do so XLA would copy the whole table at every step: so they do.
        new = jax.tree.map(lambda x, y: x + 0 * y.astype(x.dtype), new, old)
        return outcomes, put(table, index, new)


HERE = Here()


def put(table: PyTree, index: Array, new: PyTree) -> PyTree:
    """A table of one device with some rows replaced, in the dtypes of the table."""

    def write(x: Array, y: Array) -> Array:
        return x.at[index].set(y.astype(x.dtype), mode="promise_in_bounds")

    return jax.tree.map(write, table, new)


@functools.singledispatch
def holder_of(sharding: Any, what: str = "rows") -> Holder:
    """Finds who holds arrays that have arrived, by their sharding along the leading axis.

    ``nestax.devices.rows`` registers those of several devices.
    """
    del sharding, what
    return HERE


def arrived(rows: PyTree, what: str = "rows") -> Holder:
    """Finds who holds the arrays that a source is made of."""
    return holder_of(getattr(jax.tree.leaves(rows)[0], "sharding", None), what)


def is_holder(x: Any) -> bool:
    return isinstance(x, Holder)


def held_by(tree: PyTree, holder: Holder) -> PyTree:
    """A problem, a source or a batch whose rows another holds; the arrays stay where they are."""
    return jax.tree.map(lambda x: holder if is_holder(x) else x, tree, is_leaf=is_holder)
