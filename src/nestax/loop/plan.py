"""The static facts of a run, read off its arguments before anything is traced. No mathematics."""

from typing import Any, NamedTuple

import jax

from nestax.chain.problem import Problem
from nestax.errors import SettingError, check_count
from nestax.parts.batches import draw_batches
from nestax.parts.estimator import AbstractEstimator

#: Bytes of draws that are made ahead of their steps, on a CPU (cache) and elsewhere.
AHEAD_BYTES = {"cpu": 2**20}
AHEAD_BYTES_ELSEWHERE = 2**26
#: Draws are made ahead for at most so many steps, so many of them at once.
AHEAD_STEPS, AHEAD_AT_ONCE = 256, 32
#: Steps of a loop whose length the compiler knows, of which eight are unrolled.
UNROLLED_STEPS = 32
#: Weights above which a step is long enough for a GPU not to mind waiting for the host, and its program
#: too long to be compiled several times over.
LARGE = 2**14
#: The outputs that are averages of the iterates.
AVERAGES = ("average", "weighted")


class Plan(NamedTuple):
    """The static facts of a run.

    sizes, first_sizes: draws per level and step, and at the start; 0 for deterministic levels.
    columns: what is recorded.
    average: None, or "average" over all iterates, or "weighted", those after step t with weight t.
    period: every so many steps the method is refreshed; None means never.
    grid: whether there is a grid of settings × seeds.
    ahead: for how many steps draws are made ahead.
    unroll: steps in a loop of known length, where that pays; 1 where it does not.
    """

    sizes: tuple[int, ...]
    first_sizes: tuple[int, ...]
    columns: tuple[str, ...] = ()
    average: str | None = None
    period: int | None = None
    grid: bool = False
    ahead: int = 1
    unroll: int = 1


def make_plan(
    problem: Problem,
    estimator: AbstractEstimator,
    sizes: tuple[int, ...],
    first_sizes: tuple[int, ...],
    *,
    columns: tuple[str, ...],
    average: str | None = None,
    seeds: int | None = None,
) -> Plan:
    """The plan of a run; ``seeds`` is None for a single lane.

    Args:
        problem: with room for the rows of a step, where a level draws from a stream.
        estimator: with everything filled in.
    """
    one = jax.eval_shape(lambda: draw_batches(problem, estimator, jax.random.key(0), 0, sizes))
    per_step = (seeds or 1) * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(one))
    platform = jax.default_backend()
    limit = AHEAD_BYTES.get(platform, AHEAD_BYTES_ELSEWHERE) // max(per_step, 1)
    ahead = max(1, min(AHEAD_STEPS, limit))
    if ahead > AHEAD_AT_ONCE:  # in whole portions
        ahead = ahead // AHEAD_AT_ONCE * AHEAD_AT_ONCE
    # A GPU waits for the host at every turn of a loop of unknown length; a CPU does not, and there
    # unrolling only costs.
    short = platform != "cpu" and ahead >= UNROLLED_STEPS and problem.shape.size <= LARGE
    return Plan(
        sizes,
        first_sizes,
        columns=columns,
        average=average,
        period=estimator.period,
        grid=seeds is not None,
        ahead=ahead,
        unroll=UNROLLED_STEPS if short else 1,
    )


def draw_sizes(
    problem: Problem, batch_size: Any, init_batch_size: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draws per level, of a step and of the start, which has ten times as many unless told otherwise."""
    sizes = _level_sizes(problem, "batch_size", batch_size)
    if init_batch_size is not None:
        return sizes, _level_sizes(problem, "init_batch_size", init_batch_size)
    # The start of a method with a table visits every block, which is many draws already.
    times = 10 if problem.blocks is None else 1
    return sizes, tuple(times * size for size in sizes)


def _level_sizes(problem: Problem, name: str, size: Any) -> tuple[int, ...]:
    """From one number or a dictionary by level name; 0 for deterministic levels."""
    stochastic = [level.name for level in problem.levels if not level.deterministic]
    if not isinstance(size, dict):
        size = dict.fromkeys(stochastic, size)
    if set(size) != set(stochastic):
        raise SettingError(
            f"{name} by level needs exactly the levels that draw: {', '.join(stochastic)}; "
            f"got {', '.join(map(str, size))}."
        )
    counts = {level: check_count(f"{name} of level {level!r}", n) for level, n in size.items()}
    return tuple(counts.get(level.name, 0) for level in problem.levels)
