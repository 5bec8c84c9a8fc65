"""Average precision of a ranking, smoothed: a coupled problem with one block per positive row, K = 2.

    F(w) = −1/P Σ_i Σ_j y_j ℓ(h_j − h_i) / Σ_j ℓ(h_j − h_i),   i over the P positive rows, j over all

level 1   f_1^i(w; j) = ℓ(h_j − h_i)·(y_j, 1)   ranks: positives, and all rows j ≠ i, near i or before it
level 2   f_2(p, q) = −(p + c)/(q + c)          precision, deterministic

where c = margin²/(n−1) is the share of row i itself.

with scores h = h(w; x) and the squared hinge ℓ(s) = max(0, margin + s)². The ratio of two means is where
small batches mislead, so that every positive row needs values of its own.

Qi, Luo, Xu, Ji, Yang: Stochastic optimization of areas under precision-recall curves with provable
convergence, NeurIPS 2021.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.conditional import Conditional
from nestax.errors import check_setting
from nestax.problems.coupled.pairs import Score, but_own, default_visit, over_anchors, two_classes


def hinge(s: Array, margin: Array) -> Array:
    return jnp.maximum(margin + s, 0) ** 2


class Ranks(eqx.Module):
    """Level 1; a draw is a positive row and any row, each with its number."""

    score: Score
    rows: int = eqx.field(static=True)

    def __call__(self, w: PyTree, pair: Any, margin: Array) -> tuple[Array, Array]:
        (x_i, i), (x_j, y_j, j) = pair
        loss = but_own(i, j, hinge(self.score(w, x_j) - self.score(w, x_i), margin), self.rows)
        return y_j * loss, loss


def wedge(ranks: tuple[Array, Array]) -> tuple[Array, Array]:
    """Projects onto 0 ≤ p ≤ q."""
    p, q = ranks
    middle = (p + q) / 2
    return jnp.maximum(jnp.minimum(p, middle), 0), jnp.maximum(jnp.maximum(q, middle), 0)


class MeanPrecision(eqx.Module):
    """F in closed form, from all pairs."""

    score: Score
    X: Array
    y: Array
    margin: Array
    positives: Array

    def __call__(self, w: PyTree) -> Array:
        h = self.score.each(w, self.X)

        def of(score: Array) -> Array:
            loss = hinge(h - score, self.margin)
            return (loss @ self.y) / jnp.sum(loss)

        return -jnp.mean(over_anchors(of, h[self.positives], len(h)))


def average_precision(
    X: Any,
    y: Any,
    *,
    visit: int | None = None,
    margin: float = 1.0,
    model: Callable[[PyTree, Any], Any] | None = None,
    w0: PyTree = None,
    l2: float = 0.0,
    shared: bool | None = None,
    **problem: Any,
) -> Problem:
    """Ranks positive rows before the others; F lies between −1, for a margin between all, and 0.

    No pair is held: memory grows with the rows, and so does that of a method which remembers every
    positive row. The closed form looks at all pairs, in parts.

    Args:
        X: one row an example.
        y: labels 0 and 1, of which some are 1.
        visit: how many positive rows a step visits; all, but at most 16, by default.
        margin: of the squared hinge, positive, in units of the scores.
        model, w0, l2, problem: as in ``nx.problems.term``; a linear score by default.
        shared: whether the positive rows of a step are held against the same ``batch_size`` rows, so
            that the model is evaluated for visit + batch_size rows and not for visit·batch_size. By
            default for a model of your own.
    """
    check_setting("margin", margin, "positive", lambda m: m > 0)
    fit = two_classes(X, y, model, w0, l2)
    rows, labels = fit.parts[0]
    count = len(labels)
    positives = np.flatnonzero(np.asarray(labels))
    pairs = Conditional(
        (rows[positives], positives),
        (rows, labels, np.arange(count)),
        visit=default_visit(visit, len(positives)),
        shared=model is not None if shared is None else shared,
    )
    score = Score(fit.row_loss.model)
    by = jnp.asarray(margin, labels.dtype)
    return Problem(
        [
            Level(Ranks(score, count), pairs, args=(by,), project=wedge, name="ranks"),
            Level(
                lambda ranks, self_share: -(ranks[0] + self_share) / (ranks[1] + self_share),
                args=(by**2 / (count - 1),),
                name="precision",
            ),
        ],
        w0=fit.w0,
        penalty=fit.penalty,
        exact=MeanPrecision(score, rows, labels, by, jnp.asarray(positives)),
        **problem,
    )
