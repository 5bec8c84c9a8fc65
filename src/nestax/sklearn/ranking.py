"""A linear score that ranks one class before the other, as a scikit-learn estimator.

It minimises ``nx.problems.average_precision`` or ``nx.problems.partial_auc`` for scaled features.
"""

import dataclasses
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from sklearn.metrics import average_precision_score

from nestax.errors import ProblemError, check_number, choose
from nestax.parts.estimator import AbstractEstimator
from nestax.problems.coupled.average_precision import average_precision
from nestax.problems.coupled.partial_auc import partial_auc
from nestax.sklearn.fitted import POSITIVE
from nestax.sklearn.linear import LinearScores, to_zero

OBJECTIVES = ("average_precision", "partial_auc")


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class RankingClassifier(LinearScores):
    """A linear score that puts the rows of the second class first, where they are few.

    "average_precision": the share of rows of that class among those that come up to each of them, on
    average over them, smoothed by a squared hinge. "partial_auc": pairs in which another row comes first
    count, and the more the further up that is: few false alarms.

    ``decision_function`` is the score. ``predict`` takes as many rows for the second class as ``fit``
    saw of it. There are no probabilities.

    Qi, Luo, Xu, Ji, Yang, NeurIPS 2021 (average precision); Zhu et al., ICML 2022 (partial AUC).

    Args:
        objective: "average_precision" or "partial_auc".
        margin: of the hinge, for "average_precision"; positive, in units of the score.
        temperature: for "partial_auc"; positive, the smaller the more does the very top count.
        l2: strength of the penalty, for features with a standard deviation of one.
        method: the name of a method for chains with blocks, or an estimator such as ``nx.SOX(0.1)``.
        batch_size: rows that a step compares with each of up to 16 rows of the second class.
        max_iter, learning_rate, random_state: of the run, as in ``TiltedClassifier``.

    Attributes:
        classes_: the two labels, sorted; the second is put first.
        coef_: one row of slopes.
        intercept_: minus the score from which on ``predict`` takes a row for the second class.
        objective_: what is minimised, over all pairs of rows, with the penalty.
        n_iter_, samples_: steps taken, and draws.
        n_features_in_, feature_names_in_: number of features, and their names if X is a frame.
    """

    objective: str = "average_precision"
    margin: float = 1.0
    temperature: float = 1.0
    l2: float = 0.001
    method: str | AbstractEstimator = "sox"
    max_iter: int = 1_000
    learning_rate: float = 0.05

    def fit(self, X: Any, y: Any) -> Self:
        """Fits the score to rows X of two classes y."""
        X, y = self._read(X, y, first=True)
        self._begin(X, y)
        rows, targets = self._scaled(X), self._targets(y)
        start = {"slope": jnp.zeros(rows.shape[1])}
        common: dict[str, Any] = {"w0": start, "l2": self.l2, "shared": True}
        common["model"] = lambda w, x: x @ w["slope"]
        if self.objective == "average_precision":
            problem = average_precision(rows, targets, margin=self.margin, **common)
        else:
            problem = partial_auc(rows, targets, temperature=self.temperature, **common)
        before = float(problem.value(start))
        w = self._descend(problem, self.max_iter, self.max_iter, to_zero).w
        slope = np.asarray(w["slope"], np.float64)
        first = np.sort(rows @ slope)[::-1]
        count = int(targets.sum())  # at least 1, and fewer than all rows
        self._settle({"slope": slope, "intercept": -(first[count - 1] + first[count]) / 2})
        self.objective_ = float(problem.value(w))
        self._warn_if_risen(before, "lower learning_rate, or raise batch_size.")
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Returns the second class where the score is above that of the rows which ``fit`` left out."""
        above = self.decision_function(X) > 0
        return self.classes_[above.astype(int)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Average precision of the ranking."""
        scores = self.decision_function(X)
        known = self._targets(np.asarray(y))
        return float(average_precision_score(known, scores, sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _check_settings(self) -> None:
        super()._check_settings()
        choose("objective", self.objective, OBJECTIVES)
        for name in ("margin", "temperature"):
            check_number(name, getattr(self, name), *POSITIVE)

    def _begin_targets(self, y: np.ndarray) -> tuple[int, ...]:
        shape = super()._begin_targets(y)
        if shape:
            # scikit-learn's words first, which its checks look for
            raise ProblemError(
                "Only binary classification is supported: a ranking puts one class before another; y "
                f"has {len(self.classes_)} classes."
            )
        return shape
