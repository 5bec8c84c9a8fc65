"""Rows for the steps of a run, the next ones read ahead. No mathematics.

Which rows a step takes follows from its number (``course.py``), so the host may hand them to the loop in
portions of any length.
"""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from nestax.chain.problem import Problem
from nestax.devices.hosts import Hosts
from nestax.devices.rows import Sharded
from nestax.errors import ProblemError, SettingError
from nestax.streams.course import Course, courses_of, streams_of
from nestax.streams.shares import shared
from nestax.streams.stream import Stream

#: Bytes of rows in one portion, of which there are two; the most steps that it serves; and the seconds
#: that reading it should take, so that a slow source does not keep the run waiting.
PORTION_BYTES = 2**26
PORTION_STEPS = 2**16
PORTION_SECONDS = 0.5
#: Seconds between two looks at whether a run that waits for rows is asked to stop.
WAIT_SECONDS = 0.1

STOPPED = "The run was stopped"

#: Bytes at whose multiples arrays of a CPU begin.
ALIGNED = 64


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


class NoFeed:
    """Feeds nothing: the twin of ``Feed`` for a run without streams, whose rows never end."""

    courses: tuple[Course, ...] = ()
    asked: Callable[[], bool] = staticmethod(lambda: False)

    def begin_after(self, step: int, rows: tuple[int, ...]) -> None:
        """Takes no rows."""

    def rows_after(self, step: int) -> tuple[int, ...]:
        """Returns the next row of no stream."""
        return ()

    def steps_after(self, step: int) -> int:
        """Returns more steps than any run has."""
        return sys.maxsize

    def filled(self, run: Any, step: int | None) -> Any:
        """Returns the run as it is."""
        return run

    def why(self) -> str:
        """Names no stream."""
        return STOPPED

    def position(self, step: int) -> list[dict[str, Any]]:
        """Returns the position of no stream."""
        return []

    def go_to(self, step: int, positions: Any) -> None:
        """Moves no stream."""


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
        courses: list[Course],
        ahead: int,
        stride: int,
        last: int,
        sharded: Sharded | None = None,
    ):
        self.hosts = Hosts(sharded and sharded.mesh)
        self.names = [level.name for level in problem.levels]
        self.streams = streams_of(problem)
        self.last = last
        self.courses = courses
        for course in courses:
            course.reader = shared(course.reader, sharded, self.hosts)
        self.unit, self.steps = self._portion_steps(ahead, stride)
        self.next = self.unit
        # Two spaces that rows are read into by turns. While a portion is computed with, only the other
        # one is written to: a chunk is complete before the portion after it is asked for.
        self.spaces = [
            [
                _space(self.streams[course.levels[0]], course.reader.most(course.most(self.steps)))
                for course in courses
            ]
            for _ in range(2)
        ]
        self.now: Portion | None = None
        self.ahead: Ahead | None = None
        self.asked: Callable[[], bool] = lambda: False  # whether the run is to stop

    def _portion_steps(self, ahead: int, stride: int) -> tuple[int, int]:
        """Bounds the steps of a portion: whole strides, or else what is drawn at once."""
        size = 0.0
        for course in self.courses:
            often = 1 / course.period if course.period else 0.0
            rows = sum(course.counts.step) + often * sum(course.counts.refresh)
            size += rows * _row_bytes(self.streams[course.levels[0]])
        most = max(1, min(PORTION_STEPS, int(PORTION_BYTES / max(size, 1)), max(self.last, 1)))
        unit = stride if stride <= most else min(ahead, most)
        return unit, most // unit * unit

    # The rows of a run

    def begin_after(self, step: int, rows: tuple[int, ...]) -> None:
        """Lets the run go on after ``step`` with these rows of its streams; none means the first."""
        rows = rows or (0,) * len(self.courses)
        if len(rows) != len(self.courses):
            raise SettingError("start= belongs to a run with other streams.")
        for course, row in zip(self.courses, rows, strict=True):
            course.begin = step
            course.base = row

    def rows_after(self, step: int) -> tuple[int, ...]:
        """Returns the next row of every stream after so many steps."""
        return tuple(course.row(step + 1) for course in self.courses)

    def steps_after(self, step: int) -> int:
        """Returns for how many steps after ``step`` the rows are at hand.

        0 if there are no more, or none came until the run was to stop.
        """
        try:
            now = self._portion(step + 1)
        except StoppedWaiting:
            return 0
        return now.first + now.steps - 1 - step

    def sources(self, step: int) -> dict[int, Stream]:
        """Returns the streams with the rows of ``step`` and of those after it."""
        return self._portion(step).sources

    def filled(self, run: Any, step: int | None) -> Any:
        """Returns a run with the rows of ``step`` and of those after it; as it is if no step is made."""
        if step is None:
            return run
        problem = with_streams(run.arrays.problem, self.sources(step))
        return eqx.tree_at(lambda run: run.arrays.problem, run, problem)

    def why(self) -> str:
        """Says why there are no more rows."""
        why = None if self.now is None else self.now.why
        return STOPPED if why is None else f"{STOPPED}: {why}"

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
        """Waits until all processes have read, or until any is asked to stop, if that is before."""
        waiting = True
        while waiting:
            ahead.thread.join(WAIT_SECONDS)
            flags = [ahead.thread.is_alive(), self.asked()]
            flags = self.hosts.told(np.asarray(flags, np.uint8))
            waiting = bool(flags[:, 0].any())
            if waiting and flags[:, 1].any():
                raise StoppedWaiting

    def _read(self, first: int, steps: int) -> list[tuple[PyTree, int, str | None]]:
        """Reads the rows of a portion, or the share of this process in them, into buffers of one shape.

        Runs in a thread: nothing of JAX in here.
        """
        out = []
        begin = time.perf_counter()
        self.spaces.reverse()
        for course, into in zip(self.courses, self.spaces[0], strict=True):
            count = course.total(first, first + steps - 1)
            rows, why = course.reader.read(course.row(first), count, into)
            out.append((into, len(jax.tree.leaves(rows)[0]), why))
        seconds = (time.perf_counter() - begin) / steps
        more = min(4 * self.next, self.steps, int(PORTION_SECONDS / max(seconds, 1e-9)))
        self.next = max(self.unit, more // self.unit * self.unit)
        return out

    def _wanted(self, first: int) -> int:
        """Returns how many steps a portion serves: the start is one of its own."""
        return 1 if first == 0 else max(1, min(self.next, self.last - first + 1))

    def _handed(self, first: int, steps: int, read: list[Any]) -> Portion:
        """Hands what was read to the devices, as far as it is whole in all processes."""
        self.next = int(self.hosts.least(self.next))
        why = None
        counts = [course.total(first, first + steps - 1) for course in self.courses]
        for course, count, (_, many, reason) in zip(self.courses, counts, read, strict=True):
            many, reason = course.reader.agreed(course.row(first), count, many, reason)
            fits = course.fitting(first, steps, many)
            if fits < steps:
                steps = fits
                why = f"{self._named(course)}{reason}"
        if first == 0 and steps == 0:
            raise ProblemError(f"{why} That is not enough to begin with: use smaller batches.")
        sources = {}
        for course, count, (space, _, _) in zip(self.courses, counts, read, strict=True):
            # One array for all levels that share it. On a CPU it may be the very memory of the rows.
            reader = course.reader
            rows = reader.handed(space, course.row(first), count, course.most(self.steps))
            for level, begins in zip(course.levels, course.starts(first, self.steps), strict=True):
                begins, begin = reader.on_devices(begins), reader.on_devices(first)
                sources[level] = self.streams[level].holding(rows, begin, begins)
        return Portion(first, steps, sources, why)

    def _named(self, course: Course) -> str:
        names = " and ".join(repr(self.names[k]) for k in course.levels)
        return f"level {names}" if len(course.levels) == 1 else f"levels {names}"

    # What a checkpoint holds

    def position(self, step: int) -> list[dict[str, Any]]:
        """Returns where every stream is after ``step``, with the states of the iterators."""
        return [course.reader.position(course.row(step + 1)) for course in self.courses]

    def go_to(self, step: int, positions: Any) -> None:
        """Takes every stream to its position after ``step``; a ValueError if it is another one."""
        for course, position in zip(self.courses, positions, strict=True):
            course.reader.go_to(course.row(step + 1), position)


def with_streams(tree: Any, streams: dict[int, Stream]) -> Any:
    """Puts other streams into the levels of a problem, or of a part of one."""
    if not streams:
        return tree
    return eqx.tree_at(
        lambda problem: [problem.levels[k].source for k in streams],
        tree,
        list(streams.values()),
        is_leaf=lambda x: isinstance(x, Stream),
    )


def with_first_rows(problem: Problem, size: int) -> Problem:
    """Returns the problem with ``size`` draws of step 0 at hand in every stream."""
    if not streams_of(problem):
        return problem
    levels = len(problem.levels)
    courses = courses_of(problem, None, (1,) * levels, (size,) * levels)
    return with_streams(problem, Feed(problem, courses, 1, 1, 0).sources(0))


def with_room(problem: Problem, courses: Iterable[Course], steps: int = 1) -> Problem:
    """Returns the problem with room for the rows of the start or of so many steps, all zeros."""
    streams = streams_of(problem)
    new = {}
    for course in courses:
        for k in course.levels:
            room = _space(streams[k], course.most(steps))
            new[k] = streams[k].holding(room, 0, np.zeros(steps))
    return with_streams(problem, new)


def _row_bytes(stream: Stream) -> int:
    return sum(x.dtype.itemsize * x[0].size for x in jax.tree.leaves(stream.rows))


def _space(stream: Stream, count: int) -> PyTree:
    """Makes room for rows, at an address where a CPU can compute with it as it is."""

    def one(x: Any) -> np.ndarray:
        shape = (count, *x.shape[1:])
        dtype = np.dtype(x.dtype)
        size = math.prod(shape) * dtype.itemsize
        raw = np.zeros(size + ALIGNED, np.uint8)
        first = -raw.ctypes.data % ALIGNED
        return raw[first : first + size].view(dtype).reshape(shape)

    return jax.tree.map(one, stream.rows)
