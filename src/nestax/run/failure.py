"""What went wrong in a run that is not finite any more: where, and in which quantity."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import nestax.trees as trees
from nestax.loop.chunks import At, Chunk, Compiled
from nestax.loop.columns import FINITE_COLUMNS, as_columns
from nestax.loop.status import Status
from nestax.run.record import Book


class Ended(NamedTuple):
    """A run as far as it has come: where, what was recorded, and how it ended."""

    at: At
    book: Book
    status: Status
    message: str

    @property
    def records(self) -> dict[str, np.ndarray]:
        return as_columns(self.book.rows)


def leave_lost(compiled: Compiled, chunk: Chunk, book: Book) -> None:
    """Leaves the last finite weights of the lanes of a grid that a chunk has lost in the book."""
    lost = book.finite & ~chunk.records["finite"].all(axis=0)
    if not lost.any():
        return
    copied = compiled.donates
    states = [(lost, _copied(chunk))] if copied else last_finite(compiled, chunk, book.finite)
    for lanes, at in states:
        book.leave(lanes, compiled.lane.output(at.carry))


def failed(compiled: Compiled, chunk: Chunk, book: Book) -> Ended:
    """Ends a run of one lane that a chunk has lost, and says what is not finite."""
    if compiled.donates:
        book.finite = np.asarray(False)  # so that the last checkpoint stays the last good one
        book.cut(chunk.before.step)
        return Ended(_copied(chunk), book, Status.NONFINITE, without_trackers(chunk.before.step))
    at = next(at for _, at in last_finite(compiled, chunk, book.finite))
    return Ended(at, book, Status.NONFINITE, name_failure(compiled, at, book.step))


def _copied(chunk: Chunk) -> At:
    """Where a chunk began that has overwritten it: there is nothing to go back to but the weights."""
    w, average = jax.tree.map(jnp.asarray, (chunk.before.carry.w, chunk.before.carry.average))
    return At(dataclasses.replace(chunk.after.carry, w=w, average=average), chunk.before.step)


def last_finite(compiled: Compiled, chunk: Chunk, finite: np.ndarray) -> Iterator[tuple[np.ndarray, At]]:
    """Replays a chunk to the last finite states of the lanes that it has lost.

    Yields which lanes, and their state. Strides in which none was lost are run once more at most, the
    others by halves, whatever the number of lanes.

    Args:
        finite: of every lane, whether it was when the chunk began.
    """
    at = chunk.before
    for k, now in enumerate(chunk.records["finite"]):
        lost = finite & ~now
        finite = finite & now
        if lost.any():
            missing = k - (at.step - chunk.before.step) // max(chunk.length, 1)
            at = compiled.advance(at, missing, chunk.length).after if missing else at
            yield from _by_halves(compiled, at, chunk.length, lost)


def _by_halves(
    compiled: Compiled, at: At, steps: int, lost: np.ndarray
) -> Iterator[tuple[np.ndarray, At]]:
    """The same for lanes that are finite at ``at``, and not so many steps later."""
    if steps <= 1:
        yield lost, at
        return
    half = compiled.advance(at, 1, steps // 2)
    finite = half.records["finite"][0]
    if (lost & ~finite).any():
        yield from _by_halves(compiled, at, steps // 2, lost & ~finite)
    if (lost & finite).any():
        yield from _by_halves(compiled, half.after, steps - steps // 2, lost & finite)


def name_failure(compiled: Compiled, at: At, recorded: int | None) -> str:
    """Which quantity became non-finite in the step after ``at``, or is not finite at the start.

    Args:
        recorded: the step of the record before that; None at the start.
    """
    problem, method = compiled.lane.ready(())
    at, record = compiled.observe(at)
    carry = at.carry
    if record["finite"]:
        chunk = compiled.advance(at, 1, 1)
        carry = chunk.after.carry
        record = {name: column[0] for name, column in chunk.records.items()}
    trackers = method.estimator.trackers(carry.state)
    parts = {"the weights": carry.w}
    for kind, word in {"value": "value", "jac": "Jacobian", "adjoint": "adjoint"}.items():
        tracked = zip(problem.levels, getattr(trackers, kind) or (), strict=False)
        parts |= {f"the {word} of level {level.name!r}": part for level, part in tracked}
    parts |= {"the gradient estimate": carry.estimate, "the state of the optimizer": carry.opt_state}
    parts |= {words: record[name] for name, words in FINITE_COLUMNS.items() if name in record}
    bad = (words for words, part in parts.items() if not trees.all_finite(part))
    what = next(bad, "the state of the method")
    what = f"{what[0].upper()}{what[1:]}"
    if recorded is None:
        return (
            f"{what} {'are' if what == 'The weights' else 'is'} infinite or NaN at the start: choose "
            "another w0, or give the level a project= or a smoother function."
        )
    return (
        f"{what} became infinite or NaN at step {at.step + 1:,}, after the record of step {recorded:,}; "
        "the result is the last finite state. Lower the learning rate, enlarge the batch, give the "
        "level a project= or a smoother function."
    )


def without_trackers(step: int) -> str:
    return (
        f"A value became infinite or NaN after step {step:,}, and there was memory for one copy of the "
        "trackers only: the result are the weights of that step, without trackers to go on with. Lower "
        "the learning rate, enlarge the batch, or resume from a checkpoint."
    )
