"""Tables with a row per block: what methods with memory of every block keep.

A step visits some blocks: their rows are read, moved and written back, and the outcomes averaged. The
start visits all of them. Where devices share the blocks, each moves the rows of its own.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem
from nestax.chain.shared_blocks import by_owners, by_parts
from nestax.draws.blocks import Visits, over_blocks
from nestax.errors import SettingError
from nestax.parts.estimator import Batches


def visit_blocks(problem: Problem, batches: Batches, fn: Callable[..., PyTree], *rows: PyTree) -> PyTree:
    """``fn(chain, batches, *rows)`` of every visited block, along the leading axis of ``rows``."""

    one = lambda problem, chain, visits, *rows: fn(chain, _drawn(problem, visits), *rows)
    return _over_visits(problem, batches, one, *rows)


def over_visits(problem: Problem, batches: Batches, fn: Callable[..., PyTree], *rows: PyTree) -> PyTree:
    """``fn(chain, visits, *rows)`` likewise, with nothing drawn as yet."""
    return _over_visits(problem, batches, lambda _, *one: fn(*one), *rows)


def _over_visits(problem: Problem, batches: Batches, fn: Callable[..., PyTree], *rows: PyTree) -> PyTree:
    """``fn(problem, chain, visits, *rows)``; the problem holds the blocks that are visited."""
    if problem.spread is not None:
        one = lambda here, chain, visits, row, *rows: (fn(here, chain, visits, *rows), row)
        return _by_owners(problem, batches, one, (), *rows)[0]
    one = lambda visits, *rows: fn(problem, problem.block(visited_in(visits)), visits, *rows)
    axes = jax.tree.map(lambda visits: visits.axes, batches, is_leaf=_is_visits)
    return jax.vmap(one, in_axes=(axes, *(0 for _ in rows)))(batches, *rows)


def _by_owners(
    problem: Problem, batches: Batches, fn: Callable[..., Any], table: PyTree, *rows: Any
) -> tuple[PyTree, PyTree]:
    """``fn(problem, chain, visits, row, *rows) = (outcome, new row)``, by the devices of the blocks."""

    def one(here: Problem, place: Array, row: PyTree, k: Array, *rows: PyTree) -> Any:
        local = lambda visits: dataclasses.replace(visits.of(k), blocks=place)
        visits = jax.tree.map(local, batches, is_leaf=_is_visits)
        return fn(here, here.block(place), visits, row, *rows)

    visited = visited_in(batches)
    return by_owners(problem, visited, one, table, (jnp.arange(len(visited)), *rows))


def _drawn(problem: Problem, visits: Batches) -> Any:
    """What was drawn in one block."""
    return tuple(
        {name: level.source and level.source.batch(visit) for name, visit in batch.items()}  # pyright: ignore[reportAttributeAccessIssue]
        for level, batch in zip(problem.levels, visits, strict=True)
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
    some = lambda which: jax.tree.map(lambda visits: visits.of(which), batches, is_leaf=_is_visits)
    if problem.spread is not None:

        def part(here: Problem, which: Array) -> tuple[PyTree, PyTree]:
            own = lambda visits: dataclasses.replace(visits, blocks=jnp.arange(len(which)))
            return fill_table(here, jax.tree.map(own, some(which), is_leaf=_is_visits), start, store)

        return by_parts(problem, part, jnp.arange(blocks.blocks))
    shapes = jax.eval_shape(lambda: visit_blocks(problem, some(jnp.arange(1)), start))
    stored = lambda dtype: store if store and jnp.issubdtype(dtype, jnp.floating) else dtype
    outcome = jax.tree.map(lambda s: jnp.zeros(s.shape[1:], s.dtype), shapes[0])
    table = jax.tree.map(lambda s: jnp.zeros((blocks.blocks, *s.shape[1:]), stored(s.dtype)), shapes[1])

    def group(which: Array, new: Array, carry: Any) -> Any:
        total, table = carry
        each, rows = visit_blocks(problem, some(which), start)
        share = lambda x: jnp.tensordot(new.astype(x.dtype), x, 1) / blocks.blocks
        return jax.tree.map(lambda t, x: t + share(x), total, each), write_rows(table, which, rows)

    return over_blocks(blocks.blocks, min(blocks.visit, blocks.blocks), group, (outcome, table))


def visit_table(
    problem: Problem, batches: Batches, table: PyTree, move: Callable[..., Any], *more: PyTree
) -> tuple[PyTree, PyTree, PyTree]:
    """``move(chain, batches, row, *more) = (outcome, new row)`` of every visited block.

    Returns the average of the outcomes, the table with the new rows, and the rows that they replace.
    """
    visited = visited_in(batches)
    before = rows_of(problem, table, visited)
    if problem.spread is not None:
        moved = lambda here, chain, visits, *rows: move(chain, _drawn(here, visits), *rows)
        each, table = _by_owners(problem, batches, moved, table, *more)
        return mean_of_visited(each), table, before
    each, rows = visit_blocks(problem, batches, move, before, *more)
    # New rows that do not depend on old ones, such as the weights, could be written before those are
    # read, and to be able to do so the compiler would copy the whole table at every step: so they do.
    rows = jax.tree.map(lambda r, b: r + 0 * b.astype(r.dtype), rows, before)
    return mean_of_visited(each), write_rows(table, visited, rows), before


def rows_of(problem: Problem, table: PyTree, blocks: Array) -> PyTree:
    """The rows of some blocks."""
    if problem.spread is not None:
        return problem.spread.take(table, blocks)
    return jax.tree.map(lambda t: t.at[blocks].get(mode="promise_in_bounds"), table)


def write_rows(table: PyTree, blocks: Array, rows: PyTree) -> PyTree:
    """The table with the rows of some blocks replaced, in the dtypes of the table."""
    write = lambda t, r: t.at[blocks].set(r.astype(t.dtype), mode="promise_in_bounds")
    return jax.tree.map(write, table, rows)
