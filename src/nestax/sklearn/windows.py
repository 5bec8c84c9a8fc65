"""Rows of tables that come in any size, as sources that share compiled programs.

A program is compiled for the shapes of its arrays. Estimators with ``fit`` meet a new number of rows in
every split and every part of a stream, so tables are filled up to a power of two here.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from nestax.draws.rows import Batch
from nestax.draws.source import AbstractSource, Population
from nestax.trees import on_device


def filled_size(rows: int, fewest: int) -> int:
    """Returns the next power of two, or ``fewest``, which is one."""
    return max(fewest, 2 ** math.ceil(math.log2(rows)))


class Window(Population):
    """The rows of a table, or of a tree of tables, repeated until their number is a power of two.

    Every row is drawn, and counts in the population, as if it were there once.
    """

    count: Array

    def __init__(self, rows: PyTree, fewest: int = 64):
        count = len(jax.tree.leaves(rows)[0])
        index = np.arange(filled_size(count, fewest)) % count
        super().__init__(jax.tree.map(lambda x: x[index], rows))
        # A row that is there c times weighs 1/c of one: means are those of the rows as given.
        self.weights = on_device(1 / (count * np.bincount(index)[index]))
        self.count = jnp.asarray(count)

    def draw(self, key: Array, step: Array, size: int) -> Batch:
        return self.rows(jax.random.randint(jax.random.fold_in(key, step), (size,), 0, self.count))


class GroupsWindow(AbstractSource):
    """Groups of rows (X, y) one after another in one table, which is filled up with zeros.

    A draw has one member of every group, as in ``nx.Groups``. The sizes of the groups are numbers, so
    that other ones never compile again. There is no population, for methods that need none.
    """

    data: tuple[Float[Array, "size d"], Array]
    first: Int[Array, " groups"]
    count: Int[Array, " groups"]

    def __init__(self, groups: list[tuple[np.ndarray, np.ndarray]], fewest: int = 512):
        count = np.asarray([len(y) for _, y in groups])
        missing = filled_size(count.sum(), fewest) - count.sum()
        tables = map(np.concatenate, zip(*groups, strict=True))
        X, y = (jnp.asarray(np.pad(x, [(0, missing), *[(0, 0)] * (x.ndim - 1)])) for x in tables)
        self.data = X, y
        self.first = jnp.asarray(np.cumsum(count) - count, jnp.int32)
        self.count = jnp.asarray(count, jnp.uint32)

    def draw(self, key: Array, step: Array, size: int) -> Batch:
        bits = jax.random.bits(jax.random.fold_in(key, step), (self.cost, size), jnp.uint32)
        # Remainders favour no row by more than a share of count/2³².
        index = self.first[:, None] + (bits % self.count[:, None]).astype(self.first.dtype)
        return Batch(
            tuple(
                # Without the promise XLA clips every index, and differentiates the clipping.
                jax.tree.map(lambda x, i=i: x.at[i].get(mode="promise_in_bounds"), self.data)
                for i in index
            )
        )

    def example(self) -> PyTree:
        row = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self.data)
        return (row,) * self.cost

    @property
    def cost(self) -> int:
        return len(self.first)
