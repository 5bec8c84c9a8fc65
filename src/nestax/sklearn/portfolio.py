"""The mean-deviation portfolio as a scikit-learn estimator.

    F(w) = −mean(Xw) + risk·sqrt(var(Xw) + delta·s²),  low ≤ w ≤ high, Σw = 1

with s² the average variance of the columns of X. The run sees (X − c)/s, c the mean of all of X. Weights
that sum to one earn c whatever they are, so neither they nor any setting depends on the unit of the
returns, or on whether these are counted from 0 or from 1. F is convex, so its gradient proves how far
F(w) can be from the least value; that decides when ``fit`` stops.
"""

import dataclasses
import math
import warnings
from typing import Any, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import validate_data

from nestax.chain.problem import Problem
from nestax.errors import check_number
from nestax.estimators import SMVR, SnapshotSMVR
from nestax.estimators.registry import as_estimator
from nestax.parts.estimator import AbstractEstimator
from nestax.problems import ExactPortfolio, mean_deviation
from nestax.problems.portfolio.market import read_bounds
from nestax.sklearn.columns import check_sums, known_rows
from nestax.sklearn.fitted import AT_LEAST_0, POSITIVE, Fitted, warn_if_not_finite, with_jax, without_jax
from nestax.sklearn.windows import Window
from nestax.steps.descent import with_rate

#: Most steps between snapshots; ``fit`` looks at the gap about as often.
ROUND = 512


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class MeanDeviationPortfolio(Fitted):
    """The portfolio with the largest mean return minus ``risk`` standard deviations.

    X holds returns, one row a period and one column an asset, in percent or in fractions.

        F(w) = −mean(Xw) + risk·sqrt(var(Xw) + delta·s²),  low ≤ w ≤ high, Σw = 1

    Args:
        risk: λ ≥ 0, the price of one standard deviation.
        bounds: (low, high) of the weights, numbers or one per asset. None means (0, 1), long only;
            (0, 0.1) caps every weight, (-0.3, 0.5) allows short sales.
        delta: δ > 0 smooths the square root, as a share of s², the average variance of the columns.
        method: None takes ``SnapshotSMVR`` in ``fit``, where all rows are at hand, and ``SMVR`` in
            ``partial_fit``, where they are not. The name of a method, or an estimator such as
            ``nx.NLASG()``, is taken in both, and ``fit`` then takes all of its ``max_iter`` steps.
        max_iter: most steps of ``fit``.
        tol: ``fit`` stops when F(w) is proven to be within tol·(1 + risk)·s of the least value. Single
            precision can prove about 1e-6.
        batch_size: draws per level and step.
        learning_rate: ``lr`` of the method, for returns with s = 1. None takes that of gradient steps
            from the curvature of F and the noise of a batch, and leaves other step rules as published.
        random_state: a seed, a generator or None, as everywhere in scikit-learn.

    Attributes:
        weights_: the portfolio, one number per asset, summing to one.
        objective_: F(w) in the unit of the returns, on the rows of the last call.
        gap_: F(w) is at most this far above the least value on those rows.
        scale_: s; ``partial_fit`` keeps that of the first rows.
        n_iter_: steps taken.
        samples_: draws over all levels. Snapshots count, with rows that were repeated to fill up a
            power of two.
        n_features_in_, feature_names_in_: number of assets, and their names if X is a frame.
    """

    risk: float = 0.2
    bounds: Any = None
    delta: float = 1e-8
    method: str | AbstractEstimator | None = None
    max_iter: int = 10_000
    tol: float = 1e-5
    batch_size: int = 64
    learning_rate: float | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Finds the portfolio for the returns X; y is ignored."""
        X = self._begin(X)
        exact, problem = self._build(X)
        w = exact.settle(problem.w0)
        if self.method is None:
            w = self._descend(exact, problem, w)
        self._rate = self._automatic_rate(exact, w)
        if self.method is None:
            return self._finish(exact, w)
        method = self._with_rate(problem)
        steps = self.max_iter
        result = self._minimize(problem, method, None, steps=steps, stride=steps)
        warn_if_not_finite(result, 2)
        return self._finish(exact, exact.settle(result.w))

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Makes one pass over the returns X from where the call before ended; y is ignored.

        The trackers go on with the new rows: several calls with the same rows are one run. After
        ``fit`` the weights are kept and the trackers start anew.
        """
        first = not hasattr(self, "weights_")
        if first:
            X = self._begin(X)
        else:
            self._check_settings()
            X = validate_data(self, X, dtype=np.float64, reset=False)
            check_sums(self, X)
        exact, problem = self._build(X, None if first else self.weights_)
        if first:
            self._rate = self._automatic_rate(exact, exact.settle(problem.w0))
        method = self._with_rate(problem)
        steps = math.ceil(len(X) / self.batch_size)
        carry = with_jax(self._carry)
        # Whatever the number of steps, strides of one step are one program.
        result = self._minimize(problem, method, None, steps=steps, stride=1, carry=carry)
        warn_if_not_finite(result, 2)
        self._carry = without_jax(result.carry)
        return self._finish(exact, exact.settle(result.w))

    def predict(self, X: Any) -> np.ndarray:
        """Computes the return of the portfolio in every period."""
        return known_rows(self, X, "weights_") @ self.weights_

    def score(self, X: Any, y: Any = None) -> float:
        """−F(w) on the returns X; y is ignored.

        It depends on ``risk``, so a search over ``risk`` needs a score of its own.
        """
        returns = self.predict(X)
        deviation = np.sqrt(returns.var() + self.delta * self.scale_**2)
        return float(returns.mean() - self.risk * deviation)

    def _check_settings(self) -> None:
        check_number("risk", self.risk, *AT_LEAST_0)
        check_number("delta", self.delta, *POSITIVE)
        check_number("tol", self.tol, "a number of at least 0", lambda x: x >= 0)
        if self.learning_rate is not None:
            check_number("learning_rate", self.learning_rate, *POSITIVE)
        super()._check_settings()
        self._named_method()

    def _begin(self, X: Any) -> np.ndarray:
        """Everything that does not depend on what was fitted before."""
        self._check_settings()
        X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        check_sums(self, X)
        self._centre = float(X.mean())
        self.scale_ = _scale(X)
        self._begin_run()
        self._carry = None
        return X

    def _build(self, X: np.ndarray, w: np.ndarray | None = None) -> tuple[ExactPortfolio, Problem]:
        """F for returns with c = 0 and s = 1, in closed form and as a problem that starts at w."""
        # In single precision a mean far from 0, as of returns counted from 1, would eat the digits.
        rows = (X - self._centre) / self.scale_
        facts: dict[str, Any] = {"risk": self.risk, "delta": self.delta}
        low, high = read_bounds((0, 1) if self.bounds is None else self.bounds, rows.shape[1])
        constraint = "simplex" if self.bounds is None else "box"
        window = Window(rows)
        base = mean_deviation(window.data, constraint=constraint, bounds=self.bounds, **facts)
        problem = base.with_data(mean=window, variance=window)
        if w is not None:
            problem = eqx.tree_at(lambda p: p.w0, problem, jnp.asarray(w, problem.dtype))
        return ExactPortfolio(rows, low=low, high=high, **facts), problem

    def _named_method(self) -> AbstractEstimator:
        return SMVR() if self.method is None else as_estimator(self.method)

    def _automatic_rate(self, exact: ExactPortfolio, w: np.ndarray) -> float:
        fading = self._named_method().refresh_batch == "population"
        return exact.learning_rate(w, self.batch_size, fading)

    def _with_rate(self, problem: Problem) -> AbstractEstimator:
        """Gives the method the learning rate that is set, or else the automatic one if it needs one."""
        method = self._named_method()
        if self.learning_rate is None:
            return with_rate(method, problem, self._rate)
        return dataclasses.replace(method, lr=self.learning_rate)

    def _descend(self, exact: ExactPortfolio, problem: Problem, w: np.ndarray) -> np.ndarray:
        """Rounds of steps until the gap is small. A round that does not descend is taken back, and the
        learning rate is halved."""
        rows: Any = problem.levels[0].source
        period = min(ROUND, math.ceil(rows.size / self.batch_size))
        usual = min(ROUND // period * period, self.max_iter)
        enough = self.tol * (1 + self.risk)
        carry = None
        caution = 1.0
        while self.n_iter_ < self.max_iter and exact.gap(w) > enough:
            left = self.max_iter - self.n_iter_
            rate = self.learning_rate or exact.learning_rate(w, self.batch_size)
            method = SnapshotSMVR(period=period, lr=caution * rate)
            # The last round takes what is left over: a shorter one would be another program.
            steps = left if left < 2 * usual else usual
            result = self._minimize(problem, method, None, steps=steps, stride=usual, carry=carry)
            new = exact.settle(result.w)
            if exact.value(new) < exact.value(w):
                w = new
                carry = result.carry
            else:
                caution /= 2
        if exact.gap(w) > enough:
            above, allowed = (f"{self.scale_ * gap:.1e}" for gap in (exact.gap(w), enough))
            warnings.warn(
                f"after {self.n_iter_:,} steps F(w) may still be {above} above the least value, and tol "
                f"allows {allowed}: raise max_iter or tol.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return w

    def _finish(self, exact: ExactPortfolio, w: np.ndarray) -> Self:
        self.weights_ = w
        self.objective_ = self.scale_ * exact.value(w) - self._centre
        self.gap_ = self.scale_ * exact.gap(w)
        return self


def _scale(X: np.ndarray) -> float:
    """s, the root of the average variance; something to divide by where nothing varies."""
    largest = float(np.abs(X).max()) or 1.0  # its square may be too large or too small for a float
    return largest * max(float(np.sqrt((X / largest).var(axis=0).mean())), 1e-9)
