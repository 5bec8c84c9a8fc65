"""Linear models with tilted losses as scikit-learn estimators.

    F(w) = (1/t)·log Σ_g p_g e^{t R_g(w)} + l2/2·‖slope‖²,   R_g(w) = (1/τ)·log mean_g e^{τℓ(w; z)}

with g the groups of rows, by default the classes, and p_g their shares. It is the problem of
``nx.problems.hierarchical_term`` for features that are centred and scaled, column by column, so that no
setting depends on their units; ``coef_`` and ``intercept_`` are for features as they were given.
"""

import abc
import math
import warnings
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree
from scipy.special import log_softmax, logsumexp
from scipy.stats import median_abs_deviation
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from nestax.chain.problem import Problem
from nestax.draws.source import Groups
from nestax.errors import DivergenceWarning, ProblemError, SettingError, check_count, check_number
from nestax.estimators.registry import as_estimator
from nestax.loop.status import Status
from nestax.parts.estimator import AbstractEstimator
from nestax.parts.settings import Decay, Schedule, at
from nestax.parts.step_rule import AbstractStep
from nestax.problems.tilted.hierarchical_term import hierarchical_term
from nestax.run.minimize import minimize
from nestax.run.result import Continuation
from nestax.sklearn.windows import GroupsWindow, with_jax, without_jax

#: Tables are filled up to a multiple of so many columns, so that similar ones share one program.
COLUMNS = 16
#: Most rows of a group that are kept for later calls of ``partial_fit`` in which it is absent.
KEPT_ROWS = 512

#: Largest product of a tilt and a reference that single precision has room for.
ROOM = 120.0
#: A group whose risk is above its reference by so much, over the inner tilt, is out of sight.
SIGHT = 6.9

#: Rows of one group, scaled, and their targets as numbers.
Part = tuple[np.ndarray, np.ndarray]


class Adam(AbstractStep):
    """Adam with a learning rate that is a leaf: changing it, or its horizon, never compiles again.

    A slope of d features takes steps 1/√d times as long as the intercept, so that both change a score
    by about the learning rate.
    """

    lr: Schedule
    features: Array

    def init(self, w: PyTree) -> Any:
        return optax.scale_by_adam().init(w)

    def update(self, problem: Problem, w: PyTree, grad: PyTree, aux: dict[str, Array], state: Any):
        direction, new = optax.scale_by_adam().update(grad, state)
        lr = at(self.lr, state.count)
        rates: Any = {"slope": lr / jnp.sqrt(self.features), "intercept": lr}
        return jax.tree.map(lambda x, rate, v: x - rate * v, w, rates, direction), new


def to_zero(count: Array, horizon: Array) -> Array:
    return 1 - count / horizon


class TiltedModel(BaseEstimator, abc.ABC):
    """What both estimators share: scaling, groups, the chain and its runs.

    A subclass knows its loss, and how targets and weights as given relate to those inside.
    """

    inner_tilt: float
    outer_tilt: float
    l2: float
    method: str | AbstractEstimator
    max_iter: int
    batch_size: int
    learning_rate: float
    random_state: Any
    n_features_in_: int

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Fits the model to the rows X and their targets y.

        Args:
            X: one row an example, one column a feature.
            y: one target a row.
            groups: one label a row, of any type, for the group that it belongs to. None means that the
                classes are the groups, or for regression that all rows are one group.
        """
        X, y = self._read(X, y, first=True)
        self._begin(X, y)
        parts = self._split(X, y, groups)
        for label, (_, targets) in parts.items():
            if len(targets) == 1:
                warnings.warn(
                    f"group {label} has a single row, so that nothing tells whether it is wrong: give "
                    "the group more rows, or merge it with another.",
                    stacklevel=2,
                )
        before = self._objective(parts)
        self._run(parts, self.max_iter, self.max_iter, to_zero)
        if self.objective_ > before:
            warnings.warn(
                f"the objective rose from {before:.3g} to {self.objective_:.3g}: lower learning_rate, "
                "or choose tilts nearer to 0.",
                ConvergenceWarning,
                stacklevel=2,
            )
        elif doubt := self._doubt(parts):
            warnings.warn(doubt, stacklevel=2)
        return self

    def _partial_fit(self, X: np.ndarray, y: np.ndarray, groups: Any) -> Self:
        """About one pass over the rows, from where the call before ended."""
        parts = self._kept | self._split(X, y, groups)
        # Trackers have one entry a group, so a new group means new trackers.
        carry = self._carry if parts.keys() == self._kept.keys() else None
        steps = math.ceil(len(y) / self.batch_size)
        # Whatever the number of steps, strides of one step are one program.
        self._carry = self._run(parts, steps, 1, Decay(1 / 2), carry)
        return self

    def _check_settings(self) -> None:
        check_number("inner_tilt", self.inner_tilt, "a finite number", math.isfinite)
        check_number("outer_tilt", self.outer_tilt, "a finite number", math.isfinite)
        check_number("l2", self.l2, "a number of at least 0", lambda x: 0 <= x < math.inf)
        rate = self.learning_rate
        check_number("learning_rate", rate, "a positive number", lambda x: 0 < x < math.inf)
        check_count("max_iter", self.max_iter)
        check_count("batch_size", self.batch_size)
        if as_estimator(self.method).lr is not None:
            raise SettingError(
                "method must leave its lr out, for the steps are those of Adam: set learning_rate."
            )

    def _read(self, X: Any, y: Any, first: bool) -> Any:
        """Settings, features and targets, checked; the first rows also say what features there are."""
        self._check_settings()
        return validate_data(
            self,
            X,
            y,
            dtype=np.float64,
            y_numeric=is_regressor(self),
            reset=first,
            ensure_min_samples=2 if first else 1,
        )

    def _begin(self, X: np.ndarray, y: np.ndarray) -> None:
        """Everything that does not depend on what was fitted before."""
        self._scaler = StandardScaler().fit(X)
        width = -(-X.shape[1] // COLUMNS) * COLUMNS
        scores = self._begin_targets(y)
        self._w = {"slope": np.zeros((width, *scores)), "intercept": np.zeros(scores)}
        self._seed = check_random_state(self.random_state).randint(2**31 - 1)
        self.n_iter_ = self.samples_ = 0
        self._kept = {}
        self._counts = {}
        self._references = {}
        self._carry = None

    def _split(self, X: np.ndarray, y: np.ndarray, groups: Any) -> dict[Any, Part]:
        """The rows of every group by its label; they are counted, and the group has its reference."""
        labels = self._default_groups(y) if groups is None else np.asarray(groups)
        if labels.shape != y.shape:
            raise ProblemError(
                f"groups must hold one label for each of the {len(y)} rows; got an array of shape "
                f"{labels.shape}."
            )
        try:
            names, member = np.unique(labels, return_inverse=True)
            if np.any(names != names):
                raise TypeError
        except TypeError:  # they cannot be compared
            raise ProblemError("groups must hold labels of one type, and none may be missing.") from None
        rows = self._scaler.transform(X)
        targets = self._targets(y)
        rows = np.pad(rows, [(0, 0), (0, len(self._w["slope"]) - X.shape[1])])
        parts = {name: (rows[member == g], targets[member == g]) for g, name in enumerate(names)}
        scores = np.zeros(self._w["intercept"].shape)
        for name, (x, y) in parts.items():
            self._counts[name] = self._counts.get(name, 0) + len(y)
            if name not in self._references:
                losses = self._losses(np.broadcast_to(scores, (len(x), *scores.shape)), y)
                self._references[name] = self._reference(name, tilted_mean(losses, self.inner_tilt))
        return parts

    def _reference(self, name: Any, risk: float) -> float:
        """The risk of a group at the start, or less if exponentials of it have no room."""
        steepest = max(abs(self.inner_tilt), abs(self.outer_tilt))
        reference = min(risk, ROOM / steepest) if steepest else risk
        if self.inner_tilt * (reference - risk) > SIGHT:
            raise ProblemError(
                f"the targets of group {name} are so far from the others that inner_tilt="
                f"{self.inner_tilt:g} cannot see them beside outer_tilt={self.outer_tilt:g}: choose "
                "tilts nearer to 0."
            )
        return reference

    def _shares(self, parts: dict[Any, Part]) -> np.ndarray:
        counts = np.asarray([self._counts[name] for name in parts])
        return counts / counts.sum()

    def _chain(self, parts: dict[Any, Part]) -> Problem:
        """The problem on these rows, from the weights so far.

        Its references are the risks of weights of zero in the first call that had the group, so that
        trackers can go on with other rows. Two rows a group with that risk are enough to set them, and
        nothing is compiled for the sizes of the groups.
        """
        features = np.zeros((2, len(self._w["slope"])))
        base = hierarchical_term(
            [(features, self._targets_of_risk(self._references[name])) for name in parts],
            self._loss,
            inner_tilt=self.inner_tilt,
            outer_tilt=self.outer_tilt,
            l2=self.l2,
            intercept=True,
            w0=jax.tree.map(lambda x: jnp.zeros(x.shape), self._w),
        )
        whole = as_estimator(self.method).refresh_batch == "population"
        source = (Groups if whole else GroupsWindow)(list(parts.values()))
        numbers = jax.tree.map(lambda x: jnp.asarray(x, base.dtype), (self._shares(parts), self._w))
        where: Any = lambda p: (p.levels[2].fn.share, p.w0)
        return eqx.tree_at(where, base.with_data(losses=source), numbers)

    def _run(
        self,
        parts: dict[Any, Part],
        steps: int,
        stride: int,
        fall: Any,
        carry: Continuation | None = None,
    ) -> Continuation:
        step = Adam(Schedule(fall, scale=self.learning_rate), jnp.asarray(float(self.n_features_in_)))
        # What it warns about is said below, as scikit-learn's users expect it.
        with warnings.catch_warnings(action="ignore", category=DivergenceWarning):
            result = minimize(
                self._chain(parts),
                as_estimator(self.method),
                step,
                steps=steps,
                seed=self._seed,
                batch_size=self.batch_size,
                record=[],
                record_every=stride,
                progress=False,
                start=None if carry is None else with_jax(carry),
            )
        if result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        if result.status is Status.NONFINITE:
            warnings.warn(result.message, ConvergenceWarning, stacklevel=4)
        self.n_iter_ += steps
        self.samples_ += result.carry.cost.samples - (0 if carry is None else carry.cost.samples)
        self._w = jax.tree.map(lambda x: np.asarray(x, np.float64), result.w)
        coef = self._w["slope"][: self.n_features_in_].T / self._scaler.scale_
        self._keep(coef, self._w["intercept"] - coef @ self._scaler.mean_)
        self.objective_ = self._objective(parts)
        self._kept = {name: _thinned(part) for name, part in parts.items()}
        return without_jax(result.carry)

    def _objective(self, parts: dict[Any, Part]) -> float:
        """F of the weights so far, over all rows; in float64 whatever JAX computes in."""
        slope = self._w["slope"]
        intercept = self._w["intercept"]
        losses = [self._losses(X @ slope + intercept, y) for X, y in parts.values()]
        risks = np.asarray([tilted_mean(each, self.inner_tilt) for each in losses])
        penalty = self.l2 / 2 * (slope**2).sum()
        return float(tilted_mean(risks, self.outer_tilt, self._shares(parts)) + penalty)

    def _doubt(self, parts: dict[Any, Part]) -> str | None:
        """What is wrong with a fit that ended well, in a sentence."""
        del parts

    @property
    @abc.abstractmethod
    def _loss(self) -> str:
        """A name in ``nestax.problems.losses``."""

    @abc.abstractmethod
    def _begin_targets(self, y: np.ndarray) -> tuple[int, ...]:
        """Learns how targets become numbers; the shape of the scores of a row."""

    @abc.abstractmethod
    def _targets(self, y: np.ndarray) -> np.ndarray:
        """Targets as numbers that the loss understands."""

    @abc.abstractmethod
    def _default_groups(self, y: np.ndarray) -> np.ndarray:
        """The label of every row's group, where none was given."""

    @abc.abstractmethod
    def _losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The loss of every row."""

    @abc.abstractmethod
    def _targets_of_risk(self, risk: float) -> np.ndarray:
        """Two targets whose losses at weights of zero have this tilted mean."""

    @abc.abstractmethod
    def _keep(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        """Keeps weights for features as they were given, and targets as numbers."""


class TiltedClassifier(ClassifierMixin, TiltedModel):
    """Logistic regression for classes that are rare, mislabelled or both.

        F(w) = (1/t)·log Σ_g p_g e^{t R_g(w)} + l2/2·‖slope‖²,   R_g(w) = (1/τ)·log mean_g e^{τℓ(w; z)}

    ℓ is the logistic loss, or the multinomial one for three classes and more. Within a class, τ < 0
    looks away from rows that do not fit, which may be mislabelled; across classes, t > 0 looks at the
    class that is served worst, which is often a rare one. Features are centred and scaled inside.

    Li, Beirami, Sanjabi, Smith: Tilted empirical risk minimization, ICLR 2021.

    Args:
        inner_tilt: τ, within groups. Negative: robust to wrong labels. 0: the mean. Where a group mixes
            classes, a negative τ may take the rarer ones for wrong labels; ``fit`` warns if one class is
            all that is left.
        outer_tilt: t, across groups. Positive: the worst group counts most. 0: the mean of all rows.
        l2: strength of the penalty, for features with a standard deviation of one. With 0, classes
            that can be separated have no finite optimum.
        method: the name of a method, or an estimator such as ``nx.SMVR(beta=0.1)``; its estimate of
            the gradient goes into steps of Adam.
        max_iter: steps of ``fit``, all of which are taken.
        batch_size: members of every group that are drawn in a step.
        learning_rate: about how far the first steps of Adam move a score. It falls to 0 along a line in
            ``fit``, and like (1 + step/100)^(−1/2) in ``partial_fit``.
        random_state: a seed, a generator or None, as everywhere in scikit-learn.

    Attributes:
        classes_: the labels, sorted; of the type that they have in y.
        coef_: one row of slopes for two classes, where it belongs to the second; else one a class.
        intercept_: one number a row of ``coef_``.
        objective_: F(w) on the rows of the last call.
        n_iter_: steps taken.
        samples_: members drawn, over all groups.
        n_features_in_, feature_names_in_: number of features, and their names if X is a frame.
    """

    def __init__(
        self,
        *,
        inner_tilt: float = -2.0,
        outer_tilt: float = 10.0,
        l2: float = 0.01,
        method: str | AbstractEstimator = "smvr",
        max_iter: int = 2_000,
        batch_size: int = 16,
        learning_rate: float = 0.1,
        random_state: Any = None,
    ):
        self.inner_tilt = inner_tilt
        self.outer_tilt = outer_tilt
        self.l2 = l2
        self.method = method
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state

    def partial_fit(self, X: Any, y: Any, classes: Any = None, groups: Any = None) -> Self:
        """About one pass over the rows X from where the call before ended, trackers included.

        The first call, or ``fit``, fixes how features are scaled. A group that is absent from a call is
        there with up to 512 of the rows that it had before; its share is that of all rows so far.

        Args:
            X, y, groups: as in ``fit``.
            classes: all labels that will ever occur; needed in the first call, and only there.
        """
        first = not hasattr(self, "coef_")
        X, y = self._read(X, y, first)
        if first:
            if classes is None:
                raise SettingError("the first call of partial_fit needs classes=, all labels there are.")
            self._begin(X, column_or_1d(classes))
        elif classes is not None and not np.array_equal(self.classes_, np.unique(classes)):
            raise SettingError(
                f"classes must be those of the first call, {self.classes_.tolist()}; got {classes!r}."
            )
        return self._partial_fit(X, y, groups)

    def decision_function(self, X: Any) -> np.ndarray:
        """The score of the second of two classes, positive where it is predicted; else one a class."""
        check_is_fitted(self, "coef_")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        scores = X @ self.coef_.T + self.intercept_
        return scores.ravel() if len(self.classes_) == 2 else scores

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithms of ``predict_proba``."""
        return _log_shares(self.decision_function(X))

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class, one column each, as the tilted model has it.

        Where tilts moved the model towards a rare class, these are no frequencies.
        """
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of every row."""
        likely = self.predict_log_proba(X).argmax(axis=1)
        return self.classes_[likely]

    def _doubt(self, parts: dict[Any, Part]) -> str | None:
        """A negative inner tilt may take all of a class for wrong labels where groups mix classes."""
        scores = [X @ self._w["slope"] + self._w["intercept"] for X, _ in parts.values()]
        likely = np.unique(_log_shares(np.concatenate(scores)).argmax(axis=1))
        if len(likely) > 1:
            return None
        robust = "choose an inner_tilt nearer to 0, or groups of which none mixes classes."
        advice = robust if self.inner_tilt < 0 else "raise outer_tilt, or add features."
        return f"every row is predicted to be of class {self.classes_[likely[0]]}: {advice}"

    @property
    def _loss(self) -> str:
        return "logistic" if len(self.classes_) == 2 else "multinomial"

    def _begin_targets(self, y: np.ndarray) -> tuple[int, ...]:
        check_classification_targets(y)
        classes = np.unique(y)
        if len(classes) < 2:
            raise ProblemError(
                f"there is one class only, {classes[0]}: a classifier needs rows of two or more."
            )
        self.classes_ = classes
        return () if len(classes) == 2 else (len(classes),)

    def _default_groups(self, y: np.ndarray) -> np.ndarray:
        return y

    def _targets(self, y: np.ndarray) -> np.ndarray:
        unknown = y[~np.isin(y, self.classes_)]
        if len(unknown):
            raise ProblemError(
                f"y holds {unknown[0]}, which is none of the classes {self.classes_.tolist()}."
            )
        return np.searchsorted(self.classes_, y).astype(float if len(self.classes_) == 2 else np.int32)

    def _losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return -_log_shares(scores)[np.arange(len(scores)), targets.astype(int)]

    def _targets_of_risk(self, risk: float) -> np.ndarray:
        return np.arange(2)  # all labels have the same loss there

    def _keep(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        self.coef_ = np.atleast_2d(coef)
        self.intercept_ = np.atleast_1d(intercept)


class TiltedRegressor(RegressorMixin, TiltedModel):
    """Least squares that looks away from outliers, or at the worst of several groups.

        F(w) = (1/t)·log Σ_g p_g e^{t R_g(w)} + l2/2·‖slope‖²,   R_g(w) = (1/τ)·log mean_g e^{τr²}

    with r = x·w − y. Without groups that is R(w) of all rows, and τ < 0 makes it robust to outliers
    among the targets. Features are centred and scaled inside; so are targets, by their median and the
    median deviation from it, such that normal ones have a standard deviation of one. r is in that unit.

    Args:
        inner_tilt: τ, within groups, or over all rows without groups. Negative: robust to outliers.
            0: the mean.
        outer_tilt, l2, method, max_iter, batch_size, learning_rate, random_state: as in
            ``TiltedClassifier``.

    Attributes:
        coef_: one slope a feature.
        intercept_: a number.
        objective_: F(w) on the rows of the last call, for scaled targets.
        n_iter_, samples_, n_features_in_, feature_names_in_: as in ``TiltedClassifier``.
    """

    def __init__(
        self,
        *,
        inner_tilt: float = -1.0,
        outer_tilt: float = 10.0,
        l2: float = 0.001,
        method: str | AbstractEstimator = "smvr",
        max_iter: int = 2_000,
        batch_size: int = 16,
        learning_rate: float = 0.02,
        random_state: Any = None,
    ):
        self.inner_tilt = inner_tilt
        self.outer_tilt = outer_tilt
        self.l2 = l2
        self.method = method
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state

    def partial_fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """About one pass over the rows X from where the call before ended, trackers included.

        The first call, or ``fit``, fixes how features and targets are scaled; a group that is absent
        from a call is treated as in ``TiltedClassifier``.
        """
        first = not hasattr(self, "coef_")
        X, y = self._read(X, y, first)
        if first:
            self._begin(X, y)
        return self._partial_fit(X, y, groups)

    def predict(self, X: Any) -> np.ndarray:
        """The predicted target of every row."""
        check_is_fitted(self, "coef_")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return X @ self.coef_ + self.intercept_

    @property
    def _loss(self) -> str:
        return "squared"

    def _begin_targets(self, y: np.ndarray) -> tuple[int, ...]:
        if y.dtype.kind not in "biuf":
            raise ProblemError(f"y must hold numbers; got {str(y[0])!r}.")
        self._middle = float(np.median(y))
        # Where most targets are equal, the median deviation is 0.
        spread: Any = median_abs_deviation(y, scale="normal")  # pyright: ignore[reportArgumentType]
        self._spread = float(spread or y.std() or 1.0)
        return ()

    def _default_groups(self, y: np.ndarray) -> np.ndarray:
        return np.zeros(len(y))

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return (y - self._middle) / self._spread

    def _losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return (scores - targets) ** 2

    def _targets_of_risk(self, risk: float) -> np.ndarray:
        return np.full(2, np.sqrt(risk))

    def _keep(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        self.coef_ = self._spread * coef
        self.intercept_ = float(self._spread * intercept + self._middle)


def _log_shares(scores: np.ndarray) -> np.ndarray:
    """The logarithms of probabilities; a single score belongs to the second of two classes."""
    if scores.ndim == 1:
        scores = np.column_stack([np.zeros_like(scores), scores])
    return log_softmax(scores, axis=1)


def _thinned(part: Part) -> Part:
    """Every row, or every second, third, …, such that few are left."""
    X, y = part
    every = -(-len(y) // KEPT_ROWS)
    return X[::every], y[::every]


def tilted_mean(x: np.ndarray, tilt: float, share: np.ndarray | None = None) -> float:
    """(1/t)·log Σ p e^{tx}; p None is equal shares."""
    if not tilt:
        return np.average(x, weights=share)
    return logsumexp(tilt * x, b=1 / len(x) if share is None else share) / tilt
