"""A small table of words and numbers: prints in columns, and as Markdown."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

#: What stands for a bar inside a cell of a Markdown table.
BAR = r"\|"


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

    def to_markdown(self) -> str:
        line = lambda cells: f"| {' | '.join(cell_text(x).replace('|', BAR) for x in cells)} |"
        return "\n".join([line(self.columns), line(["---"] * len(self.columns)), *map(line, self.rows)])

    def to_csv(self, path: str | Path) -> None:
        with Path(path).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self.columns)
            writer.writerows(self.rows)

    def to_frame(self) -> Any:
        try:
            import pandas as pd
        except ImportError:
            raise ImportError("to_frame needs pandas: pip install pandas.") from None
        return pd.DataFrame(self.rows, columns=self.columns)


def cell_text(x: Any) -> str:
    return f"{x:.3g}" if isinstance(x, float) else f"{x:,}" if isinstance(x, int) else str(x)
