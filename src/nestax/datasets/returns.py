"""Tables of returns: one row a period, one column an asset, in percent."""

import collections
import csv
import dataclasses
import datetime
import io
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nestax.errors import ProblemError, SettingError, check_count, choose
from nestax.fetching import decode, locate, read_bytes, read_text

#: The table wanted from a file of the Kenneth French library, and its codes for an unknown return.
FRENCH_TABLE = "Average Value Weighted Returns -- Daily"
FRENCH_UNKNOWN = (-99.99, -999.0)
#: So many percent are no return.
ABSURD = 1e6
MISSING = ("", "na", "n/a", "#n/a", "nan", "null", "none", "-", ".")
DATE_NAMES = ("", "date", "dates", "day", "time", "datetime", "timestamp", "month", "index", "caldt")
DATE = re.compile(
    r"([0-9]{4})([-/.]?)([0-9]{2})(?:\2([0-9]{2}))?"
    r"(?:[T ]00:00(?::00(?:\.0+)?)?(?:Z|[+-]00:?00)?)?"  # midnight, as programs write a day
)
DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
#: How many bad cells a message shows, and how many characters of each.
SHOWN, SHOWN_WIDTH = 5, 20


@dataclasses.dataclass(frozen=True, eq=False)
class Returns:
    """Simple returns in percent; usable wherever an array is, such as ``nx.problems.mean_deviation``.

    values: float64, one row a period, one column an asset.
    assets: the name of each column.
    dates: the day of each row, as datetime64[D]; None if the file has none.
    dropped: rows left out because the source does not know one of their returns.
    """

    values: np.ndarray
    assets: tuple[str, ...]
    dates: np.ndarray | None = None
    dropped: int = 0

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.values.astype(dtype or self.values.dtype, copy=bool(copy))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def __repr__(self) -> str:
        rows, columns = self.shape
        when = "" if self.dates is None else f", {self.dates[0]} to {self.dates[-1]}"
        gone = f", {self.dropped:,} rows dropped" if self.dropped else ""
        names = ", ".join(self.assets[:3]) + (", …" if columns > 3 else "")
        return f"Returns({rows:,} rows × {columns} assets in percent{when}{gone}: {names})"

    def frame(self) -> Any:
        """The same as a pandas frame, with the dates as its index."""
        try:
            import pandas as pd
        except ImportError:
            raise ImportError("frame needs pandas: pip install pandas.") from None
        return pd.DataFrame(self.values, index=self.dates, columns=list(self.assets))


def industry(count: int, *, path: str | Path | None = None, rows: int | None = None) -> Returns:
    """Daily value-weighted returns of 10, 12, 17 or 30 industries since July 1926.

    The source is the Kenneth R. French data library. Its files may not be redistributed, so each user
    downloads them from there; this function does so unless it finds a copy. Days on which the library
    does not know every return are left out and counted in ``dropped``.

    Args:
        count: how many industries.
        path: a file, or a folder that holds it; the archive as the library has it will do.
        rows: only the first so many; 25,105 end in October 2021, as in the experiments of SMVR.
    """
    if count not in (10, 12, 17, 30):
        raise SettingError(f"count must be one of 10, 12, 17, 30; got {count!r}.")
    (file,) = locate(f"industry{count}", path)
    cells = _cells_of_csv(str(file), *_french_table(file, read_text(file)))
    cells, days = _split_dates(cells, dates=True)
    if len(cells.names) != count:
        raise ProblemError(f"{file} holds {len(cells.names)} industries instead of {count}.")
    values = cells.numbers()
    cells.refuse(~(np.abs(values) < ABSURD), "returns of a million percent or more")
    known = ~np.isin(values, FRENCH_UNKNOWN).any(axis=1)
    if not known.any():
        raise ProblemError(f"{file} has no day on which every return is known.")
    values, days = values[known], np.asarray(days)[known]
    if rows is not None and check_count("rows", rows) > len(values):
        raise SettingError(f"rows must be at most {len(values):,}, which {file} holds; got {rows:,}.")
    return Returns(values[:rows], cells.names, days[:rows], int(np.sum(~known)))


def read_returns(
    path: str | Path, *, unit: str | None = None, kind: str = "returns", dates: bool | None = None
) -> Returns:
    """Returns or prices from a CSV file, gzipped or not, or from Parquet, as returns in percent.

    The first line names the columns; every column but the dates is an asset. Every cell must hold a
    number: nothing is filled in and no row is dropped. A column that never changes is refused, for it
    is more often a broken feed than cash; add cash to the array afterwards.

    Args:
        path: the file.
        unit: "percent" or "fraction" (0.01 is one percent), what the returns are given in. It has to
            be said, for the numbers do not tell. Prices have none.
        kind: "returns", or "prices", of which simple returns p_t / p_{t−1} − 1 are taken.
        dates: whether the first column holds dates (YYYY-MM-DD, YYYYMMDD or months); None looks.
    """
    choose("kind", kind, ("returns", "prices"))
    if kind == "returns" and unit is None:
        raise SettingError('unit must be given: "percent", or "fraction" if 0.01 is one percent.')
    if kind == "prices" and unit is not None:
        raise SettingError(f"unit is for returns, and prices have none; got {unit!r}.")
    percent = {"percent": 1.0, "fraction": 100.0}
    factor = percent[choose("unit", "percent" if unit is None else unit, tuple(percent))]
    data = read_bytes(path)
    if data.startswith(b"PAR1"):
        cells = _cells_of_parquet(str(path), data)
    else:
        cells = _cells_of_csv(str(path), decode(data, path))
    cells, days = _split_dates(cells, dates)
    values = cells.numbers()
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
        if kind == "returns":
            values = factor * values
        else:
            cells.refuse(~(values > 0), "prices that are not positive")
            values = 100 * (values[1:] / values[:-1] - 1)
            cells, days = cells.after_first_row(), None if days is None else days[1:]
    if len(values) < 2:
        raise ProblemError(f"{path} gives fewer than 2 rows of returns.")
    cells.refuse(~(np.abs(values) < ABSURD), "returns of a million percent or more")
    if constant := cells.first_column(np.ptp(values, axis=0) == 0):
        raise ProblemError(
            f"{path} never changes in {constant}: leave it out (add cash to the array afterwards)."
        )
    return Returns(values, cells.names, days)


@dataclasses.dataclass(frozen=True)
class _Cells:
    """A table as it stands in the file: names, rows of text, and the line that each row is.

    word: what a row of such a file is called.
    """

    path: str
    names: tuple[str, ...]
    rows: list[list[str]]
    lines: Sequence[int]
    word: str = "line"

    def without_first_column(self) -> "_Cells":
        return dataclasses.replace(self, names=self.names[1:], rows=[row[1:] for row in self.rows])

    def after_first_row(self) -> "_Cells":
        return dataclasses.replace(self, rows=self.rows[1:], lines=self.lines[1:])

    def numbers(self) -> np.ndarray:
        """Every cell as float64; text, empty columns and missing cells are refused."""
        values = np.array([[_number(cell) for cell in row] for row in self.rows])
        odd = np.isnan(values)
        text = np.zeros_like(odd)
        for i, j in np.argwhere(odd):
            text[i, j] = self.rows[i][j].strip().lower() not in MISSING
        self.refuse(text, "text where numbers belong")
        if empty := self.first_column(odd.sum(axis=0) == len(odd)):
            raise ProblemError(f"{self.path} has no number in {empty}: leave it out.")
        self.refuse(odd, "missing cells", "fill them in, or leave those rows or columns out")
        return values

    def refuse(self, wrong: np.ndarray, what: str, advice: str = "correct the file") -> None:
        """Says where ``wrong`` is true, if anywhere."""
        found = np.argwhere(wrong)
        place = lambda i, j: f"{self.word} {self.lines[i]}, column {_short(self.names[j])}"
        places = [f"{place(i, j)} ({_short(self.rows[i][j])})" for i, j in found[:SHOWN]]
        if places:
            raise ProblemError(f"{self.path} holds {what} at {_few(places, len(found))}: {advice}.")

    def first_column(self, wanted: np.ndarray) -> str:
        """The column in words, and how many more there are; nothing if there are none."""
        found = np.flatnonzero(wanted)
        return _few([f"column {_short(self.names[k])}" for k in found[:1]], len(found))


def _french_table(path: Path, text: str) -> tuple[str, int]:
    """The table of value-weighted returns in a file of the library, and the line that it begins at.

    A file that begins with a line of names is the table itself.
    """
    lines = text.splitlines()
    if "," in "".join(lines[:1]):
        return text, 1
    title = next((k for k, line in enumerate(lines) if FRENCH_TABLE in line), None)
    if title is None:
        raise ProblemError(f"{path} holds no table {FRENCH_TABLE!r}.")
    rows = itertools.takewhile(lambda line: line[:8].isdigit(), lines[title + 2 :])
    return "\n".join([*lines[title + 1 : title + 2], *rows]), title + 2


def _cells_of_csv(path: str, text: str, first: int = 1) -> _Cells:
    """The cells of CSV text whose first line is line ``first`` of the file."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows, lines, line = [], [], first
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
    names, rows, lines = tuple(cell.strip() for cell in rows[0]), rows[1:], lines[1:]
    width = len(names)
    if width == 1 and rows:
        for sign, word in DELIMITERS.items():
            if sign in names[0] and sign in ",".join(rows[0]):
                raise ProblemError(f"{path} is separated by {word}: commas are needed.")
    ragged = [k for k, row in enumerate(rows) if len(row) != width]
    if ragged:
        places = [f"line {lines[k]} has {len(rows[k])}" for k in ragged[:SHOWN]]
        raise ProblemError(
            f"{path} is ragged: the first line has {width} cells, but {_few(places, len(ragged))}."
        )
    return _Cells(path, names, rows, lines)


def _cells_of_parquet(path: str, data: bytes) -> _Cells:
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
    cells = _cells_of_csv(path, text)
    return dataclasses.replace(cells, lines=range(1, len(cells.rows) + 1), word="row")


def _split_dates(cells: _Cells, dates: bool | None) -> tuple[_Cells, np.ndarray | None]:
    """The columns of the assets, and the days in the first column if it holds any."""
    if not cells.rows:
        raise ProblemError(f"{cells.path} holds names but no rows.")
    if dates is None:
        day = DATE.fullmatch(cells.rows[0][0].strip())
        dates = cells.names[0].lower() in DATE_NAMES or (day is not None and day[4] is not None)
    assets = cells.without_first_column() if dates else cells
    # Beside a named column of dates, digits are the names of shares, such as 7203.
    _check_names(assets, digits=dates and not DATE.fullmatch(cells.names[0]))
    return assets, _days(cells) if dates else None


def _days(cells: _Cells) -> np.ndarray:
    """The first column as days, each later than the one before."""
    found = [_day(row[0]) for row in cells.rows]
    wrong = np.array([[day is None] for day in found])
    cells.refuse(wrong, "dates that cannot be read", "write YYYY-MM-DD, or leave that column out")
    days = np.array(found, "datetime64[D]")
    _, first = np.unique(days, return_index=True)
    again = np.ones((len(days), 1), bool)
    again[first] = False
    cells.refuse(again, "dates that occurred before", "keep one row of each date")
    back = np.flatnonzero(days[1:] < days[:-1])
    if len(back):
        row = lambda i: f"{cells.word} {cells.lines[i]} is {days[i]}"
        raise ProblemError(
            f"{cells.path} is not sorted by date: {row(back[0])} and {row(back[0] + 1)}; "
            "put the oldest row first."
        )
    return days


def _check_names(cells: _Cells, digits: bool) -> None:
    """Two assets or more, each with a name of its own that is no number, or only digits if allowed."""
    if len(cells.names) < 2:
        raise ProblemError(f"{cells.path} holds fewer than 2 assets.")
    for name in cells.names:
        if np.isfinite(_number(name)) and not (digits and name.isdigit()):
            raise ProblemError(
                f"{cells.path} has the number {_short(name)} for a name: "
                "the first line must name the columns."
            )
    if "" in cells.names:
        raise ProblemError(f"{cells.path} has a column without a name: name it or leave it out.")
    name, times = collections.Counter(cells.names).most_common(1)[0]
    if times > 1:
        raise ProblemError(f"{cells.path} has {times} columns named {_short(name)}: rename them.")


def _day(cell: str) -> datetime.date | None:
    match = DATE.fullmatch(cell.strip())
    try:
        return match and datetime.date(int(match[1]), int(match[3]), int(match[4] or 1))
    except ValueError:
        return None


def _number(cell: str) -> float:
    """The number in a cell; NaN if there is none. Python alone would read 1_000 as 1000."""
    try:
        return float(cell) if "_" not in cell else np.nan
    except ValueError:
        return np.nan


def _short(text: str) -> str:
    return repr(text if len(text) <= SHOWN_WIDTH else text[:SHOWN_WIDTH] + "…")


def _few(words: list[str], count: int) -> str:
    """The first of ``count`` things, and how many more there are."""
    return "; ".join(words) + (f" and {count - len(words):,} more" if count > len(words) else "")
