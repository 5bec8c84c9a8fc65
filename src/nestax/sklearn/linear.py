"""What linear models of scikit-learn share here: scaled features, targets as numbers, and one run.

Features are centred and scaled, column by column, so that no setting depends on their units; ``coef_``
and ``intercept_`` are for features as they were given. Tables are filled up to sizes that many of them
share, so that other rows, or other numbers among the settings, compile nothing.
"""

import abc
import math
import warnings
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree
from scipy.special import log_softmax
from scipy.stats import median_abs_deviation
from sklearn.base import ClassifierMixin, RegressorMixin, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from nestax.chain.problem import Problem
from nestax.errors import ProblemError, SettingError, check_number
from nestax.estimators.registry import as_estimator
from nestax.parts.settings import Schedule, at
from nestax.parts.step_rule import AbstractStep
from nestax.run.result import Continuation, Result
from nestax.sklearn.columns import check_spread, check_squares, known_rows
from nestax.sklearn.fitted import AT_LEAST_0, POSITIVE, Fitted, warn_if_not_finite, with_jax

#: Tables are filled up to a multiple of so many columns, so that similar ones share one program.
COLUMNS = 16

#: How far a target may lie from the others, as a share of what has a square.
FAR = 1e-3
#: Rows, scaled, and their targets as numbers.
Part = tuple[np.ndarray, np.ndarray]


class Adam(AbstractStep):
    """Adam with a learning rate that is a leaf: changing it, or its horizon, never compiles again.

    A slope of d features takes steps 1/√d times as long as the rest, so that all change a score by about
    the learning rate.
    """

    lr: Schedule
    features: Array

    def init(self, w: PyTree) -> Any:
        return optax.scale_by_adam().init(w)

    def update(self, problem: Problem, w: PyTree, grad: PyTree, aux: dict[str, Array], state: Any):
        direction, new = optax.scale_by_adam().update(grad, state)
        lr = at(self.lr, state.count)

        def move(path: Any, x: Array, v: Array) -> Array:
            slope = path and getattr(path[-1], "key", "") == "slope"
            return x - (lr / jnp.sqrt(self.features) if slope else lr) * v

        return problem.project(jax.tree_util.tree_map_with_path(move, w, direction)), new


def to_zero(count: Array, horizon: Array) -> Array:
    return 1 - count / horizon


class LinearModel(Fitted, abc.ABC):
    """Scaling, weights and runs. A subclass knows its problem; a mixin below, what targets are."""

    l2: Any
    #: Settings that may be "auto".
    chosen: ClassVar[tuple[str, ...]] = ()

    n_features_in_: int
    objective_: float

    def _check_settings(self) -> None:
        check_number("l2", number_of(self, "l2"), *AT_LEAST_0)
        check_number("learning_rate", self.learning_rate, *POSITIVE)
        super()._check_settings()
        if as_estimator(self.method).lr is not None:
            raise SettingError(
                "method must leave its lr out, for the steps are those of Adam: set learning_rate."
            )

    def _read(self, X: Any, y: Any, first: bool) -> Any:
        """Settings, features and targets, checked; the first rows also say what features there are."""
        self._check_settings()
        X, y = validate_data(
            self,
            X,
            y,
            dtype=np.float64,
            y_numeric=is_regressor(self),
            reset=first,
            ensure_min_samples=2 if first else 1,
        )
        check_squares(self, X)
        if first:
            check_spread(self, X)
        return X, y

    def _begin(self, X: np.ndarray, y: np.ndarray) -> None:
        """Everything that does not depend on what was fitted before."""
        self._scaler = StandardScaler().fit(X)
        # Zero columns change no score, and programs are compiled for shapes.
        width = -(-X.shape[1] // COLUMNS) * COLUMNS
        scores = self._begin_targets(y)
        self._w = {"slope": np.zeros((width, *scores)), "intercept": np.zeros(scores)}
        self._begin_run()

    def _scaled(self, X: np.ndarray) -> np.ndarray:
        """Returns the rows as the run sees them."""
        return np.pad(self._scaler.transform(X), [(0, 0), (0, len(self._w["slope"]) - X.shape[1])])

    def _losses_of(self, part: Part) -> np.ndarray:
        """Returns the loss of every row at the weights so far; in float64 whatever JAX computes in."""
        X, y = part
        return self._losses(X @ self._w["slope"] + self._w["intercept"], y)

    def _penalty(self, l2: float) -> float:
        return float(l2 / 2 * (self._w["slope"] ** 2).sum())

    def _descend(
        self,
        problem: Problem,
        steps: int,
        stride: int,
        fall: Any,
        carry: Continuation | None = None,
    ) -> Result:
        """Runs the method from the weights of the problem."""
        step = Adam(Schedule(fall, scale=self.learning_rate), jnp.asarray(float(self.n_features_in_)))
        method = as_estimator(self.method)
        start = with_jax(carry)
        result = self._minimize(problem, method, step, steps=steps, stride=stride, carry=start)
        warn_if_not_finite(result, 4)
        return result

    def _settle(self, w: PyTree) -> None:
        """Keeps the weights of a run, and those for features as they were given."""
        self._w = jax.tree.map(lambda x: np.asarray(x, np.float64), w)
        coef = self._w["slope"][: self.n_features_in_].T / self._scaler.scale_
        self._keep(coef, self._w["intercept"] - coef @ self._scaler.mean_)

    def _warn_if_risen(self, before: float, advice: str) -> bool:
        if not self.objective_ > before:
            return False
        warnings.warn(
            f"the objective rose from {before:.3g} to {self.objective_:.3g}: {advice}",
            ConvergenceWarning,
            stacklevel=3,
        )
        return True

    @abc.abstractmethod
    def _begin_targets(self, y: np.ndarray) -> tuple[int, ...]:
        """Learns how targets become numbers; the shape of the scores of a row."""

    @abc.abstractmethod
    def _targets(self, y: np.ndarray) -> np.ndarray:
        """Targets as numbers that the loss understands."""

    @property
    def _loss(self) -> str:
        """A name in ``nestax.problems.losses``, where rows have losses of their own."""
        raise NotImplementedError

    def _losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns the loss of every row."""
        raise NotImplementedError

    def _targets_of_risk(self, risk: float) -> np.ndarray:
        """Two targets whose losses at weights of zero have this tilted mean."""
        raise NotImplementedError

    @abc.abstractmethod
    def _keep(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        """Keeps weights for features as they were given, and targets as numbers."""


class LinearScores(ClassifierMixin, LinearModel):
    """Classes as numbers, and scores: one for two classes, else one a class."""

    def decision_function(self, X: Any) -> np.ndarray:
        """The score of the second of two classes, positive where it is predicted; else one a class."""
        scores = known_rows(self, X) @ self.coef_.T + self.intercept_
        return scores.ravel() if len(self.classes_) == 2 else scores

    def _begin_targets(self, y: np.ndarray) -> tuple[int, ...]:
        check_classification_targets(y)
        classes = np.unique(y)
        if len(classes) < 2:
            raise ProblemError(
                f"there is one class only, {classes[0]}: a classifier needs rows of two or more."
            )
        self.classes_ = classes
        return () if len(classes) == 2 else (len(classes),)

    def _targets(self, y: np.ndarray) -> np.ndarray:
        unknown = y[~np.isin(y, self.classes_)]
        if len(unknown):
            raise ProblemError(
                f"y holds {unknown[0]}, which is none of the classes {self.classes_.tolist()}."
            )
        return np.searchsorted(self.classes_, y).astype(float if len(self.classes_) == 2 else np.int32)

    def _keep(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        self.coef_ = np.atleast_2d(coef)
        self.intercept_ = np.atleast_1d(intercept)


class LinearClassifier(LinearScores):
    """Logistic loss, or the multinomial one for three classes and more."""

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Returns the logarithms of ``predict_proba``."""
        return log_shares(self.decision_function(X))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns the probability of every class, one column each, as the fitted model has it.

        Where the loss moved the model towards a rare class, these are no frequencies.
        """
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """Returns the most probable class of every row."""
        likely = self.predict_log_proba(X).argmax(axis=1)
        return self.classes_[likely]

    @property
    def _loss(self) -> str:
        return "logistic" if len(self.classes_) == 2 else "multinomial"

    def _losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return -log_shares(scores)[np.arange(len(scores)), targets.astype(int)]

    def _targets_of_risk(self, risk: float) -> np.ndarray:
        del risk
        return np.arange(2)  # all labels have the same loss there


class LinearRegressor(RegressorMixin, LinearModel):
    """Squared loss of targets that are centred by their median and scaled by the median deviation.

    Normal ones then have a standard deviation of one.
    """

    def predict(self, X: Any) -> np.ndarray:
        """Returns the predicted target of every row."""
        return known_rows(self, X) @ self.coef_ + self.intercept_

    @property
    def _loss(self) -> str:
        return "squared"

    def _begin_targets(self, y: np.ndarray) -> tuple[int, ...]:
        if y.dtype.kind not in "biuf":
            raise ProblemError(f"y must hold numbers; got {str(y[0])!r}.")
        with np.errstate(over="ignore", invalid="ignore"):
            self._middle = float(np.median(y))
            # Where most targets are equal, the median deviation is 0.
            deviation: Any = median_abs_deviation(y, scale="normal")  # pyright: ignore[reportArgumentType]
            self._unit = float(deviation or y.std() or 1.0)
        if not math.isfinite(self._middle + self._unit):
            raise ProblemError(
                f"y holds numbers of size {np.abs(y).max():.1e}, too large to compute with: divide it "
                "by a power of ten."
            )
        return ()

    def _targets(self, y: np.ndarray) -> np.ndarray:
        targets = (y - self._middle) / self._unit
        far = np.flatnonzero(np.abs(targets) > FAR * math.sqrt(jnp.finfo(jnp.result_type(float)).max))
        if far.size:
            raise ProblemError(
                f"y is {y[far[0]]:.1e} in row {far[0]:,}, too far from the others to compute with: "
                "correct that row, or leave it out."
            )
        return targets

    def _losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return (scores - targets) ** 2

    def _targets_of_risk(self, risk: float) -> np.ndarray:
        return np.full(2, np.sqrt(risk))

    def _keep(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        self.coef_ = self._unit * coef
        self.intercept_ = float(self._unit * intercept + self._middle)


def number_of(model: Any, name: str) -> Any:
    """Returns a setting; 0 for one that is still to be chosen."""
    value = getattr(model, name)
    return 0.0 if isinstance(value, str) and value == "auto" and name in model.chosen else value


def log_shares(scores: np.ndarray) -> np.ndarray:
    """Returns the logarithms of probabilities; a single score belongs to the second of two classes."""
    if scores.ndim == 1:
        scores = np.column_stack([np.zeros_like(scores), scores])
    return log_softmax(scores, axis=1)
