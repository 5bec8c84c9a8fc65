"""What is known of a run before it is traced: its static facts, and what it costs. Host arithmetic."""

from typing import Any, NamedTuple

import jax

from nestax.chain.problem import Problem
from nestax.errors import SettingError, check_count
from nestax.parts.estimator import AbstractEstimator, draw_batches

#: Bytes of draws that are made ahead of their steps, on a CPU (cache) and elsewhere.
AHEAD_BYTES = {"cpu": 2**20}
AHEAD_BYTES_ELSEWHERE = 2**26
#: Draws are made ahead for at most so many steps; for fewer where they are simulated, for that may cost
#: much, and those beyond the end of a chunk are made in vain.
AHEAD_STEPS = 256
AHEAD_SIMULATED = 32
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
    micro_batch: for every level the most draws that are evaluated at once; None means a batch.
    """

    sizes: tuple[int, ...]
    first_sizes: tuple[int, ...]
    columns: tuple[str, ...] = ()
    average: str | None = None
    period: int | None = None
    grid: bool = False
    ahead: int = 1
    unroll: int = 1
    micro_batch: tuple[int | None, ...] = ()


def make_plan(
    problem: Problem,
    estimator: AbstractEstimator,
    sizes: tuple[int, ...],
    first_sizes: tuple[int, ...],
    *,
    columns: tuple[str, ...],
    average: str | None = None,
    seeds: int | None = None,
    micro_batch: tuple[int | None, ...] = (),
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
    sources = [level.source for level in problem.levels if level.source is not None]
    simulated = any(not source.size and not source.fed for source in sources)
    ahead = max(1, min(AHEAD_SIMULATED if simulated else AHEAD_STEPS, limit))
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
        micro_batch=micro_batch,
    )


def draw_sizes(
    problem: Problem, batch_size: Any, init_batch_size: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draws per level, of a step and of the start, which has ten times as many unless told otherwise."""
    sizes = level_sizes(problem, "batch_size", batch_size)
    if init_batch_size is not None:
        return sizes, level_sizes(problem, "init_batch_size", init_batch_size)
    # The start of a method with a table visits every block, which is many draws already.
    times = 10 if problem.blocks is None else 1
    return sizes, tuple(times * size for size in sizes)


def level_sizes(problem: Problem, name: str, size: Any) -> tuple[int, ...]:
    """From one number or a dictionary by level name; 0 for deterministic levels."""
    stochastic = [level.name for level in problem.levels if level.source is not None]
    if not isinstance(size, dict):
        size = dict.fromkeys(stochastic, size)
    if set(size) != set(stochastic):
        raise SettingError(
            f"{name} by level needs exactly the levels that draw: {', '.join(stochastic)}; "
            f"got {', '.join(map(str, size))}."
        )
    counts = {level: check_count(f"{name} of level {level!r}", n) for level, n in size.items()}
    return tuple(counts.get(level.name, 0) for level in problem.levels)


# What a run costs, from what its estimator declares


class Cost(NamedTuple):
    """Fresh draws summed over levels, and evaluations of values and of derivatives of draws.

    Deterministic levels cost nothing here. Using a draw at two points is one sample, two calls.
    """

    samples: int = 0
    value_calls: int = 0
    derivative_calls: int = 0

    def plus(self, times: int, other: "Cost") -> "Cost":
        return Cost(*(a + times * b for a, b in zip(self, other, strict=True)))


class Meter:
    """Cost of the parts of a run: the start, an ordinary step, a refresh."""

    def __init__(
        self,
        problem: Problem,
        estimator: AbstractEstimator,
        sizes: tuple[int, ...],
        first_sizes: tuple[int, ...],
    ):
        self.period = estimator.period
        refresh = estimator.refresh_batch
        levels = [
            (level.source, level_passes)
            for level, level_passes in zip(problem.levels, estimator.level_passes(problem), strict=True)
        ]

        def cost(numbers: Any, at_most: int | None = None) -> Cost:
            total = Cost()
            for (source, passes), n in zip(levels, numbers, strict=True):
                for calls in passes.values() if source is not None else ():
                    each = [c if at_most is None else min(c, at_most) for c in calls]
                    total = total.plus(n, Cost(1, *each))
            return total

        def draws(sizes: Any, each: str = "cost") -> list[int]:
            pairs = zip(levels, sizes, strict=True)
            return [0 if source is None else n * getattr(source, each) for (source, _), n in pairs]

        if refresh == "population":
            start = many = [0 if source is None else source.size or 0 for source, _ in levels]
        else:
            large = (refresh,) * len(levels) if isinstance(refresh, int) else first_sizes
            table = estimator.blocks == "table"
            start = draws(large, "start_cost" if table else "cost")
            many = draws(large)
        self.start = cost(start, at_most=1)
        self.refresh = cost(many, at_most=1)
        self.per_step = cost(draws(sizes))

    def after(self, cost: Cost, begin: int, end: int) -> Cost:
        """Cost after step ``end``, given the cost after step ``begin``."""
        refreshes = 0 if self.period is None else end // self.period - begin // self.period
        return cost.plus(refreshes, self.refresh).plus(end - begin - refreshes, self.per_step)

    def steps(self, steps: int | None, samples: int | None, begin: int, spent: Cost) -> int:
        """The number of steps asked for, or the most that a budget of samples pays for."""
        if (steps is None) == (samples is None):
            raise SettingError("give either steps or samples, and not both.")
        if steps is not None:
            return check_count("steps", steps)
        budget = check_count("samples", samples)
        if self.after(spent, begin, begin + budget).samples == spent.samples:
            raise SettingError(
                "the steps of this run take no draws, so samples= never ends it: give steps."
            )
        low = 0
        high = budget
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.after(spent, begin, begin + middle).samples <= budget
            low, high = (middle, high) if fits else (low, middle - 1)
        if low == 0:
            raise SettingError(
                f"samples={budget} does not pay for one step: the start takes {spent.samples} and a "
                f"step {self.per_step.samples}. Raise samples, or lower batch_size or init_batch_size."
            )
        return low
