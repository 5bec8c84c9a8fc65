"""Which rows of a stream belong to which step of a run. No mathematics.

A stream of rows is cut up by steps. The start takes rows 0, 1, …; every step takes those that follow
the rows of the step before; within a step, levels that share a stream and the passes of a level take
theirs one after another. So the rows of a step depend on its number alone.
"""

from typing import Any, NamedTuple

import numpy as np

from nestax.chain.problem import Problem
from nestax.errors import ProblemError
from nestax.streams.readers import Reader
from nestax.streams.stream import Stream


class Counts(NamedTuple):
    """Rows that each of the levels of one stream takes: at the start, in a step, at a refresh."""

    start: list[int]
    step: list[int]
    refresh: list[int]


class Course:
    """The rows of one stream.

    levels: the numbers of the levels that read it.
    begin, base: the run begins after this step, with the rows from here on.
    """

    def __init__(self, reader: Reader, levels: list[int], counts: Counts, period: int | None):
        self.reader = reader
        self.levels = levels
        self.counts = counts
        self.period = period
        self.begin = -1
        self.base = 0

    def total(self, first: int, last: int) -> int:
        """Counts the rows that the steps ``first`` to ``last`` take; step 0 is the start."""
        if last < first:
            return 0
        start = sum(self.counts.start) if first == 0 else 0
        first = max(first, 1)
        refreshes = 0 if self.period is None else last // self.period - (first - 1) // self.period
        ordinary = last - first + 1 - refreshes
        return start + ordinary * sum(self.counts.step) + refreshes * sum(self.counts.refresh)

    def row(self, step: int) -> int:
        """Returns the first row of a step."""
        return self.base + self.total(self.begin + 1, step - 1)

    def most(self, steps: int) -> int:
        """Bounds the rows that so many steps in a row take, from above, and those of the start."""
        refreshes = 0 if self.period is None else -(-steps // self.period)
        step = sum(self.counts.step)
        refresh = sum(self.counts.refresh)
        rows = steps * step + refreshes * max(0, refresh - step)
        return max(rows, step, refresh if self.period else 0, sum(self.counts.start))

    def starts(self, first: int, steps: int) -> list[np.ndarray]:
        """Returns for every level where the rows of each step begin, from those of step ``first`` on."""
        kinds = self._kinds(first, steps)
        rows = self._rows(kinds)
        begins = np.cumsum(rows) - rows
        within = np.asarray([np.cumsum([0, *part])[:-1] for part in self.counts])
        return [begins + within[kinds, k] for k in range(len(self.levels))]

    def fitting(self, first: int, steps: int, rows: int) -> int:
        """Returns how many of the steps have all their rows among so many."""
        ends = np.cumsum(self._rows(self._kinds(first, steps)))
        return int(np.searchsorted(ends, rows, side="right"))

    def _kinds(self, first: int, steps: int) -> np.ndarray:
        """Numbers the kind of every step: which of the counts it has."""
        numbers = np.arange(first, first + steps)
        fresh = np.zeros(steps, bool) if self.period is None else numbers % self.period == 0
        return np.where(numbers == 0, 0, np.where(fresh, 2, 1))

    def _rows(self, kinds: np.ndarray) -> np.ndarray:
        return np.asarray([sum(part) for part in self.counts])[kinds]


def streams_of(problem: Problem) -> dict[int, Stream]:
    """Returns the streams of a problem, by the number of the level."""
    return {
        k: level.source for k, level in enumerate(problem.levels) if isinstance(level.source, Stream)
    }


def courses_of(
    problem: Problem, estimator: Any, sizes: tuple[int, ...], first_sizes: tuple[int, ...]
) -> list[Course]:
    """Lays out every stream that is drawn from, however many levels read it."""
    passes = [1] * len(problem.levels)
    period = refresh = None
    if estimator is not None:
        passes = [len(names) for names in estimator.level_passes(problem)]
        period = estimator.period
        refresh = estimator.refresh_batch
    streams = {k: stream for k, stream in streams_of(problem).items() if passes[k]}
    if refresh == "population":
        for stream in streams.values():
            stream.population()  # refuses
    by_reader: dict[int, list[int]] = {}
    for k, stream in streams.items():
        by_reader.setdefault(id(stream.reader), []).append(k)
    courses = []
    for levels in by_reader.values():
        step = [passes[k] * sizes[k] for k in levels]
        fresh = [passes[k] * int(refresh) for k in levels] if refresh else step
        start = fresh if refresh else [passes[k] * first_sizes[k] for k in levels]
        course = Course(streams[levels[0]].reader, levels, Counts(start, step, fresh), period)
        _refuse_few(problem, course)
        courses.append(course)
    _refuse_equal(problem, courses)
    return courses


def _refuse_few(problem: Problem, course: Course) -> None:
    size = course.reader.size
    step = sum(course.counts.step)
    if size is not None and size < step:
        raise ProblemError(
            f"level {problem.levels[course.levels[0]].name!r}: its stream has {size:,} rows and one "
            f"step takes {step:,}: lower batch_size."
        )


def _refuse_equal(problem: Problem, courses: list[Course]) -> None:
    """Refuses two streams that begin alike, for they would give two levels the same draws."""
    seen: dict[str, Course] = {}
    for course in courses:
        other = seen.setdefault(course.reader.about, course)
        if other is not course:
            a, b = (problem.levels[c.levels[0]].name for c in (other, course))
            raise ProblemError(
                f"levels {a!r} and {b!r} read the same rows in the same order, and their draws must be "
                "independent: give both one and the same nx.Stream, of which they take turns."
            )
