"""Figure 3 and Table 2 of the SMVR paper, from the folder of a run into docs/tilted-results.md.

    nestax reproduce term --full --out FOLDER
    python benchmarks/tilted.py FOLDER

The first needs NESTAX_DATA, or a network; the second only copies what the first has found.
"""

import csv
import shutil
import sys
from pathlib import Path

from nestax.table import Table
from pages import DOCS, fill

FIGURE = DOCS / "images" / "tilted.png"
RESULTS = Path(__file__).parent / "results" / "tilted.csv"
#: The columns of methods.csv that the page has room for.
SHORT = [
    "set",
    "method",
    "lr",
    "knob",
    "its value",
    "steps",
    "gradient norm",
    "length of w",
    "error / gradient",
]


def write_page(folder: Path) -> None:
    settings = pick(read(folder / "methods.csv"), SHORT)
    table = lambda name: read(folder / f"{name}.csv").to_markdown()
    parts = {
        "accuracies": table("accuracies"),
        "losses": table("losses"),
        "settings": Table(SHORT, settings).to_markdown(),
        "rows": table("rows"),
        "findings": "\n".join(f"* {row[0]}" for row in read(folder / "findings.csv").rows),
    }
    fill("tilted-results.md", parts)
    shutil.copyfile(folder / "figure-3.png", FIGURE)
    shutil.copyfile(folder / "methods.csv", RESULTS)


def read(path: Path) -> Table:
    with path.open(newline="") as file:
        columns, *rows = csv.reader(file)
    return Table(columns, rows)


def number(cell: str) -> float | str:
    try:
        return int(cell) if cell.isdigit() else float(cell)
    except ValueError:
        return cell


def pick(table: Table, columns: list[str]) -> list[list]:
    places = [table.columns.index(column) for column in columns]
    return [[number(row[k]) for k in places] for row in table.rows]


if __name__ == "__main__":
    write_page(Path(sys.argv[1]))
