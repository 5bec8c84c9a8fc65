"""Chains whose blocks are shared by devices: every device computes in those that it holds.

What a caller wants done in a block closes over weights and settings. Devices take what they need as
arguments, so such a function is traced first, and what it has closed over is handed in.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.devices.spread import PARTS, Spread
from nestax.programs import trace


def by_parts(problem: Any, fn: Callable[..., tuple[PyTree, PyTree]], *tables: PyTree) -> Any:
    """``fn(part, *rows) = (mean, new rows)`` of fixed parts of the blocks, each of them a problem.

    Returns the mean over all blocks, added in one order, and the table of the new rows.
    """
    over: Spread = problem.spread
    held, rest = _cut(problem)
    parts = over.parts(problem.blocks.blocks, PARTS)

    def of_part(held: PyTree, *rows: PyTree) -> tuple[PyTree, PyTree]:
        return fn(eqx.combine(held, rest).alone(), *rows)

    traced = trace(of_part, *_fewer((held, *tables), parts))
    one = lambda part, traced: traced(*part)
    total, table = over.total_and_rows(one, (held, *tables), traced)
    return jax.tree.map(lambda x: x * jnp.asarray(1 / parts, x.dtype), total), table


def by_owners(
    problem: Any, blocks: Array, fn: Callable[..., tuple[PyTree, PyTree]], table: PyTree, each: PyTree
) -> tuple[PyTree, PyTree]:
    """``fn(chain, number, row, *one) = (outcome, new row)`` of some blocks, in turns on their devices.

    Args:
        blocks: their numbers; ``number`` is that among the blocks of the device.
        table: a row for every block, or nothing.
        each: arrays with an entry for each of ``blocks``, of which ``one`` is the one of this block.
    """
    over: Spread = problem.spread
    held, rest = _cut(problem)

    def in_one(held: PyTree, place: Array, row: PyTree, *one: PyTree) -> tuple[PyTree, PyTree]:
        return fn(eqx.combine(held, rest).alone(), place, row, *one)

    first = lambda tree: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), tree)
    number = jax.ShapeDtypeStruct((), blocks.dtype)
    traced = trace(in_one, _fewer(held, over.size), number, first(table), *first(each))

    def visited(held: PyTree, place: Array, k: Array, row: PyTree, shared: Any) -> Any:
        each, traced = shared
        return traced(held, place, row, *jax.tree.map(lambda x: x[k], each))

    return over.visit(visited, held, table, blocks, (each, traced))


def _cut(problem: Any) -> tuple[PyTree, PyTree]:
    """The arrays of a problem that have an entry for every block, and all the rest of it."""
    sources = [level.data for level in problem.levels if level.data is not None]
    per_block = {id(x) for source in sources for x in jax.tree.leaves(source.by_block)}
    return eqx.partition(problem, jax.tree.map(lambda x: id(x) in per_block, problem))


def _fewer(tree: PyTree, parts: int) -> PyTree:
    """The shapes of one of so many parts of arrays with a common leading axis."""
    part = lambda x: jax.ShapeDtypeStruct((x.shape[0] // parts, *x.shape[1:]), x.dtype)
    return jax.tree.map(part, tree)
