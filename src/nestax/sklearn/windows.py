"""Rows of tables that come in any size, as sources that share compiled programs; and runs as NumPy.

A program is compiled for the shapes of its arrays. Estimators with ``fit`` meet a new number of rows in
every split and every part of a stream, so tables are filled up to a power of two here.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from nestax.draws.source import AbstractSource, Batch
from nestax.run.result import Continuation


def filled_size(rows: int, fewest: int) -> int:
    """The next power of two, or ``fewest``, which is one."""
    return max(fewest, 2 ** math.ceil(math.log2(rows)))


class Window(AbstractSource):
    """The rows of a table, or of a tree of tables, repeated until their number is a power of two.

    Every row is drawn, and counts in the population, as if it were there once.
    """

    data: PyTree
    weights: Float[Array, " size"]
    count: Array

    def __init__(self, rows: PyTree, fewest: int = 64):
        count = len(jax.tree.leaves(rows)[0])
        index = np.arange(filled_size(count, fewest)) % count
        copies = np.bincount(index)[index]
        dtype = jnp.result_type(float)
        number = lambda x: jnp.asarray(x, dtype if x.dtype.kind == "f" else jnp.int32)
        self.data = jax.tree.map(lambda x: number(x[index]), rows)
        self.weights = jnp.asarray(1 / (count * copies), dtype)
        self.count = jnp.asarray(count)

    def draw(self, key: Array, step: Array, size: int) -> Batch:
        index = jax.random.randint(jax.random.fold_in(key, step), (size,), 0, self.count)
        take = lambda x: x.at[index].get(mode="promise_in_bounds")
        return Batch(jax.tree.map(take, self.data), index)

    def population(self) -> Batch:
        return Batch(self.data, None, self.weights)

    def example(self) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self.data)

    @property
    def size(self) -> int:
        return self.weights.shape[0]


class GroupsWindow(AbstractSource):
    """Groups of rows (X, y) one after another in one table, which is filled up with zeros.

    Draws are those of ``nx.Groups``, one member of every group. The sizes of the groups are numbers, so
    that other ones never compile again. There is no population, for methods that need none.
    """

    data: tuple[Float[Array, "size d"], Array]
    first: Int[Array, " groups"]
    count: Int[Array, " groups"]

    def __init__(self, groups: list[tuple[np.ndarray, np.ndarray]], fewest: int = 512):
        count = np.asarray([len(y) for _, y in groups])
        missing = filled_size(count.sum(), fewest) - count.sum()
        fill = lambda x: np.pad(x, [(0, missing), *[(0, 0)] * (x.ndim - 1)])
        X, y = (jnp.asarray(fill(np.concatenate(column))) for column in zip(*groups, strict=True))
        self.data = X, y
        self.first = jnp.asarray(np.cumsum(count) - count, jnp.int32)
        self.count = jnp.asarray(count, jnp.uint32)

    def draw(self, key: Array, step: Array, size: int) -> Batch:
        bits = jax.random.bits(jax.random.fold_in(key, step), (self.cost, size), jnp.uint32)
        # Remainders favour no row by more than a share of count/2³².
        index = self.first[:, None] + (bits % self.count[:, None]).astype(self.first.dtype)
        take = lambda x, rows: x.at[rows].get(mode="promise_in_bounds")
        return Batch(tuple(jax.tree.map(lambda x, i=i: take(x, i), self.data) for i in index))

    def example(self) -> PyTree:
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self.data)
        return (one,) * self.cost

    @property
    def cost(self) -> int:
        return len(self.first)


def without_jax(carry: Continuation) -> Continuation:
    """NumPy arrays alone, so that an estimator that keeps it can be copied, hashed and pickled."""
    leaves = [np.asarray(x) for x in jax.tree.leaves(carry.lane)]
    return dataclasses.replace(carry, lane=leaves, key=np.asarray(jax.random.key_data(carry.key)))


def with_jax(carry: Continuation) -> Continuation:
    """The carry that ``without_jax`` made its own, for ``minimize(start=...)``."""
    return dataclasses.replace(carry, key=jax.random.wrap_key_data(jnp.asarray(carry.key)))
