"""Rows for a fitted estimator, and columns that are too large or too small to compute with, by name."""

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from nestax.errors import ProblemError

#: What varies by less is constant to whoever squares it.
LEAST = 1e3 * float(np.sqrt(np.finfo(float).tiny))


def known_rows(model: Any, X: Any, fitted: str = "coef_") -> np.ndarray:
    """Reads rows with the features that ``fit`` has seen."""
    check_is_fitted(model, fitted)
    rows: Any = validate_data(model, X, dtype=np.float64, reset=False)
    return rows


def check_sums(model: Any, X: np.ndarray) -> None:
    """Refuses columns whose entries cannot be added up."""
    _refuse_large(model, X, float(np.finfo(float).max) / (4 * X.size))


def check_squares(model: Any, X: np.ndarray) -> None:
    """Refuses columns whose deviations from their mean cannot be squared and added up."""
    _refuse_large(model, X, float(np.sqrt(np.finfo(float).max / len(X))) / 2)


def check_spread(model: Any, X: np.ndarray) -> None:
    """Refuses columns that vary, and whose deviations have squares of 0."""
    extent = np.ptp(X, axis=0)
    small = np.flatnonzero((extent > 0) & (extent < LEAST))
    if small.size:
        raise ProblemError(
            f"{_name(model, small[0])} of X varies by {extent[small[0]]:.1e} only, too little to "
            "compute with: multiply it by a power of ten, or leave it out."
        )


def _refuse_large(model: Any, X: np.ndarray, most: float) -> None:
    largest = np.abs(X).max(axis=0)
    large = np.flatnonzero(largest > most)
    if large.size:
        raise ProblemError(
            f"{_name(model, large[0])} of X holds numbers of size {largest[large[0]]:.1e}, too large to "
            "compute with: divide it by a power of ten, or leave it out."
        )


def _name(model: Any, number: int) -> str:
    names = getattr(model, "feature_names_in_", None)
    return f"column {number}" if names is None else f"column {names[number]!r}"
