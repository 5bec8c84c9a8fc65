"""One loop over the chunks of a run: what is recorded, when it ends, and how. No mathematics."""

import contextlib
import functools
import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from nestax.checkpoints.keeper import Keeper, NoKeeper
from nestax.errors import SettingError
from nestax.loop.chunks import At, Chunk, Compiled
from nestax.loop.status import Status
from nestax.run.failure import Ended, failed, leave_lost, name_failure
from nestax.run.prepare import Prepared
from nestax.run.progress import ALOUD, progress_line
from nestax.run.record import Book, Watch
from nestax.streams.feed import StoppedWaiting


def follow(
    run: Prepared,
    *,
    start: At | None = None,
    until: int | None = None,
    watch: Watch | None = None,
    keeper: Keeper | NoKeeper | None = None,
    facts: dict[str, Any] | None = None,
    progress: bool | None = False,
    replay: bool = True,
) -> Ended:
    """Follows a run to its end, or to where a rule, a signal, the rows or a number end it.

    A single lane that is not finite any more ends the run; in a grid the others go on.

    Args:
        start: where the run stands; None is its start.
        until: the step to follow it to; None is its last one.
        watch: who looks at it, and may end it before that.
        keeper: keeps it in a folder; ``facts`` are parts of its fingerprint that only the caller knows.
        progress: whether to show a progress line; None means on a terminal or in a notebook.
        replay: whether the last finite weights of lanes that a grid loses are wanted.
    """
    compiled = run.compiled
    keeper = keeper or NoKeeper()
    watch = watch or Watch()
    watch.begin(compiled)
    end = run.total if until is None else until
    with contextlib.ExitStack() as stack:
        stack.enter_context(compiled.hosts.together(lambda: keeper.where))
        show = stack.enter_context(progress_line(end, progress, compiled.hosts.first))
        asked = stack.enter_context(interruptions())
        stack.enter_context(keeper.at_work())
        compiled.feed.asked = lambda: asked() or (compiled.hosts.first and watch.late() is not None)
        found = keeper.find(compiled, run.begin, run.stride, end, facts or {})
        if found:
            ALOUD.get()(f"going on from step {found.at.step:,} of {end:,} …")
            at = found.at
            book = Book(run.meter, found.rows, found.finite, found.left)
        else:
            at, first = compiled.observe(start or _started(compiled, watch, asked))
            book = Book.begun(run.meter, at.step, run.spent, first)
            if compiled.lanes:
                book.leave(~book.finite, compiled.lane.output(at.carry))
        if found and found.status is Status.NONFINITE:
            return Ended(at, book, found.status, found.message)
        watch.seen = found is not None
        ended = _to_the_end(run, at, end, book, watch, keeper, asked, show, replay)
        if compiled.lanes or book.finite:
            message = keeper.close(
                ended.at, book.rows, book.finite, book.left, ended.status, ended.message
            )
            ended = ended._replace(message=message)
        return ended


def _started(compiled: Compiled, watch: Watch, asked: Callable[[], bool]) -> At:
    """The start, unless its rows do not come in time: without them there is nothing to return."""
    try:
        return compiled.start()
    except StoppedWaiting:
        if compiled.hosts.any(asked()):
            raise
        raise SettingError(
            f"{watch.late()} Until then its streams did not give the rows that the run starts with: "
            "raise seconds, take a smaller init_batch_size, or look at what they read from."
        ) from None


def _to_the_end(
    run: Prepared,
    at: At,
    end: int,
    book: Book,
    watch: Watch,
    keeper: Keeper | NoKeeper,
    asked: Callable[[], bool],
    show: Callable[[int, dict[str, Any]], None],
    replay: bool,
) -> Ended:
    """Chunk after chunk, until somebody who is asked, the rows or the last step end the run."""
    compiled = run.compiled
    hosts = compiled.hosts
    single = not compiled.lanes
    interrupted = (Status.INTERRUPTED, Status.INTERRUPTED.value)
    if single and not book.finite:
        return Ended(at, book, Status.NONFINITE, name_failure(compiled, at, None))
    try:
        why = watch.ask(book, lambda: at)
        if why is not None:
            return Ended(at, book, Status.SUCCESS, why)
        at, pace = compiled.pace(at)
        ahead = at.step - book.step
        for chunk in compiled.chunks(at, pace, end - at.step, run.stride, ahead, watch.strides):
            if replay and not single:
                leave_lost(compiled, chunk, book)
            for k in range(chunk.strides or 1):
                if single and not chunk.records["finite"][k]:
                    return failed(compiled, chunk, book)
                book.add(chunk, k)
                if k + 1 == chunk.strides:  # done, even if somebody interrupts the callback
                    at = chunk.after
                state = functools.partial(_after, compiled, chunk, k)
                why = watch.ask(book, state) if chunk.strides else None
                if why is not None:
                    return Ended(state(), book, Status.SUCCESS, why)
            at = chunk.after
            show(at.step, book.rows[-1])
            late = watch.over()
            if late:
                at, why = _last_record(compiled, at, book, watch)
                return Ended(at, book, Status.SUCCESS, why or late)
            if at.step < end:
                if hosts.any(asked()):
                    return Ended(at, book, *interrupted)
                why = keeper.visit(at, book.rows, book.finite, book.left)
                if why or hosts.any(asked()):
                    return Ended(at, book, Status.INTERRUPTED, why or interrupted[1])
        if at.step < end:  # there are no rows, or none came
            if hosts.any(asked()):
                return Ended(at, book, *interrupted)
            late = watch.over()
            at, why = _last_record(compiled, at, book, watch)
            status = Status.SUCCESS if why or late else Status.INTERRUPTED
            return Ended(at, book, status, why or late or compiled.feed.why())
    except KeyboardInterrupt:
        if compiled.donates or hosts.many:
            raise  # what the chunk began with is gone, or other processes do not know
        book.cut(at.step)
        return Ended(at, book, *interrupted)
    return Ended(at, book, Status.SUCCESS, Status.SUCCESS.value)


def _last_record(compiled: Compiled, at: At, book: Book, watch: Watch) -> tuple[At, str | None]:
    """Records what was done since the last record, if anything was: the last stride is a shorter one.

    Returns ``at``, which is replaced, and a sentence if the record ends the run.
    """
    if at.step == book.step:
        return at, None
    chunk = compiled.advance(at, 1, 0)
    book.add(chunk, 0)
    return chunk.after, watch.ask(book, lambda: chunk.after)


def _after(compiled: Compiled, chunk: Chunk, k: int) -> At:
    """The state that record ``k`` of a chunk belongs to; one in the middle is computed a second time."""
    if k + 1 == chunk.strides:
        return chunk.after
    return compiled.advance(chunk.before, k + 1, chunk.length).after


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
