"""Data sets that nestax does not bring along, and made-up ones of their kind with --small."""

import functools
import importlib.util
from pathlib import Path

import numpy as np

import nestax as nx
from script import SMALL

from experiments import handwriting


def industry(count: int) -> np.ndarray:
    """Daily returns of so many industries."""
    return (
        nx.datasets.synthetic_returns(500, count) if SMALL else np.asarray(nx.datasets.industry(count))
    )


def omniglot(side: int) -> handwriting.Omniglot:
    """Handwriting, or noise of 40 characters by 20 drawers."""
    if not SMALL:
        return handwriting.omniglot(side=side)
    noise = np.random.default_rng(0).integers(256, size=(40, 20, side, side), dtype=np.uint8)
    return handwriting.Omniglot(noise)


@functools.cache
def breast_cancer_study() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standardised covariates, times and events of GBSG2, or of 60 rows that are made up."""
    if SMALL:
        rng = np.random.default_rng(0)
        X = rng.standard_normal((60, 8))
        time = np.ceil(10 * rng.exponential(np.exp(-X[:, 0])))
        return X, time, (rng.random(60) < 0.6).astype(float)
    found = importlib.util.find_spec("lifelines")
    if found is None or found.origin is None:
        raise SystemExit("GBSG2 comes with lifelines: pip install --no-deps lifelines")
    path = Path(found.origin).parent / "datasets" / "gbsg2.csv"
    cells = [line.split(",") for line in path.read_text().split()[1:]]
    words = {"no": 0, "yes": 1, "Pre": 0, "Post": 1, "I": 1, "II": 2, "III": 3}
    table = np.asarray([[float(words.get(cell, cell)) for cell in row] for row in cells])
    X = table[:, :8]
    X[:, 5:] = np.log1p(X[:, 5:])
    return (X - X.mean(0)) / X.std(0), table[:, 8], table[:, 9]
