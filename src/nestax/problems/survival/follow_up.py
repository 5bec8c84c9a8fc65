"""Who is at risk when: risk sets as pieces of sorted lists, in as many numbers as there are rows.

Rows lie in the order of their strata, and within one by time, the last one first, events behind rows
that were censored at their time. The risk set of an event is then where its stratum begins up to the
last row of its time, but for those that entered too late, which are the beginning of another list.
"""

from typing import Any, NamedTuple

import numpy as np

from nestax.errors import SettingError, choose
from nestax.problems.losses import read_labels

TIES = ("efron", "breslow")


class Late(NamedTuple):
    """Rows by the time at which they came under observation, those of a stratum together, latest first.

    order: places of the rows.
    start, stop: of every event, the part of that order which was not there yet.
    """

    order: np.ndarray
    start: np.ndarray
    stop: np.ndarray


class FollowUp(NamedTuple):
    """The risk sets of all events; "place" counts rows in the order, and events as they stand in it.

    order: the rows, as numbers of rows of the data.
    stratum: of every place, 0, 1, …
    events: the places of rows with an event.
    start, stop: of every event, the places that are at risk, but for the late ones.
    tied: of every event, the first event with the same time.
    spared: of every event, the share of the tied ones that leaves its risk set: l/d for event
        l = 0, 1, … of d with Efron's ties, 0 with Breslow's.
    late: who was not there yet; None where everybody was there from the start.
    """

    order: np.ndarray
    stratum: np.ndarray
    events: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    tied: np.ndarray
    spared: np.ndarray
    late: Late | None


def follow_up(
    time: Any, event: Any, *, strata: Any = None, entry: Any = None, ties: str = "efron"
) -> FollowUp:
    """Sorted once. A row is at risk at t if entry < t ≤ time, among the rows of its stratum.

    Args:
        time: when the follow-up of a row ended, at least 0.
        event: whether with an event (1, True) or censored (0, False).
        strata: a label for every row; rows of different strata are never compared.
        entry: when a row came under observation, before its time; None means before all events.
        ties: "efron" or "breslow".
    """
    choose("ties", ties, TIES)
    time, happened = check_follow_up(time, event)
    code = np.zeros(len(time), int) if strata is None else read_labels("strata", strata, len(time))[1]
    order = np.lexsort((happened, -time, code))
    stratum = code[order]
    begin = np.searchsorted(stratum, stratum)
    new = np.ones(len(time), bool)
    new[1:] = (np.diff(time[order]) != 0) | (np.diff(stratum) != 0)
    moment = np.cumsum(new)
    end = np.searchsorted(moment, moment, side="right")
    events = np.flatnonzero(happened[order])
    tied = np.searchsorted(moment[events], moment[events])
    untied = np.searchsorted(moment[events], moment[events], side="right")
    spared = (np.arange(len(events)) - tied) / (untied - tied) * (ties == "efron")
    late = None
    if entry is not None:
        late = _late(_check_entry(entry, time)[order], time[order], stratum, events)
    return FollowUp(order, stratum, events, begin[events], end[events], tied, spared, late)


def check_follow_up(time: Any, event: Any) -> tuple[np.ndarray, np.ndarray]:
    """Times, and whether they are those of events; refuses what nothing can be learned from."""
    time, event = np.asarray(time), np.asarray(event)
    if time.ndim != 1 or time.shape != event.shape:
        raise SettingError(
            f"time and event are vectors with one number per row of the data; got {time.shape} and "
            f"{event.shape}."
        )
    if not np.isfinite(time).all() or (time < 0).any():
        row = int(np.argmax(~np.isfinite(time) | (time < 0)))
        raise SettingError(f"time must be finite and at least 0; row {row} has {time[row]}.")
    if not np.isin(event, (0, 1)).all():
        row = int(np.argmax(~np.isin(event, (0, 1))))
        raise SettingError(f"event must be 1 or 0, or True or False; row {row} has {event[row]}.")
    happened = event > 0
    if not happened.any():
        raise SettingError(
            "no row has an event: Cox's loss compares those that have one with those at risk then."
        )
    signed = time.dtype.kind not in "bu"  # minus a time is what rows are sorted by
    return time if signed else time.astype(np.int64), happened


def _check_entry(entry: Any, time: np.ndarray) -> np.ndarray:
    entry = np.asarray(entry, float)
    if entry.shape != time.shape:
        raise SettingError(
            f"entry must be one time for each of the {len(time)} rows; got an array of shape "
            f"{entry.shape}."
        )
    wrong = ~(entry < time)  # also where it is NaN
    if wrong.any():
        row = int(np.argmax(wrong))
        raise SettingError(
            f"entry must be before time; row {row} came at {entry[row]:g} and left at {time[row]:g}."
        )
    return entry


def _late(entry: np.ndarray, time: np.ndarray, stratum: np.ndarray, events: np.ndarray) -> Late:
    order = np.lexsort((-entry, stratum))
    # One whole number for stratum and time, so that one search finds its way in all strata.
    moments, number = np.unique(np.concatenate([-entry[order], -time[events]]), return_inverse=True)
    key = np.concatenate([stratum[order], stratum[events]]) * len(moments) + number
    rows, asked = key[: len(order)], key[len(order) :]
    start = np.searchsorted(stratum[order], stratum[events])
    return Late(order, start, np.searchsorted(rows, asked, side="right"))
