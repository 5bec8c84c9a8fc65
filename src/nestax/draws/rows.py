"""Rows side by side: who holds them, and the means of draws over them.

A population, a table and whatever has blocks are arrays with a common leading axis. In the ordinary case
one device holds all of their rows. Where several do (``nestax.devices.rows``) the same verbs read, add
up and visit rows where they lie, so that nobody who uses them has to know.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

#: Into how many groups a batch is divided at most.
GROUPS = 16


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


def held_by(tree: PyTree, holder: Holder) -> PyTree:
    """A problem, a source or a batch whose rows another holds; the arrays stay where they are."""

    def is_holder(x: Any) -> bool:
        return isinstance(x, Holder)

    return jax.tree.map(lambda x: holder if is_holder(x) else x, tree, is_leaf=is_holder)


class Batch(eqx.Module):
    """A stack of draws of one level: every leaf of ``draws`` has the batch as its leading axis.

    index: the rows of the population that these draws are, where there is one.
    weights: how much each draw counts, summing to one; None means equally.
    many: whether there may be any number of them, as in a population: they are then averaged in turns.
    holder: who holds the draws.
    """

    draws: PyTree
    index: PyTree = None
    weights: Array | None = None
    many: bool = eqx.field(static=True, default=False)
    holder: Holder = HERE

    @property
    def size(self) -> int:
        return jax.tree.leaves(self.draws)[0].shape[0]

    def in_groups(self, most: int = GROUPS) -> "Batch":
        """Divides the draws into groups of equal size, along a leading axis.

        As many groups as go, but at most ``GROUPS`` and at most ``most``, if that is above one: the more
        there are, the better is it known how much groups differ.
        """
        size = self.size
        most = min(max(most, 2), GROUPS)
        groups = max(g for g in range(1, min(size, most) + 1) if size % g == 0)
        if groups < 4 <= most and size <= 256:  # a batch that does not divide well: every draw by itself
            groups = size
        return Batch(jax.tree.map(lambda x: x.reshape(groups, size // groups, *x.shape[1:]), self.draws))

    def part(self, start: Array | int, size: int) -> "Batch":
        draws, weights = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), (self.draws, self.weights)
        )
        return Batch(draws, None, weights)

    def one(self) -> "Batch":
        """A single draw, whichever."""
        return Batch(self.holder.take(self.draws, jnp.arange(1)))

    def at_once(self, most: int) -> bool:
        """Whether the mean is taken of all draws at once, if at most ``most`` may be."""
        return isinstance(self.holder, Here) and self.size <= most

    def mean(self, fn: Callable[["Batch"], PyTree], most: int) -> PyTree:
        """Mean of ``fn(part)``, itself a mean over a part of at most ``most`` draws."""

        def of_held(held: tuple[PyTree, Array | None]) -> PyTree:
            part = Batch(held[0], None, held[1])
            mean = in_turns(part, fn, most)
            share = part.size / self.size
            if part.weights is not None or share == 1:  # with weights it is a sum already
                return mean
            return jax.tree.map(lambda y: jnp.asarray(share, y.dtype) * y, mean)

        return self.holder.total(of_held, (self.draws, self.weights))


class Coupling:
    """The comonotone coupling of uniform populations: at time t in [0, 1), row ⌊t·N_g⌋ of each."""

    many = True

    def __init__(self, members: tuple[Any, ...]):
        sizes = [member.size for member in members]
        common = math.lcm(*sizes)
        ticks = sorted({k * (common // n) for n in sizes for k in range(n)} | {common})
        starts = np.asarray(ticks[:-1], dtype=object)
        self.members = members
        self.index = [np.asarray(starts * n // common, np.int32) for n in sizes]
        widths = np.asarray([(b - a) / common for a, b in itertools.pairwise(ticks)])
        self.weights = None if len(set(sizes)) == 1 else jnp.asarray(widths)

    @property
    def size(self) -> int:
        return len(self.index[0])

    def part(self, start: Array | int, size: int) -> Batch:
        index, weights = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(jnp.asarray(x), start, size),
            (self.index, self.weights),
        )
        rows = [m.rows(i).draws for m, i in zip(self.members, index, strict=True)]
        return Batch(tuple(rows), None, weights)

    def one(self) -> Batch:
        return self.part(0, 1)

    def at_once(self, most: int) -> bool:
        """Never: atoms are put together in parts."""
        del most
        return False

    def mean(self, fn: Callable[[Batch], PyTree], most: int) -> PyTree:
        return in_turns(self, fn, most)


def in_turns(batch: Batch | Coupling, fn: Callable[[Batch], PyTree], most: int) -> PyTree:
    """Σ share·``fn(part)`` over parts of at most ``most`` draws, the shares those of the draws.

    Where draws have weights, a share is the weight of the part.
    """
    n = batch.size
    most = max(1, min(n, most))
    whole, rest = divmod(n, most)

    def add(total: PyTree, start: Array | int, size: int) -> PyTree:
        part = batch.part(start, size)
        share = size / n if part.weights is None else jnp.sum(part.weights)
        return jax.tree.map(lambda t, y: t + jnp.asarray(share, y.dtype) * y, total, fn(part))

    shapes = jax.eval_shape(lambda: fn(batch.part(0, most)))
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    total = jax.lax.fori_loop(0, whole, lambda k, t: add(t, k * most, most), zero)
    return add(total, whole * most, rest) if rest else total
