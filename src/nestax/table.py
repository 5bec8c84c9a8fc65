"""A small table of words and numbers: prints in columns, as Markdown, and in notebooks."""

import csv
import dataclasses
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: What stands for a bar inside a cell of a Markdown table.
BAR = r"\|"
#: How programs that open CSV files know a formula. Such a cell gets an apostrophe, which makes it text.
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
#: Larger floating-point numbers are written with an exponent.
LARGEST = 1e15


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under names; ``print`` it, or turn it into Markdown, CSV or a pandas frame."""

    columns: list[str]
    rows: list[list[Any]]

    def __str__(self) -> str:
        cells = [self.columns, *([cell_text(x) for x in row] for row in self.rows)]
        widths = [max(len(row[k]) for row in cells) for k in range(len(self.columns))]
        lines = [
            "  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        rule = "  ".join("-" * w for w in widths)
        return "\n".join([lines[0], rule, *lines[1:]])

    __repr__ = __str__

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[Any]:
        return [row[self.columns.index(name)] for row in self.rows]

    def only(self, columns: Sequence[str]) -> "Table":
        """Takes some of the columns."""
        return Table(list(columns), list(map(list, zip(*map(self.column, columns), strict=True))))

    def to_markdown(self) -> str:
        rows = [self.columns, ["---"] * len(self.columns), *self.rows]
        lines = (" | ".join(cell_text(x).replace("|", BAR) for x in row) for row in rows)
        return "\n".join(f"| {line} |" for line in lines)

    def to_csv(self, path: str | Path) -> None:
        with Path(path).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(map(inert, self.columns))
            writer.writerows(map(inert, row) for row in self.rows)

    def to_frame(self) -> Any:
        return pandas().DataFrame(self.rows, columns=self.columns)

    def _repr_html_(self) -> str:
        """For notebooks."""
        return as_html(self)


def pandas(asked: str = "to_frame") -> Any:
    """Imports the package, or says how to get it for what was asked."""
    try:
        import pandas as pd
    except ImportError:
        raise ImportError(f"{asked} needs pandas: pip install 'nestax[data]'.") from None
    return pd


def cell_text(x: Any) -> str:
    return number(x, digits=3) if isinstance(x, int | float) else str(x)


def number(x: float, digits: int = 6) -> str:
    """Returns a number as people read it: 2,000,000 and not 2e+06."""
    if isinstance(x, int):
        return f"{x:,}"
    short = f"{x:.{digits}g}"
    return f"{x:,.0f}" if "e+" in short and abs(x) < LARGEST else short


def inert(cell: Any) -> Any:
    """Returns a cell of a CSV file that no program takes for a formula; numbers stay numbers."""
    text = isinstance(cell, str) and cell.startswith(FORMULAS)
    return f"'{cell}" if text and not is_number(cell) else cell


def is_number(x: Any) -> bool:
    """Whether something is a number, or words for one, such as "1,234" or "0.5 ± 0.1"."""
    parts = x.replace(",", "").split(" ± ") if isinstance(x, str) else [x]
    try:
        return all(isinstance(float(part), float) for part in parts)
    except (TypeError, ValueError):
        return False


def as_html(*parts: Any) -> str:
    """Tables, and sentences between them, for a notebook."""
    return "".join(
        _table_html(part)
        if isinstance(part, Table)
        else f"<p style='white-space: pre-wrap'>{html.escape(str(part))}</p>"
        for part in parts
    )


def _table_html(table: Table) -> str:
    """Aligns numbers to the right and words to the left."""
    right = [all(is_number(row[k]) for row in table.rows) for k in range(len(table.columns))]

    def line(kind: str, cells: list[Any]) -> str:
        sides = ("right" if to_right else "left" for to_right in right)
        pairs = zip(sides, cells, strict=True)
        inside = (
            f"<{kind} style='text-align: {side}'>{html.escape(cell_text(cell))}</{kind}>"
            for side, cell in pairs
        )
        return f"<tr>{''.join(inside)}</tr>"

    rows = "".join(line("td", row) for row in table.rows)
    return f"<table><thead>{line('th', table.columns)}</thead><tbody>{rows}</tbody></table>"
