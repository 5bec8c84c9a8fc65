"""Tables of examples: one row an example, one column a feature, and one that holds the class."""

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from nestax.datasets.cells import cells_of, listed
from nestax.datasets.fetching import decode, read_bytes
from nestax.datasets.libsvm_format import is_libsvm, parse_libsvm
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
    path: str | Path,
    target: str | None = None,
    *,
    groups: str | None = None,
    features: Sequence[str] | None = None,
    drop: str | Collection[str] = (),
) -> Examples:
    """Reads examples from CSV, Parquet or Excel, gzipped or not, or from LIBSVM's format.

    The first line names the columns. Classes and groups may be any words; every other column is a
    feature, of which every cell must hold a number: nothing is filled in and no row is dropped.

    In LIBSVM's format the class comes first, and features are named 1, 2 and so on. Such a file may
    have fewer ``features`` than it should, which are zeros, or more, which nobody has learnt from.

    Args:
        path: the file.
        target: the column that holds the class; None for LIBSVM's format.
        groups: a column that holds a group, if there is one; it is no feature.
        features: the columns that must be there, and their order; None takes them as they come.
        drop: the name of a column to leave out, or several; with ``features`` they may be absent.
    """
    if groups is not None and groups == target:
        raise SettingError(f"groups must be another column than the target {target!r}.")
    data = read_bytes(path)
    if is_libsvm(data):
        if not (target is groups is None):
            raise SettingError(
                f"{path} is in LIBSVM's format, which names no columns and has the class first: leave "
                "out --target and --groups (target and groups in Python), for all files."
            )
        return _labelled(path, data, features, drop)
    cells = cells_of(str(path), data)
    cells.check_names()
    if target is None:
        raise SettingError(
            f"{path} needs the name of the column that holds the class: --target, or target in Python; "
            f"there are {listed(cells.names)}."
        )
    y = np.array(cells.column(target))
    of_group = None if groups is None else np.array(cells.column(groups))
    dropped = {drop} if isinstance(drop, str) else set(drop)
    if features is None:
        cells.find(dropped)
    rest = cells.without({target, *dropped} | ({groups} if groups else set()))
    if not rest.names:
        cells.faults.add(f"has no column besides {target!r}: features are missing")
        cells.faults.settle()
    if features is not None and set(features) != set(rest.names):
        odd = sorted(set(features) ^ set(rest.names))[0]
        there = "lacks" if odd in features else "has beside the features"
        raise ProblemError(f"{path} {there} column {odd!r}: it needs the columns of the train file.")
    X = rest.numbers("write numbers for words, or leave those columns out (--drop, or drop= in Python)")
    rest.refuse(np.abs(X) >= ABSURD, "numbers that are too large to compute with")
    cells.faults.settle()
    order = [rest.names.index(name) for name in features or rest.names]
    return Examples(X[:, order], y, of_group, tuple(features or rest.names), np.array(cells.lines))


def _labelled(
    path: str | Path, data: bytes, features: Sequence[str] | None, drop: str | Collection[str]
) -> Examples:
    """Reads examples of a file in LIBSVM's format; its classes are words here, as those of others."""
    X, y, lines = parse_libsvm(decode(data, path), path)
    if not np.all(np.abs(X) < ABSURD):
        raise ProblemError(f"{path} holds numbers that are too large to compute with.")
    names = tuple(str(k) for k in range(1, X.shape[1] + 1))
    if features is None:
        dropped = {drop} if isinstance(drop, str) else set(drop)
        if unknown := sorted(dropped - set(names)):
            raise ProblemError(f"{path} has no column {unknown[0]!r}; there are 1 to {len(names)}.")
        features = [name for name in names if name not in dropped]
    wanted = np.zeros((len(X), len(features)))
    for k, name in enumerate(features):
        if name in names:
            wanted[:, k] = X[:, names.index(name)]
    return Examples(wanted, y.astype(str), None, tuple(features), lines)
