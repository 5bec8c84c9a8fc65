"""Real data where there is a copy of it, and what stands in for it where there is none."""

from typing import Any

import numpy as np

import nestax.datasets as datasets
from nestax.cli.shell import note
from nestax.errors import SettingError

from experiments.cleavage import hiv1
from experiments.portfolio import INDUSTRIES, ROWS


def markets(full: bool, industries: str | None) -> dict[str, Any]:
    """Returns of the markets asked for; made-up ones where there is no copy of Industry-10."""
    if not full and industries is None and not _has_copy("industry10"):
        note("There is no copy of Industry-10, so the returns are made up; NESTAX_DATA may name one.")
        return {"made-up": datasets.synthetic_returns(ROWS, INDUSTRIES[0])}
    usual = INDUSTRIES if full else INDUSTRIES[:1]
    counts = usual if industries is None else [_count(word) for word in industries.split(",")]
    return {f"Industry-{count}": datasets.industry(count, rows=ROWS) for count in counts}


def _count(word: str) -> int:
    if word.strip() not in map(str, INDUSTRIES):
        known = ", ".join(map(str, INDUSTRIES))
        raise SettingError(f"industries must be some of {known}; got {word.strip()!r}.")
    return int(word)


def two_classes(full: bool, only: str | None = None) -> dict[str, tuple[Any, Any]]:
    """Features and labels 0 and 1 of the sets that are named, or of all."""
    sets = _all_sets() if full else _breast_cancer()
    names = list(sets) if only is None else [name.strip() for name in only.split(";")]
    for name in names:
        if name not in sets:
            there = "; ".join(sets)
            hint = "" if full else ", and with --full there are more"
            raise SettingError(f"only: no data set is called {name!r}; there are {there}{hint}.")
    return {name: sets[name] for name in names}


def _all_sets() -> dict[str, tuple[Any, Any]]:
    parts = [datasets.libsvm(name) for name in ("svmguide1", "svmguide1.t")]
    X, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    return {
        "HIV-1": hiv1(),
        "Australian": _zero_and_one(*datasets.libsvm("australian")),
        "Breast-cancer": _zero_and_one(*datasets.libsvm("breast-cancer")),
        "svmguide1": (X, y),
    }


def _breast_cancer() -> dict[str, tuple[Any, Any]]:
    """Without a copy, the later set that scikit-learn brings."""
    if _has_copy("breast-cancer"):
        return {"Breast-cancer": _zero_and_one(*datasets.libsvm("breast-cancer"))}
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError:
        raise SettingError(
            "there is no copy of breast-cancer: set NESTAX_DATA to a folder that holds one, or "
            "pip install 'nestax[sklearn]' for a similar set."
        ) from None
    note(
        "There is no copy of LIBSVM's breast-cancer, so the later set that scikit-learn brings is used; "
        "NESTAX_DATA may name a folder."
    )
    X, benign = load_breast_cancer(return_X_y=True)
    return {"Breast-cancer of scikit-learn": (X, 1 - np.asarray(benign))}


def _has_copy(name: str) -> bool:
    copies = datasets.available()
    return dict(zip(copies.column("name"), copies.column("local copy"), strict=True))[name] != "–"


def _zero_and_one(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return X, (y > 0).astype(int)
