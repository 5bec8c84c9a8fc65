"""Rules that end a run before its last step. A rule is a value, in which nothing of a run is kept.

``minimize(..., stop=[nx.stop.Gap(1e-6), nx.stop.Seconds(60)])`` ends with the first one that is met. Any
function of a record is a rule too: it returns True, or a sentence that says why.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from nestax.errors import POSITIVE, SettingError, check_count, check_setting

#: What tells best how a run goes, of what is recorded: what is held out, then what is free of noise.
WATCHED = ("held_out", "exact_value", "value")


class Rule:
    """Is asked about every record but the one at the start, and about the time."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are recorded because of the rule."""
        return ()

    def begin(self, columns: tuple[str, ...]) -> "Rule":
        """Returns the rule for a run with these columns, or refuses them."""
        return self

    def __call__(self, record: Any) -> str | None:
        """Returns a sentence if the run ends with this record."""
        return None

    def late(self, seconds: float) -> str | None:
        """Returns a sentence if the run ends so many seconds after it began, whatever it is doing."""
        return None


@dataclasses.dataclass(frozen=True)
class Gap(Rule):
    """Ends a run at the first record with F(w) − F* ≤ ``gap``; the problem must know its ``optimum``."""

    gap: float

    @property
    def columns(self) -> tuple[str, ...]:
        return ("gap",)

    def __call__(self, record: Any) -> str | None:
        return f"The gap reached {self.gap:g}." if record["gap"] <= self.gap else None


@dataclasses.dataclass(frozen=True)
class Patience(Rule):
    """Ends a run after so many records without a new least value of a column.

    Args:
        records: how many.
        column: what is watched; by default the metric ``held_out`` if the problem has one, else the
            exact value, else the tracked one.
    """

    records: int
    column: str | None = None

    def __post_init__(self) -> None:
        check_count("patience", self.records)

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.column is None else (self.column,)

    def begin(self, columns: tuple[str, ...]) -> "Patience":
        column = self.column or next((name for name in WATCHED if name in columns), None)
        if column is None:
            raise SettingError(
                "patience waits for a new best value, and none is recorded: add 'value' to record, or "
                "'held_out' where the problem has such a metric."
            )
        return Patience(self.records, column)

    def __call__(self, record: Any) -> str | None:
        assert self.column is not None
        step, since = record.least(self.column)
        best = f"the best is that of step {step:,}"
        enough = since >= self.records
        return f"No new best {self.column} in {self.records:,} records: {best}." if enough else None


@dataclasses.dataclass(frozen=True)
class Seconds(Rule):
    """Ends a run after the first chunk that ends later than this, or while a stream is waited for."""

    seconds: float

    def __post_init__(self) -> None:
        check_setting("seconds", self.seconds, *POSITIVE)

    def late(self, seconds: float) -> str | None:
        return f"Stopped after {self.seconds:g} seconds." if seconds > self.seconds else None


@dataclasses.dataclass(frozen=True)
class Function(Rule):
    """A function of a record as a rule.

    name: what it is called in messages.
    first: whether it sees the record of the start too, as a callback does.
    """

    function: Callable[..., Any]
    name: str
    first: bool = False

    def __post_init__(self) -> None:
        fits = callable(self.function) and not isinstance(self.function, type)
        if fits:
            with contextlib.suppress(ValueError):  # some functions of C do not tell
                signature = inspect.signature(self.function)
                try:
                    signature.bind(None)
                except TypeError:
                    fits = False
        if not fits:
            rules = "" if self.first else " or a rule such as nx.stop.Gap(1e-6)"
            raise SettingError(
                f"{self.name} must be a function of one record, such as "
                f"lambda record: record['step'] >= 300{rules}; got {self.function!r}."
            )

    def __call__(self, record: Any) -> str | None:
        answer = self.function(record)
        if answer is None or (isinstance(answer, str) and not self.first):
            return answer
        truth = np.asarray(answer)
        if truth.dtype != bool or truth.ndim:
            raise SettingError(
                f"a {self.name} returns True to stop the run and nothing to go on; this one returned "
                f"{answer!r}."
            )
        name = "the callback" if self.first else getattr(self.function, "__name__", "a stop rule")
        return f"Stopped by {name}." if truth else None
