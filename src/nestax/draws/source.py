"""Where draws come from. A draw is a pure function of (key, step): nothing is consumed."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

import nestax.trees as trees
from nestax.draws.rows import HERE, Batch, Coupling, Holder, arrived
from nestax.errors import ProblemError, check_setting, is_traced


class AbstractSource(eqx.Module):
    """Something a level draws from.

    fed: whether its rows come from the host while the run computes.

    size: how many rows the population has; None where there is no population.
    cost: how many samples one draw counts as.
    start_cost: the same for the draws of the start.
    weighted: whether the members of the population count differently.
    most: the largest batch that can be drawn; None where there is no such limit.
    draws: whether it draws at all; False where it only tells a level what is given.
    holder: who holds its rows.
    """

    holder: Holder = eqx.field(default=HERE, kw_only=True)

    fed: ClassVar[bool] = False
    draws: ClassVar[bool] = True

    def seen(self, *draw: PyTree) -> PyTree:
        """What the function of a level is given for a draw: with it, what is known beforehand."""
        return draw[0]

    def draw(self, key: Array, step: Array, size: int) -> Batch:
        """``size`` draws that belong to ``step``."""
        raise NotImplementedError

    def draw_pass(self, number: int, key: Array, step: Array, size: int) -> Batch:
        """The draws of one of a level's passes; what makes them independent is usually the key alone."""
        del number
        return self.draw(key, step, size)

    def population(self) -> Batch | Coupling:
        """Every atom with its weight; anything with ``size``, ``weights`` and ``part``."""
        raise NotImplementedError

    def some(self, count: int) -> Batch | Coupling:
        """Something to look at before a run: the population, or so many draws where there is none."""
        return self.population() if self.size else self.draw(jax.random.key(0), jnp.asarray(0), count)

    def example(self) -> PyTree:
        """The shapes of one draw."""
        raise NotImplementedError

    @property
    def held(self) -> PyTree:
        """The arrays with an entry for every row, or every block, which several devices may share."""
        return None

    def unseen(self, size: int) -> float:
        """The share of the rows that are not in a batch: one, unless its rows are different ones."""
        return 1.0 if self.most is None else max(0.0, 1.0 - size / self.most)

    @property
    def size(self) -> int | None:
        return None

    @property
    def cost(self) -> int:
        return 1

    @property
    def start_cost(self) -> int:
        return self.cost

    @property
    def weighted(self) -> bool:
        return False

    @property
    def most(self) -> int | None:
        return None


class Population(AbstractSource):
    """A finite population: a tree of arrays with a common leading axis, one row per member.

    Args:
        data: the rows. Floating-point leaves take the dtype of the weights w.
        weights: probability of each row, any positive scale; None means equal.
        replace: False walks through the population in a new random order every epoch, as in
            mini-batch training (the rows that do not fill a batch sit out that epoch). Draws of
            successive steps are then not independent, which the theory assumes.
    """

    data: PyTree
    weights: Array | None
    alias: tuple[Array, Array] | None
    replace: bool = eqx.field(static=True)

    def __init__(self, data: PyTree, *, weights: Any = None, replace: bool = True):
        self.data = jax.tree.map(trees.on_device, checked_rows(data))
        self.replace = replace
        self.holder = arrived(self.data)
        self.weights = self.alias = None
        if weights is not None:
            if not replace:
                raise ProblemError("row weights and replace=False cannot be combined.")
            probability = np.asarray(weights, np.float64)
            if probability.shape != (self.size,):
                raise ProblemError(
                    f"weights must be one number per row, shape ({self.size},); "
                    f"got shape {probability.shape}."
                )
            check_setting("weights", probability, "positive and finite", _positive)
            probability = probability / probability.sum()
            self.weights = trees.on_device(probability)
            self.alias = _alias_table(probability)

    def draw(self, key: Array, step: Array, size: int) -> Batch:
        if not self.replace:
            index = self._epoch_rows(key, step, size)
        elif self.alias is None:
            index = jax.random.randint(jax.random.fold_in(key, step), (size,), 0, self.size)
        else:  # Walker's alias method: one row and one coin per draw
            which, coin = jax.random.split(jax.random.fold_in(key, step))
            index = jax.random.randint(which, (size,), 0, self.size)
            accept, other = self.holder.take(self.alias, index)
            index = jnp.where(jax.random.uniform(coin, (size,)) < accept, index, other)
        return self.rows(index)

    @property
    def most(self) -> int | None:
        return None if self.replace else self.size

    def _epoch_rows(self, key: Array, step: Array, size: int) -> Int[Array, " size"]:
        per_epoch = self.size // size
        if per_epoch == 0:
            raise ProblemError(
                f"a batch of {size} without replacement needs at least {size} rows; "
                f"the population has {self.size}."
            )
        epoch = step // per_epoch
        position = step % per_epoch
        places = position * size + jnp.arange(size)
        return shuffled(jax.random.fold_in(key, epoch), places, self.size)

    def rows(self, index: Int[Array, " size"]) -> Batch:
        return Batch(self.holder.take(self.data, index), index)

    def population(self) -> Batch:
        return Batch(self.data, None, self.weights, many=True, holder=self.holder)

    @property
    def held(self) -> PyTree:
        return self.data, self.weights, self.alias

    def example(self) -> PyTree:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self.data)

    @property
    def size(self) -> int:
        return jax.tree.leaves(self.data)[0].shape[0]

    @property
    def weighted(self) -> bool:
        return self.weights is not None


class Sampler(AbstractSource):
    """A simulator: ``fn(key)`` returns one draw. There is no population, so no exact oracle."""

    fn: Callable[[Array], PyTree]

    def draw(self, key: Array, step: Array, size: int) -> Batch:
        keys = jax.random.split(jax.random.fold_in(key, step), size)
        return Batch(jax.vmap(self.fn)(keys))

    def population(self) -> Batch:
        raise ProblemError(
            "a Sampler has no population, so nothing exact can be computed from it: leave exact "
            "columns out of record=, or estimate F(w) with nx.evaluate(problem, w, draws=...)."
        )

    def example(self) -> PyTree:
        return jax.eval_shape(self.fn, jax.random.key(0))


class Groups(AbstractSource):
    """Several populations of different sizes; one draw holds one member of each, as a tuple.

    The members are drawn independently. Exact averages over the population assume that every
    output of the level depends on the members of the groups separately (a sum of functions of one
    member each, as for one entry per group): they run over a coupling of the groups that has the
    right marginals and at most as many atoms as there are rows in all.
    """

    members: tuple[Any, ...]

    def __init__(self, groups: Sequence[Any]):
        self.members = tuple(as_source(group) for group in groups)
        for number, member in enumerate(self.members):
            if not isinstance(member, Population):
                raise ProblemError(f"group {number} must be a population of rows.")
            if member.weights is not None:
                raise ProblemError(f"group {number} has row weights, which groups do not take.")
        if not self.members:
            raise ProblemError("Groups needs at least one group.")

    def draw(self, key: Array, step: Array, size: int) -> Batch:
        parts = [
            member.draw(jax.random.fold_in(key, number), step, size)
            for number, member in enumerate(self.members)
        ]
        return Batch(tuple(p.draws for p in parts), tuple(p.index for p in parts))

    def population(self) -> Coupling:
        return Coupling(self.members)

    def example(self) -> PyTree:
        return tuple(member.example() for member in self.members)

    @property
    def size(self) -> int:
        return sum(member.size for member in self.members)

    @property
    def cost(self) -> int:
        return len(self.members)

    @property
    def weighted(self) -> bool:
        return len({member.size for member in self.members}) > 1


def as_source(data: Any) -> AbstractSource:
    return data if isinstance(data, AbstractSource) else Population(data)


def shuffled(key: Array, places: Int[Array, " size"], n: int) -> Int[Array, " size"]:
    """Where a random permutation of 0..n-1 sends ``places``, without building the permutation.

    A four-round Feistel network permutes the next power of four; places that land outside 0..n-1
    are sent on until they land inside, which keeps it a permutation.
    """
    half = max(1, math.ceil(math.log2(max(n, 2)) / 2))
    mask = jnp.uint32(2**half - 1)
    round_keys = jax.random.bits(key, (4,), jnp.uint32)

    def once(x: Array) -> Array:
        left = x >> half
        right = x & mask
        for k in round_keys:
            mixed = (right ^ k) * jnp.uint32(0x9E3779B1)
            mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x85EBCA77)
            left, right = right, left ^ ((mixed ^ (mixed >> 13)) & mask)
        return (left << half) | right

    def walk(x: Array) -> Array:
        return jnp.where(x >= n, once(x), x)

    first = once(places.astype(jnp.uint32))
    return jax.lax.while_loop(lambda x: jnp.any(x >= n), walk, first).astype(jnp.int32)


def _alias_table(probability: np.ndarray) -> tuple[Array, Array]:
    """Walker's table: row k is kept with probability accept[k], else replaced by other[k]."""
    n = len(probability)
    accept = probability * n
    other = np.arange(n)
    small = list(np.flatnonzero(accept < 1))
    large = list(np.flatnonzero(accept >= 1))
    while small and large:
        low = small.pop()
        high = large[-1]
        other[low] = high
        accept[high] -= 1 - accept[low]
        if accept[high] < 1:
            small.append(large.pop())
    accept[small + large] = 1.0
    return trees.on_device(accept), trees.on_device(other.astype(np.int32))


def checked_rows(data: PyTree) -> PyTree:
    """The arrays of a population, those of NumPy still on the host; refuses what is none."""
    if not jax.tree.leaves(data):
        raise ProblemError("data holds no array: pass at least one array with one row a draw.")
    if isinstance(data, str | Path):
        raise ProblemError(
            f"data is the name of a file, {str(data)!r}: read it first (np.load, "
            "nx.datasets.read_returns), or let nx.Stream read it in parts."
        )
    for x in jax.tree.leaves(data):
        _refuse_words(x)
    given = jax.tree.leaves(data)
    data = jax.tree.map(trees.on_host, data)
    leaves = jax.tree.leaves(data)
    if any(x.ndim == 0 for x in leaves):
        if any(
            isinstance(x, list) for x in jax.tree.leaves(data, is_leaf=lambda x: isinstance(x, list))
        ):
            raise ProblemError("data holds lists of numbers: make arrays of them, np.asarray(rows).")
        raise ProblemError("data must be arrays with one row per draw; got a single number.")
    lengths = {x.shape[0] for x in leaves}
    if len(lengths) > 1:
        raise ProblemError(
            "the arrays of data must have one common leading axis, one row a draw; "
            f"got lengths {sorted(lengths)}."
        )
    if lengths == {0}:
        raise ProblemError("data is empty: it needs at least one row.")
    for x, before in zip(leaves, given, strict=True):
        _refuse_nonfinite(x, before)
    return data


#: What arrays of NumPy hold, by the letter of their kind, if it is no numbers.
WORDS = {"U": "text", "S": "text", "T": "text", "O": "objects", "M": "dates", "m": "times"}


def _refuse_words(x: Any) -> None:
    """Refuses what holds no numbers, before JAX does."""
    if callable(x) and not hasattr(x, "shape"):
        raise ProblemError("data is a function: if it draws, as fn(key), pass nx.Sampler(fn).")
    kind = np.dtype(getattr(x, "dtype", None) or np.asarray(x).dtype)
    if kind.kind in WORDS:
        raise ProblemError(
            f"data holds {WORDS[kind.kind]} ({kind}) where numbers are needed: leave such columns "
            "out, or make numbers of them."
        )


def _positive(x: np.ndarray) -> np.ndarray:
    return np.isfinite(x) & (x > 0)


def _refuse_nonfinite(x: Any, given: Any) -> None:
    """Refuses entries that are not finite; ``given`` is what they were before they got JAX's dtype."""
    found = None if is_traced(x) else trees.first_nonfinite(x)
    if found is None:
        return
    where, count = found
    place = ", ".join(f"{word} {k}" for word, k in zip(("row", "column"), where, strict=False))
    number = np.asarray(given)[tuple(where)]
    if np.isfinite(number):
        raise ProblemError(
            f"data has {count} entries that {x.dtype} cannot hold, the first at {place}, {number:g}: "
            "take other units, or call jax.config.update('jax_enable_x64', True) before anything else."
        )
    raise ProblemError(
        f"data has {count} entries that are NaN or infinite, the first at {place}: remove or fill them."
    )
