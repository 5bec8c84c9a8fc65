"""The records of a run, and everybody who looks at them while it runs. No mathematics."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nestax.devices.hosts import gathered
from nestax.errors import SettingError
from nestax.loop.chunks import At, Chunk, Compiled
from nestax.loop.columns import as_columns
from nestax.loop.core import CAPACITY
from nestax.loop.plan import Cost, Meter
from nestax.stop import Function, Rule


class Book:
    """The records so far, with the columns that only the host knows.

    finite: of every lane, whether all of its records are.
    left: the last finite weights of lanes that are not any more, an array a leaf; empty while all are.
    """

    def __init__(self, meter: Meter, rows: list[dict[str, Any]], finite: Any, left: Any = ()):
        self.meter = meter
        self.rows = rows
        self.finite = finite
        self.left = list(left)
        self._least: dict[str, tuple[int, Any, int]] = {}  # the row of the least, it, and rows seen

    @classmethod
    def begun(cls, meter: Meter, step: int, cost: Cost, first: dict[str, Any]) -> "Book":
        """Begins with the record of the start."""
        finite = first.pop("finite")
        return cls(meter, [{"step": step, **cost._asdict(), **first}], finite)

    @property
    def step(self) -> int:
        return int(self.rows[-1]["step"])

    def add(self, chunk: Chunk, k: int) -> None:
        """Adds record ``k`` of a chunk; of a part of a stride only whether all is finite."""
        row = {name: column[k] for name, column in chunk.records.items()}
        self.finite = self.finite & row.pop("finite")
        if chunk.strides:
            before = self.rows[-1]
            step = chunk.before.step + (k + 1) * chunk.length
            cost = Cost(*(int(before[name]) for name in Cost._fields))
            cost = self.meter.after(cost, self.step, step)
            self.rows.append({"step": step, **cost._asdict(), **row})

    def least(self, column: str) -> tuple[int, int]:
        """The step of the least value of a column, the first of equals, and how many rows came since."""
        best, value, seen = self._least.get(column, (0, np.inf, 0))
        for k in range(seen, len(self.rows)):
            if self.rows[k][column] < value:
                best, value = k, self.rows[k][column]
        self._least[column] = (best, value, len(self.rows))
        return int(self.rows[best]["step"]), len(self.rows) - 1 - best

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
        kept = []
        for x, last in zip(leaves, self.left, strict=True):
            mask = self.finite.reshape(self.finite.shape + (1,) * (x.ndim - self.finite.ndim))
            kept.append(jnp.where(mask, x, last))
        return structure.unflatten(kept)

    def cut(self, step: int) -> None:
        """Forgets what came after ``step``."""
        self.rows = [row for row in self.rows if row["step"] <= step]
        self._least = {}


class Record(dict[str, Any]):
    """One record of a run as a dictionary of its columns, as a callback sees it.

    In a sweep a column holds an array (settings, seeds); step and costs are one number for all lanes.
    """

    def __init__(self, book: Book, weights: Callable[[], PyTree]):
        super().__init__(book.rows[-1])
        self._book = book
        self._count = len(book.rows)
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
        return as_columns(self._book.rows[: self._count])

    def least(self, column: str) -> tuple[int, int]:
        """The step of the least value of a column so far, and how many records have come since."""
        return self._book.least(column)

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


class Watch:
    """Everybody who looks at a run while it runs: its stop rules and its callback.

    Args:
        stop: a rule or several, each of ``nx.stop`` or a function of a record.
        callback: a function of every record, that of the start included.
        began: when the run began, on the clock of ``time.perf_counter``.
    """

    def __init__(self, stop: Any = (), callback: Any = None, began: float = 0.0):
        rules = list(stop) if isinstance(stop, Iterable) else [] if stop is None else [stop]
        self.rules = [rule if isinstance(rule, Rule) else Function(rule, "stop") for rule in rules]
        self.rules += [] if callback is None else [Function(callback, "callback", first=True)]
        self.began = began
        #: Whether weights have been asked for. A chunk then holds one record, so that they are at hand;
        #: until then the weights of a record inside a chunk are computed a second time.
        self.reads = False
        #: Whether a callback has seen the record that is asked about next, before an interruption.
        self.seen = False

    @property
    def columns(self) -> list[str]:
        """The columns that the rules look at."""
        return [column for rule in self.rules for column in rule.columns]

    def begin(self, compiled: Compiled) -> None:
        """Binds the rules to a run."""
        self.compiled = compiled
        self.rules = [rule.begin(compiled.lane.plan.columns) for rule in self.rules]

    def strides(self) -> int:
        """The most records of a chunk. Where a chunk overwrites its carry nothing can be repeated."""
        return 1 if self.reads or (self.compiled.donates and self.rules) else CAPACITY

    def late(self) -> str | None:
        """A sentence if the clock here ends the run."""
        seconds = time.perf_counter() - self.began
        return next(filter(None, (rule.late(seconds) for rule in self.rules)), None)

    def over(self) -> str | None:
        """A sentence if the clock of the first process ends the run."""
        return self.compiled.hosts.decide(self.late) if self.rules else None

    def ask(self, book: Book, at: Callable[[], At]) -> str | None:
        """A sentence if the last record ends the run; ``at`` makes the state that it belongs to."""
        start = len(book.rows) == 1
        rules = [rule for rule in self.rules if not start or getattr(rule, "first", False)]
        rules = [rule for rule in rules if not (self.seen and getattr(rule, "first", False))]
        self.seen = False
        return self._asked(rules, book, at) if rules else None

    def _asked(self, rules: list[Rule], book: Book, at: Callable[[], At]) -> str | None:
        def weights() -> PyTree:
            self.reads = True
            w = self.compiled.lane.output(at().carry)
            return jax.tree.map(np.array, w) if self.compiled.donates else w

        hosts = self.compiled.hosts
        record = Record(book, weights)
        if hosts.many and any(isinstance(rule, Function) for rule in rules):
            w = gathered(weights())  # the first process alone asks, and all must help it to the weights
            record = Record(book, lambda: w)

        def answers() -> str | None:
            sentences = [rule(record) for rule in rules]  # all are asked, also where one ends the run
            record.leave()
            return next(filter(None, sentences), None)

        return hosts.decide(answers)
