"""The draws of a step: independent across levels and passes, and a function of the key and the step.

A key belongs to (seed, level, pass); the step is folded in by the source.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from nestax.chain.problem import Problem
from nestax.parts.estimator import AbstractEstimator, Batches

#: Folded into a seed's key for random starting weights and for visited blocks; levels use 0, 1, 2, …
FIRST_WEIGHTS = 2**31 - 1
VISITED_BLOCKS = 2**31 - 2


def draw_batches(
    problem: Problem,
    passes: Any,
    key: Array,
    step: Array | int,
    sizes: tuple[int, ...],
    every_block: bool = False,
) -> Batches:
    """The batches of one step, independent across levels and passes.

    The first pass of a level draws the same whatever other passes there are, so that methods can be
    compared draw by draw. In a chain with blocks all levels and passes visit the same blocks.

    Args:
        passes: an estimator, or the names of the passes to draw for every level.
        every_block: whether all blocks are visited, as at the start of a method with a table.
    """
    step = jnp.asarray(step)
    blocks = problem.blocks
    if blocks is None:
        draw = lambda source, number, key, size: source.draw_pass(number, key, step, size)
    else:
        own = jax.random.fold_in(key, VISITED_BLOCKS)
        visited = jnp.arange(blocks.blocks) if every_block else blocks.visited(own, step)
        draw = lambda source, _, key, size: source.draw_in(visited, key, step, size)
    if isinstance(passes, AbstractEstimator):
        per_level: Any = passes.level_passes(problem)
    else:
        per_level = [tuple(passes)] * len(problem.levels)
    levels, names = len(problem.levels), list(per_level[0])
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(levels * len(names)))
    batches: tuple[dict[str, Any], ...] = tuple({} for _ in problem.levels)
    for i, level in enumerate(problem.levels):
        for number, name in enumerate(per_level[i]):
            own, source = keys[names.index(name) * levels + i], level.source
            batches[i][name] = source and draw(source, number, own, sizes[i])
    return batches


def first_batches(problem: Problem, estimator: AbstractEstimator, key: Array, sizes: Any) -> Batches:
    """The batches that a method starts from."""
    everywhere = estimator.blocks == "table"
    if estimator.refresh_batch is not None:
        return refresh_batches(problem, estimator, key, 0, everywhere)
    return draw_batches(problem, estimator, key, 0, sizes, everywhere)


def refresh_batches(
    problem: Problem,
    estimator: AbstractEstimator,
    key: Array,
    step: Array | int,
    every_block: bool = False,
) -> Batches:
    """The batches of a step at which a method restarts or takes a snapshot."""
    if estimator.refresh_batch == "population":
        levels = zip(problem.levels, estimator.level_passes(problem), strict=True)
        return tuple(
            dict.fromkeys(passes, None if level.source is None else level.source.population())
            for level, passes in levels
        )
    sizes = (int(estimator.refresh_batch or 1),) * len(problem.levels)
    return draw_batches(problem, estimator, key, step, sizes, every_block)
