"""What a run costs, in draws and evaluations, from what its estimator declares. Host arithmetic."""

from typing import NamedTuple

from nestax.errors import SettingError, check_count
from nestax.estimator import AbstractEstimator, Calls
from nestax.problem import Problem


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
        sources = [level.source for level in problem.levels]
        draws = lambda numbers: sum(
            n * s.cost for n, s in zip(numbers, sources, strict=True) if s is not None
        )
        if refresh == "population":
            many = sum(s.size or 0 for s in sources if s is not None)
        else:
            many = draws((refresh,) * len(sources) if isinstance(refresh, int) else first_sizes)
        once = {name: Calls(*(min(n, 1) for n in calls)) for name, calls in estimator.passes.items()}
        self.start = _cost(many, once)
        self.refresh = self.start
        self.step = _cost(draws(sizes), estimator.passes)

    def after(self, cost: Cost, begin: int, end: int) -> Cost:
        """Cost after step ``end``, given the cost after step ``begin``."""
        refreshes = 0 if self.period is None else end // self.period - begin // self.period
        return cost.plus(refreshes, self.refresh).plus(end - begin - refreshes, self.step)

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
                f"step {self.step.samples}. Raise samples, or lower batch_size or init_batch_size."
            )
        return low


def _cost(draws: int, passes: dict[str, Calls]) -> Cost:
    cost = Cost()
    for calls in passes.values():
        cost = cost.plus(draws, Cost(1, *calls))
    return cost
