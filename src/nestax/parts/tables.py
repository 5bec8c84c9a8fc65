"""Tables with a row per block: what methods with memory of every block keep.

A step visits some blocks: their rows are read, moved and written back, and the outcomes averaged. The
start visits all of them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.blocks import over_blocks, over_parts, visit
from nestax.chain.problem import Problem
from nestax.draws.blocks import Visits
from nestax.draws.rows import put
from nestax.errors import SettingError
from nestax.parts.estimator import Batches


def visit_blocks(problem: Problem, batches: Batches, fn: Callable[..., PyTree], *rows: PyTree) -> PyTree:
    """Calls ``fn(chain, batches, *rows)`` for every visited block; ``rows`` have an entry for each."""

    def one(part: Problem, chain: Problem, visits: Batches, _: tuple[()], *rows: PyTree) -> Any:
        return fn(chain, _drawn(part, visits), *rows), ()

    return _visit(problem, batches, one, (), *rows)[0]


def over_visits(problem: Problem, batches: Batches, fn: Callable[..., PyTree], *rows: PyTree) -> PyTree:
    """Calls ``fn(chain, visits, *rows)`` likewise, with nothing drawn as yet."""

    def one(_: Problem, chain: Problem, visits: Batches, __: tuple[()], *rows: PyTree) -> Any:
        return fn(chain, visits, *rows), ()

    return _visit(problem, batches, one, (), *rows)[0]


def _visit(
    problem: Problem, batches: Batches, fn: Callable[..., Any], table: PyTree, *rows: PyTree
) -> tuple[PyTree, PyTree]:
    """Calls ``fn(part, chain, visits, row, *rows) = (outcome, new row)``; the block lies in ``part``."""
    own = jax.tree.map(lambda visits: visits.own, batches, is_leaf=_is_visits)
    each, common = eqx.partition(batches, own)

    def one(part: Problem, number: Array, row: PyTree, one: Any) -> Any:
        def in_part(visits: Visits) -> Visits:
            return dataclasses.replace(visits, blocks=number)

        each, rows = one
        visits = jax.tree.map(in_part, eqx.combine(each, common), is_leaf=_is_visits)
        return fn(part, part.block(number), visits, row, *rows)

    return visit(problem, visited_in(batches), one, table, (each, rows))


def _drawn(part: Problem, visits: Batches) -> Any:
    """What was drawn in one block."""
    return tuple(
        {name: level.source and level.source.batch(visit) for name, visit in batch.items()}  # pyright: ignore[reportAttributeAccessIssue]
        for level, batch in zip(part.levels, visits, strict=True)
    )


def _is_visits(x: Any) -> bool:
    return isinstance(x, Visits)


def visited_in(batches: Batches) -> Array:
    """The blocks that a step visits, which are the same at all levels."""
    return jnp.asarray(next(v.blocks for batch in batches for v in batch.values() if v is not None))


def mean_of_visited(tree: PyTree) -> PyTree:
    """The average over the leading axis, that of visited blocks."""
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), tree)


def fill_table(
    problem: Problem, batches: Batches, start: Callable[..., tuple[PyTree, PyTree]], store: Any = None
) -> tuple[PyTree, PyTree]:
    """Visits all blocks, some at a time, with ``start(chain, batches) = (outcome, row)``.

    Returns the average of the outcomes, and the table of the rows, whose floating-point numbers are
    kept as ``store``, a dtype; None means as they are.
    """
    blocks: Any = problem.blocks
    if visited_in(batches).shape[0] != blocks.blocks:
        raise SettingError(
            "the start of a method with memory of every block visits all of them: "
            "draw_batches(..., every_block=True)."
        )

    def of_part(part: Problem, numbers: Array) -> tuple[PyTree, PyTree]:
        count = len(numbers)

        def started(which: Array) -> tuple[PyTree, PyTree]:
            def some(visits: Visits) -> Visits:
                return dataclasses.replace(visits.of(numbers[which]), blocks=which)

            return visit_blocks(part, jax.tree.map(some, batches, is_leaf=_is_visits), start)

        def group(which: Array, new: Array, carry: Any) -> Any:
            def add(total: Array, x: Array) -> Array:
                return total + jnp.tensordot(new.astype(x.dtype), x, 1) / count

            total, table = carry
            each, rows = started(which)
            return jax.tree.map(add, total, each), put(table, which, rows)

        def zeros(s: Any) -> Array:
            kept = store if store and jnp.issubdtype(s.dtype, jnp.floating) else s.dtype
            return jnp.zeros((count, *s.shape[1:]), kept)

        one, row = jax.eval_shape(started, jnp.arange(1))
        total = jax.tree.map(lambda s: jnp.zeros(s.shape[1:], s.dtype), one)
        return over_blocks(count, min(blocks.visit, count), group, (total, jax.tree.map(zeros, row)))

    return over_parts(problem, of_part, jnp.arange(blocks.blocks))


def visit_table(
    problem: Problem, batches: Batches, table: PyTree, move: Callable[..., Any], *more: PyTree
) -> tuple[PyTree, PyTree, PyTree]:
    """Calls ``move(chain, batches, row, *more) = (outcome, new row)`` for every visited block.

    Returns the average of the outcomes, the table with the new rows, and the rows that they replace.
    """

    def one(part: Problem, chain: Problem, visits: Batches, row: PyTree, *more: PyTree) -> Any:
        outcome, new = move(chain, _drawn(part, visits), row, *more)
        return (outcome, row), new

    (each, before), table = _visit(problem, batches, one, table, *more)
    return mean_of_visited(each), table, before


def rows_of(problem: Problem, table: PyTree, blocks: Array) -> PyTree:
    """The rows of some blocks."""
    assert problem.blocks is not None
    return problem.blocks.holder.take(table, blocks)
