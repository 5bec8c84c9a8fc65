"""Cox regression as a scikit-learn estimator.

    hazard of x at t = e^{h(x)}·λ(t),   h(x) = w·x,   λ of any shape, one for every stratum

w minimises the partial likelihood of ``nx.problems.cox``. Where the log hazard is linear and all rows
are at hand, that is a convex function of a few numbers, and Newton's method on all rows the right tool;
small batches are for networks.
"""

import warnings
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from nestax.errors import ProblemError, check_number, choose
from nestax.problems.survival.exact import ExactCox
from nestax.problems.survival.follow_up import TIES, follow_up
from nestax.sklearn.columns import check_spread, check_squares, known_rows
from nestax.sklearn.fitted import AT_LEAST_0

#: Times, and the cumulative hazard of the average row up to each of them.
Baseline = tuple[np.ndarray, np.ndarray]


class CoxRegressor(RegressorMixin, BaseEstimator):
    """Proportional hazards: who has the event earlier, from rows of which some never have it.

        F(w) = 1/E Σ_i (log Σ_j e^{w·x_j} − w·x_i) + l2/2·‖slope‖²

    i ranges over the E events, j over the rows at risk then. Features are centred and scaled inside, so
    that ``l2`` does not depend on their units; ``coef_`` is for features as they were given.

    Cox, J. R. Stat. Soc. B 1972.

    Args:
        ties: "efron" or "breslow", for events at the same time.
        l2: strength of the penalty, for features with a standard deviation of one. With 0, features that
            order all events as they happened have no finite optimum.

    Attributes:
        coef_: one slope a feature.
        intercept_: such that the average row has a log hazard of 0.
        objective_: F(w) on the rows of ``fit``.
        n_features_in_, feature_names_in_: number of features, and their names if X is a frame.
    """

    def __init__(self, *, ties: str = "efron", l2: float = 0.0):
        self.ties = ties
        self.l2 = l2

    def fit(self, X: Any, y: Any, *, strata: Any = None, entry: Any = None) -> Self:
        """Fits the model to the rows X and what happened to them.

        Args:
            X: one row an example, one column a feature.
            y: as in scikit-survival, a structured array with two fields, of which the first tells
                whether a row had the event (else it was censored) and the second when; or numbers, the
                times of events that all rows had.
            strata: a label for every row; rows of different strata are never compared, and each stratum
                has a baseline of its own.
            entry: when every row came under observation, before its time; None means from the start.
        """
        choose("ties", self.ties, TIES)
        check_number("l2", self.l2, *AT_LEAST_0)
        event, time = read_outcome(y)
        X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        check_consistent_length(X, time)
        check_squares(self, X)
        check_spread(self, X)
        sets = follow_up(time, event, strata=strata, entry=entry, ties=self.ties)
        mean = X.mean(axis=0)
        std = X.std(axis=0)
        scale = np.where(std > 10 * np.finfo(float).eps * np.abs(mean), std, 1)
        exact = ExactCox((X - mean) / scale, sets, self.l2)
        best = exact.least()
        if not best.found:
            warnings.warn(
                "no finite weights are best: some combination of the features puts all events in the "
                "order in which they happened. Raise l2, or leave features out.",
                ConvergenceWarning,
                stacklevel=2,
            )
        self.coef_ = best.w / scale
        self.intercept_ = float(-mean @ self.coef_)
        self.objective_ = best.value
        labels = [None] if strata is None else np.unique(np.asarray(strata)).tolist()
        sorted_time = np.asarray(time, float)[sets.order]
        self._baselines = {
            label: (sorted_time[places], hazard)
            for label, (places, hazard) in zip(labels, exact.cumulative_hazards(best.w), strict=True)
        }
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Returns the log hazard of every row, beside that of the average one: high is early."""
        return known_rows(self, X) @ self.coef_ + self.intercept_

    def score(self, X: Any, y: Any) -> float:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Harrell's C-index: of two rows whose order is known, how often the predicted one is right."""
        event, time = read_outcome(y)
        return concordance_index(event, time, self.predict(X))

    def baseline_survival(self, times: Any, stratum: Any = None) -> np.ndarray:
        """Returns the share of average rows without an event up to and including ``times``.

        e^{−Λ(t)}, where Λ adds up 1/S_i over the events so far: Breslow's, with S_i for ties as fitted.

        Args:
            times: one or many, of at least 0.
            stratum: its label, if there are strata.
        """
        check_is_fitted(self, "coef_")
        if stratum not in self._baselines:
            known = ", ".join(map(repr, self._baselines))
            raise ProblemError(f"stratum must be one of those of fit, {known}; got {stratum!r}.")
        when, hazard = self._baselines[stratum]
        times = np.asarray(times, float)
        if np.isnan(times).any() or (times < 0).any():
            raise ProblemError("times must be at least 0.")
        return np.exp(-np.concatenate([[0.0], hazard])[np.searchsorted(when, times, side="right")])

    def predict_survival(self, X: Any, times: Any, stratum: Any = None) -> np.ndarray:
        """Returns the probability that a row has no event up to and including ``times``: rows × times.

        Args:
            X: rows, all of one stratum.
            times, stratum: as for ``baseline_survival``.
        """
        base = np.atleast_1d(self.baseline_survival(times, stratum))
        return base ** np.exp(self.predict(X))[:, None]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        tags.regressor_tags.poor_score = (
            True  # times of events without noise need no proportional hazards
        )
        return tags


def read_outcome(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Reads events and times, from a structured array or from times alone."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None.")
    if hasattr(y, "to_records") and getattr(y, "ndim", 1) == 2:
        y = y.to_records(index=False)  # a frame with two columns
    y = np.asarray(y)
    if y.dtype.names is None and y.ndim == 2 and y.shape[1] > 1:
        raise ProblemError(
            "y must be a structured array or a frame of events and times, or times alone: "
            "np.rec.fromarrays([event, time], names=['event', 'time']) makes one of two columns; got an "
            f"array of shape {y.shape}."
        )
    if y.dtype.names is None:
        time = column_or_1d(y, dtype=np.float64, warn=True)
        return np.ones(len(time), bool), time
    if len(y.dtype.names) != 2 or y.ndim != 1:
        raise ProblemError(
            "y must have two fields, whether a row had the event and when; got "
            f"{', '.join(y.dtype.names)}."
        )
    event, time = (y[name] for name in y.dtype.names)
    if event.dtype.kind not in "bu" and time.dtype.kind == "b":
        raise ProblemError(
            f"y must tell the event first and the time second; got {', '.join(y.dtype.names)}."
        )
    return event, np.asarray(time, np.float64)


def concordance_index(event: Any, time: Any, risk: Any) -> float:
    """Of the pairs of rows whose order is known, the share in which the earlier one has the higher risk.

    Known are pairs of an event and a row that left later, or that left at that time without an event.
    Equal risks count half. Counting in sorted blocks of 1, 2, 4, … rows takes n·log²n steps.

    Harrell, Califf, Pryor, Lee, Rosati, JAMA 1982.
    """
    event, time, risk = np.asarray(event) > 0, np.asarray(time), np.asarray(risk, np.float64)
    if not np.isfinite(risk).all():
        raise ProblemError("the predicted risks are not finite: nothing can be told of their order.")
    order = np.lexsort((event, -time))  # whom an event is compared with is a beginning of it
    _, rank = np.unique(risk[order], return_inverse=True)
    latest, happened = -time[order], event[order]
    events = np.flatnonzero(happened)
    # Censored rows of the same time stand before its events.
    censored = np.concatenate([[0], np.cumsum(~happened)])
    first = np.searchsorted(latest, latest[events])
    past = np.searchsorted(latest, latest[events], side="right")
    before = first + censored[past] - censored[first]
    pairs = before.sum()
    if not pairs:
        raise ProblemError(
            "there is no event after which another row was still there: no order to compare with."
        )
    below = equal = 0
    for bit in range(len(rank).bit_length()):
        size = 2**bit
        room = -len(rank) % size
        rows = np.sort(np.append(rank, np.full(room, len(rank))).reshape(-1, size), axis=1)
        shift = np.arange(len(rows)) * (len(rank) + 1)
        asked = before & size > 0  # the first ``before`` rows are made of one block per bit
        block = before[asked] // size - 1
        key = rank[events[asked]] + shift[block]
        flat = (rows + shift[:, None]).ravel()
        low = np.searchsorted(flat, key)
        below += (low - block * size).sum()
        equal += (np.searchsorted(flat, key, side="right") - low).sum()
    return float((below + equal / 2) / pairs)
