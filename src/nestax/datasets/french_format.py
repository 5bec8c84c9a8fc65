"""Files as the Kenneth R. French data library has them: words on top, then table after table.

A table has a title, a line of names whose first cell is empty, and rows that begin with a day, a month
or a year; a blank line ends it. Cells are padded, and separated by commas or by spaces alone.
"""

import dataclasses
import re

#: What stands for a return that the library does not know.
UNKNOWN = (-99.99, -999.0)
ROW = re.compile(r"\s*([0-9]{8}|[0-9]{6}|[0-9]{4})[\s,]")
YEAR = re.compile(r"^([0-9]{4})(?=,)")
#: By these words a file is one of the library itself, whose returns are in percent.
LIBRARY = re.compile(r"\bThis file was created\b|\bKenneth R\. French\b")


@dataclasses.dataclass(frozen=True)
class FrenchTable:
    """One table of a file.

    title: the words above it, if any.
    text: the same table as CSV, without padding.
    first: the line of the file that its names are.
    """

    title: str
    text: str
    first: int


def french_tables(text: str) -> list[FrenchTable]:
    """Reads every table of a file of that layout, in order; none if the file is something else.

    Without words above it, a table is an ordinary one.
    """
    lines = [line.rstrip() for line in text.split("\n")]
    begin = next((k for k, line in enumerate(lines) if line), len(lines)) + 1
    found = []
    for k in range(begin, len(lines) - 1):
        names = lines[k]
        if names[:1] in (",", " ", "\t") and not ROW.match(names) and ROW.match(lines[k + 1]):
            end = next((e for e in range(k + 1, len(lines)) if not lines[e]), len(lines))
            rows = [YEAR.sub(r"\g<1>01", _commas(line)) for line in lines[k + 1 : end]]
            table = "\n".join(["," + _commas(names).lstrip(","), *rows])
            found.append(FrenchTable(lines[k - 1].strip(), table, k + 1))
    return found


def _commas(line: str) -> str:
    """Returns a line without padding, its cells separated by commas."""
    cells = line.split(",") if "," in line else line.split()
    return ",".join(word.strip() for word in cells)
