"""What a run costs, in draws and evaluations, from what its estimator declares. Host arithmetic."""

from typing import Any, NamedTuple

from nestax.chain.problem import Problem
from nestax.errors import SettingError, check_count
from nestax.parts.estimator import AbstractEstimator


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

        draws = lambda sizes, each="cost": [
            0 if source is None else n * getattr(source, each)
            for (source, _), n in zip(levels, sizes, strict=True)
        ]
        if refresh == "population":
            start = many = [0 if source is None else source.size or 0 for source, _ in levels]
        else:
            large = (refresh,) * len(levels) if isinstance(refresh, int) else first_sizes
            table = estimator.blocks == "table"
            start, many = draws(large, "start_cost" if table else "cost"), draws(large)
        self.start, self.refresh = cost(start, at_most=1), cost(many, at_most=1)
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
        low, high = 0, budget
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
