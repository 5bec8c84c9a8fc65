"""Classification sets in LIBSVM's text format: a label, then ``index:value`` pairs, a line a row."""

import re
from pathlib import Path

import numpy as np

from nestax.datasets.cells import Faults
from nestax.datasets.fetching import DATA_SETS, locate, read_text
from nestax.errors import ProblemError

#: The sets that have a name here; on their page breast-cancer has the labels 2 and 4.
NAMES = ("australian", "breast-cancer", "svmguide1", "svmguide1.t")
BENIGN = 2
MALIGNANT = 4
#: A dense array of more cells than this (one GiB) is more likely a mistake than a wish.
MOST_CELLS = 2**27
FIRST_LINE = re.compile(rb"[-+.0-9eE]+(\s+[0-9]+:[^\s:,;]+)+")


def libsvm(name: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Reads features and labels of a set by name, or of any file in LIBSVM's format.

    X is dense, float64, one row an example; y holds int64 if every label is whole, as is usual.
    "australian" and "breast-cancer" are scaled to [−1, 1] and have labels −1 and 1; "svmguide1" (for
    training) and "svmguide1.t" (for testing) are as measured and have labels 0 and 1. The first
    feature of "breast-cancer" is a sample number.

    Args:
        name: "australian", "breast-cancer", "svmguide1", "svmguide1.t", or a file, gzipped or not.
    """
    if name not in NAMES:
        if isinstance(name, str) and not Path(name).exists():
            raise ProblemError(
                f"there is no file {name}, and the sets with a name are {', '.join(NAMES)}."
            )
        return parse_libsvm(read_text(name), name)[:2]
    source = DATA_SETS[str(name)]
    (file,) = locate(source)
    X, y, _ = parse_libsvm(read_text(file), file)
    if X.shape != (source.rows, source.columns):
        raise ProblemError(
            f"{file} is {len(X)} × {X.shape[1]} instead of {source.rows} × {source.columns}: "
            "delete it and get it again."
        )
    if set(np.unique(y)) == {BENIGN, MALIGNANT}:
        y = np.where(y == MALIGNANT, 1, -1)
    return X, y


def is_libsvm(data: bytes) -> bool:
    """Whether the first line of what a file holds is a label and pairs, as no line of a CSV file is."""
    lines = data.lstrip().splitlines()
    return bool(lines) and FIRST_LINE.fullmatch(lines[0].strip()) is not None


def parse_libsvm(text: str, path: str | Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels, and the line of the text that each row is."""
    labels = []
    lines = []
    rows = []
    columns = []
    values = []
    wrong = []
    for number, line in enumerate(text.split("\n"), 1):
        cells = line.split()
        if not cells:
            continue
        try:
            label = _finite(cells[0])
            pairs = [_pair(word) for word in cells[1:]]
            if any(pairs[k][0] <= pairs[k - 1][0] for k in range(1, len(pairs))):
                raise ValueError
        except ValueError:
            wrong.append(f"line {number}")
            continue
        rows += [len(labels)] * len(pairs)
        columns += [column - 1 for column, _ in pairs]
        values += [value for _, value in pairs]
        labels.append(label)
        lines.append(number)
    if wrong:
        faults = Faults(str(path))
        advice = (
            ": a line is 'label index:value ...' with finite numbers and indices that increase from 1"
        )
        faults.add("is not in LIBSVM's format at ", wrong, len(wrong), advice)
        faults.settle()
    if not values:
        raise ProblemError(f"{path} holds no examples with features.")
    shape = len(labels), max(columns) + 1
    if shape[0] * shape[1] > MOST_CELLS:
        raise ProblemError(
            f"{path} is {shape[0]:,} × {shape[1]:,}, too large for a dense array: "
            "sklearn.datasets.load_svmlight_file reads it as a sparse one."
        )
    X = np.zeros(shape)
    y = np.array(labels)
    X[rows, columns] = values
    return X, y.astype(np.int64) if np.all(np.mod(y, 1) == 0) else y, np.array(lines)


def _pair(word: str) -> tuple[int, float]:
    index, value = word.split(":")
    if int(index) < 1 or "_" in index:
        raise ValueError
    return int(index), _finite(value)


def _finite(word: str) -> float:
    number = float(word)
    if not np.isfinite(number) or "_" in word:
        raise ValueError
    return number
