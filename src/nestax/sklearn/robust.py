"""Linear models with distributionally robust losses as scikit-learn estimators.

    F(w) = max over q near p of Σ q_i ℓ(w; z_i) + l2/2·‖slope‖²

over shares q of rows, or of groups with their mean losses: the problem of ``nx.problems.dro``.
"""

import dataclasses
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize_scalar

from nestax.chain.problem import Problem
from nestax.errors import POSITIVE, SettingError, check_number, check_setting
from nestax.parts.estimator import AbstractEstimator
from nestax.problems.losses import read_labels
from nestax.problems.robust.divergences import KL, AbstractDivergence, ChiSquare, CVaR, Dual
from nestax.problems.robust.dro import dro
from nestax.sklearn.fitted import POSITIVE as POSITIVE_NUMBER
from nestax.sklearn.linear import LinearClassifier, LinearModel, LinearRegressor, to_zero
from nestax.sklearn.windows import GroupsWindow, Window, filled_size

DIVERGENCES = ("kl", "chi2", "cvar")
#: Dual variables are sought so many times as far from the losses as these are from each other.
REACH = 100.0


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class RobustModel(LinearModel):
    """What both estimators share: the divergence, the chain, and the worst case in closed form."""

    divergence: str | AbstractDivergence = "kl"
    radius: float | None = 0.5
    penalty: float = 0.05
    tail: float = 0.1
    method: str | AbstractEstimator = "scsc"

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Fits the model to the rows X and their targets y.

        Args:
            X: one row an example, one column a feature.
            y: one target a row.
            groups: one label a row, of any type. The adversary then weighs groups by their mean losses
                and no single rows, so that rows that do not fit are not what it looks at.
        """
        X, y = self._read(X, y, first=True)
        self._begin(X, y)
        rows, targets = self._scaled(X), self._targets(y)
        member = None if groups is None else read_labels("groups", groups, len(y))[1]
        if member is not None and not member.any():
            raise SettingError(
                "there is one group only: leave groups out, and the adversary weighs rows, or give "
                "labels of two groups or more."
            )
        before = self._worst((rows, targets), member)[0] + self._penalty(self.l2)
        w = self._descend(self._chain(rows, targets, member), self.max_iter, self.max_iter, to_zero).w
        self._settle(w["model"])
        risk, self.dual_ = self._worst((rows, targets), member)
        self.objective_ = risk + self._penalty(self.l2)
        self._warn_if_risen(before, "lower learning_rate, or raise penalty or batch_size.")
        return self

    def _check_settings(self) -> None:
        super()._check_settings()
        if not isinstance(self.divergence, AbstractDivergence) and self.divergence not in DIVERGENCES:
            raise SettingError(
                "divergence must be 'kl', 'chi2' or 'cvar', or one such as nx.problems.KL(0.1); got "
                f"{self.divergence!r}."
            )
        check_number("penalty", self.penalty, *POSITIVE_NUMBER)
        check_number("tail", self.tail, "a number in (0, 1)", lambda x: 0 < x < 1)
        check_setting("radius", self.radius, *POSITIVE)

    def _given(self) -> AbstractDivergence:
        if isinstance(self.divergence, AbstractDivergence):
            return self.divergence
        if self.divergence == "cvar":
            return CVaR(self.tail, width=self.penalty)
        return (KL if self.divergence == "kl" else ChiSquare)(self.penalty, self.radius)

    def _at_start(self, losses: np.ndarray, share: np.ndarray) -> tuple[AbstractDivergence, Dual]:
        """Returns the divergence for losses of this size, and dual variables to begin with."""
        divergence = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(float)), self._given())
        return divergence.start(_filled(losses), _filled(share))

    def _chain(self, rows: np.ndarray, targets: np.ndarray, member: np.ndarray | None) -> Problem:
        """The problem on these rows. Two rows, or two a group, make one of its shapes at first."""
        losses, share = self._adversary((rows, targets), member)
        divergence, dual = self._at_start(losses, share)
        some = 2 * (1 if member is None else len(share))
        labels = None if member is None else np.arange(some) // 2
        classes = len(self._w["intercept"]) if self._w["intercept"].ndim else 2
        base = dro(
            np.zeros((some, rows.shape[1])),
            np.arange(some) % classes,
            self._loss,
            self._given(),
            groups=labels,
            intercept=True,
            l2=self.l2,
            w0=jax.tree.map(lambda x: jnp.zeros(x.shape), self._w),
        )

        def divergences(problem: Problem) -> list[AbstractDivergence]:
            """Returns every place of the problem that holds the divergence."""
            first, second = problem.levels
            holders: list[Any] = [second.fn, problem.feasible]
            holders += [first.fn, first.onto] if member is None else []
            return [holder.divergence for holder in holders if holder is not None]

        if member is None:
            problem = base.with_data(losses=Window((rows, targets)))
        else:
            parts = [(rows[member == g], targets[member == g]) for g in range(len(share))]
            problem = base.with_data(group_losses=GroupsWindow(parts))
            numbers = jnp.asarray(share, base.dtype)
            problem = eqx.tree_at(lambda p: p.levels[1].fn.share, problem, numbers)  # pyright: ignore[reportFunctionMemberAccess]
        problem = eqx.tree_at(divergences, problem, [divergence] * len(divergences(problem)))
        start = {name: jnp.asarray(x, base.dtype) for name, x in dual.items()}
        return eqx.tree_at(lambda p: p.w0, problem, {**problem.w0, **start})

    def _adversary(
        self, part: tuple[np.ndarray, np.ndarray], member: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the adversary weighs, losses of rows or mean losses of groups, and from which shares."""
        losses = self._losses_of(part)
        if member is None:
            return losses, np.full(len(losses), 1 / len(losses))
        counts = np.bincount(member)
        return np.bincount(member, losses) / counts, counts / counts.sum()

    def _worst(
        self, part: tuple[np.ndarray, np.ndarray], member: np.ndarray | None
    ) -> tuple[float, dict[str, float]]:
        """Returns the risk in the worst case at the weights so far, and the dual variables where it is.

        It is a convex function of one of them.
        """
        losses, share = self._adversary(part, member)
        divergence, dual = self._at_start(losses, share)

        def risk_at(dual: Dual) -> float:
            return float(_risk(divergence, _filled(losses), _filled(share), dual))

        if not dual:
            return risk_at(dual), {}
        (name,) = dual
        extent = float(np.ptp(losses)) + self.penalty
        low, high = (self.penalty, REACH * extent)
        if name == "threshold":
            low, high = (losses.min() - REACH * extent, losses.max())

        def risk(x: float) -> float:
            return risk_at({name: jnp.asarray(x, jnp.result_type(float))})

        # Over several widths, so that its search does not end on a flat piece far away.
        near = float(dual[name])
        search: Any = minimize_scalar
        minima = [
            search(risk, bounds=bounds, method="bounded", options={"xatol": 1e-6 * extent})
            for bounds in ((low, high), (max(low, near - extent), min(high, near + extent)))
            if bounds[0] < bounds[1]
        ]
        best = min(minima, key=lambda minimum: minimum.fun)
        return float(best.fun), {name: float(best.x)}


def _filled(x: np.ndarray) -> jax.Array:
    """Filled up with zeros to a size that many tables share."""
    missing = filled_size(len(x), 64) - len(x)
    return jnp.asarray(np.pad(x, (0, missing)), jnp.result_type(float))


@eqx.filter_jit
def _risk(divergence: AbstractDivergence, losses: Any, share: Any, dual: Dual) -> Any:
    return divergence.risk(losses, share, dual)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class RobustClassifier(RobustModel, LinearClassifier):
    """Logistic regression that does well on the worst part of the rows, or on the worst group.

        F(w) = max over q near p of Σ q_i ℓ(w; z_i) + l2/2·‖slope‖²

    ℓ is the logistic loss, or the multinomial one for three classes and more. Single rows that are
    mislabelled are among the worst: for these take ``TiltedClassifier``, or give groups.

    Args:
        divergence: what keeps q near the shares p of the rows: "kl", "chi2" or "cvar", the mean over the
            worst ``tail`` of the rows; or one such as ``nx.problems.KL(0.1)``, with its own numbers.
        radius: of the ball that q lies in, for "kl" and "chi2". None: the penalty alone keeps it near.
        penalty: what a distance costs, in units of the loss. With a radius it is there for smoothness
            and should be small; for "cvar" it is the width of a smoothed corner.
        tail: for "cvar", the share of the rows that counts, in (0, 1).
        l2: strength of the penalty on slopes, for features with a standard deviation of one.
        batch_size: rows that are drawn in a step, with groups members of each.
        method, max_iter, learning_rate, random_state: of the run, as in ``TiltedClassifier``.

    Attributes:
        classes_: the labels, sorted; of the type that they have in y.
        coef_: one row of slopes for two classes, where it belongs to the second; else one a class.
        intercept_: one number a row of ``coef_``.
        objective_: F(w), in the worst case over all rows.
        dual_: "scale" or "threshold" of the worst case, see ``nx.problems.dro``.
        n_iter_, samples_: steps taken, and draws.
        n_features_in_, feature_names_in_: number of features, and their names if X is a frame.
    """

    l2: float = 0.01
    learning_rate: float = 0.03


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class RobustRegressor(RobustModel, LinearRegressor):
    """Least squares that does well on the worst part of the rows, or on the worst group.

        F(w) = max over q near p of Σ q_i r_i² + l2/2·‖slope‖²,   r = x·w − y

    Features are centred and scaled inside; so are targets, by their median and the median deviation from
    it, such that normal ones have a standard deviation of one. r is in that unit. Outliers among the
    targets are among the worst rows: for these take ``TiltedRegressor``, or give groups.

    Args:
        divergence, radius, penalty, tail, l2, method, max_iter, batch_size, learning_rate, random_state:
            as in ``RobustClassifier``.

    Attributes:
        coef_: one slope a feature.
        intercept_: a number.
        objective_: F(w) for scaled targets, in the worst case over all rows.
        dual_, n_iter_, samples_, n_features_in_, feature_names_in_: as in ``RobustClassifier``.
    """

    l2: float = 0.001
    learning_rate: float = 0.02
