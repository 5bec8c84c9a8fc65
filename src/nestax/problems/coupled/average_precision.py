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
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.blocks import Blocks
from nestax.errors import check_setting
from nestax.problems.losses import fit_together


def hinge(s: Array, margin: Array) -> Array:
    return jnp.maximum(margin + s, 0) ** 2


class Ranks(eqx.Module):
    """Level 1; a draw is a pair of row numbers, and the rows themselves are arguments."""

    model: Callable[[PyTree, Any], Array]

    def __call__(self, w: PyTree, pair: Any, X: Array, y: Array, margin: Array) -> Any:
        i, j = pair
        loss = hinge(self.model(w, X[j]) - self.model(w, X[i]), margin)
        return y[j] * loss, loss


def precision(ranks: tuple[Array, Array], own: Array) -> Array:
    positives, everything = ranks
    return -(positives + own) / (everything + own)


def wedge(ranks: tuple[Array, Array]) -> tuple[Array, Array]:
    """Projection onto 0 ≤ p ≤ q."""
    p, q = ranks
    middle = (p + q) / 2
    return jnp.maximum(jnp.minimum(p, middle), 0), jnp.maximum(jnp.maximum(q, middle), 0)


class MeanPrecision(eqx.Module):
    """F in closed form, from all pairs."""

    model: Callable[[PyTree, Any], Array]
    X: Array
    y: Array
    margin: Array
    positives: Array

    def __call__(self, w: PyTree) -> Array:
        h = jax.vmap(lambda x: self.model(w, x))(self.X)
        loss = hinge(h[None, :] - h[self.positives][:, None], self.margin)
        return -jnp.mean((loss @ self.y) / jnp.sum(loss, axis=1))


def average_precision(
    X: Any,
    y: Any,
    *,
    visit: int | None = None,
    margin: float = 1.0,
    model: Callable[[PyTree, Any], Any] | None = None,
    w0: PyTree = None,
    l2: float = 0.0,
    **problem: Any,
) -> Problem:
    """Ranks positive rows before the others; F lies between −1, for a margin between all, and 0.

    The pairs are held as numbers of rows, n − 1 for each positive row; records look at all pairs.

    Args:
        X: one row an example.
        y: labels 0 and 1, of which some are 1.
        visit: how many positive rows a step visits; all, but at most 16, by default.
        margin: of the squared hinge, positive, in units of the scores.
        model, w0, l2, problem: as in ``nx.problems.term``; a linear score by default.
    """
    check_setting("margin", margin, "positive", lambda m: m > 0)
    fit = fit_together([("the data", X, y)], "logistic", model, w0, False, l2)
    rows, labels = fit.parts[0]
    positives = np.flatnonzero(np.asarray(labels))
    others = (positives[:, None] + np.arange(1, len(labels))) % len(labels)
    pairs = (np.broadcast_to(positives[:, None], others.shape), others)
    blocks = Blocks(pairs, visit=min(16, len(positives)) if visit is None else visit)
    score = lambda w, x: jnp.reshape(fit.row_loss.model(w, x), ())
    by = jnp.asarray(margin, labels.dtype)
    return Problem(
        [
            Level(Ranks(score), blocks, args=(rows, labels, by), project=wedge, name="ranks"),
            Level(precision, args=(by**2 / (len(labels) - 1),), name="precision"),
        ],
        w0=fit.w0,
        penalty=fit.penalty,
        exact=MeanPrecision(score, rows, labels, by, jnp.asarray(positives)),
        **problem,
    )
