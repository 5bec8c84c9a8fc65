"""One loop over the chunks of a run: what is recorded, when it ends, and how. No mathematics."""

import contextlib
import dataclasses
import functools
import inspect
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nestax.checkpoints.keeper import Keeper
from nestax.devices.hosts import gathered
from nestax.errors import SettingError
from nestax.loop.chunks import At, Chunk, Compiled
from nestax.loop.columns import as_columns
from nestax.loop.core import CAPACITY
from nestax.loop.plan import Cost, Meter
from nestax.loop.status import Status
from nestax.run.failure import last_finite, name_failure, without_trackers
from nestax.run.prepare import Prepared
from nestax.run.progress import ALOUD, COMPILING, is_wanted, progress_line
from nestax.run.record import Record, asks_to_stop
from nestax.streams.feed import StoppedWaiting


class Rules(NamedTuple):
    """When a run ends before its last step.

    began, seconds: a time on the clock, and how long after it the run ends.
    target_gap, patience: of the records; ``monitor`` is the column that is to fall.
    callback: asked at every record.
    """

    began: float = 0.0
    seconds: float | None = None
    target_gap: float | None = None
    patience: int | None = None
    monitor: str | None = None
    callback: Callable[[Record], bool | None] | None = None

    @property
    def look(self) -> bool:
        """Whether a record can end the run, or is looked at."""
        asked = (self.target_gap, self.patience, self.callback)
        return any(rule is not None for rule in asked)

    def late(self) -> str | None:
        """A sentence if the clock ends the run between two chunks."""
        over = self.seconds is not None and time.perf_counter() - self.began > self.seconds
        return f"Stopped after {self.seconds:g} seconds." if over else None


class Watch:
    """Asks the rules at every record, the one at the start included.

    reads: whether weights have been asked for. A chunk then holds one record, so that they are at hand;
        until then the weights of a record inside a chunk are computed a second time.
    """

    def __init__(self, rules: Rules, compiled: Compiled):
        self.rules = rules
        self.compiled = compiled
        self.reads = False
        self.best = np.inf
        self.best_step = 0
        self.since = 0

    def strides(self) -> int:
        """The most records of a chunk. Where a chunk overwrites its carry nothing can be repeated."""
        return 1 if self.reads or (self.compiled.donates and self.rules.look) else CAPACITY

    def note(self, row: dict[str, Any]) -> None:
        """Remembers the best of the column that is watched."""
        if self.rules.monitor is None or self.rules.patience is None:
            return
        self.since += 1
        if row[self.rules.monitor] < self.best:
            self.best = row[self.rules.monitor]
            self.best_step = int(row["step"])
            self.since = 0

    def met(self, rows: list[dict[str, Any]]) -> str | None:
        """A sentence if the last of the records ends the run; the one at the start never does."""
        rules = self.rules
        if len(rows) == 1:
            return None
        if rules.target_gap is not None and rows[-1]["gap"] <= rules.target_gap:
            return f"The gap reached {rules.target_gap:g}."
        if rules.patience is not None and self.since >= rules.patience:
            return (
                f"No new best {rules.monitor} in {rules.patience:,} records: the best is that of step "
                f"{self.best_step:,}."
            )
        return None

    def ask(self, rows: list[dict[str, Any]], at: Callable[[], At]) -> str | None:
        """A sentence if the last of the records ends the run, by a rule or by the callback.

        Args:
            rows: all records.
            at: makes the state that the last one belongs to.
        """

        def weights() -> PyTree:
            self.reads = True
            w = self.compiled.lane.output(at().carry)
            return jax.tree.map(np.array, w) if self.compiled.donates else w

        self.note(rows[-1])
        why = self.met(rows)
        callback = self.rules.callback
        if callback is None:
            return why
        if self.compiled.hosts.many:  # the first process alone asks, and all must help it to the weights
            here = gathered(weights())
            weights = lambda: here

        def stopped() -> bool:
            record = Record(rows, weights)
            answer = asks_to_stop(callback(record))
            record.leave()
            return answer

        ends = self.compiled.hosts.decide(stopped)  # asked also where a rule ends the run already
        return why or ("Stopped by the callback." if ends else None)


class Book:
    """The records so far, with the columns that only the host knows.

    finite: of every lane, whether all of its records are.
    left: the last finite weights of lanes that are not any more, an array a leaf; empty while all are.
    """

    def __init__(
        self, meter: Meter, rows: list[dict[str, Any]], finite: Any, left: Sequence[np.ndarray] = ()
    ):
        self.meter = meter
        self.rows = rows
        self.finite = finite
        self.left = list(left)

    @classmethod
    def begun(cls, meter: Meter, step: int, cost: Cost, first: dict[str, Any]) -> "Book":
        """With the record of the start alone."""
        finite = first.pop("finite")
        return cls(meter, [{"step": step, **cost._asdict(), **first}], finite)

    @property
    def step(self) -> int:
        return int(self.rows[-1]["step"])

    def add(self, chunk: Chunk, k: int) -> None:
        """Record ``k`` of a chunk."""
        before = self.rows[-1]
        step = chunk.before.step + (k + 1) * chunk.length
        cost = Cost(*(int(before[name]) for name in Cost._fields))
        cost = self.meter.after(cost, self.step, step)
        row = {name: column[k] for name, column in chunk.records.items()}
        self.finite = self.finite & row.pop("finite")
        self.rows.append({"step": step, **cost._asdict(), **row})

    def leave(self, lanes: np.ndarray, w: PyTree) -> None:
        """Keeps the weights of some lanes, if there are any."""
        if not lanes.any():
            return
        here = list(map(np.asarray, jax.tree.leaves(gathered(w))))
        self.left = self.left or [np.zeros_like(x) for x in here]
        for kept, x in zip(self.left, here, strict=True):
            kept[lanes] = x[lanes]

    def finite_weights(self, w: PyTree) -> PyTree:
        """Weights of all lanes, with those that were kept of lanes that are not finite any more."""
        if np.all(self.finite) or not self.left:
            return w
        leaves, structure = jax.tree.flatten(w)
        mask = lambda x: self.finite.reshape(self.finite.shape + (1,) * (x.ndim - self.finite.ndim))
        kept = [jnp.where(mask(x), x, y) for x, y in zip(leaves, self.left, strict=True)]
        return structure.unflatten(kept)

    def cut(self, step: int) -> None:
        """Forgets what came after ``step``."""
        self.rows = [row for row in self.rows if row["step"] <= step]


class Ended(NamedTuple):
    """A run as far as it has come: where, what was recorded, and how it ended."""

    at: At
    book: Book
    status: Status
    message: str

    @property
    def records(self) -> dict[str, np.ndarray]:
        return as_columns(self.book.rows)


def follow(
    run: Prepared,
    *,
    start: At | None = None,
    until: int | None = None,
    rules: Rules | None = None,
    keeper: Keeper | None = None,
    facts: dict[str, Any] | None = None,
    progress: bool | None = False,
    replay: bool = True,
) -> Ended:
    """Follows a run to its end, or to where a rule, a signal, the rows or a number end it.

    A single lane that is not finite any more ends the run; in a grid the others go on.

    Args:
        start: where the run stands; None is its start.
        until: the step to follow it to; None is its last one.
        rules: when it ends before that.
        keeper: keeps it in a folder; ``facts`` are parts of its fingerprint that only the caller knows.
        progress: whether to show a progress line; None means on a terminal or in a notebook.
        replay: whether the last finite weights of lanes that a grid loses are wanted.
    """
    rules = rules or Rules()
    end = run.total if until is None else until
    hosts = run.compiled.hosts
    with contextlib.ExitStack() as stack:
        stack.enter_context(hosts.together(lambda: f": {keeper.where}" if keeper else ""))
        show = None
        if hosts.first and is_wanted(progress):
            show = stack.enter_context(progress_line(end))
        else:
            ALOUD.get()(COMPILING)
        asked = stack.enter_context(interruptions())
        if run.compiled.feed is not None:
            run.compiled.feed.asked = lambda: asked() or (hosts.first and rules.late() is not None)
        if keeper:
            stack.enter_context(keeper.at_work())
        found = keeper and keeper.find(run.compiled, run.begin, run.stride, end, facts or {})
        if found:
            ALOUD.get()(f"going on from step {found.at.step:,} of {end:,} …")
            at = found.at
            book = Book(run.meter, found.rows, found.finite, found.left)
        else:
            at, first = run.compiled.observe(start or _started(run.compiled, rules, asked))
            book = Book.begun(run.meter, at.step, run.spent, first)
            if run.compiled.lanes:
                book.leave(~book.finite, run.compiled.lane.output(at.carry))
        if found and found.status is Status.NONFINITE:
            return Ended(at, book, found.status, found.message)
        ended = _go_on(run, at, end, book, rules, bool(found), keeper, asked, show, replay)
        if keeper and (run.compiled.lanes or book.finite):
            message = keeper.close(
                ended.at, book.rows, book.finite, book.left, ended.status, ended.message
            )
            ended = ended._replace(message=message)
        return ended


def _started(compiled: Compiled, rules: Rules, asked: Callable[[], bool]) -> At:
    """The start, unless its rows do not come in time: without them there is nothing to return."""
    try:
        return compiled.start()
    except StoppedWaiting:
        if compiled.hosts.any(asked()):
            raise
        raise SettingError(
            f"in the {rules.seconds:g} seconds of the run its streams did not give the rows that it "
            "starts with: raise seconds, take a smaller init_batch_size, or look at what they read from."
        ) from None


def _go_on(
    run: Prepared,
    at: At,
    end: int,
    book: Book,
    rules: Rules,
    resumed: bool,
    keeper: Keeper | None,
    asked: Callable[[], bool],
    show: Callable[..., None] | None,
    replay: bool,
) -> Ended:
    """Chunk after chunk."""
    compiled = run.compiled
    hosts = compiled.hosts
    single = not run.compiled.lanes
    watch = Watch(rules, compiled)
    if single and not book.finite:
        return Ended(at, book, Status.NONFINITE, name_failure(compiled, at, None))
    weights = _weights_of(compiled, at)
    try:
        if resumed:
            for row in book.rows:
                watch.note(row)
            why = watch.met(book.rows)
        else:
            why = watch.ask(book.rows, lambda: at)
        if why is not None:
            return Ended(at, book, Status.SUCCESS, why)
        at, pace = compiled.pace(at)
        ahead = at.step - book.step
        for chunk in compiled.chunks(at, pace, end - at.step, run.stride, ahead, watch.strides):
            if not single and replay:
                _leave_lost(compiled, chunk, book, weights)
            for k in range(chunk.strides or 1):
                if single and not chunk.records["finite"][k]:
                    return _failed(compiled, chunk, book, weights)
                if not chunk.strides:  # a part of a stride, which has no record of its own
                    book.finite = book.finite & chunk.records["finite"][0]
                    continue
                book.add(chunk, k)
                if k + 1 == chunk.strides:  # done, even if somebody interrupts the callback
                    at = chunk.after
                here = functools.partial(_after, compiled, chunk, k)
                why = watch.ask(book.rows, here) if rules.look else None
                if why is not None:
                    chunk = chunk._replace(after=here())
                    break
            at = chunk.after
            weights = _weights_of(compiled, at)
            if show:
                show(at.step, **({rules.monitor: book.rows[-1][rules.monitor]} if rules.monitor else {}))
            late = None if why or rules.seconds is None else hosts.decide(rules.late)
            if late:
                at, why = _last_record(compiled, at, book, watch)
            why = why or late
            if why:
                return Ended(at, book, Status.SUCCESS, why)
            if at.step < end:
                if keeper and not hosts.any(asked()):
                    why = keeper.visit(at, book.rows, book.finite, book.left)
                why = Status.INTERRUPTED.value if hosts.any(asked()) else why
                if why:
                    return Ended(at, book, Status.INTERRUPTED, why)
        if at.step < end and compiled.feed is not None:  # there are no rows, or none came
            if hosts.any(asked()):
                return Ended(at, book, Status.INTERRUPTED, Status.INTERRUPTED.value)
            late = hosts.decide(rules.late)
            at, why = _last_record(compiled, at, book, watch)
            status = Status.SUCCESS if why or late else Status.INTERRUPTED
            return Ended(at, book, status, why or late or compiled.feed.why())
    except KeyboardInterrupt:
        if compiled.donates or hosts.many:
            raise  # what the chunk began with is gone, or other processes do not know
        book.cut(at.step)
        return Ended(at, book, Status.INTERRUPTED, Status.INTERRUPTED.value)
    return Ended(at, book, Status.SUCCESS, Status.SUCCESS.value)


def _last_record(compiled: Compiled, at: At, book: Book, watch: Watch) -> tuple[At, str | None]:
    """Records what was done since the last record, if anything was: the last stride is a shorter one.

    Returns ``at``, which is replaced, and a sentence if the record ends the run.
    """
    if at.step == book.step:
        return at, None
    chunk = compiled.advance(at, 1, 0)
    book.add(chunk, 0)
    why = watch.ask(book.rows, lambda: chunk.after) if watch.rules.look else None
    return chunk.after, why


def _after(compiled: Compiled, chunk: Chunk, k: int) -> At:
    """The state that record ``k`` of a chunk belongs to; one in the middle is computed a second time."""
    if k + 1 == chunk.strides:
        return chunk.after
    return compiled.advance(chunk.before, k + 1, chunk.length).after


def _weights_of(compiled: Compiled, at: At) -> tuple[Any, Any] | None:
    """A copy of the weights and of their average on the host, where the next chunk overwrites them."""
    kept = (at.carry.w, at.carry.average)
    return jax.tree.map(np.array, kept) if compiled.donates else None


def _with_weights(chunk: Chunk, weights: tuple[Any, Any]) -> At:
    """Where a chunk began that has overwritten it: there is nothing to go back to but the weights."""
    w, average = jax.tree.map(jnp.asarray, weights)
    return At(dataclasses.replace(chunk.after.carry, w=w, average=average), chunk.before.step)


def _leave_lost(compiled: Compiled, chunk: Chunk, book: Book, weights: tuple[Any, Any] | None) -> None:
    """Keeps the last finite weights of the lanes that a chunk has lost."""
    if weights is None:
        states = last_finite(compiled, chunk, book.finite)
    else:
        lost = book.finite & ~chunk.records["finite"].all(axis=0)
        states = [(lost, _with_weights(chunk, weights))]
    for lanes, at in states:
        book.leave(lanes, compiled.lane.output(at.carry))


def _failed(compiled: Compiled, chunk: Chunk, book: Book, weights: tuple[Any, Any] | None) -> Ended:
    """The last finite state of a run that a chunk has lost, and what is not finite."""
    if weights is not None:
        book.finite = np.asarray(False)  # so that the last checkpoint stays the last good one
        book.cut(chunk.before.step)
        at = _with_weights(chunk, weights)
        return Ended(at, book, Status.NONFINITE, without_trackers(chunk.before.step))
    at = next(at for _, at in last_finite(compiled, chunk, book.finite))
    return Ended(at, book, Status.NONFINITE, name_failure(compiled, at, book.step))


@contextlib.contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Ctrl-C, SIGTERM and SIGHUP let the chunk finish; a second one stops at once.

    Yields a function that tells whether one has come. Signals reach the main thread alone, and handlers
    of the user's own stay in place.
    """
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    if hasattr(signal, "SIGHUP"):  # Windows has none; under nohup it is ignored already, and stays so
        usual[signal.SIGHUP] = signal.SIG_DFL
    main = threading.current_thread() is threading.main_thread()
    now = {n: signal.getsignal(n) for n in usual}
    ours = {n: old for n, old in now.items() if main and inspect.unwrap(old) == usual[n]}  # pyright: ignore[reportArgumentType]
    came: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    for number in ours:
        signal.signal(number, ask)
    try:
        yield lambda: bool(came)
    finally:
        for number, old in ours.items():
            signal.signal(number, old)
