"""Tables of examples: one row an example, one column a feature, and one that holds the class."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nestax.datasets.cells import read_cells
from nestax.errors import ProblemError, SettingError

#: Squares of larger numbers, added up, are infinite.
ABSURD = 1e100


@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
    """Features, classes and groups of some rows of a file.

    X: float64, one row an example, one column a feature.
    y: the class of each row, as it stands in the file.
    groups: the group of each row, as it stands in the file; None if none was asked for.
    features: the name of each column of X.
    lines: the line of the file that each row is.
    """

    X: np.ndarray
    y: np.ndarray
    groups: np.ndarray | None
    features: tuple[str, ...]
    lines: np.ndarray

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, index: np.ndarray) -> "Examples":
        groups = None if self.groups is None else self.groups[index]
        return Examples(self.X[index], self.y[index], groups, self.features, self.lines[index])


def read_examples(
    path: str | Path, target: str, *, groups: str | None = None, features: Sequence[str] | None = None
) -> Examples:
    """Examples from a CSV file, gzipped or not, or from Parquet.

    The first line names the columns. Classes and groups may be any words; every other column is a
    feature, of which every cell must hold a number: nothing is filled in and no row is dropped.

    Args:
        path: the file.
        target: the column that holds the class.
        groups: a column that holds a group, if there is one; it is no feature.
        features: the columns that must be there, and their order; None takes them as they come.
    """
    if groups == target:
        raise SettingError(f"groups must be another column than the target {target!r}.")
    cells = read_cells(path)
    cells.check_names()
    y = np.array(cells.column(target))
    of_group = None if groups is None else np.array(cells.column(groups))
    rest = cells.without({target, groups} - {None})
    if not rest.names:
        raise ProblemError(f"{path} has no column besides {target!r}: features are missing.")
    if features is not None and set(features) != set(rest.names):
        odd = sorted(set(features) ^ set(rest.names))[0]
        there = "lacks" if odd in features else "has beside the features"
        raise ProblemError(f"{path} {there} column {odd!r}: it needs the columns of the train file.")
    X = rest.numbers("write numbers for words, or leave those columns out")
    rest.refuse(~(np.abs(X) < ABSURD), "numbers that are too large to compute with")
    order = [rest.names.index(name) for name in features or rest.names]
    return Examples(X[:, order], y, of_group, tuple(features or rest.names), np.array(cells.lines))
