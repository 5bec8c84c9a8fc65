"""Through the blocks of a chain: all of them in parts, and those that a step visits.

What is called gets a problem with the blocks of one part, and numbers among those. A part is all blocks
where one device holds them, and some of its own where several do.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.draws.blocks import AbstractBlocks
from nestax.draws.rows import HERE, held_by
from nestax.errors import ProblemError


def over_parts(problem: Any, fn: Callable[..., tuple[PyTree, PyTree]], *tables: PyTree) -> Any:
    """Calls ``fn(part, *rows) = (mean, new rows)`` for all parts.

    Returns the mean over all blocks, always added in one order, and the table of the new rows.
    """
    held, rest = _cut(problem)

    def of_part(rows: Any) -> tuple[PyTree, PyTree]:
        held, *tables = rows
        return fn(_part(held, rest), *tables)

    holder = problem.blocks.holder
    total, table = holder.total_and_rows(of_part, (held, *tables))
    parts = holder.parts(problem.blocks.blocks)
    if parts > 1:
        total = jax.tree.map(lambda x: x * jnp.asarray(1 / parts, x.dtype), total)
    return total, table


def visit(
    problem: Any, blocks: Array, fn: Callable[..., tuple[PyTree, PyTree]], table: PyTree, each: PyTree
) -> tuple[PyTree, PyTree]:
    """Calls ``fn(part, number, row, one) = (outcome, new row)`` for some blocks.

    Args:
        blocks: their numbers; ``number`` is that in the part.
        table: a row for every block, or nothing.
        each: arrays with an entry for each of ``blocks``, of which ``one`` belongs to the block.
    """
    held, rest = _cut(problem)

    def in_part(held: PyTree, *one: Any) -> tuple[PyTree, PyTree]:
        return fn(_part(held, rest), *one)

    return problem.blocks.holder.visit(in_part, held, table, blocks, each)


def _cut(problem: Any) -> tuple[PyTree, PyTree]:
    """Divides a problem into the arrays that have an entry for every block, and all the rest of it."""
    sources = [level.data for level in problem.levels if level.data is not None]
    held = {id(x) for source in sources for x in jax.tree.leaves(source.held)}
    return eqx.partition(problem, jax.tree.map(lambda x: id(x) in held, problem))


def _part(held: PyTree, rest: PyTree) -> Any:
    return held_by(eqx.combine(held, rest), HERE)


def over_blocks(count: int, width: int, body: Callable[[Array, Array, Any], Any], carry: Any) -> Any:
    """Carries ``body(blocks, new, carry)`` over all blocks, ``width`` at a time.

    The last group overlaps the one before it if it has to; ``new`` says which blocks come first there.
    """

    def group(k: Array, carry: Any) -> Any:
        start = jnp.minimum(k * width, count - width)
        blocks = start + jnp.arange(width)
        return body(blocks, blocks >= k * width, carry)

    return jax.lax.fori_loop(0, -(-count // width), group, carry)


def mean_over_blocks(blocks: AbstractBlocks, fn: Callable[[Array], PyTree]) -> PyTree:
    """Mean of ``fn(m)`` over the blocks, as many at a time as a step visits."""
    count = blocks.blocks
    if count is None:
        raise ProblemError(
            "F is an average over endlessly many outer draws, so nothing exact can be computed: "
            "estimate F(w) with nx.evaluate(problem, w, draws=...)."
        )
    shapes = jax.eval_shape(fn, jax.ShapeDtypeStruct((), jnp.int32))
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def add(some: Array, new: Array, total: PyTree) -> PyTree:
        each = jax.vmap(fn)(some)
        return jax.tree.map(
            lambda t, x: t + jnp.tensordot(new.astype(x.dtype), x, 1) / count, total, each
        )

    return over_blocks(count, min(blocks.visit, count), add, zero)
