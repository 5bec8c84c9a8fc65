"""Makes a classification set unfair and dirty, to see what a robust method makes of it.

T. Li, A. Beirami, M. Sanjabi, V. Smith, Tilted Empirical Risk Minimization, ICLR 2021.
"""

from typing import Any

import numpy as np

from nestax.datasets.cells import listed
from nestax.errors import ProblemError, SettingError, check_seed, check_setting


def corrupt(
    X: Any, y: Any, *, imbalance: float = 20, noise: float = 0.3, rare: Any = None, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Makes a class rare and labels wrong: (X, y, kept), where row k was row ``kept[k]`` before.

    All rows of the other classes stay, and one of the rare class for every ``imbalance`` of them. The
    rows are shuffled, and then the labels of a share ``noise`` of the rows are shuffled among
    themselves. That leaves the number of labels of each class as it is, and changes far fewer labels
    than it touches: at 1 : 20 and a noise of 0.3 about 3 in 100, but 3 in 10 of the rare ones.

    Args:
        X: features, one row an example.
        y: one label a row, of any type.
        imbalance: rows of other classes per row of the rare class.
        noise: the share of rows whose labels are shuffled, from 0 to 1.
        rare: the label of the class to make rare; None takes the least frequent.
        seed: of the shuffles.
    """
    check_setting("imbalance", imbalance, "a finite number of at least 1", lambda x: 1 <= x < np.inf)
    check_setting("noise", noise, "from 0 to 1", lambda x: (x >= 0) & (x <= 1))
    X = np.asarray(X)
    y = np.asarray(y)
    if y.ndim != 1 or X.shape[:1] != y.shape:
        raise ProblemError(
            f"X and y must have one row and one label an example; got shapes {X.shape} and {y.shape}."
        )
    if np.any(y != y):
        raise ProblemError("y holds NaN, which is no label.")
    try:
        labels, counts = np.unique(y, return_counts=True)
    except TypeError:  # they cannot be sorted
        raise ProblemError("the labels in y must be of one type.") from None
    if len(labels) < 2:
        raise ProblemError(f"y must hold at least two classes; it holds {len(labels)}.")
    if rare is None:
        rare = labels[np.argmin(counts)]
    elif rare not in labels.tolist():
        known = listed([*map(str, labels.tolist())])
        raise SettingError(f"rare must be a label of y, one of {known}; got {rare!r}.")
    rng = np.random.default_rng(check_seed(seed))
    order = rng.permutation(len(y))
    members = order[y[order] == rare]
    others = order[y[order] != rare]
    wanted = int(len(others) / imbalance)
    if not wanted:
        raise ProblemError(
            f"an imbalance of {imbalance} leaves no member of class {rare}, for there are only "
            f"{len(others)} others: lower it to {len(others)} or less."
        )
    if wanted > len(members):
        raise ProblemError(
            f"an imbalance of {imbalance} needs {wanted} members of class {rare}, and there are "
            f"{len(members)}: raise it to {len(others) / len(members):.3g} or more."
        )
    kept = rng.permutation(np.concatenate([others, members[:wanted]]))
    new = y[kept]
    wrong = round(noise * len(kept))
    new[:wrong] = rng.permutation(new[:wrong])
    return X[kept], new, kept
