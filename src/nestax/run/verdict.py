"""How far the result of a run may be trusted: a sentence with its numbers, from the records alone."""

import enum
from typing import NamedTuple

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
#: Steps that noise throws about leave F swinging by about what is left of it; one that swings by less
#: than this share of that has stopped for another reason.
QUIET = 0.1


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
        if self.word is Word.DIVERGED:
            return self.reason
        return f"{self.word.value.capitalize()}: {self.reason}"


def judge(records: dict[str, np.ndarray], status: Status, message: str) -> Verdict:
    """Judges a run by its records."""
    if status is Status.NONFINITE:
        return Verdict(Word.DIVERGED, message)
    name = next((name for name in FALLING if name in records), None)
    steps = int(records["step"][-1]) - int(records["step"][0])
    if name is None or steps == 0 or "moved" not in records:
        return Verdict(Word.UNKNOWN, "the records do not tell.")
    if not records["moved"].any():
        return Verdict(
            Word.STILL,
            f"the weights have not moved in {steps:,} step{'s' if steps > 1 else ''}. The learning rate "
            "is 0, or too small for their precision, or the gradient vanishes at the start.",
        )
    F = np.asarray(records[name], float)
    late = F[-max(1, len(F) // 4) :]
    exact = name == "exact_value"
    end = float(F[-1] if exact else late.mean())
    won = float(F[0]) - end
    noise = float(late.std(ddof=1)) if len(F) >= FEWEST else abs(float(F[-1] - F[-2]))
    way = f"the {FALLING[name]} went from {F[0]:.4g} to {end:.4g}"
    if won <= 0 and (exact or len(F) >= FEWEST):
        return _above(way, -won, noise, exact)
    if won <= 0:
        return Verdict(Word.UNKNOWN, f"{way}, and so few records do not tell noise from a rise.")
    fall, error = _fall(F, late)
    falling = fall > max(ERRORS * error, SMALL * won)
    left, known = _left(records, exact)
    share = left / won
    again = f"going as far again would win up to {_percent(share)} of that"
    if falling and (share > STATIONARY or not known):
        more = f", and {again}" if known else ""
        return Verdict(
            Word.FALLING,
            f"{way}, {_percent(fall / won)} of it over its last quarter{more}. Take more steps, or a "
            "larger learning rate.",
        )
    if not known:
        return Verdict(
            Word.UNKNOWN,
            f"{way} and falls no more beyond its noise. Nothing here tells the gradient from its noise: "
            "nx.SelfTuning() keeps error bars, and nx.evaluate tells F.",
        )
    if share <= STATIONARY:
        return Verdict(Word.STATIONARY, f"{way}, and {again}.")
    if noise < QUIET * (share / 2) ** 2 * won:
        return Verdict(
            Word.STUCK,
            f"{way} and hardly moves any more, though {again}. Take more steps, or a learning rate that "
            "is larger or falls later.",
        )
    swing = f"goes up and down by {_percent(noise / won)} of that"
    if noise > SMALL * won:
        return Verdict(Word.BOUNCING, f"{way}, and {swing}. Lower the learning rate, or let it fall.")
    return Verdict(
        Word.NOISE_FLOOR,
        f"{way}, and {swing}. A learning rate that falls, or a larger batch, goes below.",
    )


def _above(way: str, rise: float, noise: float, exact: bool) -> Verdict:
    """Judges a run that has ended no lower than it began; by chance alone it may be as far above."""
    if rise > ERRORS * noise or (exact and noise == 0):
        return Verdict(
            Word.ABOVE,
            f"{way}. Lower the learning rate first; if that does not help, enlarge the batch, or give "
            "noisy levels a project= onto their range; nx.check(problem) tells whether few rows carry a "
            "mean.",
        )
    return Verdict(
        Word.BOUNCING,
        f"{way}, no lower than it began, and goes up and down by {noise:.2g}. Lower the learning rate, "
        "or enlarge the batch.",
    )


def _left(records: dict[str, np.ndarray], exact: bool) -> tuple[float, bool]:
    """What is left to win, and whether that is known; an estimated gradient without its noise."""
    left = np.asarray(records["left"], float)
    if exact:
        return float(left[-1]), True
    if "believed_grad_error" not in records:
        return np.nan, False
    late = slice(-max(1, len(left) // 4), None)
    error = np.asarray(records["believed_grad_error"], float)[late]
    noise = error * np.asarray(records["moved"], float)[late]
    square = float(np.mean(left[late] ** 2 - noise**2))
    return max(square, 0.0) ** 0.5, bool(np.isfinite(square))


def _fall(F: np.ndarray, late: np.ndarray) -> tuple[float, float]:
    """How much lower the last quarter lies than the one before it, with its standard error.

    Of few records, how much lower the last one lies than that before it.
    """
    if len(F) < FEWEST:
        return float(F[-2] - F[-1]), 0.0
    before = F[len(F) // 2 : len(F) - len(late)]
    # From differences, for a fall would look like noise within a quarter.
    square = np.diff(F[len(F) // 2 :]).var(ddof=1) / 2
    return float(before.mean() - late.mean()), float(square * (1 / len(before) + 1 / len(late))) ** 0.5


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
