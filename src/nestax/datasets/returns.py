"""Tables of returns: one row a period, one column an asset, in percent."""

import dataclasses
import datetime
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from nestax.datasets.cells import SHOWN, Cells, cells_of, cells_of_csv, leave_out, listed
from nestax.datasets.fetching import DATA_SETS, decode, is_workbook, locate, read_bytes
from nestax.datasets.french_format import LIBRARY, UNKNOWN, FrenchTable, french_tables
from nestax.errors import ProblemError, SettingError, check_count, choose
from nestax.table import pandas

#: The table that ``industry`` takes.
FRENCH_TABLE = "Average Value Weighted Returns -- Daily"
#: What to do about missing cells.
FILL = "fill them in, or leave out those columns, or rows (--drop-missing; drop_missing=True in Python)"
#: So many percent are no return.
ABSURD = 1e6
DATE_NAMES = ("", "date", "dates", "day", "time", "datetime", "timestamp", "month", "index", "caldt")
DATE = re.compile(
    r"([0-9]{4})([-/.]?)([0-9]{2})(?:\2([0-9]{2}))?"
    r"(?:[T ]00:00(?::00(?:\.0+)?)?(?:Z|[+-]00:?00)?)?"  # midnight, as programs write a day
)

#: Rows a year that files usually have, how near theirs have to be, and with how many rows that is told.
USUAL_ROWS = (1, 4, 12, 52, 252, 365)
NEAR = 0.05
LEAST_DATED = 3
DAYS_IN_YEAR = 365.25


@dataclasses.dataclass(frozen=True, eq=False)
class Returns:
    """Simple returns in percent; usable wherever an array is, such as ``nx.problems.mean_deviation``.

    values: float64, one row a period, one column an asset.
    assets: the name of each column.
    dates: the day of each row, as datetime64[D]; None if the file has none.
    dropped: rows left out because one of their returns is not known.
    table: the title of the table, where the file has several; it is the first.
    """

    values: np.ndarray
    assets: tuple[str, ...]
    dates: np.ndarray | None = None
    dropped: int = 0
    table: str = ""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.values.astype(dtype or self.values.dtype, copy=bool(copy))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def rows_per_year(self) -> float | None:
        """From the dates, to a usual number where it is one but for holidays; None without dates."""
        if self.dates is None or len(self) < LEAST_DATED:
            return None
        years = float((self.dates[-1] - self.dates[0]) / np.timedelta64(1, "D")) / DAYS_IN_YEAR
        if years <= 0:
            return None
        rows = (len(self) - 1) / years
        usual = min(USUAL_ROWS, key=lambda n: abs(n - rows))
        return float(usual) if abs(usual - rows) < NEAR * usual else rows

    def __repr__(self) -> str:
        rows, columns = self.shape
        when = "" if self.dates is None else f", {self.dates[0]} to {self.dates[-1]}"
        gone = f", {self.dropped:,} rows dropped" if self.dropped else ""
        names = ", ".join(self.assets[:3]) + (", …" if columns > 3 else "")
        return f"Returns({rows:,} rows × {columns} assets in percent{when}{gone}: {names})"

    def frame(self) -> Any:
        """Returns the same as a pandas frame, with the dates as its index."""
        return pandas("frame").DataFrame(self.values, index=self.dates, columns=list(self.assets))


def industry(count: int, *, path: str | Path | None = None, rows: int | None = None) -> Returns:
    """Loads daily value-weighted returns of 10, 12, 17 or 30 industries since July 1926.

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
    (file,) = locate(DATA_SETS[f"industry{count}"], path)
    text = decode(read_bytes(file), file)
    tables = {table.title: table for table in french_tables(text)}
    # A file that begins with a line of names is the table itself.
    table = FrenchTable("", text, 1) if "," in text.partition("\n")[0] else tables.get(FRENCH_TABLE)
    if table is None:
        raise ProblemError(f"{file} holds no table {FRENCH_TABLE!r}.")
    cells, values, days = _numbers(cells_of_csv(str(file), table.text, table.first), dates=True)
    known = _known(cells, values, days)
    returns = _returns(*known, len(cells.rows) - len(known[0].rows))
    if len(returns.assets) != count:
        raise ProblemError(f"{file} holds {len(returns.assets)} industries instead of {count}.")
    if rows is not None and check_count("rows", rows) > len(returns):
        raise SettingError(f"rows must be at most {len(returns):,}, which {file} holds; got {rows:,}.")
    assert returns.dates is not None
    return dataclasses.replace(returns, values=returns.values[:rows], dates=returns.dates[:rows])


def read_returns(
    path: str | Path,
    *,
    unit: str | None = None,
    kind: str = "returns",
    dates: bool | None = None,
    drop: str | Collection[str] = (),
    drop_missing: bool = False,
) -> Returns:
    """Returns or prices as returns in percent, from CSV, Parquet or Excel, gzipped or not.

    The first line names the columns; every column but the dates is an asset. Every cell must hold a
    number: nothing is filled in, and no row is dropped unless ``drop_missing`` says so. A column that
    never changes is refused, for it is more often a broken feed than cash; add cash to the array
    afterwards.

    Of a file as the Kenneth R. French data library has them, with words on top and several tables, the
    first table is read. Rows with its codes for an unknown return, −99.99 and −999, are left out and
    counted in ``dropped``.

    Args:
        path: the file.
        unit: "percent" or "fraction" (0.01 is one percent), what the returns are given in. It has to
            be said, for the numbers do not tell; those of that library are in percent. Prices have none.
        kind: "returns", or "prices", of which simple returns p_t / p_{t−1} − 1 are taken.
        dates: whether the first column holds dates (YYYY-MM-DD, YYYYMMDD or months); None looks.
        drop: the name of a column to leave out, or several.
        drop_missing: leave out rows with a missing cell as well. Of prices the next return then spans
            the rows that are gone.
    """
    choose("kind", kind, ("returns", "prices"))
    if kind == "prices" and unit is not None:
        raise SettingError(f"unit is for returns, and prices have none; got {unit!r}.")
    percent = {"percent": 1.0, "fraction": 100.0}
    if unit is not None:
        choose("unit", unit, tuple(percent))
    data = read_bytes(path)
    tables = []
    if not (is_workbook(data) or data.startswith(b"PAR1")):
        text = decode(data, path)
        tables = french_tables(text)
        if tables and LIBRARY.search(text):
            if kind == "prices" or unit == "fraction":
                raise SettingError(
                    f"{path} is returns in percent: leave out --unit and --prices (unit and kind in "
                    "Python)."
                )
            unit = "percent"
    if kind == "returns" and unit is None:
        raise SettingError(
            "say what the returns are in: --unit percent, or --unit fraction if 0.01 is one percent; or "
            '--prices if they are prices (in Python unit="percent", unit="fraction" or kind="prices").'
        )
    if tables:
        cells = cells_of_csv(str(path), tables[0].text, tables[0].first)
        dates = True
    else:
        cells = cells_of(str(path), data)
    cells = cells.without(cells.find(drop))
    rows = len(cells.rows)
    cells, values, days = _numbers(cells.filled() if drop_missing else cells, dates)
    if tables:
        cells, values, days = _known(cells, values, days)
    dropped = rows - len(cells.rows)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
        if kind == "prices":
            cells, values, days = _changes(cells, values, days)
        values = percent[unit or "percent"] * values
        constant = np.ptp(values, axis=0) == 0 if len(values) > 1 else np.zeros(len(cells.names), bool)
    cells.refuse_columns("never changes in ", constant, "; add cash to the array afterwards")
    if len(values) < 2 and not cells.faults.found:
        cells.faults.add("gives fewer than 2 rows of returns")
    returns = _returns(cells, values, days, dropped)
    return dataclasses.replace(returns, table=tables[0].title) if tables else returns


def _numbers(cells: Cells, dates: bool | None) -> tuple[Cells, np.ndarray, np.ndarray | None]:
    """Reads the columns of the assets, their numbers, and the days; NaN where a cell is a fault."""
    assets, days = _split_dates(cells, dates)
    return assets, assets.numbers(fill=FILL), days


def _known(
    cells: Cells, values: np.ndarray, days: np.ndarray | None
) -> tuple[Cells, np.ndarray, np.ndarray | None]:
    """Returns the rows in which no return has the code for an unknown one."""
    unknown = np.isin(values, UNKNOWN)
    known = np.flatnonzero(~unknown.any(axis=1))
    if not len(known):
        often = [cells.names[k] for k in np.flatnonzero(2 * unknown.sum(axis=0) > len(values))]
        advice = f", mostly for {listed(often)}: {leave_out(often)}" if often else ""
        raise ProblemError(f"{cells.path} has no row in which every return is known{advice}.")
    days = None if days is None else days[known]
    return cells.only(known), values[known], days


def _changes(
    cells: Cells, prices: np.ndarray, days: np.ndarray | None
) -> tuple[Cells, np.ndarray, np.ndarray | None]:
    """What prices have changed by from row to row, in percent."""
    cells.refuse(prices <= 0, "prices that are not positive")
    cells.refuse(prices == np.inf, "infinite prices")
    sound = np.where((prices > 0) & (prices < np.inf), prices, np.nan)
    days = None if days is None else days[1:]
    return cells.only(np.arange(1, len(prices))), 100 * (sound[1:] / sound[:-1] - 1), days


def _returns(cells: Cells, values: np.ndarray, days: np.ndarray | None, dropped: int) -> Returns:
    """Returns the finished table, once everything that is wrong with it is told."""
    cells.refuse(np.abs(values) >= ABSURD, "returns of a million percent or more")
    cells.faults.settle()
    return Returns(values, cells.names, days, dropped)


def _split_dates(cells: Cells, dates: bool | None) -> tuple[Cells, np.ndarray | None]:
    """Returns the columns of the assets, and the days in the first column if it holds any."""
    if dates is None:
        day = DATE.fullmatch(cells.rows[0][0].strip())
        dates = cells.names[0].lower() in DATE_NAMES or (day is not None and day[4] is not None)
    assets = cells
    if dates:
        rows = [row[1:] for row in cells.rows]
        assets = dataclasses.replace(cells, names=cells.names[1:], rows=rows)
    if len(assets.names) < 2:
        cells.faults.add("holds fewer than 2 assets")
        cells.faults.settle()
    # Beside a named column of dates, digits are the names of shares, such as 7203.
    assets.check_names(digits=dates and not DATE.fullmatch(cells.names[0]))
    return assets, _days(cells) if dates else None


def _days(cells: Cells) -> np.ndarray:
    """The first column as days, each later than the one before; those that are not are faults."""
    days = np.array([_day(row[0]) for row in cells.rows], "datetime64[D]")
    unread = np.isnat(days)[:, None]
    cells.refuse(unread, "dates that cannot be read", "write YYYY-MM-DD, or leave that column out")
    _, first = np.unique(days, return_index=True)
    again = ~np.isnat(days)
    again[first] = False
    cells.refuse(again[:, None], "dates that occurred before", "keep one row of each date")
    rows = np.flatnonzero(~np.isnat(days) & ~again)
    back = np.flatnonzero(days[rows][1:] < days[rows][:-1])
    if len(back):
        places = [
            " and ".join(f"{cells.word} {cells.lines[i]} is {days[i]}" for i in rows[k : k + 2])
            for k in back[:SHOWN]
        ]
        cells.faults.add("is not sorted by date: ", places, len(back), "; put the oldest row first")
    return days


def _day(cell: str) -> datetime.date | None:
    match = DATE.fullmatch(cell.strip())
    try:
        return match and datetime.date(int(match[1]), int(match[3]), int(match[4] or 1))
    except ValueError:
        return None
