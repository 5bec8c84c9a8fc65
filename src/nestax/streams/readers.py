"""Rows that are read on the host, a range at a time: from arrays, Parquet files and iterators.

Rows are numbered from 0. Arrays and Parquet files begin again after their last row, so that a row of
any number can be read at any time. An iterator is read once; the ranges asked for must move forward.
"""

import hashlib
import threading
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from nestax.errors import ProblemError
from nestax.trees import first_nonfinite

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
        """Reads the rows start, …, start + count − 1, finite and all alike; or fewer, and says why.

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
        """Reads the same in parts."""
        raise NotImplementedError

    # What a run asks; where several processes read together, ``Shared`` answers.

    def most(self, count: int) -> int:
        """Returns the most rows that this process reads of so many."""
        return count

    def agreed(self, start: int, count: int, many: int, why: str | None) -> tuple[int, str]:
        """Returns how many of ``count`` rows all processes have, and why not more.

        Args:
            many, why: the same of this process.
        """
        return many, f": {why}"

    def handed(self, rows: PyTree, start: int, count: int, most: int) -> PyTree:
        """Returns the rows on the devices of the run, in room for ``most``."""
        return jax.block_until_ready(jax.device_put(rows))

    def on_devices(self, x: Any) -> Any:
        """Returns numbers where the rows are."""
        return x

    def position(self, row: int) -> dict[str, Any]:
        """Returns what has to be known to go on at ``row`` in another process, as JSON."""
        return {"row": row}

    def go_to(self, row: int, position: Any) -> None:
        """Goes on at ``row``, whose ``position`` was returned once; a ValueError if it was another's."""
        if position["row"] != row or not 0 <= position.get("item", 0) <= row:
            raise ValueError


class FromParts(Reader):
    """Rows that lie in parts of known sizes, which are walked through again and again."""

    def _lay_out(self, sizes: list[int]) -> None:
        self.ends = np.cumsum(sizes)
        self.size = int(self.ends[-1]) if len(sizes) else 0
        if not self.size:
            raise ProblemError("data is empty: it needs at least one row.")

    def _part(self, number: int, first: int, last: int) -> PyTree:
        """Reads the rows ``first`` to ``last`` of a part."""
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
        text = f"{self.size:,} rows of {shapes(self.one)} with SHA-256 {digest.hexdigest()[:16]}"
        return f"{text} at {len(starts)} places"


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
        self.one = jax.tree.map(lambda x: struct(x.shape[1:], x.dtype), self.data)
        refuse_kinds(self.one)
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
            names = ", ".join(list(fields)[:20]) or "none"
            raise ProblemError(
                f"{path} has no column {', '.join(map(repr, unknown)) or 'at all'}; there are {names}."
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
        self.one = struct((len(self.columns),), np.dtype(np.float32 if single else np.float64))
        self.held: tuple[int, np.ndarray] | None = None
        self._lay_out(sizes)
        self._group(0)  # a file that cannot be read is refused here, and not in the middle of a run
        self.about = self._describe()

    def _part(self, number: int, first: int, last: int) -> PyTree:
        with self.lock:
            return self._group(number)[first:last]

    def _group(self, number: int) -> np.ndarray:
        """Reads a row group; the last one is kept, for parts of it are asked for in turn."""
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


def words(error: Exception) -> str:
    """Returns the first line of a message, of bounded length, without the stop at its end."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:TOLD].rstrip(". ")


def struct(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def shapes(tree: PyTree) -> str:
    leaves = [f"{x.dtype}[{','.join(map(str, x.shape))}]" for x in jax.tree.leaves(tree)]
    return ", ".join(leaves)


def refuse_kinds(one: PyTree) -> None:
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
        jax.tree.map(lambda out, *x: np.concatenate(x, out=out, casting="unsafe"), rows, *parts)
    return rows


def _first_bad(rows: PyTree) -> int | None:
    """Finds the first row with an entry that is not finite."""
    bad = [first_nonfinite(x) for x in jax.tree.leaves(rows)]
    return min((int(index[0]) for index, _ in filter(None, bad)), default=None)
