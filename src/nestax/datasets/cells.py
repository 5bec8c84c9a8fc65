"""Tables as they stand in a file: names, cells of text, and where each of them is."""

import collections
import csv
import dataclasses
import difflib
import io
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from nestax.datasets.fetching import decode, read_bytes
from nestax.errors import ProblemError

MISSING = ("", "na", "n/a", "#n/a", "nan", "null", "none", "-", ".")
DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
#: How many bad cells a message shows, and how many characters of each.
SHOWN = 5
SHOWN_WIDTH = 20


def read_cells(path: str | Path) -> "Cells":
    """The cells of a CSV file, gzipped or not, or of a Parquet file; at least one row."""
    data = read_bytes(path)
    if data.startswith(b"PAR1"):
        return cells_of_parquet(str(path), data)
    return cells_of_csv(str(path), decode(data, path))


@dataclasses.dataclass(frozen=True)
class Cells:
    """A table as it stands in the file: names, rows of text, and the line that each row is.

    word: what a row of such a file is called.
    """

    path: str
    names: tuple[str, ...]
    rows: list[list[str]]
    lines: Sequence[int]
    word: str = "line"

    def without_first_column(self) -> "Cells":
        return dataclasses.replace(self, names=self.names[1:], rows=[row[1:] for row in self.rows])

    def after_first_row(self) -> "Cells":
        return dataclasses.replace(self, rows=self.rows[1:], lines=self.lines[1:])

    def numbers(self, advice: str = "correct the file") -> np.ndarray:
        """Every cell as float64; text, empty columns and missing cells are refused."""
        values = np.array([[number(cell) for cell in row] for row in self.rows])
        odd = np.isnan(values)
        text = np.zeros_like(odd)
        for i, j in np.argwhere(odd):
            text[i, j] = self.rows[i][j].strip().lower() not in MISSING
        self.refuse(text, "text where numbers belong", advice)
        if empty := self.first_column(odd.sum(axis=0) == len(odd)):
            raise ProblemError(f"{self.path} has no number in {empty}: leave it out.")
        self.refuse(odd, "missing cells", "fill them in, or leave those rows or columns out")
        return values

    def refuse(self, wrong: np.ndarray, what: str, advice: str = "correct the file") -> None:
        """Says where ``wrong`` is true, if anywhere."""
        found = np.argwhere(wrong)
        place = lambda i, j: f"{self.word} {self.lines[i]}, column {short(self.names[j])}"
        places = [f"{place(i, j)} ({short(self.rows[i][j])})" for i, j in found[:SHOWN]]
        if places:
            raise ProblemError(f"{self.path} holds {what} at {few(places, len(found))}: {advice}.")

    def check_names(self, digits: bool = False) -> None:
        """Every column has a name of its own that is no number, or only digits if these are allowed."""
        for name in self.names:
            if np.isfinite(number(name)) and not (digits and name.isdigit()):
                raise ProblemError(
                    f"{self.path} has the number {short(name)} for a name: "
                    "the first line must name the columns."
                )
        if "" in self.names:
            raise ProblemError(f"{self.path} has a column without a name: name it or leave it out.")
        name, times = collections.Counter(self.names).most_common(1)[0]
        if times > 1:
            raise ProblemError(f"{self.path} has {times} columns named {short(name)}: rename them.")

    def column(self, name: str) -> list[str]:
        """The words in the column of that name; missing ones are refused."""
        if name not in self.names:
            near = difflib.get_close_matches(name, self.names, n=1)
            more = len(self.names) - SHOWN
            known = ", ".join(self.names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
            hint = f"did you mean {near[0]!r}?" if near else f"there are {known}."
            raise ProblemError(f"{self.path} has no column {name!r}; {hint}")
        k = self.names.index(name)
        words = [row[k].strip() for row in self.rows]
        wrong = np.zeros((len(self.rows), len(self.names)), bool)
        wrong[:, k] = [word.lower() in MISSING for word in words]
        self.refuse(wrong, "missing cells", "fill them in, or leave those rows out")
        return words

    def without(self, names: Collection[str]) -> "Cells":
        """The other columns."""
        rest = [k for k, name in enumerate(self.names) if name not in names]
        pick = lambda row: [row[k] for k in rest]
        return dataclasses.replace(
            self, names=tuple(pick(self.names)), rows=[pick(row) for row in self.rows]
        )

    def first_column(self, wanted: np.ndarray) -> str:
        """The column in words, and how many more there are; nothing if there are none."""
        found = np.flatnonzero(wanted)
        return few([f"column {short(self.names[k])}" for k in found[:1]], len(found))


def cells_of_csv(path: str, text: str, first: int = 1) -> Cells:
    """The cells of CSV text whose first line is line ``first`` of the file."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = []
    lines = []
    line = first
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append(row)
                lines.append(line)
            line = first + reader.line_num
    except csv.Error as error:
        raise ProblemError(f"{path} is no CSV file: line {line}, {error}.") from None
    if not rows:
        raise ProblemError(f"{path} is empty.")
    names = tuple(cell.strip() for cell in rows[0])
    rows = rows[1:]
    lines = lines[1:]
    width = len(names)
    if width == 1 and rows:
        for sign, word in DELIMITERS.items():
            if sign in names[0] and sign in ",".join(rows[0]):
                raise ProblemError(f"{path} is separated by {word}: commas are needed.")
    ragged = [k for k, row in enumerate(rows) if len(row) != width]
    if ragged:
        places = [f"line {lines[k]} has {len(rows[k])}" for k in ragged[:SHOWN]]
        raise ProblemError(
            f"{path} is ragged: the first line has {width} cells, but {few(places, len(ragged))}."
        )
    if not rows:
        raise ProblemError(f"{path} holds names but no rows.")
    return Cells(path, names, rows, lines)


def cells_of_parquet(path: str, data: bytes) -> Cells:
    """The cells of a Parquet file, by way of the CSV text of equal content."""
    try:
        import pyarrow as pa
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        raise ProblemError(f"{path} is a Parquet file: pip install 'nestax[data]' to read it.") from None
    try:
        table = pyarrow.parquet.read_table(io.BytesIO(data))
        # pandas writes its index behind the other columns.
        index = (table.schema.pandas_metadata or {}).get("index_columns", [])
        index = [name for name in index if isinstance(name, str)]
        table = table.select(index + [name for name in table.column_names if name not in index])
        names = ["" if name.startswith("__index_level_") else name for name in table.column_names]
        out = io.BytesIO()
        pyarrow.csv.write_csv(table.rename_columns(names), out)
        text = out.getvalue().decode()
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ProblemError(f"{path} is no Parquet table of numbers: {reason[:100]}.") from None
    cells = cells_of_csv(path, text)
    return dataclasses.replace(cells, lines=range(1, len(cells.rows) + 1), word="row")


def number(cell: str) -> float:
    """The number in a cell; NaN if there is none. Python alone would read 1_000 as 1000."""
    try:
        return float(cell) if "_" not in cell else np.nan
    except ValueError:
        return np.nan


def short(text: str) -> str:
    return repr(text if len(text) <= SHOWN_WIDTH else text[:SHOWN_WIDTH] + "…")


def few(words: list[str], count: int) -> str:
    """The first of ``count`` things, and how many more there are."""
    return "; ".join(words) + (f" and {count - len(words):,} more" if count > len(words) else "")
