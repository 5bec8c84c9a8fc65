"""Many coupled populations: tasks, classes or anchors, of which a step visits a few.

    F(w) = 1/M Σ_m f_K^m ∘ … ∘ f_1^m(w)

Every level of such a chain draws from the block m that is visited. All levels visit the same blocks in
a step, and draw independently inside them.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

import nestax.trees as trees
from nestax.draws.rows import Batch, arrived
from nestax.draws.source import AbstractSource, Sampler, checked_rows
from nestax.errors import ProblemError, check_count, is_traced

#: Why there is nothing to remember.
NEVER_AGAIN = (
    "the outer draws come from an nx.Sampler and never come back, so there is nothing that a memory of "
    "blocks could remember: use nx.Multilevel(), whose gradient has no bias, or nx.Plain() with a "
    "larger batch_size."
)


class Visits(eqx.Module):
    """What a step draws for one level of a chain with blocks: which rows of which blocks.

    The rows themselves stay where they are until they are needed, and so does what is simulated.

    blocks: their numbers; where there is no end of them, the keys that they are made from.
    index: numbers of rows, or keys of simulations, of every block; of all together if they are shared.
    shared: whether all blocks see the same rows, so that what is computed from a row is computed once.
    """

    blocks: Any  # an Array; in ``axes`` a number, in ``own`` a truth value
    index: Any
    shared: bool = eqx.field(static=True, default=False)

    @property
    def size(self) -> int:
        """Draws per block."""
        return self.index.shape[-1]

    @property
    def axes(self) -> "Visits":
        """The axis of blocks, for ``jax.vmap``."""
        return Visits(0, None if self.shared else 0, self.shared)

    @property
    def own(self) -> "Visits":
        """Whether an array has an entry for every block; ``blocks`` is told beside it."""
        return Visits(False, not self.shared, self.shared)

    def of(self, positions: Array) -> "Visits":
        """Those of some of the blocks, by their positions in ``blocks``."""
        index = self.index if self.shared else self.index[positions]
        return Visits(self.blocks[positions], index, self.shared)


class AbstractBlocks(AbstractSource):
    """Where the levels of a chain with blocks draw from.

    visit: how many blocks a step visits.
    blocks: M, how many there are; None if there is no end of them, and none is ever seen twice.
    """

    visit: eqx.AbstractVar[int]

    @property
    def blocks(self) -> int | None:
        raise NotImplementedError

    def visited(self, key: Array, step: Array) -> Array:
        """The blocks of a step."""
        count = self.blocks
        key = jax.random.fold_in(key, step)
        if count is None:
            return jax.random.split(key, self.visit)
        return jnp.arange(count) if self.visit == count else subset(key, count, self.visit)

    def draw_in(self, blocks: Array, key: Array, step: Array, size: int) -> Visits:
        """``size`` draws from each of the given blocks."""
        raise NotImplementedError

    def batch(self, visit: Visits) -> Batch:
        """The draws in one visited block: ``visit`` with the axis of blocks taken off."""
        raise NotImplementedError

    def block(self, number: Array | int) -> AbstractSource:
        """One block as a source of its own."""
        raise NotImplementedError

    def every_row(self) -> Batch:
        """The population of all blocks side by side, which have one length."""
        raise NotImplementedError

    @property
    def simulates(self) -> bool:
        """Whether every draw is made anew, from a key."""
        raise NotImplementedError

    def seen_of_all(self, *draw: PyTree) -> PyTree:
        """What a level is given for a draw in all blocks, side by side."""
        return draw[0]

    def axes_of_all(self, batched: bool) -> Any:
        """The axis of blocks in that."""
        return 1 if batched else 0

    @property
    def even(self) -> bool:
        """Whether all blocks can be seen side by side."""
        return self.blocks is not None and not self.weighted

    @property
    def cost(self) -> int:
        return self.visit

    @property
    def start_cost(self) -> int:
        return self.blocks or self.visit

    def draw(self, key: Array, step: Array, size: int) -> Batch:
        raise ProblemError(
            "this method draws from one population and the levels hold blocks: wrap it as "
            "nx.PerBlock(method), or pass problem.every_block()."
        )

    def population(self) -> Batch:
        raise ProblemError(
            "a chain with blocks has no single population: use problem.block(m) for one block, or "
            "problem.every_block() for all of them side by side."
        )


class Blocks(AbstractBlocks):
    """M populations, of which ``visit`` are visited per step, all equally likely, none twice.

    Args:
        populations: a tree of arrays with leading axes (M, rows); or a list of M populations, which
            may differ in length, or M of ``nx.Sampler``, each of which is then evaluated for every
            draw; one simulator for all blocks is an ``nx.Conditional``, and so are rows in common.
        visit: how many blocks a step visits, at most M.
        replace: False draws different rows within a block and step, so that a batch of as many draws
            as the block has rows is the whole block, without noise.
    """

    data: PyTree
    counts: Array | None
    visit: int = eqx.field(static=True)
    replace: bool = eqx.field(static=True)
    #: Rows of the smallest block.
    least: int = eqx.field(static=True)
    #: What draws in every block, in place of rows.
    simulators: tuple[Sampler, ...] = ()

    def __init__(self, populations: Any, *, visit: int, replace: bool = True):
        counts = None
        if isinstance(populations, list) and any(isinstance(x, AbstractSource) for x in populations):
            self.simulators = _simulators(populations)
            populations = np.zeros((len(populations), 1))
        elif isinstance(populations, list):
            populations, counts = _padded(populations)
        populations = jax.tree.map(trees.on_host, populations)
        shapes = {x.shape[:2] for x in jax.tree.leaves(populations)}
        if len(shapes) != 1 or len(next(iter(shapes))) != 2 or 0 in next(iter(shapes)):
            raise ProblemError(
                "the arrays of nx.Blocks need common leading axes (blocks, rows), both at least 1, or "
                f"pass a list with one population per block; got {sorted(shapes)}."
            )
        for x in jax.tree.leaves(populations):
            if not is_traced(x):
                _refuse_nonfinite_blocks(x)
        self.data = jax.tree.map(trees.on_device, populations)
        self.holder = arrived(self.data, "blocks")
        self.counts = None if counts is None else trees.on_device(np.asarray(counts, np.int32))
        self.least = self.rows if counts is None else int(min(counts))
        self.visit = check_count("visit", visit)
        self.replace = replace
        if self.visit > self.blocks:
            raise ProblemError(
                f"visit must be at most the number of blocks, {self.blocks}; got {visit}."
            )

    @property
    def blocks(self) -> int:
        """M, the number of blocks."""
        return jax.tree.leaves(self.data)[0].shape[0]

    @property
    def held(self) -> PyTree:
        return None if self.simulators else (self.data, self.counts)

    @property
    def rows(self) -> int:
        """Rows of the largest block."""
        return jax.tree.leaves(self.data)[0].shape[1]

    @property
    def size(self) -> int | None:
        if self.simulators:
            return None
        return self.blocks * self.rows if self.counts is None else int(np.asarray(self.counts).sum())

    @property
    def weighted(self) -> bool:
        return self.counts is not None

    @property
    def most(self) -> int | None:
        return None if self.replace or self.simulators else self.least

    def draw_in(self, blocks: Array, key: Array, step: Array, size: int) -> Visits:
        key = jax.random.fold_in(key, step)
        if self.simulators:
            return Visits(blocks, jax.random.split(key, (len(blocks), size)))
        counts = jnp.full(blocks.shape, self.rows) if self.counts is None else self.counts[blocks]
        if self.replace:
            index = jax.random.randint(key, (len(blocks), size), 0, counts[:, None])
        else:
            _refuse_more_than(self.least, size)
            keys = jax.random.split(key, len(blocks))
            index = jax.vmap(lambda key, count: subset(key, count, size))(keys, counts)
        return Visits(blocks, index)

    def batch(self, visit: Visits) -> Batch:
        if self.simulators:
            return Batch(jax.vmap(self._simulator(visit.blocks).fn)(visit.index))

        def take(x: Array) -> Array:
            return x.at[visit.blocks, visit.index].get(mode="promise_in_bounds")

        return Batch(jax.tree.map(take, self.data), visit.index)

    def block(self, number: Array | int) -> "Block | Sampler":
        if self.simulators:
            return self._simulator(number)
        count = None if self.counts is None else self.counts[number]
        return Block(jax.tree.map(lambda x: x[number], self.data), count, self.most)

    @property
    def simulates(self) -> bool:
        return bool(self.simulators)

    def _simulator(self, number: Array | int) -> Sampler:
        each = tuple(simulator.fn for simulator in self.simulators)
        return Sampler(
            jax.tree_util.Partial(lambda number, key: jax.lax.switch(number, each, key), number)
        )

    def every_row(self) -> Batch:
        if self.simulators:
            return self.simulators[0].population()  # refuses
        return Batch(jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), self.data), many=True)

    def example(self) -> PyTree:
        if self.simulators:
            return self.simulators[0].example()
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), self.data)


def _refuse_more_than(least: int, size: int) -> None:
    if size > least:
        raise ProblemError(
            f"a batch of {size} different rows needs blocks of at least {size}; the smallest "
            f"has {least}: lower batch_size, or use nx.Blocks(..., replace=True)."
        )


class Block(AbstractSource):
    """One block of ``Blocks``; where blocks differ in length, only the first ``count`` rows count.

    different: None, or how many rows a batch may have at most, all of them different.
    """

    data: PyTree
    count: Array | None
    different: int | None = eqx.field(static=True, default=None)

    @property
    def size(self) -> int:
        return jax.tree.leaves(self.data)[0].shape[0]

    def draw(self, key: Array, step: Array, size: int) -> Batch:
        count = self.size if self.count is None else self.count
        key = jax.random.fold_in(key, step)
        if self.different is None:
            index = jax.random.randint(key, (size,), 0, count)
        else:
            _refuse_more_than(self.different, size)
            index = subset(key, jnp.asarray(count), size)
        return Batch(jax.tree.map(lambda x: x[index], self.data), index)

    @property
    def most(self) -> int | None:
        return self.different

    def population(self) -> Batch:
        weights = None
        if self.count is not None:
            # Quotients of 32-bit integers are computed in single precision.
            weights = (jnp.arange(self.size) < self.count) / self.count.astype(float)
        return Batch(self.data, None, weights, many=True)

    def example(self) -> PyTree:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self.data)

    @property
    def weighted(self) -> bool:
        return self.count is not None


def subset(key: Array, n: Array | int, size: int) -> Int[Array, " size"]:
    """``size`` different members of 0..n-1, every set equally likely; the cost does not grow with n.

    Floyd's algorithm: member k comes from 0..n-size+k, and is n-size+k itself if that one was taken.
    """
    highest = n - size + jnp.arange(size)
    wanted = jax.random.randint(key, (size,), 0, highest + 1)

    def add(k: Array, chosen: Array) -> Array:
        taken = jnp.any(chosen == wanted[k])
        return chosen.at[k].set(jnp.where(taken, highest[k], wanted[k]))

    nobody = jnp.full(size, -1, wanted.dtype)
    return jax.lax.fori_loop(0, size, add, nobody)


def _simulators(populations: list[Any]) -> tuple[Sampler, ...]:
    """Simulators that draw alike, one a block."""
    if not all(isinstance(x, Sampler) for x in populations):
        raise ProblemError(
            "the blocks of nx.Blocks must be all rows or all nx.Sampler, not some of each."
        )
    shapes = [x.example() for x in populations]
    odd = [k for k, shape in enumerate(shapes) if shape != shapes[0]]
    if odd:
        raise ProblemError(
            f"the simulators of nx.Blocks must return draws of one structure, shape and dtype; block "
            f"{odd[0]} has {shapes[odd[0]]} where block 0 has {shapes[0]}."
        )
    return tuple(populations)


def _padded(populations: list[Any]) -> tuple[PyTree, list[int] | None]:
    """Populations stacked, shorter ones padded with their first row; their lengths if they differ."""
    if not populations:
        raise ProblemError("nx.Blocks needs at least one block.")
    members = []
    for number, rows in enumerate(populations):
        try:
            members.append(checked_rows(rows))
        except ProblemError as error:
            raise ProblemError(f"block {number}: {error}") from None
    structures = {jax.tree.structure(rows) for rows in members}
    kinds = {tuple((x.shape[1:], x.dtype) for x in jax.tree.leaves(rows)) for rows in members}
    if len(structures) > 1 or len(kinds) > 1:
        raise ProblemError("the populations of nx.Blocks must hold rows of one structure and shape.")
    counts = [jax.tree.leaves(rows)[0].shape[0] for rows in members]
    longest = max(counts)

    def filled(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x, np.repeat(x[:1], longest - len(x), axis=0)])

    def stack(*columns: Array | np.ndarray) -> np.ndarray:
        return np.stack([filled(np.asarray(x)) for x in columns])

    return jax.tree.map(stack, *members), counts if len(set(counts)) > 1 else None


def _refuse_nonfinite_blocks(x: Any) -> None:
    found = trees.first_nonfinite(x)
    if found is not None:
        block, row = found[0][:2]
        raise ProblemError(f"row {row} of block {block} holds NaN or infinity: remove or fill it.")
