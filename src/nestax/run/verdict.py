"""How far the result of a run may be trusted: a sentence with its numbers, from the records alone."""

import enum
from typing import Any, NamedTuple

import numpy as np

from nestax.loop.status import Status

#: Columns that are to fall, those that are free of noise first.
FALLING = {"exact_value": "exact value", "value": "tracked value"}
#: A run is stationary if going as far again would win less than this share of what was won so far. For a
#: quadratic that is twice the share of the distance that is left: at most 0.3 % of F − F* remain.
STATIONARY = 0.1
#: The share of what was won that a run may still win in its last quarter, or be thrown about by.
SMALL = 0.02
#: Records from which a trend is told, and how many standard errors make one.
FEWEST, ERRORS = 8, 3.0


class Word(enum.Enum):
    """What became of a run, in a word."""

    STATIONARY = "stationary"
    NOISE_FLOOR = "noise floor reached"
    FALLING = "still falling"
    BOUNCING = "bouncing"
    STUCK = "stopped short"
    STILL = "not moved"
    ABOVE = "above its start"
    DIVERGED = "diverged"
    UNKNOWN = "not known"


#: Words of runs that have clearly not arrived.
BAD = (Word.FALLING, Word.BOUNCING, Word.STUCK, Word.STILL, Word.ABOVE, Word.DIVERGED)


class Verdict(NamedTuple):
    """What a run says of itself.

    word: in a word; ``reason``: in a sentence with the numbers behind it, and what to do.
    """

    word: Word
    reason: str

    @property
    def arrived(self) -> bool | None:
        """Whether the run has ended where F is stationary, up to noise; None where nothing tells."""
        return None if self.word is Word.UNKNOWN else self.word not in BAD

    def __str__(self) -> str:
        return f"{self.word.value}: {self.reason}"


def judge(records: dict[str, np.ndarray], status: Status, message: str) -> Verdict:
    """Judges a run by its records."""
    if status is Status.NONFINITE:
        return Verdict(Word.DIVERGED, message)
    name = next((name for name in FALLING if name in records), None)
    steps = int(records["step"][-1]) - int(records["step"][0])
    if steps and not records["moved"].any():
        return Verdict(
            Word.STILL,
            f"the weights have not moved in {steps:,} step{'s' if steps > 1 else ''}. The learning rate is 0, "
            "or too small for their precision, or the gradient vanishes at the start.",
        )
    if name is None or steps == 0:
        return Verdict(Word.UNKNOWN, "no value of F is recorded.")
    F = np.asarray(records[name], float)
    late = F[-max(1, len(F) // 4) :]
    before = F[len(F) // 2 : len(F) - len(late)]
    exact = name == "exact_value"
    end = float(F[-1]) if exact else float(late.mean())
    won = float(F[0]) - end
    noise = float(late.std(ddof=1)) if len(late) > 1 else 0.0
    label = FALLING[name]
    way = f"the {label} went from {F[0]:.4g} to {end:.4g}"
    # A tracked value may lie above the start by chance alone.
    if won <= (0 if exact else -ERRORS * noise):
        return Verdict(
            Word.ABOVE,
            f"{way}. Lower the learning rate first; if that does not help, enlarge the batch, or give noisy "
            "levels a project= onto their range; nx.check(problem) tells whether few rows carry a mean.",
        )
    fall, error = _fall(before, late)
    falling = len(F) > FEWEST and fall > max(ERRORS * error, SMALL * won)
    left, known = _left(records, exact)
    share = left / won if won > 0 else np.inf
    again = f"going as far again would win up to {_percent(share)} of that"
    last = f"{_percent(fall / won) if won > 0 else 'all'} of it over its last quarter"
    if falling and (share > STATIONARY or not known):
        return Verdict(
            Word.FALLING, f"{way}, {last}{', and ' + again if known else ''}. Take more steps or a larger rate."
        )
    if not known:
        return Verdict(
            Word.UNKNOWN,
            f"{way} and falls no more beyond its noise. Nothing here tells the gradient from its noise: "
            "nx.SelfTuning() keeps error bars, and nx.evaluate tells F.",
        )
    if share <= STATIONARY:
        return Verdict(Word.STATIONARY, f"{way}, and {again}.")
    if noise < 0.1 * (share / 2) ** 2 * won:  # far less than the distance from the optimum would make it
        return Verdict(
            Word.STUCK,
            f"{way} and does not move any more, though {again}. Take more steps, or a larger rate that falls "
            "later.",
        )
    if noise > SMALL * won:
        return Verdict(
            Word.BOUNCING,
            f"{way}, and its last quarter goes up and down by {_percent(noise / won)} of that. Lower the "
            "learning rate, or let it fall.",
        )
    return Verdict(
        Word.NOISE_FLOOR,
        f"{way}, and goes up and down by {_percent(noise / won)} of that. A rate that falls, or a larger "
        "batch, goes below.",
    )


def _left(records: dict[str, np.ndarray], exact: bool) -> tuple[float, bool]:
    """What is left to win, and whether that is known; an estimated gradient without its noise."""
    left = np.asarray(records["left"], float)
    if exact:
        return float(left[-1]), True
    if "believed_grad_error" not in records:
        return np.nan, False
    late = slice(-max(1, len(left) // 4), None)
    noise = np.asarray(records["believed_grad_error"], float)[late] * np.asarray(records["moved"], float)[late]
    square = float(np.mean(left[late] ** 2 - noise**2))
    return max(square, 0.0) ** 0.5, bool(np.isfinite(square))


def _fall(before: np.ndarray, late: np.ndarray) -> tuple[float, float]:
    """How much lower the last quarter lies than the one before it, with its standard error."""
    if min(len(before), len(late)) < 2:
        return 0.0, np.inf
    error = (before.var(ddof=1) / len(before) + late.var(ddof=1) / len(late)) ** 0.5
    return float(before.mean() - late.mean()), float(error)


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if np.isfinite(share) else "any part"


def verdict_of(result: Any) -> Verdict:
    """The verdict on a result."""
    return judge(result.records, result.status, result.message)
