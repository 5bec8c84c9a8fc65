"""Rows that are read on the host, a range at a time: from arrays, Parquet files and iterators.

Rows are numbered from 0. Arrays and Parquet files begin again after their last row, so that a row of
any number can be read at any time. An iterator is read once; the ranges asked for must move forward.
"""

import hashlib
import json
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from nestax.errors import ProblemError

#: How many rows in a row are looked at to tell one set of rows from another.
LOOKED_AT = 1_024
#: In so many places of an array or a file, the first and the last among them.
PLACES = 5
#: Characters of somebody else's message that are told.
TOLD = 200


class Read(NamedTuple):
    """Rows as arrays with a leading axis; if there are fewer than were asked for, ``why`` says why."""

    rows: PyTree
    why: str | None


class Reader:
    """Where rows come from.

    one: the structure, shapes and dtypes of one row.
    size: how many rows there are; None for an iterator.
    about: a few words that other rows would not have.
    own: whether each of several processes has rows of its own, and does not read those of all.
    """

    one: PyTree
    size: int | None = None
    about: str = ""
    own: bool = False

    def read(self, start: int, count: int, into: PyTree = None) -> Read:
        """Rows start, …, start + count − 1, finite and all alike; or fewer, and why.

        Args:
            into: arrays whose first rows are to take them, so that they are copied only once.
        """
        parts, why = self._read(start, count)
        rows = _joined(parts, self.one, into)
        bad = _first_bad(rows)
        if bad is None:
            return Read(rows, why)
        number = (start + bad) % self.size if self.size else start + bad
        return Read(
            jax.tree.map(lambda x: x[:bad], rows),
            f"row {number:,} holds an entry that is NaN or infinite: remove or fill it.",
        )

    def _read(self, start: int, count: int) -> tuple[list[PyTree], str | None]:
        """The same in parts."""
        raise NotImplementedError

    def place(self, row: int) -> dict[str, Any]:
        """What has to be known to go on at ``row`` in another process, as JSON."""
        return {"row": row}

    def go_to(self, place: dict[str, Any]) -> None:
        """Goes to what ``place`` has returned; nothing is needed where any row can be read."""


class FromParts(Reader):
    """Rows that lie in parts of known sizes, which are walked through again and again."""

    def _lay_out(self, sizes: list[int]) -> None:
        self.ends = np.cumsum(sizes)
        self.size = int(self.ends[-1]) if len(sizes) else 0
        if not self.size:
            raise ProblemError("data is empty: it needs at least one row.")

    def _part(self, number: int, first: int, last: int) -> PyTree:
        """Rows ``first`` to ``last`` of a part."""
        raise NotImplementedError

    def _read(self, start: int, count: int) -> tuple[list[PyTree], str | None]:
        assert self.size is not None
        parts = []
        left = count
        why = None
        while left > 0:
            row = (start + count - left) % self.size
            number = int(np.searchsorted(self.ends, row, side="right"))
            begin = int(self.ends[number - 1]) if number else 0
            first = row - begin
            last = min(int(self.ends[number]) - begin, row - begin + left)
            try:
                parts.append(self._part(number, first, last))
            except ProblemError as error:
                why = str(error)
                break
            left -= last - first
        return parts, why

    def _describe(self) -> str:
        assert self.size is not None
        digest = hashlib.sha256()
        some = min(LOOKED_AT, self.size)
        starts = {(self.size - some) * k // (PLACES - 1) for k in range(PLACES)}
        for start in sorted(starts):
            for x in jax.tree.leaves(self.read(start, some).rows):
                digest.update(np.ascontiguousarray(x).data)
        found = digest.hexdigest()[:16]
        return f"{self.size:,} rows of {_shapes(self.one)} with SHA-256 {found} at {len(starts)} places"


class Arrays(FromParts):
    """A tree of NumPy arrays, memory-mapped or not, with a common leading axis."""

    def __init__(self, data: PyTree):
        leaves = jax.tree.leaves(data)
        if not leaves:
            raise ProblemError("data holds no array: pass at least one array with one row a draw.")
        if any(isinstance(x, str | Path) for x in leaves):
            raise ProblemError(
                "a Stream reads one file: write the rows of all into one, or chain them in an iterator."
            )
        if any(np.ndim(x) == 0 for x in leaves):
            raise ProblemError("data must be arrays with one row per draw; got a single number.")
        # A memory-mapped array stays one: nothing is read here.
        self.data = jax.tree.map(lambda x: x if isinstance(x, np.ndarray) else np.asarray(x), data)
        leaves = jax.tree.leaves(self.data)
        lengths = sorted({len(x) for x in leaves})
        if len(lengths) > 1:
            raise ProblemError(
                "the arrays of data must have one common leading axis, one row a draw; "
                f"got lengths {lengths}."
            )
        self.one = jax.tree.map(lambda x: _struct(x.shape[1:], x.dtype), self.data)
        _refuse_kinds(self.one)
        self._lay_out([len(leaves[0])])
        self.about = self._describe()

    def _part(self, number: int, first: int, last: int) -> PyTree:
        return jax.tree.map(lambda x: np.asarray(x[first:last]), self.data)


class Parquet(FromParts):
    """Columns of a Parquet file, one row a vector of numbers, read a row group at a time."""

    def __init__(self, path: str | Path, columns: list[str] | None):
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise ImportError("Parquet files need pyarrow: pip install 'nestax[data]'.") from None
        self.path = Path(path)
        self.lock = threading.Lock()
        self.errors = (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            MemoryError,
            OverflowError,
            pyarrow.ArrowException,
        )
        if not self.path.is_file():
            raise ProblemError(f"there is no file {path}.")
        if self.path.suffix == ".npy":
            raise ProblemError(f"{path} is an array: pass np.load({str(path)!r}, mmap_mode='r').")
        if {".csv", ".tsv", ".txt"} & set(self.path.suffixes):
            raise ProblemError(
                f"{path} is text, in which rows cannot be found by their number: write it as Parquet, "
                "or let pandas read it in parts, nx.Stream((part.to_numpy() for part in "
                f"pd.read_csv({str(path)!r}, chunksize=10_000)), batches=True)."
            )
        try:
            self.file = pyarrow.parquet.ParquetFile(self.path)
            fields = {field.name: field.type for field in self.file.schema_arrow}
            data = self.file.metadata
            sizes = [data.row_group(k).num_rows for k in range(data.num_row_groups)]
        except self.errors as error:
            raise ProblemError(f"{path} is no Parquet file, or it is damaged: {words(error)}.") from None
        self.columns = list(fields) if columns is None else list(columns)
        unknown = [name for name in self.columns if name not in fields]
        if unknown or not self.columns:
            there = ", ".join(list(fields)[:20]) or "none"
            raise ProblemError(
                f"{path} has no column {', '.join(map(repr, unknown)) or 'at all'}; there are {there}."
            )
        kinds = pyarrow.types
        other = [
            f"{name!r} ({fields[name]})"
            for name in self.columns
            if not (kinds.is_floating(fields[name]) or kinds.is_integer(fields[name]))
        ]
        if other:
            raise ProblemError(
                f"{path} holds more than numbers in {', '.join(other[:5])}: name the columns to read, "
                "columns=[...]."
            )
        if any(size < 0 for size in sizes):
            raise ProblemError(f"{path} is damaged: a row group has fewer rows than none.")
        single = all(kinds.is_float32(fields[name]) for name in self.columns)
        self.one = _struct((len(self.columns),), np.dtype(np.float32 if single else np.float64))
        self.held: tuple[int, np.ndarray] | None = None
        self._lay_out(sizes)
        self._group(0)  # a file that cannot be read is refused here, and not in the middle of a run
        self.about = self._describe()

    def _part(self, number: int, first: int, last: int) -> PyTree:
        with self.lock:
            return self._group(number)[first:last]

    def _group(self, number: int) -> np.ndarray:
        """A row group as an array; the last one is kept, for parts of it are asked for in turn."""
        if self.held is not None and self.held[0] == number:
            return self.held[1]
        self.held = None  # two of them need not fit into memory
        begin = int(self.ends[number - 1]) if number else 0
        try:
            table = self.file.read_row_group(number, columns=self.columns)
            if begin + table.num_rows != self.ends[number]:
                raise ValueError(f"it holds {table.num_rows:,} rows and not as many as it says")
            rows = np.empty((table.num_rows, len(self.columns)), self.one.dtype)
            columns = [table.column(name) for name in self.columns]
            nulls = [x.is_null().to_numpy() if x.null_count else None for x in columns]
            for k, x in enumerate(columns):
                if nulls[k] is None:
                    rows[:, k] = x.to_numpy()
        except self.errors as error:
            raise ProblemError(
                f"{self.path} is damaged in its row group {number:,}: {words(error)}."
            ) from None
        for name, empty in zip(self.columns, nulls, strict=True):
            if empty is not None:
                row = begin + int(np.argmax(empty))
                raise ProblemError(
                    f"{self.path} has nothing in column {name!r} of row {row:,}: fill it, or leave the "
                    "row out."
                )
        self.held = (number, rows)
        return rows


class Item(NamedTuple):
    """What an iterator has returned once: rows ``first`` to ``end``.

    state: of the iterator before, where it tells.
    """

    first: int
    end: int
    rows: PyTree
    state: Any

    def cut(self, first: int, end: int) -> PyTree:
        """Those of its rows that lie between the two."""
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
        self.about = f"rows of {_shapes(self.one)} that begin with SHA-256 {digest.hexdigest()[:16]}"

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
            there = (i for i in self.kept if i.first < start + count and i.end > start)
            parts = [i.cut(start, start + count) for i in there]
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
        """One item more, or the reason why there is none."""
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
        """An item as rows with a leading axis, compared with the first one."""
        rows = jax.tree.map(np.asarray, item)
        leaves = jax.tree.leaves(rows)
        if not leaves:
            raise ProblemError("it holds no array")
        if not self.batches:
            rows = jax.tree.map(lambda x: x[None], rows)
        elif len({x.shape[:1] for x in leaves}) > 1 or leaves[0].ndim == 0:
            raise ProblemError("the arrays of a batch must have one common leading axis")
        one = jax.tree.map(lambda x: _struct(x.shape[1:], x.dtype), rows)
        if self.one is None:
            _refuse_kinds(one)
            self.one = one
            return rows
        same = jax.tree.structure(one) == jax.tree.structure(self.one) and all(
            a.shape == b.shape and np.can_cast(a.dtype, b.dtype, "safe")
            for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(self.one), strict=True)
        )
        if not same:
            raise ProblemError(f"rows were {_shapes(self.one)} and this one is {_shapes(one)}")
        return jax.tree.map(lambda x, s: x.astype(s.dtype, copy=False), rows, self.one)

    def place(self, row: int) -> dict[str, Any]:
        if not self.has_state:
            return {"row": row}
        with self.keeping:
            there = (item for item in self.kept if item.end > row)
            item = next(there, None) or Item(self.end, self.end, None, self.state)
        state = _as_json(item.state)
        return {"row": row} if state is None else {"row": row, "item": item.first, "state": state}

    def go_to(self, place: dict[str, Any]) -> None:
        if not self.has_state or "state" not in place:
            return
        with self.lock:
            try:
                state = place["state"]
                state = bytes.fromhex(state["bytes"]) if "bytes" in state else state["json"]
                self.items.set_state(state)  # pyright: ignore[reportAttributeAccessIssue]
                self.state = state
            except Exception as error:
                what = f"{type(error).__name__}: {words(error)}"
                raise ProblemError(f"the iterator refused the state of the run: {what}.") from None
            self.kept.clear()
            self.first = self.end = self.asked = int(place["item"])
            self.why = None


def reader_of(data: Any, columns: list[str] | None, batches: bool) -> Reader:
    """The reader for what a user calls data."""
    if isinstance(data, Reader):
        return data
    if isinstance(data, str | Path):
        return Parquet(data, columns)
    if columns is not None:
        raise ProblemError("columns= is for Parquet files: choose columns of arrays by indexing them.")
    if _is_iterator(data):
        return Items(data, batches)
    if batches:
        raise ProblemError("batches= is for iterators: arrays and files are rows already.")
    return Arrays(data)


def words(error: Exception) -> str:
    """The first line of a message, of bounded length, without the stop at its end."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:TOLD].rstrip(". ")


def _is_iterator(data: Any) -> bool:
    tree = isinstance(data, list | tuple | dict) or hasattr(data, "__array__")
    return not tree and hasattr(data, "__iter__")


def _struct(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _shapes(tree: PyTree) -> str:
    leaves = [f"{x.dtype}[{','.join(map(str, x.shape))}]" for x in jax.tree.leaves(tree)]
    return ", ".join(leaves)


def _refuse_kinds(one: PyTree) -> None:
    other = sorted({str(x.dtype) for x in jax.tree.leaves(one) if x.dtype.kind not in "biuf"})
    if other:
        raise ProblemError(f"rows must hold numbers; got {', '.join(other)}.")


def _joined(parts: list[PyTree], one: PyTree, into: PyTree) -> PyTree:
    if into is None and len(parts) == 1:
        return parts[0]
    many = sum(len(jax.tree.leaves(part)[0]) for part in parts)
    if into is None:
        into = jax.tree.map(lambda s: np.empty((many, *s.shape), s.dtype), one)
    rows = jax.tree.map(lambda x: x[:many], into)
    if parts:
        join = lambda out, *xs: np.concatenate(xs, out=out, casting="unsafe")
        jax.tree.map(join, rows, *parts)
    return rows


def _first_bad(rows: PyTree) -> int | None:
    """The first row with an entry that is not finite."""
    found = []
    for x in jax.tree.leaves(rows):
        if x.dtype.kind in "biu":
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            fine = np.isfinite(np.sum(x))  # then its terms are, and this takes no memory
        if not fine:
            bad = ~np.isfinite(x).reshape(len(x), -1).all(axis=1)
            found += [int(np.argmax(bad))] if bad.any() else []
    return min(found, default=None)


def _as_json(state: Any) -> Any:
    """A state as JSON, as Grain's are, or bytes as text; None if it is anything else."""
    if isinstance(state, bytes):
        return {"bytes": state.hex()}
    try:
        return {"json": state} if json.loads(json.dumps(state)) == state else None
    except (TypeError, ValueError):
        return None
