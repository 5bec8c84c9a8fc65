"""Tilted risks of linear scores over all rows of a table, and their minima by a quasi-Newton method.

In NumPy and float64: what compares settings, many of them on parts of the rows, compiles nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

STEPS = 100


class TiltedRows:
    """F(w) = (1/t)·log Σ_g p_g e^{t R_g(w)} + l2/2·‖slope‖², R_g(w) = (1/τ)·log mean_g e^{τℓ(w; z)}.

    Args:
        X: the rows.
        y: classes 0, 1, …, of so many as there are; with two a row has one score.
        member: the group of every row.
        outer_tilt: t.
        balanced: whether all p_g are equal; else they are shares of the rows.
    """

    def __init__(
        self,
        X: np.ndarray,
        y: np.ndarray,
        member: np.ndarray,
        classes: int,
        outer_tilt: float,
        balanced: bool,
    ):
        self.rows = np.column_stack([X, np.ones(len(X))])
        self.y = y
        self.scores = 1 if classes == 2 else classes
        self.outer_tilt = outer_tilt
        _, self.member, counts = np.unique(member, return_inverse=True, return_counts=True)
        self.share = np.full(len(counts), 1 / len(counts)) if balanced else counts / counts.sum()

    def fit(self, grid: Sequence[tuple[float, float]], new: np.ndarray) -> Iterator[np.ndarray]:
        """Yields scores of new rows at a minimum for every inner tilt and penalty of a grid."""
        for tilt, l2 in grid:
            start = np.zeros(self.rows.shape[1] * self.scores)
            minimum = minimize(
                self.value_and_grad,
                start,
                (tilt, l2),
                method="L-BFGS-B",
                jac=True,
                options={"maxiter": STEPS, "ftol": 1e-7},
            )
            scores = np.column_stack([new, np.ones(len(new))]) @ self._matrix(minimum.x)
            yield scores[:, 0] if self.scores == 1 else scores

    def value_and_grad(self, w: np.ndarray, tilt: float, l2: float) -> tuple[float, np.ndarray]:
        W = self._matrix(w)
        scores = self.rows @ W
        if self.scores == 1:
            scores = np.column_stack([np.zeros(len(scores)), scores])
        # As losses of log-sums: a quotient of exponentials overflows for rows far on the wrong side.
        total: Any = logsumexp(scores, axis=1, keepdims=True)
        targets = np.arange(len(self.y)), self.y
        losses = total[:, 0] - scores[targets]
        slope = np.exp(scores - total)
        slope[targets] -= 1
        risks = np.zeros(len(self.share))
        weight = np.zeros(len(losses))
        for g in range(len(risks)):
            rows = self.member == g
            risks[g], weight[rows] = _mean_and_weights(losses[rows], tilt)
        risk, outer = _mean_and_weights(risks, self.outer_tilt, self.share)
        weight *= outer[self.member]
        grad = self.rows.T @ (weight[:, None] * (slope[:, 1:] if self.scores == 1 else slope))
        grad[:-1] += l2 * W[:-1]
        return risk + l2 / 2 * float((W[:-1] ** 2).sum()), grad.ravel()

    def _matrix(self, w: np.ndarray) -> np.ndarray:
        return w.reshape(-1, self.scores)


def tilted_mean(x: np.ndarray, tilt: float, share: np.ndarray | None = None) -> Any:
    """(1/t)·log Σ p e^{tx}; p None is equal shares."""
    if not tilt:
        return np.average(x, weights=share)
    mean: Any = logsumexp(tilt * x, b=1 / len(x) if share is None else share)
    return mean / tilt


def _mean_and_weights(
    x: np.ndarray, tilt: float, share: np.ndarray | None = None
) -> tuple[float, np.ndarray]:
    """Returns a tilted mean and its derivatives, p e^{tx} made to sum to one."""
    share = np.full(len(x), 1 / len(x)) if share is None else share
    mean = tilted_mean(x, tilt, share)
    return mean, share * np.exp(tilt * (x - mean))
