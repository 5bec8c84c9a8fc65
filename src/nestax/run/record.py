"""What a callback is given: one record, with the weights that it belongs to. No mathematics."""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import PyTree

from nestax.errors import SettingError
from nestax.loop.columns import as_columns


class Record(dict[str, Any]):
    """One record of a run as a dictionary of its columns, as a callback sees it.

    In a sweep a column holds an array (settings, seeds); step and costs are one number for all lanes.
    """

    def __init__(self, rows: list[dict[str, Any]], weights: Callable[[], PyTree]):
        super().__init__(rows[-1])
        self._rows = rows
        self._count = len(rows)
        self._weights: Callable[[], PyTree] | None = weights
        self._w: PyTree = None

    def __missing__(self, name: str) -> Any:
        raise SettingError(
            f"a record has no column {name!r}; it has {', '.join(self)}: others are asked for with "
            "record=[...]."
        )

    @property
    def w(self) -> PyTree:
        """The weights of this record: those that the run returns if it is stopped here."""
        if self._weights is not None:
            self._w = self._weights()
            self._weights = None
        elif self._w is None:
            raise SettingError(
                "the weights of a record are there while the callback runs: read record.w inside of it."
            )
        return self._w

    @property
    def records(self) -> dict[str, np.ndarray]:
        """All records up to this one, a column each, as in the result; put together when asked for."""
        return as_columns(self._rows[: self._count])

    def numbers(self) -> dict[str, float]:
        """The record as plain numbers, for loggers; entry i of a column is called ``name/i``."""
        parts = {name: np.ndenumerate(np.asarray(column)) for name, column in self.items()}
        return {
            "/".join([name, *map(str, place)]): float(x)
            for name, entries in parts.items()
            for place, x in entries
        }

    def leave(self) -> None:
        """Lets go of what weights would be computed from: a callback may keep the record."""
        self._weights = None


def check_callback(callback: Any) -> None:
    """Refuses what cannot be called with one record."""
    if callback is None:
        return
    fits = callable(callback)
    if fits:
        with contextlib.suppress(ValueError):  # some functions of C do not tell
            signature = inspect.signature(callback)
            try:
                signature.bind(None)
            except TypeError:
                fits = False
    if not fits:
        raise SettingError(
            "callback must be a function of one record, such as lambda record: record['step'] >= 300; "
            f"got {callback!r}."
        )


def asks_to_stop(answer: Any) -> bool:
    """Whether a callback returned True; anything but that, False and None is no answer."""
    if answer is None:
        return False
    truth = np.asarray(answer)
    if truth.dtype != bool or truth.ndim:
        raise SettingError(
            "a callback returns True to stop the run and nothing to go on; this one returned "
            f"{answer!r}."
        )
    return bool(truth)
