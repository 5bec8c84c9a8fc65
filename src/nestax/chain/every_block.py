"""A chain with blocks as one chain without: all blocks side by side, in every value and every draw."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.level import Level
from nestax.draws.blocks import NEVER_AGAIN, AbstractBlocks
from nestax.draws.rows import Batch
from nestax.draws.source import AbstractSource
from nestax.errors import ProblemError


class EveryBlock(AbstractSource):
    """All blocks in every draw: one member of each, along a leading axis. A draw costs M samples."""

    of: AbstractBlocks

    def __init__(self, blocks: AbstractBlocks):
        if blocks.blocks is None:
            raise ProblemError(f"blocks cannot be seen side by side: {NEVER_AGAIN}")
        if not blocks.even:
            raise ProblemError(
                "blocks of different lengths cannot be seen side by side: use nx.PerBlock(method)."
            )
        self.of = blocks

    @property
    def draws(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.of.draws

    def draw(self, key: Array, step: Array, size: int) -> Batch:
        visits = self.of.draw_in(jnp.arange(self.of.blocks), key, step, size)
        side_by_side = jax.vmap(lambda visit: self.of.batch(visit).draws, (visits.axes,), 1)
        rows = side_by_side(visits)
        return Batch(rows, visits.index.T)

    def seen(self, *draw: PyTree) -> PyTree:
        return self.of.seen_of_all(*draw)

    def population(self) -> Batch:
        return self.of.every_row()

    def example(self) -> PyTree:
        M = self.of.blocks
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct((M, *s.shape), s.dtype), self.of.example())

    @property
    def size(self) -> int | None:
        return self.of.size

    @property
    def most(self) -> int | None:
        return self.of.most

    @property
    def cost(self) -> int:
        return self.of.start_cost


class AcrossBlocks(eqx.Module):
    """The function of a level for all blocks side by side.

    stacked: whether its input has one entry per block; that of the innermost level is w, for all.
    drawn: the axes of blocks in what it is given for a draw; None if it is given nothing.
    outermost: whether its outcome is the average over the blocks.
    """

    fn: Callable[..., PyTree]
    stacked: bool = eqx.field(static=True)
    drawn: Any = eqx.field(static=True)
    outermost: bool = eqx.field(static=True)

    def __call__(self, x: PyTree, *rest: Any) -> PyTree:
        draw = () if self.drawn is None else (self.drawn,)
        axes = (0 if self.stacked else None, *draw, *(None,) * (len(rest) - len(draw)))
        each = jax.vmap(self.fn, in_axes=axes)(x, *rest)
        return jax.tree.map(lambda y: jnp.mean(y, 0), each) if self.outermost else each


class OntoEach(eqx.Module):
    """The projection of a level for all blocks side by side."""

    onto: Callable[[PyTree], PyTree]

    def __call__(self, value: PyTree) -> PyTree:
        return jax.vmap(self.onto)(value)


def across_blocks(levels: Sequence[Level]) -> list[Level]:
    """The levels for all blocks side by side: one entry per block in values, all blocks in draws."""
    out = []
    stacked = False
    for level in levels:
        last = level is levels[-1]
        source: Any = level.data
        drawn = None if source is None else source.axes_of_all(level.batched)
        across = stacked or source is not None
        fn = AcrossBlocks(level.fn, stacked, drawn, last) if across else level.fn
        onto = OntoEach(level.onto) if level.onto and across and not last else level.onto
        data = None if source is None else EveryBlock(source)
        out.append(level.replace(fn=fn, data=data, project=onto, structure=None))
        stacked = across
    return out
