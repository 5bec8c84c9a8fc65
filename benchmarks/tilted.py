"""Figure 3 and Table 2 of the SMVR paper, from the folder of a run into docs/tilted-results.md.

    nestax reproduce term --full --out FOLDER
    python benchmarks/tilted.py FOLDER

The first needs NESTAX_DATA, or a network; the second only copies what the first has found. With --small
it makes a folder for itself, of a short run.
"""

import csv
import functools
import shutil
from pathlib import Path
from unittest import mock

from nestax.table import Table
from pages import fill, page
from script import SMALL, parser, results

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
    shutil.copyfile(folder / "figure-3.png", page("images/tilted.png"))
    shutil.copyfile(folder / "methods.csv", results("tilted.csv"))


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


def short_run(folder: Path) -> None:
    """What the first command writes, after 60 steps on two splits."""
    from nestax.cli import app, reproduce

    short = functools.partial(reproduce.reproduce_term, steps=60)
    options = ["--seeds", "2", "--tune-seeds", "1", "--out", str(folder)]
    with mock.patch.object(reproduce, "reproduce_term", short):
        if app(["reproduce", "term", *options], standalone_mode=False):
            raise SystemExit("nestax reproduce term has failed.")


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("folder", type=Path, nargs="?" if SMALL else None)
    folder = arguments.parse_args().folder
    if SMALL:
        folder = results("run")
        short_run(folder)
    write_page(folder)
