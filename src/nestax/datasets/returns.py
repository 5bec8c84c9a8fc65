"""Tables of returns: one row a period, one column an asset, in percent."""

import dataclasses
import datetime
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np

from nestax.datasets.cells import Cells, cells_of_csv, read_cells
from nestax.datasets.fetching import locate, read_text
from nestax.errors import ProblemError, SettingError, check_count, choose

#: The table wanted from a file of the Kenneth French library, and its codes for an unknown return.
FRENCH_TABLE = "Average Value Weighted Returns -- Daily"
FRENCH_UNKNOWN = (-99.99, -999.0)
#: So many percent are no return.
ABSURD = 1e6
DATE_NAMES = ("", "date", "dates", "day", "time", "datetime", "timestamp", "month", "index", "caldt")
DATE = re.compile(
    r"([0-9]{4})([-/.]?)([0-9]{2})(?:\2([0-9]{2}))?"
    r"(?:[T ]00:00(?::00(?:\.0+)?)?(?:Z|[+-]00:?00)?)?"  # midnight, as programs write a day
)


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
    cells = cells_of_csv(str(file), *_french_table(file, read_text(file)))
    cells, days = _split_dates(cells, dates=True)
    if len(cells.names) != count:
        raise ProblemError(f"{file} holds {len(cells.names)} industries instead of {count}.")
    values = cells.numbers()
    cells.refuse(~(np.abs(values) < ABSURD), "returns of a million percent or more")
    known = ~np.isin(values, FRENCH_UNKNOWN).any(axis=1)
    if not known.any():
        raise ProblemError(f"{file} has no day on which every return is known.")
    values = values[known]
    days = np.asarray(days)[known]
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
    cells, days = _split_dates(read_cells(path), dates)
    values = cells.numbers()
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
        if kind == "returns":
            values = factor * values
        else:
            cells.refuse(~(values > 0), "prices that are not positive")
            values = 100 * (values[1:] / values[:-1] - 1)
            cells = cells.after_first_row()
            days = None if days is None else days[1:]
    if len(values) < 2:
        raise ProblemError(f"{path} gives fewer than 2 rows of returns.")
    cells.refuse(~(np.abs(values) < ABSURD), "returns of a million percent or more")
    if constant := cells.first_column(np.ptp(values, axis=0) == 0):
        raise ProblemError(
            f"{path} never changes in {constant}: leave it out (add cash to the array afterwards)."
        )
    return Returns(values, cells.names, days)


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


def _split_dates(cells: Cells, dates: bool | None) -> tuple[Cells, np.ndarray | None]:
    """The columns of the assets, and the days in the first column if it holds any."""
    if dates is None:
        day = DATE.fullmatch(cells.rows[0][0].strip())
        dates = cells.names[0].lower() in DATE_NAMES or (day is not None and day[4] is not None)
    assets = cells.without_first_column() if dates else cells
    if len(assets.names) < 2:
        raise ProblemError(f"{cells.path} holds fewer than 2 assets.")
    # Beside a named column of dates, digits are the names of shares, such as 7203.
    assets.check_names(digits=dates and not DATE.fullmatch(cells.names[0]))
    return assets, _days(cells) if dates else None


def _days(cells: Cells) -> np.ndarray:
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


def _day(cell: str) -> datetime.date | None:
    match = DATE.fullmatch(cell.strip())
    try:
        return match and datetime.date(int(match[1]), int(match[3]), int(match[4] or 1))
    except ValueError:
        return None
