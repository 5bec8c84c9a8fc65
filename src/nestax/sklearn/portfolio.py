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
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from nestax.chain.problem import Problem
from nestax.errors import DivergenceWarning, SettingError, check_count, check_number
from nestax.estimators import SMVR, SnapshotSMVR
from nestax.estimators.registry import as_estimator
from nestax.loop.status import Status
from nestax.parts.estimator import AbstractEstimator
from nestax.problems import ExactPortfolio, mean_deviation
from nestax.run.minimize import minimize
from nestax.run.result import Result
from nestax.sklearn.columns import check_sums
from nestax.sklearn.windows import Window, with_jax, without_jax
from nestax.steps.descent import Descent, step_of

#: Most steps between snapshots; ``fit`` looks at the gap about as often.
ROUND = 512
#: The automatic learning rate as a share of the inverse curvature.
SHARE = 0.5
#: How far the noise of one batch moves the weights, in a method that does not take snapshots.
WANDER = 0.03
#: Most that weights in single precision miss a sum of one by.
ROUNDING = 1e-3


class Objective(ExactPortfolio):
    """F on some rows with s = 1, and the learning rates that suit it."""

    def __init__(self, rows: np.ndarray, risk: float, delta: float, bounds: Any):
        each = lambda bound: np.broadcast_to(np.asarray(bound, float), rows.shape[1])
        try:
            low, high = (0, 1) if bounds is None else bounds
            low = each(low)
            high = each(high)
        except (TypeError, ValueError):
            raise SettingError(
                "bounds must be (low, high), each a number or one number for each of the "
                f"{rows.shape[1]} assets; got {bounds!r}."
            ) from None
        super().__init__(rows, risk=risk, delta=delta, low=low, high=high)

    def learning_rate(self, w: np.ndarray, batch_size: int) -> float:
        """A share of the inverse curvature near w."""
        return SHARE * self.inverse_curvature(w, batch_size)

    def noisy_learning_rate(self, w: np.ndarray, batch_size: int) -> float:
        """The same for gradients whose noise does not fade: sqrt(E‖r‖²/batch_size) for the mean return,
        and risk times that for the deviation."""
        noise = (1 + self.risk) * np.sqrt(self.noise / batch_size)
        steady = self.learning_rate(w, batch_size)
        return min(steady, float(WANDER / noise)) if noise > 0 else steady

    def settle(self, w: Any) -> np.ndarray:
        """The weights of a run in float64, inside their bounds and with a sum of one."""
        w = np.clip(np.asarray(w, np.float64), self.low, self.high)
        missing = 1 - w.sum()
        if abs(missing) < ROUNDING:  # weights at a bound stay there
            room = (w - self.low) * (self.high - w)
        else:  # the step was so long that the projection lost all digits
            room = self.high - w if missing > 0 else w - self.low
        return np.clip(w + missing * room / (room.sum() or 1), self.low, self.high)


class MeanDeviationPortfolio(BaseEstimator):
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

    def __init__(
        self,
        *,
        risk: float = 0.2,
        bounds: Any = None,
        delta: float = 1e-8,
        method: str | AbstractEstimator | None = None,
        max_iter: int = 10_000,
        tol: float = 1e-5,
        batch_size: int = 64,
        learning_rate: float | None = None,
        random_state: Any = None,
    ):
        self.risk = risk
        self.bounds = bounds
        self.delta = delta
        self.method = method
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> "MeanDeviationPortfolio":
        """Finds the portfolio for the returns X; y is ignored."""
        X = self._begin(X)
        objective, problem = self._build(X)
        w = objective.settle(problem.w0)
        if self.method is None:
            w = self._descend(objective, problem, w)
            self._rate = self._automatic_rate(objective, w)
        else:
            self._rate = self._automatic_rate(objective, w)
            result = self._run(problem, self._with_rate(problem), self.max_iter, self.max_iter)
            w = objective.settle(_finite(result).w)
        return self._finish(objective, w)

    def partial_fit(self, X: Any, y: Any = None) -> "MeanDeviationPortfolio":
        """One pass over the returns X from where the call before ended; y is ignored.

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
        objective, problem = self._build(X, None if first else self.weights_)
        if first:
            self._rate = self._automatic_rate(objective, objective.settle(problem.w0))
        carry = None if self._carry is None else with_jax(self._carry)
        steps = math.ceil(len(X) / self.batch_size)
        # Whatever the number of steps, strides of one step are one program.
        result = self._run(problem, self._with_rate(problem), steps, 1, carry)
        self._carry = without_jax(result.carry)
        return self._finish(objective, objective.settle(_finite(result).w))

    def predict(self, X: Any) -> np.ndarray:
        """The return of the portfolio in every period."""
        check_is_fitted(self, "weights_")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return X @ self.weights_

    def score(self, X: Any, y: Any = None) -> float:
        """−F(w) on the returns X; y is ignored.

        It depends on ``risk``, so a search over ``risk`` needs a score of its own.
        """
        returns = self.predict(X)
        spread = np.sqrt(returns.var() + self.delta * self.scale_**2)
        return float(returns.mean() - self.risk * spread)

    def _check_settings(self) -> None:
        positive = ("a positive number", lambda x: 0 < x < math.inf)
        check_number("risk", self.risk, "a number of at least 0", lambda x: 0 <= x < math.inf)
        check_number("delta", self.delta, *positive)
        check_number("tol", self.tol, "a number of at least 0", lambda x: x >= 0)
        if self.learning_rate is not None:
            check_number("learning_rate", self.learning_rate, *positive)
        check_count("max_iter", self.max_iter)
        check_count("batch_size", self.batch_size)
        self._named_method()

    def _begin(self, X: Any) -> np.ndarray:
        """Everything that does not depend on what was fitted before."""
        self._check_settings()
        X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        check_sums(self, X)
        self._centre = float(X.mean())
        self.scale_ = _scale(X)
        self.n_iter_ = self.samples_ = 0
        self._seed = check_random_state(self.random_state).randint(2**31 - 1)
        self._carry = None
        return X

    def _build(self, X: np.ndarray, w: np.ndarray | None = None) -> tuple[Objective, Problem]:
        """F for returns with c = 0 and s = 1, in closed form and as a problem that starts at w."""
        rows = (X - self._centre) / self.scale_
        objective = Objective(rows, self.risk, self.delta, self.bounds)
        window = Window(rows)
        base = mean_deviation(
            window.data,
            risk=self.risk,
            delta=self.delta,
            bounds=self.bounds,
            constraint="simplex" if self.bounds is None else "box",
        )
        problem = base.with_data(mean=window, variance=window)
        if w is not None:
            problem = eqx.tree_at(lambda p: p.w0, problem, jnp.asarray(w, problem.dtype))
        return objective, problem

    def _named_method(self) -> AbstractEstimator:
        return SMVR() if self.method is None else as_estimator(self.method)

    def _automatic_rate(self, objective: Objective, w: np.ndarray) -> float:
        fading = self._named_method().refresh_batch == "population"
        rate = objective.learning_rate if fading else objective.noisy_learning_rate
        return rate(w, self.batch_size)

    def _with_rate(self, problem: Problem) -> AbstractEstimator:
        """The method, with the automatic learning rate if it has none and takes plain gradient steps."""
        method = self._named_method()
        rate = self.learning_rate
        if rate is None and method.lr is None and isinstance(step_of(method, problem), Descent):
            rate = self._rate
        return method if rate is None else dataclasses.replace(method, lr=rate)

    def _descend(self, objective: Objective, problem: Problem, w: np.ndarray) -> np.ndarray:
        """Rounds of steps until the gap is small. A round that does not descend is taken back, and the
        learning rate is halved."""
        rows: Any = problem.levels[0].source
        period = min(ROUND, math.ceil(rows.size / self.batch_size))
        usual = min(ROUND // period * period, self.max_iter)
        enough = self.tol * (1 + self.risk)
        carry = None
        caution = 1.0
        while self.n_iter_ < self.max_iter and objective.gap(w) > enough:
            left = self.max_iter - self.n_iter_
            rate = self.learning_rate or objective.learning_rate(w, self.batch_size)
            method = SnapshotSMVR(period=period, lr=caution * rate)
            # The last round takes what is left over: a shorter one would be another program.
            steps = left if left < 2 * usual else usual
            result = self._run(problem, method, steps, usual, carry)
            new = objective.settle(result.w)
            if objective.value(new) < objective.value(w):
                w = new
                carry = result.carry
            else:
                caution /= 2
        if objective.gap(w) > enough:
            above, allowed = (f"{self.scale_ * gap:.1e}" for gap in (objective.gap(w), enough))
            warnings.warn(
                f"after {self.n_iter_:,} steps F(w) may still be {above} above the least value, and tol "
                f"allows {allowed}: raise max_iter or tol.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return w

    def _run(
        self, problem: Problem, method: AbstractEstimator, steps: int, stride: int, carry: Any = None
    ) -> Result:
        spent = 0 if carry is None else carry.cost.samples
        # What it warns about is said by the callers, as scikit-learn's users expect it.
        with warnings.catch_warnings(action="ignore", category=DivergenceWarning):
            result = minimize(
                problem,
                method,
                steps=steps,
                batch_size=self.batch_size,
                seed=self._seed,
                record=[],
                record_every=stride,
                start=carry,
                progress=False,
            )
        if result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        self.n_iter_ += steps
        self.samples_ += result.carry.cost.samples - spent
        return result

    def _finish(self, objective: Objective, w: np.ndarray) -> "MeanDeviationPortfolio":
        self.weights_ = w
        self.objective_ = self.scale_ * objective.value(w) - self._centre
        self.gap_ = self.scale_ * objective.gap(w)
        return self


def _scale(X: np.ndarray) -> float:
    """s, the root of the average variance; something to divide by where nothing varies."""
    largest = float(np.abs(X).max()) or 1.0  # its square may be too large or too small for a float
    return largest * max(float(np.sqrt((X / largest).var(axis=0).mean())), 1e-9)


def _finite(result: Result) -> Result:
    if result.status is Status.NONFINITE:
        warnings.warn(result.message, ConvergenceWarning, stacklevel=3)
    return result
