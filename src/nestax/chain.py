"""A batch plugged into every level of a chain: how methods without memory, and most starts, go."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.estimator import Batches
from nestax.level import Map
from nestax.problem import Problem


def plug_in(
    problem: Problem, w: PyTree, batches: Batches, name: str = "value"
) -> tuple[list[PyTree], list[Map]]:
    """Values f_1(w; ξ), f_2(f_1; ξ), …, each moved into its range, and the pullback of every level."""
    values, pulls, x = [], [], w
    for level, batch in zip(problem.levels, batches, strict=True):
        x, pull = level.value_and_pull(x, batch[name])
        x = level.project(x)
        values.append(x)
        pulls.append(pull)
    return values, pulls


def linearise(
    problem: Problem, inputs: Sequence[PyTree], batches: Batches, name: str
) -> tuple[list[PyTree], list[Map]]:
    """Value and pullback of every level at a given input of its own."""
    pairs = [
        level.value_and_pull(x, batch[name])
        for level, x, batch in zip(problem.levels, inputs, batches, strict=True)
    ]
    return [value for value, _ in pairs], [pull for _, pull in pairs]


def value_and_gradient(problem: Problem, w: PyTree, batches: Batches) -> tuple[Array, PyTree]:
    """Value and gradient of a chain of one level."""
    value, pull = problem.levels[0].value_and_pull(w, batches[0]["value"])
    return value, pull(jnp.ones_like(value))


def visit_blocks(problem: Problem, batches: Batches, fn: Callable[..., PyTree], *rows: PyTree) -> PyTree:
    """``fn(chain, batches, *rows)`` of every visited block, along the leading axis of ``rows``."""

    def one(visits: Batches, *rows: PyTree) -> PyTree:
        own: Any = tuple(
            {name: level.source and level.source.batch(visit) for name, visit in batch.items()}  # pyright: ignore[reportAttributeAccessIssue]
            for level, batch in zip(problem.levels, visits, strict=True)
        )
        return fn(problem.block(visited_in(visits)), own, *rows)

    return jax.vmap(one)(batches, *rows)


def visited_in(batches: Batches) -> Array:
    """The blocks that a step visits, which are the same at all levels."""
    return next(v.blocks for batch in batches for v in batch.values() if v is not None)  # pyright: ignore[reportAttributeAccessIssue]


def mean_of_visited(tree: PyTree) -> PyTree:
    """The average over the leading axis, that of visited blocks."""
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), tree)
