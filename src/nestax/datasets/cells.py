"""Tables as they stand in a file: names, cells of text, and where each of them is."""

import collections
import csv
import dataclasses
import difflib
import io
import shlex
import warnings
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from nestax.datasets.fetching import OLD_WORKBOOK, decode, is_workbook
from nestax.errors import ProblemError

MISSING = ("", "na", "n/a", "#n/a", "nan", "null", "none", "-", ".")
DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
#: How many places a message shows, of one fault or of each of several, and how much of a cell.
SHOWN = 5
SHOWN_OF_SEVERAL = 2
SHOWN_WIDTH = 20
#: Longer lists of columns to leave out are not spelt.
SPELT_WIDTH = 60


#: What to do about missing cells.
FILL = "fill them in, or leave those rows or columns out"


class Faults:
    """What is wrong with a file, gathered so that one message tells all of it."""

    def __init__(self, path: str):
        self.path = path
        self.found: list[tuple[str, Sequence[str], int, str]] = []

    def add(self, what: str, places: Sequence[str] = (), count: int = 0, advice: str = "") -> None:
        """Adds one fault: a verb and what it is, the first of ``count`` places, and what to do."""
        self.found.append((what, places[:SHOWN], count, advice))

    def settle(self) -> None:
        """Refuses the file if there is a fault."""
        if not self.found:
            return
        shown = SHOWN if len(self.found) == 1 else SHOWN_OF_SEVERAL
        sentences = [
            f"{what}{few(list(places[:shown]), count)}{advice}"
            for what, places, count, advice in self.found
        ]
        if len(sentences) == 1:
            raise ProblemError(f"{self.path} {sentences[0]}.")
        every = "; ".join(f"({k}) it {sentence}" for k, sentence in enumerate(sentences, 1))
        raise ProblemError(f"{self.path} has {len(sentences)} faults: {every}.")


def cells_of(path: str, data: bytes) -> "Cells":
    """Reads the cells of what a file holds, by its content and not by its name; at least one row."""
    if data.startswith(b"PAR1"):
        return cells_of_parquet(path, data)
    if is_workbook(data):
        return cells_of_excel(path, data)
    return cells_of_csv(path, decode(data, path))


@dataclasses.dataclass(frozen=True)
class Cells:
    """A table as it stands in the file: names, rows of text, and the line that each row is.

    faults: what was found to be wrong so far; whoever has looked at everything settles them.
    word: what a row of such a file is called.
    """

    path: str
    names: tuple[str, ...]
    rows: list[list[str]]
    lines: Sequence[int]
    faults: Faults
    word: str = "line"

    def only(self, rows: np.ndarray) -> "Cells":
        """Returns some of the rows."""
        return dataclasses.replace(
            self, rows=[self.rows[k] for k in rows], lines=[self.lines[k] for k in rows]
        )

    def filled(self) -> "Cells":
        """Returns the rows without a missing cell."""
        rows = [k for k, row in enumerate(self.rows) if not any(map(is_missing, row))]
        if not rows:
            raise ProblemError(f"{self.path} has no row without a missing cell.")
        return self.only(np.array(rows))

    def numbers(self, advice: str = "correct the file", fill: str = FILL) -> np.ndarray:
        """Returns every cell as float64; NaN where text, or nothing, is a fault.

        Args:
            advice, fill: what to do about either.
        """
        values = np.array([[number(cell) for cell in row] for row in self.rows])
        odd = np.isnan(values)
        text = np.zeros_like(odd)
        for i, j in np.argwhere(odd):
            text[i, j] = not is_missing(self.rows[i][j])
        wordy = 2 * text.sum(axis=0) > len(text)
        empty = np.all(odd & ~text, axis=0)
        if wordy.any():
            examples = {int(j): self.rows[int(np.argmax(text[:, j]))][j] for j in np.flatnonzero(wordy)}
            self.refuse_columns("holds words instead of numbers in ", wordy, examples=examples)
        self.refuse(text & ~wordy, "text where numbers belong", advice)
        self.refuse_columns("has no number in ", empty)
        missing = odd & ~text & ~empty & ~wordy
        self.refuse(missing, "missing cells", fill)
        return values

    def refuse(self, wrong: np.ndarray, what: str, advice: str = "correct the file") -> None:
        """Notes where ``wrong`` is true, if anywhere."""
        cells = np.argwhere(wrong)
        places = [
            f"{self.word} {self.lines[i]}, column {short(self.names[j])} ({short(self.rows[i][j])})"
            for i, j in cells[:SHOWN]
        ]
        if places:
            self.faults.add(f"holds {what} at ", places, len(cells), f": {advice}")

    def refuse_columns(
        self, what: str, wrong: np.ndarray, note: str = "", examples: dict[int, str] | None = None
    ) -> None:
        """Notes columns that are of no use, and how to do without them."""
        columns = np.flatnonzero(wrong)
        such_as = {j: f" (such as {short(text)})" for j, text in (examples or {}).items()}
        places = [f"column {short(self.names[j])}{such_as.get(int(j), '')}" for j in columns]
        if places:
            advice = f": {leave_out([self.names[j] for j in columns])}{note}"
            self.faults.add(what, places, len(columns), advice)

    def check_names(self, digits: bool = False) -> None:
        """Every column has a name of its own that is no number, or only digits if these are allowed."""
        odd = [
            short(name)
            for name in self.names
            if np.isfinite(number(name)) and not (digits and name.isdigit())
        ]
        if odd:
            self.faults.add(
                "has numbers for names, ", odd, len(odd), ": the first line must name the columns"
            )
        if "" in self.names:
            self.faults.add("has a column without a name: name it or leave it out")
        names = collections.Counter(name for name in self.names if name)
        often = [f"{times} columns named {short(name)}" for name, times in names.items() if times > 1]
        if often:
            self.faults.add("has ", often, len(often), ": rename them")

    def column(self, name: str) -> list[str]:
        """Returns the words in the column of that name; missing ones are a fault."""
        self.find(name)
        k = self.names.index(name)
        entries = [row[k].strip() for row in self.rows]
        wrong = np.zeros((len(self.rows), len(self.names)), bool)
        wrong[:, k] = [*map(is_missing, entries)]
        self.refuse(wrong, "missing cells", "fill them in, or leave those rows out")
        return entries

    def find(self, names: str | Iterable[str]) -> set[str]:
        """The names of one column or several; refuses the file at once if it lacks one of them."""
        wanted = {names} if isinstance(names, str) else set(names)
        for name in sorted(wanted - set(self.names)):
            near = difflib.get_close_matches(name, self.names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {listed(self.names)}."
            if all(np.isfinite(number(there)) for there in self.names):
                hint = f"its first {self.word} holds numbers and must name the columns."
            raise ProblemError(f"{self.path} has no column {name!r}; {hint}")
        return wanted

    def without(self, names: Collection[str]) -> "Cells":
        """Returns the other columns."""
        rest = [k for k, name in enumerate(self.names) if name not in names]
        rows = [[row[k] for k in rest] for row in self.rows]
        return dataclasses.replace(self, names=tuple(self.names[k] for k in rest), rows=rows)


def cells_of_csv(path: str, text: str, first: int = 1) -> Cells:
    """Reads the cells of CSV text whose first line is line ``first`` of the file."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = []
    lines = []
    line = first
    try:
        for row in reader:
            rows.append(row)
            lines.append(line)
            line = first + reader.line_num
    except csv.Error as error:
        raise ProblemError(f"{path} is no CSV file: line {line}, {error}.") from None
    return _table(path, rows, lines)


def cells_of_parquet(path: str, data: bytes) -> Cells:
    """Reads the cells of a Parquet file, by way of the CSV text of equal content."""
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


def cells_of_excel(path: str, data: bytes) -> Cells:
    """Reads the cells of the one sheet of a workbook that holds any."""
    reader = "xlrd" if data.startswith(OLD_WORKBOOK) else "openpyxl"
    try:
        import pandas as pd

        with warnings.catch_warnings(action="ignore"):  # about styles, and the like
            sheets = pd.read_excel(
                io.BytesIO(data), sheet_name=None, header=None, dtype=str, na_filter=False
            )
    except ImportError:
        raise ProblemError(
            f"{path} is an Excel workbook: pip install pandas {reader} to read it, or save it as CSV."
        ) from None
    except Exception:  # a damaged workbook raises whatever its readers stumble over
        raise ProblemError(f"{path} is a damaged Excel workbook: save it again, or as CSV.") from None
    filled = {name: sheet for name, sheet in sheets.items() if sheet.size}
    if len(filled) > 1:
        raise ProblemError(
            f"{path} holds {len(filled)} sheets, {listed(filled)}: save the one that counts by itself."
        )
    rows = [[str(cell) for cell in row] for sheet in filled.values() for row in sheet.values.tolist()]
    return _table(path, rows, range(1, len(rows) + 1), "row")


def _table(path: str, rows: list[list[str]], lines: Sequence[int], word: str = "line") -> Cells:
    """Takes names from the first row that is not blank, and rows of as many cells below it."""
    filled = [k for k, row in enumerate(rows) if any(cell.strip() for cell in row)]
    if not filled:
        raise ProblemError(f"{path} is empty.")
    lines = [lines[k] for k in filled]
    names, *rows = (rows[k] for k in filled)
    width = len(names)
    if width == 1 and rows:
        for sign, signs in DELIMITERS.items():
            cells = [",".join(row).split(None if sign == " " else sign) for row in (names, rows[0])]
            if len(cells[0]) == len(cells[1]) > 1:
                raise ProblemError(f"{path} is separated by {signs}: commas are needed.")
    faults = Faults(path)
    even = [k for k, row in enumerate(rows) if len(row) == width]
    if len(even) < len(rows):
        ragged = [k for k, row in enumerate(rows) if len(row) != width]
        places = [f"{word} {lines[k + 1]} has {len(rows[k])}" for k in ragged[:SHOWN]]
        faults.add(f"is ragged: the first {word} has {width} cells, but ", places, len(ragged))
        if not even:
            faults.settle()
    if not rows:
        raise ProblemError(f"{path} holds names but no rows.")
    return Cells(
        path,
        tuple(cell.strip() for cell in names),
        [rows[k] for k in even],
        [lines[k + 1] for k in even],
        faults,
        word,
    )


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in MISSING


def number(cell: str) -> float:
    """Returns the number in a cell; NaN if there is none. Python alone would read 1_000 as 1000."""
    try:
        return float(cell) if "_" not in cell else np.nan
    except ValueError:
        return np.nan


def short(text: str) -> str:
    return repr(text if len(text) <= SHOWN_WIDTH else text[:SHOWN_WIDTH] + "…")


def few(words: list[str], count: int) -> str:
    """Lists the first of ``count`` things, and how many more there are."""
    return "; ".join(words) + (f" and {count - len(words):,} more" if count > len(words) else "")


def listed(names: Collection[str]) -> str:
    """Lists some names, and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(list(names)[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def leave_out(names: Sequence[str]) -> str:
    """Says how to do without some columns, as it is typed."""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(names)
    spelt = out.getvalue()
    typed = f" {shlex.quote(spelt)}" if len(spelt) <= SPELT_WIDTH and spelt.isprintable() else ""
    return f"leave {'it' if len(names) == 1 else 'them'} out (--drop{typed}, or drop= in Python)"
