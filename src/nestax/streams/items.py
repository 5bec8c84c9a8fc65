"""Rows from an iterator, which are read once and in their order."""

import hashlib
import json
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from nestax.errors import ProblemError
from nestax.streams.readers import Reader, refuse_kinds, shapes, struct, words


class Item(NamedTuple):
    """What an iterator has returned once: rows ``first`` to ``end``.

    state: of the iterator before, where it tells.
    """

    first: int
    end: int
    rows: PyTree
    state: Any

    def cut(self, first: int, end: int) -> PyTree:
        """Returns those of its rows that lie between the two."""
        return jax.tree.map(lambda x: x[max(0, first - self.first) : end - self.first], self.rows)


class Items(Reader):
    """An iterator over rows, or over batches of them; what the last two calls asked for is kept.

    An iterator with ``get_state`` and ``set_state``, such as Grain's, is taken to its place by its own
    state; any other is read from its beginning again.
    """

    own = True

    def __init__(self, items: Any, batches: bool):
        self.items: Iterator[Any] = iter(items)
        self.batches = batches
        self.lock = threading.Lock()
        # What is kept is looked at also while the iterator lets a reader wait for its next item.
        self.keeping = threading.Lock()
        self.has_state = hasattr(self.items, "get_state") and hasattr(self.items, "set_state")
        self.kept: deque[Item] = deque()
        self.first = self.end = self.asked = 0
        self.why: str | None = None
        self.one = None
        self.state: Any = None  # of the iterator after the last item
        self._pull()
        if not self.kept:
            raise ProblemError(self.why or "data is empty: it needs at least one row.")
        digest = hashlib.sha256()
        for x in jax.tree.leaves(self.kept[0].rows):
            digest.update(np.ascontiguousarray(x).data)
        self.about = f"rows of {shapes(self.one)} that begin with SHA-256 {digest.hexdigest()[:16]}"

    def _read(self, start: int, count: int) -> tuple[list[PyTree], str | None]:
        with self.lock:
            if start < self.first:
                raise ProblemError(
                    f"an iterator was read up to row {self.end:,} and cannot go back to row {start:,}: "
                    "make a new nx.Stream of a new iterator for a new run."
                )
            before = self.asked
            self.asked = start
            self._forget(start if start > self.end else before)
            while self.end < start + count and self.why is None:
                self._pull()
                if self.end <= start:  # on the way to where a run was
                    self._forget(self.end)
            if self.end < start:
                raise ProblemError(
                    f"{self.why} The run had read {start:,} rows: give it the iterator that it began "
                    "with."
                )
            items = (i for i in self.kept if i.first < start + count and i.end > start)
            parts = [i.cut(start, start + count) for i in items]
            return parts, self.why if self.end < start + count else None

    def _forget(self, row: int) -> None:
        """Lets everything before a row go."""
        with self.keeping:
            while self.kept and self.kept[0].end <= row:
                self.kept.popleft()
            self.first = self.kept[0].first if self.kept else self.end

    def _state_now(self) -> Any:
        return self.items.get_state() if self.has_state else None  # pyright: ignore[reportAttributeAccessIssue]

    def _pull(self) -> None:
        """Reads one item more, or the reason why there is none."""
        try:
            if self.state is None:
                self.state = self._state_now()
            item = next(self.items)
            state = self._state_now()
        except StopIteration:
            self.why = f"the iterator ended after {self.end:,} rows."
            return
        except Exception as error:
            self.why = (
                f"the iterator failed at row {self.end:,} with {type(error).__name__}: {words(error)}."
            )
            return
        try:
            rows = self._as_rows(item)
        except (ProblemError, TypeError, ValueError) as error:
            self.why = f"the iterator gave at row {self.end:,} what is no row: {words(error)}."
            return
        end = self.end + len(jax.tree.leaves(rows)[0])
        with self.keeping:
            self.kept.append(Item(self.end, end, rows, self.state))
            self.end = end
            self.state = state

    def _as_rows(self, item: Any) -> PyTree:
        """Turns an item into rows with a leading axis; refuses one unlike the first."""
        rows = jax.tree.map(np.asarray, item)
        leaves = jax.tree.leaves(rows)
        if not leaves:
            raise ProblemError("it holds no array")
        if not self.batches:
            rows = jax.tree.map(lambda x: x[None], rows)
        elif len({x.shape[:1] for x in leaves}) > 1 or leaves[0].ndim == 0:
            raise ProblemError("the arrays of a batch must have one common leading axis")
        one = jax.tree.map(lambda x: struct(x.shape[1:], x.dtype), rows)
        if self.one is None:
            refuse_kinds(one)
            self.one = one
            return rows
        same = jax.tree.structure(one) == jax.tree.structure(self.one) and all(
            a.shape == b.shape and np.can_cast(a.dtype, b.dtype, "safe")
            for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(self.one), strict=True)
        )
        if not same:
            raise ProblemError(f"rows were {shapes(self.one)} and this one is {shapes(one)}")
        return jax.tree.map(lambda x, s: x.astype(s.dtype, copy=False), rows, self.one)

    def position(self, row: int) -> dict[str, Any]:
        if not self.has_state:
            return {"row": row}
        with self.keeping:
            later = (item for item in self.kept if item.end > row)
            item = next(later, None) or Item(self.end, self.end, None, self.state)
        state = _as_json(item.state)
        return {"row": row} if state is None else {"row": row, "item": item.first, "state": state}

    def go_to(self, row: int, position: Any) -> None:
        super().go_to(row, position)
        if not self.has_state or "state" not in position:
            return
        with self.lock:
            try:
                state = position["state"]
                state = bytes.fromhex(state["bytes"]) if "bytes" in state else state["json"]
                self.items.set_state(state)  # pyright: ignore[reportAttributeAccessIssue]
                self.state = state
            except Exception as error:
                what = f"{type(error).__name__}: {words(error)}"
                raise ProblemError(f"the iterator refused the state of the run: {what}.") from None
            self.kept.clear()
            self.first = self.end = self.asked = int(position["item"])
            self.why = None


def _as_json(state: Any) -> Any:
    """Writes a state as JSON, as Grain's are, or bytes as text; None if it is anything else."""
    if isinstance(state, bytes):
        return {"bytes": state.hex()}
    try:
        return {"json": state} if json.loads(json.dumps(state)) == state else None
    except (TypeError, ValueError):
        return None
