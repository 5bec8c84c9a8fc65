"""What went wrong in a run that is not finite any more: where, and in which quantity."""

from collections.abc import Iterator

import numpy as np

import nestax.trees as trees
from nestax.loop.chunks import At, Chunk, Compiled
from nestax.loop.columns import FINITE_COLUMNS


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
