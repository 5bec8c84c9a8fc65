"""Linear models with tilted losses as scikit-learn estimators.

    F(w) = (1/t)·log Σ_g p_g e^{t R_g(w)} + l2/2·‖slope‖²,   R_g(w) = (1/τ)·log mean_g e^{τℓ(w; z)}

with g the groups of rows, by default the classes, and p_g their shares, or equal ones. It is the problem
of ``nx.problems.hierarchical_term``, for scaled features. What is "auto" is chosen by cross-validation:
the fits of the folds are full ones by a quasi-Newton method, of which many cost less than one run.
"""

import dataclasses
import math
import warnings
from typing import Any, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.model_selection import StratifiedKFold
from sklearn.utils import column_or_1d

from nestax.chain.problem import Problem
from nestax.draws.source import Groups
from nestax.errors import ProblemError, SettingError, check_count, check_number
from nestax.estimators.registry import as_estimator
from nestax.parts.estimator import AbstractEstimator
from nestax.parts.settings import Decay
from nestax.problems.losses import read_labels
from nestax.problems.tilted.hierarchical_term import hierarchical_term
from nestax.run.result import Continuation
from nestax.sklearn.fitted import without_jax
from nestax.sklearn.linear import (
    LinearClassifier,
    LinearModel,
    LinearRegressor,
    Part,
    log_shares,
    number_of,
    to_zero,
)
from nestax.sklearn.tilted_rows import TiltedRows, tilted_mean
from nestax.sklearn.windows import GroupsWindow

#: Most rows of a group that are kept for later calls of ``partial_fit`` in which it is absent.
KEPT_ROWS = 512

#: What "auto" chooses from.
TILTS = (0.0, -1.0, -2.0)
PENALTIES = (1.0, 0.1, 0.01)
#: How many standard errors of its score the first of them has to be behind to be left.
MARGIN = 0.5

#: Largest product of a tilt and a reference that single precision has room for.
ROOM = 120.0
#: A group whose risk is above its reference by so much, over the inner tilt, is out of sight.
SIGHT = 6.9


class TiltedModel(LinearModel):
    """What both estimators share: groups, the chain and its runs."""

    inner_tilt: Any
    outer_tilt: float
    balanced: bool
    tilt_: float
    l2_: float

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
        self._choose(X, y, groups)
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
        risen = self._warn_if_risen(before, "lower learning_rate, or choose tilts nearer to 0.")
        if not risen and (doubt := self._doubt(parts)):
            warnings.warn(doubt, stacklevel=2)
        return self

    def _choose(self, X: np.ndarray, y: np.ndarray, groups: Any) -> None:
        """Tilt and penalty, from the rows of the first call."""
        self.tilt_ = number_of(self, "inner_tilt")
        self.l2_ = number_of(self, "l2")

    def _partial_fit(self, X: np.ndarray, y: np.ndarray, groups: Any, first: np.ndarray | None) -> Self:
        """Makes about one pass over the rows, from where the call before ended.

        ``first`` are targets to begin with, None where there was a call before.
        """
        if first is not None:
            self._begin(X, first)
            self._choose(X, y, groups)
        parts = self._kept | self._split(X, y, groups)
        # Trackers have one entry a group, so a new group means new trackers.
        carry = self._carry if parts.keys() == self._kept.keys() else None
        steps = math.ceil(len(y) / self.batch_size)
        # Whatever the number of steps, strides of one step are one program.
        self._carry = self._run(parts, steps, 1, Decay(1 / 2), carry)
        return self

    def _check_settings(self) -> None:
        check_number("inner_tilt", number_of(self, "inner_tilt"), "a finite number", math.isfinite)
        check_number("outer_tilt", self.outer_tilt, "a finite number", math.isfinite)
        super()._check_settings()

    def _begin(self, X: np.ndarray, y: np.ndarray) -> None:
        super()._begin(X, y)
        self._kept = {}
        self._counts = {}
        self._references = {}
        self._carry = None

    def _split(self, X: np.ndarray, y: np.ndarray, groups: Any) -> dict[Any, Part]:
        """The rows of every group by its label; they are counted, and the group has its reference."""
        names, member = self._labels(y, groups)
        rows, targets = self._scaled(X), self._targets(y)
        parts = {name: (rows[member == g], targets[member == g]) for g, name in enumerate(names)}
        scores = np.zeros(self._w["intercept"].shape)
        for name, (x, y) in parts.items():
            self._counts[name] = self._counts.get(name, 0) + len(y)
            if name not in self._references:
                losses = self._losses(np.broadcast_to(scores, (len(x), *scores.shape)), y)
                self._references[name] = self._reference(name, tilted_mean(losses, self.tilt_))
        return parts

    def _reference(self, name: Any, risk: float) -> float:
        """Returns the risk of a group at the start, or less if exponentials of it have no room."""
        steepest = max(abs(self.tilt_), abs(self.outer_tilt))
        reference = min(risk, ROOM / steepest) if steepest else risk
        if self.tilt_ * (reference - risk) > SIGHT:
            raise ProblemError(
                f"the targets of group {name} are so far from the others that inner_tilt="
                f"{self.tilt_:g} cannot see them beside outer_tilt={self.outer_tilt:g}: choose "
                "tilts nearer to 0."
            )
        return reference

    def _shares(self, parts: dict[Any, Part]) -> np.ndarray:
        if self.balanced:
            return np.full(len(parts), 1 / len(parts))
        counts = np.asarray([self._counts[name] for name in parts])
        return counts / counts.sum()

    def _chain(self, parts: dict[Any, Part]) -> Problem:
        """Returns the problem on these rows, from the weights so far.

        Its references are the risks of weights of zero in the first call that had the group, so that
        trackers can go on with other rows. Two rows a group with that risk are enough to set them, and
        nothing is compiled for the sizes of the groups.
        """
        features = np.zeros((2, len(self._w["slope"])))
        base = hierarchical_term(
            [(features, self._targets_of_risk(self._references[name])) for name in parts],
            self._loss,
            inner_tilt=self.tilt_,
            outer_tilt=self.outer_tilt,
            l2=self.l2_,
            intercept=True,
            w0=jax.tree.map(lambda x: jnp.zeros(x.shape), self._w),
        )
        whole = as_estimator(self.method).refresh_batch == "population"
        source = (Groups if whole else GroupsWindow)(list(parts.values()))
        numbers = jax.tree.map(lambda x: jnp.asarray(x, base.dtype), (self._shares(parts), self._w))
        problem = base.with_data(losses=source)
        return eqx.tree_at(lambda p: (p.levels[2].fn.share, p.w0), problem, numbers)  # pyright: ignore[reportFunctionMemberAccess]

    def _run(
        self,
        parts: dict[Any, Part],
        steps: int,
        stride: int,
        fall: Any,
        carry: Continuation | None = None,
    ) -> Continuation:
        result = self._descend(self._chain(parts), steps, stride, fall, carry)
        self._settle(result.w)
        self.objective_ = self._objective(parts)
        self._kept = {name: _thinned(part) for name, part in parts.items()}
        return without_jax(result.carry)

    def _objective(self, parts: dict[Any, Part]) -> float:
        """F of the weights so far, over all rows; in float64 whatever JAX computes in."""
        risks = [tilted_mean(self._losses_of(part), self.tilt_) for part in parts.values()]
        risk = tilted_mean(np.asarray(risks), self.outer_tilt, self._shares(parts))
        return float(risk) + self._penalty(self.l2_)

    def _doubt(self, parts: dict[Any, Part]) -> str | None:
        """What is wrong with a fit that ended well, in a sentence."""
        del parts

    def _labels(self, y: np.ndarray, groups: Any) -> tuple[np.ndarray, np.ndarray]:
        """The labels of the groups, sorted, and which of them each row has: the classes by default."""
        return read_labels("groups", y if groups is None else groups, len(y))


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class TiltedClassifier(TiltedModel, LinearClassifier):
    """Logistic regression for classes that are rare, mislabelled or both.

        F(w) = (1/t)·log Σ_g p_g e^{t R_g(w)} + l2/2·‖slope‖²,   R_g(w) = (1/τ)·log mean_g e^{τℓ(w; z)}

    ℓ is the logistic loss, or the multinomial one for three classes and more. Within a class, τ < 0
    looks away from rows that do not fit, which may be mislabelled; across classes, t > 0 looks at the
    class that is served worst, which is often a rare one. Features are centred and scaled inside.

    Li, Beirami, Sanjabi, Smith: Tilted empirical risk minimization, ICLR 2021.

    Args:
        inner_tilt: τ, within groups. Negative: robust to wrong labels. 0: the mean. Where a group mixes
            classes, a negative τ may take the rarer ones for wrong labels; ``fit`` warns if one class is
            all that is left. "auto" takes the best of 0, −1 and −2 for held-out rows, by the mean over
            the groups of the share of rows that are predicted right: unlike the share of all rows, wrong
            labels shift it without changing what is best. Where the groups have few rows, and nothing is
            clearly better, it stays at 0.
        outer_tilt: t, across groups. Positive: the worst group counts most. 0: their mean.
        balanced: whether groups count equally, or by their shares of the rows.
        l2: strength of the penalty, for features with a standard deviation of one. With 0, classes
            that can be separated have no finite optimum. "auto" takes the best of 1, 0.1, 0.01 and 1/n
            together with the tilt; the last, for n rows, is that of scikit-learn.
        cv: folds of that choice, at most as many as the rarest class has rows.
        method: the name of a method, or an estimator such as ``nx.SMVR(beta=0.1)``; its estimate of
            the gradient goes into steps of Adam.
        max_iter: steps of ``fit``, all of which are taken.
        batch_size: members of every group that are drawn in a step.
        learning_rate: about how far the first steps of Adam move a score. It falls to 0 along a line in
            ``fit``, and like (1 + step/100)^(−1/2) in ``partial_fit``.
        random_state: a seed, a generator or None, as everywhere in scikit-learn.

    Attributes:
        classes_: the labels, sorted; of the type that they have in y.
        tilt_, l2_: inner tilt and penalty, as given or as chosen.
        coef_: one row of slopes for two classes, where it belongs to the second; else one a class.
        intercept_: one number a row of ``coef_``.
        objective_: F(w) on the rows of the last call.
        n_iter_: steps taken.
        samples_: members drawn, over all groups.
        n_features_in_, feature_names_in_: number of features, and their names if X is a frame.
    """

    chosen = ("inner_tilt", "l2")

    inner_tilt: float | Literal["auto"] = "auto"
    outer_tilt: float = 0.0
    balanced: bool = True
    l2: float | Literal["auto"] = "auto"
    cv: int = 5
    method: str | AbstractEstimator = "smvr"
    learning_rate: float = 0.1

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
            classes = column_or_1d(classes)
        elif classes is not None and not np.array_equal(self.classes_, np.unique(classes)):
            raise SettingError(
                f"classes must be those of the first call, {self.classes_.tolist()}; got {classes!r}."
            )
        return self._partial_fit(X, y, groups, classes if first else None)

    def _check_settings(self) -> None:
        super()._check_settings()
        if check_count("cv", self.cv) < 2:
            raise SettingError(f"cv must be at least 2, for rows are held out; got {self.cv}.")

    def _choose(self, X: np.ndarray, y: np.ndarray, groups: Any) -> None:
        tilts = TILTS if self.inner_tilt == "auto" else (self.inner_tilt,)
        penalties = (1 / len(y), *PENALTIES) if self.l2 == "auto" else (self.l2,)
        grid = [(tilt, l2) for tilt in tilts for l2 in penalties]
        self.tilt_, self.l2_ = grid[0]
        names, member = self._labels(y, groups)
        folds = min(self.cv, *np.unique(y, return_counts=True)[1])
        if len(grid) == 1 or folds < 2 or len(np.unique(y)) < 2:
            return
        rows, targets = self._scaled(X)[:, : X.shape[1]], self._targets(y).astype(int)
        right = np.zeros((len(grid), len(y)), bool)
        for train, test in StratifiedKFold(folds, shuffle=True, random_state=self._seed).split(X, y):
            part = TiltedRows(
                rows[train],
                targets[train],
                member[train],
                len(self.classes_),
                self.outer_tilt,
                self.balanced,
            )
            for k, scores in enumerate(part.fit(grid, rows[test])):
                right[k, test] = log_shares(scores).argmax(axis=1) == targets[test]
        shares = np.asarray([[np.mean(of[member == g]) for g in range(len(names))] for of in right])
        means = shares.mean(axis=1)
        # The first is weighted logistic regression; few rows of a class are no reason to leave it.
        noise = np.sqrt(np.sum(shares[0] * (1 - shares[0]) / np.bincount(member))) / len(names)
        if means.max() > means[0] + MARGIN * noise:
            self.tilt_, self.l2_ = grid[int(np.argmax(means))]

    def _doubt(self, parts: dict[Any, Part]) -> str | None:
        """A negative inner tilt may take all of a class for wrong labels where groups mix classes."""
        scores = [X @ self._w["slope"] + self._w["intercept"] for X, _ in parts.values()]
        likely = np.unique(log_shares(np.concatenate(scores)).argmax(axis=1))
        if len(likely) > 1:
            return None
        robust = "choose an inner_tilt nearer to 0, or groups of which none mixes classes."
        advice = robust if self.tilt_ < 0 else "raise outer_tilt, or add features."
        return f"every row is predicted to be of class {self.classes_[likely[0]]}: {advice}"


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class TiltedRegressor(TiltedModel, LinearRegressor):
    """Least squares that looks away from outliers, or at the worst of several groups.

        F(w) = (1/t)·log Σ_g p_g e^{t R_g(w)} + l2/2·‖slope‖²,   R_g(w) = (1/τ)·log mean_g e^{τr²}

    with r = x·w − y. Without groups that is R(w) of all rows, and τ < 0 makes it robust to outliers
    among the targets. Features are centred and scaled inside; so are targets, by their median and the
    median deviation from it, such that normal ones have a standard deviation of one. r is in that unit.

    Args:
        inner_tilt: τ, within groups, or over all rows without groups. Negative: robust to outliers.
            0: the mean.
        outer_tilt, l2, method, max_iter, batch_size, learning_rate, random_state: as in
            ``TiltedClassifier``; groups count by their shares of the rows.

    Attributes:
        coef_: one slope a feature.
        intercept_: a number.
        objective_: F(w) on the rows of the last call, for scaled targets.
        n_iter_, samples_, n_features_in_, feature_names_in_: as in ``TiltedClassifier``.
    """

    balanced = False

    inner_tilt: float = -1.0
    outer_tilt: float = 10.0
    l2: float = 0.001
    method: str | AbstractEstimator = "smvr"
    learning_rate: float = 0.02

    def partial_fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """About one pass over the rows X from where the call before ended, trackers included.

        The first call, or ``fit``, fixes how features and targets are scaled; a group that is absent
        from a call is treated as in ``TiltedClassifier``.
        """
        first = not hasattr(self, "coef_")
        X, y = self._read(X, y, first)
        return self._partial_fit(X, y, groups, y if first else None)

    def _labels(self, y: np.ndarray, groups: Any) -> tuple[np.ndarray, np.ndarray]:
        return super()._labels(y, np.zeros(len(y)) if groups is None else groups)


def _thinned(part: Part) -> Part:
    """Returns every row, or every second, third, …, such that few are left."""
    X, y = part
    stride = -(-len(y) // KEPT_ROWS)
    return X[::stride], y[::stride]
