"""Rows for the steps of a run: which rows belong to which step, and the next ones read ahead.

A stream of rows is cut up by steps. The start takes rows 0, 1, …; every step takes those that follow
the rows of the step before; within a step, levels that share a stream and the passes of a level take
theirs one after another. So the rows of a step depend on its number alone, and the host may hand them
to the loop in portions of any length. No mathematics.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from nestax.chain.problem import Problem
from nestax.devices.hosts import Hosts
from nestax.devices.rows import Sharded
from nestax.errors import ProblemError, SettingError
from nestax.streams.readers import Reader
from nestax.streams.shares import Share, Together
from nestax.streams.stream import Stream

#: Bytes of rows in one portion, of which there are two; the most steps that it serves; and the seconds
#: that reading it should take, so that a slow source does not keep the run waiting.
PORTION_BYTES = 2**26
PORTION_STEPS = 2**16
PORTION_SECONDS = 0.5
#: Seconds between two looks at whether a run that waits for rows is asked to stop.
WAIT_SECONDS = 0.1

#: Bytes at whose multiples arrays of a CPU begin.
ALIGNED = 64


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
        """How many rows the steps ``first`` to ``last`` take; step 0 is the start."""
        if last < first:
            return 0
        start = sum(self.counts.start) if first == 0 else 0
        first = max(first, 1)
        refreshes = 0 if self.period is None else last // self.period - (first - 1) // self.period
        ordinary = last - first + 1 - refreshes
        return start + ordinary * sum(self.counts.step) + refreshes * sum(self.counts.refresh)

    def row(self, step: int) -> int:
        """The first row of a step."""
        return self.base + self.total(self.begin + 1, step - 1)

    def most(self, steps: int) -> int:
        """The most rows that so many steps in a row take, and at least those of the start."""
        refreshes = 0 if self.period is None else -(-steps // self.period)
        step = sum(self.counts.step)
        refresh = sum(self.counts.refresh)
        rows = steps * step + refreshes * max(0, refresh - step)
        return max(rows, step, refresh if self.period else 0, sum(self.counts.start))

    def starts(self, first: int, steps: int) -> list[np.ndarray]:
        """For every level, where the rows of each step begin, counted from those of step ``first``."""
        numbers = np.arange(first, first + steps)
        fresh = np.zeros(steps, bool) if self.period is None else numbers % self.period == 0
        kinds = np.where(numbers == 0, 0, np.where(fresh, 2, 1))
        rows = np.asarray([sum(part) for part in self.counts])[kinds]
        begins = np.cumsum(rows) - rows
        within = np.asarray([np.cumsum([0, *part])[:-1] for part in self.counts])
        return [begins + within[kinds, k] for k in range(len(self.levels))]

    def fitting(self, first: int, steps: int, rows: int) -> int:
        """How many of the steps have all their rows among so many."""
        low = 0
        high = steps
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.total(first, first + middle - 1) <= rows
            low, high = (middle, high) if fits else (low, middle - 1)
        return low


class Portion(NamedTuple):
    """The rows of the steps ``first``, …, ``first + steps − 1``; ``why`` there are no more."""

    first: int
    steps: int
    sources: dict[int, Stream]
    why: str | None


class StoppedWaiting(KeyboardInterrupt):
    """The run is asked to stop while it waits for rows, and all of its processes know."""


class Ahead:
    """A portion that is being read in a thread of its own, which no end of the process waits for."""

    def __init__(self, read: Callable[[int, int], Any], first: int, steps: int):
        self.read = read
        self.first = first
        self.steps = steps
        self.out: Any = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, name="nestax-stream", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            self.out = self.read(self.first, self.steps)
        except BaseException as error:  # raised where it is asked for
            self.error = error


class Feed:
    """Hands the rows of the next steps to a run, and reads those after them meanwhile.

    Args:
        problem: some of its levels draw from streams.
        courses: which rows its steps take.
        ahead, stride, last: for how many steps draws are made at once, steps between records, and the
            last step of the run.
        sharded: the devices of the run. Several processes read a share each, and whatever depends on a
            clock, a signal or a reader is agreed on, a few numbers for a portion.
    """

    def __init__(
        self,
        problem: Problem,
        courses: "list[Course]",
        ahead: int,
        stride: int,
        last: int,
        sharded: Sharded | None = None,
    ):
        self.hosts = Hosts(sharded and sharded.mesh)
        self.together = Together(sharded) if sharded is not None and self.hosts.many else None
        number, processes = (jax.process_index(), jax.process_count()) if self.hosts.many else (0, 1)
        self.shares = [Share(number, processes, course.reader.own) for course in courses]
        self.names = [level.name for level in problem.levels]
        self.streams = streams_of(problem)
        self.last = last
        self.courses = courses
        self.unit, self.steps = self._portion_steps(ahead, stride)
        self.next = self.unit
        # Two places that rows are read into by turns. While a portion is computed with, only the other
        # place is written to: a chunk is complete before the portion after it is asked for.
        self.spaces = [
            [
                _space(self.streams[course.levels[0]], share.most(course.most(self.steps)))
                for course, share in zip(self.courses, self.shares, strict=True)
            ]
            for _ in range(2)
        ]
        self.now: Portion | None = None
        self.ahead: Ahead | None = None
        self.asked: Callable[[], bool] = lambda: False  # whether the run is to stop

    def _portion_steps(self, ahead: int, stride: int) -> tuple[int, int]:
        """The least and the most steps of a portion: whole strides, or else what is drawn at once."""
        one = 0.0
        for course in self.courses:
            often = 1 / course.period if course.period else 0.0
            rows = sum(course.counts.step) + often * sum(course.counts.refresh)
            one += rows * _row_bytes(self.streams[course.levels[0]])
        most = max(1, min(PORTION_STEPS, int(PORTION_BYTES / max(one, 1)), max(self.last, 1)))
        unit = stride if stride <= most else min(ahead, most)
        return unit, most // unit * unit

    # The rows of a run

    def begin_after(self, step: int, rows: tuple[int, ...]) -> None:
        """The run goes on after ``step`` with these rows of its streams; none means the first."""
        rows = rows or (0,) * len(self.courses)
        if len(rows) != len(self.courses):
            raise SettingError("start= belongs to a run with other streams.")
        for course, row in zip(self.courses, rows, strict=True):
            course.begin = step
            course.base = row

    def rows_after(self, step: int) -> tuple[int, ...]:
        """The next row of every stream after so many steps."""
        return tuple(course.row(step + 1) for course in self.courses)

    def steps_after(self, step: int) -> int:
        """For how many steps after ``step`` the rows are at hand; 0 if there are no more, or none came
        until the run was to stop."""
        try:
            now = self._portion(step + 1)
        except StoppedWaiting:
            return 0
        return now.first + now.steps - 1 - step

    def sources(self, step: int) -> dict[int, Stream]:
        """The streams with the rows of ``step`` and of those after it."""
        return self._portion(step).sources

    def why(self) -> str:
        """Why there are no more rows."""
        why = None if self.now is None else self.now.why
        return "The run was stopped" if why is None else f"The run was stopped: {why}"

    def _portion(self, step: int) -> Portion:
        now = self.now
        if now is not None and now.first <= step < now.first + now.steps:
            return now
        if now is not None and now.why is not None and step == now.first + now.steps:
            return now
        # Reading goes on where the last portion ended, unless a run begins anew or goes back.
        ahead = self.ahead
        self.ahead = None
        if ahead is None or ahead.first != step:
            if ahead is not None:
                self._wait(ahead)
            ahead = Ahead(self._read, step, self._wanted(step))
        self._wait(ahead)
        if ahead.error is not None:
            raise ahead.error
        self.now = self._handed(step, ahead.steps, ahead.out)
        after = step + self.now.steps
        if self.now.why is None and after <= self.last:
            self.ahead = Ahead(self._read, after, self._wanted(after))
        return self.now

    def _wait(self, ahead: Ahead) -> None:
        """Until all processes have read; or until any is asked to stop, if that is before."""
        waiting = True
        while waiting:
            ahead.thread.join(WAIT_SECONDS)
            flags = [ahead.thread.is_alive(), self.asked()]
            flags = self.hosts.told(np.asarray(flags, np.uint8))
            waiting = bool(flags[:, 0].any())
            if waiting and flags[:, 1].any():
                raise StoppedWaiting

    def _read(self, first: int, steps: int) -> list[tuple[PyTree, int, str | None]]:
        """The rows of a portion, or the share of this process in them, in buffers of one shape.

        Runs in a thread: nothing of JAX in here.
        """
        out = []
        begin = time.perf_counter()
        self.spaces.reverse()
        for course, share, into in zip(self.courses, self.shares, self.spaces[0], strict=True):
            count = course.total(first, first + steps - 1)
            rows, why = course.reader.read(*share.rows(course.row(first), count), into)
            out.append((into, len(jax.tree.leaves(rows)[0]), why))
        each = (time.perf_counter() - begin) / steps
        more = min(4 * self.next, self.steps, int(PORTION_SECONDS / max(each, 1e-9)))
        self.next = max(self.unit, more // self.unit * self.unit)
        return out

    def _wanted(self, first: int) -> int:
        """How many steps a portion serves: the start is one of its own."""
        return 1 if first == 0 else max(1, min(self.next, self.last - first + 1))

    def _handed(self, first: int, steps: int, read: list[Any]) -> Portion:
        self.next = int(self.hosts.least(self.next))
        why = None
        sources = {}
        counts = [course.total(first, first + steps - 1) for course in self.courses]
        for k, (course, count) in enumerate(zip(self.courses, counts, strict=True)):
            many, reason = self._rows_of_all(k, course.row(first), count, *read[k][1:])
            fits = course.fitting(first, steps, many)
            if fits < steps:
                steps = fits
                why = f"{self._named(course)}{reason}"
        if first == 0 and steps == 0:
            raise ProblemError(f"{why} That is not enough to begin with: use smaller batches.")
        for k, (course, count) in enumerate(zip(self.courses, counts, strict=True)):
            # One array for all levels that share it. On a CPU it may be the very memory of the rows.
            rows = self._on_devices(k, course.row(first), count, read[k][0])
            starts = course.starts(first, self.steps)
            for level, begins in zip(course.levels, starts, strict=True):
                sources[level] = self._holding(self.streams[level], rows, first, begins)
        return Portion(first, steps, sources, why)

    def _rows_of_all(
        self, number: int, row: int, count: int, many: int, why: str | None
    ) -> tuple[int, str]:
        """How many rows of a portion there are up to the first that a process lacks, and why it does."""
        if self.together is None:
            return many, f": {why}"
        share = self.shares[number]
        lacks = many < share.rows(row, count)[1]
        least = self.hosts.told(np.asarray(share.offset(row, count, many) if lacks else count))[:, 0]
        if least.min() == count:
            return count, ""
        process = int(least.argmin())
        return int(least.min()), f" in process {process}: {self.hosts.all_sent(why)[process]}"

    def _on_devices(self, number: int, row: int, count: int, own: PyTree) -> PyTree:
        """The rows of a portion, those of all processes among them."""
        if self.together is None:
            return jax.block_until_ready(jax.device_put(own))
        most = self.courses[number].most(self.steps)
        index = np.zeros(most, np.int32)
        held = len(jax.tree.leaves(own)[0])
        index[:count] = self.shares[number].places(row, count, held)
        return self.together.rows(own, index)

    def _holding(self, stream: Stream, rows: PyTree, first: int, starts: np.ndarray) -> Stream:
        if self.together is None:
            return stream.holding(rows, first, starts)
        return stream.holding_placed(rows, self.together.placed(first), self.together.placed(starts))

    def _named(self, course: Course) -> str:
        names = " and ".join(repr(self.names[k]) for k in course.levels)
        return f"level {names}" if len(course.levels) == 1 else f"levels {names}"

    # What a checkpoint holds

    def place(self, step: int) -> list[dict[str, Any]]:
        """Where every stream is after ``step``; with the places of the iterators of all processes."""
        places = []
        for course, share in zip(self.courses, self.shares, strict=True):
            row = course.row(step + 1)
            if not share.own or not self.hosts.many:
                places.append(course.reader.place(row))
                continue
            own = course.reader.place(share.rows(row, 0)[0])
            places.append({"row": row, "each": self.hosts.all_sent(own)})
        return places

    def go_to(self, step: int, places: Any) -> None:
        """Takes every stream to its place after ``step``; a ValueError if that is not its place."""
        here = []
        for course, share, place in zip(self.courses, self.shares, places, strict=True):
            row = course.row(step + 1)
            if place["row"] != row:
                raise ValueError
            if share.own and self.hosts.many:
                place = place["each"][share.number]
                row = share.rows(row, 0)[0]
            if place["row"] != row or not 0 <= place.get("item", 0) <= row:
                raise ValueError
            here.append(place)
        for course, place in zip(self.courses, here, strict=True):
            course.reader.go_to(place)


def streams_of(problem: Problem) -> dict[int, Stream]:
    """The streams of a problem, by the number of the level."""
    return {
        k: level.source for k, level in enumerate(problem.levels) if isinstance(level.source, Stream)
    }


def with_streams(tree: Any, streams: dict[int, Stream]) -> Any:
    """A problem, or a part of one, with other streams in its levels."""
    if not streams:
        return tree
    where = lambda problem: [problem.levels[k].source for k in streams]
    return eqx.tree_at(where, tree, list(streams.values()), is_leaf=lambda x: isinstance(x, Stream))


def with_first_rows(problem: Problem, size: int) -> Problem:
    """The problem with ``size`` draws of step 0 at hand in every stream."""
    if not streams_of(problem):
        return problem
    levels = len(problem.levels)
    courses = courses_of(problem, None, (1,) * levels, (size,) * levels)
    return with_streams(problem, Feed(problem, courses, 1, 1, 0).sources(0))


def with_room(problem: Problem, courses: "list[Course]", steps: int = 1) -> Problem:
    """The problem with room for the rows of the start or of so many steps, and nothing in it."""
    streams = streams_of(problem)
    new = {}
    for course in courses:
        for k in course.levels:
            room = _space(streams[k], course.most(steps))
            new[k] = streams[k].holding(room, 0, np.zeros(steps))
    return with_streams(problem, new)


def courses_of(
    problem: Problem, estimator: Any, sizes: tuple[int, ...], first_sizes: tuple[int, ...]
) -> list[Course]:
    """One for every stream that is drawn from, however many levels read it."""
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
        many = lambda each, levels=levels: [passes[k] * each[k] for k in levels]
        fresh = many((int(refresh),) * len(passes)) if refresh else many(sizes)
        start = fresh if refresh else many(first_sizes)
        course = Course(streams[levels[0]].reader, levels, Counts(start, many(sizes), fresh), period)
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
    """Two streams that begin alike would give two levels the same draws."""
    seen: dict[str, Course] = {}
    for course in courses:
        other = seen.setdefault(course.reader.about, course)
        if other is not course:
            a, b = (problem.levels[c.levels[0]].name for c in (other, course))
            raise ProblemError(
                f"levels {a!r} and {b!r} read the same rows in the same order, and their draws must be "
                "independent: give both one and the same nx.Stream, of which they take turns."
            )


def _row_bytes(stream: Stream) -> int:
    return sum(x.dtype.itemsize * x[0].size for x in jax.tree.leaves(stream.rows))


def _space(stream: Stream, count: int) -> PyTree:
    """Room for rows that begins where a CPU can compute with it as it is."""

    def one(x: Any) -> np.ndarray:
        shape = (count, *x.shape[1:])
        dtype = np.dtype(x.dtype)
        size = math.prod(shape) * dtype.itemsize
        raw = np.zeros(size + ALIGNED, np.uint8)
        first = -raw.ctypes.data % ALIGNED
        return raw[first : first + size].view(dtype).reshape(shape)

    return jax.tree.map(one, stream.rows)
