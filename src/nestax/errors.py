"""What a user is told when something does not fit: one sentence, with what to do next."""

import numbers
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from jax.core import Tracer

#: Packages whose code is not the user's, and stays as it is while a process runs.
SETTLED = ("nestax", "jax", "jaxlib", "optax", "equinox", "numpy", "builtins", "functools", "math")


class ProblemError(ValueError):
    """The problem or its data cannot be used as given."""


class SettingError(ValueError):
    """A setting lies outside its range, or two settings contradict each other."""


class ConvergenceWarning(UserWarning):
    """A run has clearly not arrived: it still falls, bounces, has stopped short or not moved at all,
    ended above its start, or is not finite.

    ``warnings.simplefilter("ignore", nx.ConvergenceWarning)`` switches it off.
    """


class Range(NamedTuple):
    """Where a setting must lie: what completes the sentence "it must be …", and the test of it."""

    words: str
    holds: Callable[[Any], Any]


UNIT = Range("in (0, 1]", lambda x: (x > 0) & (x <= 1))
BELOW_ONE = Range("in (0, 1)", lambda x: (x > 0) & (x < 1))
UP_TO_HALF = Range("in (0, 1/2]", lambda x: (x > 0) & (x <= 0.5))
POSITIVE = Range("positive", lambda x: x > 0)
NONNEGATIVE = Range("at least 0", lambda x: x >= 0)


def is_traced(x: Any) -> bool:
    return isinstance(x, Tracer)


def shown(value: Any) -> str:
    """A value as somebody typed it: 0.1 in any precision, and of large arrays some numbers."""
    if isinstance(value, str) or not hasattr(value, "dtype"):
        return repr(value)
    with np.printoptions(threshold=6, edgeitems=2):
        return " ".join(str(np.asarray(value)).split())


def check_setting(name: str, value: Any, allowed: str, test: Callable[[Any], Any]) -> None:
    """Refuses a concrete setting for which ``test`` is false; traced values and schedules pass.

    ``allowed`` completes the sentence "``name`` must be ...".
    """
    if value is None or callable(value) or is_traced(value):
        return
    try:
        fine = bool(np.all(test(np.asarray(value))))
    except TypeError:  # not a number at all
        fine = False
    if not fine:
        raise SettingError(f"{name} must be {allowed}; got {shown(value)}.")


def check_number(name: str, value: Any, allowed: str, test: Callable[[Any], Any]) -> None:
    """Refuses anything but one real number for which ``test`` is true."""
    if not isinstance(value, numbers.Real) or not test(value):
        raise SettingError(f"{name} must be {allowed}; got {value!r}.")


def check_count(name: str, value: Any) -> int:
    """A whole number of at least one, as a Python int."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < 1:
        raise SettingError(f"{name} must be a whole number of at least 1; got {value!r}.")
    return int(value)


def check_seed(seed: Any) -> int:
    """A whole number of 32 bits, as a Python int: without x64 JAX would cut off the rest."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise SettingError(f"seed must be a whole number from 0 to {2**32 - 1:,}; got {seed!r}.")
    return int(seed)


def choose(name: str, value: str, options: tuple[str, ...]) -> str:
    """One of a few words; the sentence lists them."""
    if value not in options:
        raise SettingError(f"{name} must be one of {', '.join(options)}; got {value!r}.")
    return value


def warn(sentence: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the user's line: the innermost one outside this package."""
    package = __name__.partition(".")[0]
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame = frame.f_back
        level += 1
    warnings.warn(sentence, category, stacklevel=level)


def users_part(error: Exception) -> Exception | None:
    """The error with its traceback from the first line of the user's code on; None if it has none."""
    part = error.__traceback__
    while part is not None and part.tb_frame.f_globals.get("__name__", "").split(".")[0] in SETTLED:
        part = part.tb_next
    return None if part is None else error.with_traceback(part)
