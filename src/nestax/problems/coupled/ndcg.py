"""Normalised discounted cumulative gain by query: one block per relevant document, K = 2.

    F(w) = −1/Q Σ_q 1/Z_q Σ_{i in q} (2^{y_i} − 1)/log2(1 + r_i)
           where r_i = 1 + Σ_{j in q, j≠i} ℓ(h_j − h_i)

level 1   f_1^i(w; j) = ℓ(h_j − h_i), j ≠ i from its query     ahead: the share of others ahead of i
level 2   f_2^i(u) = −gain_i/log2(2 + (N_q − 1)u)               gain, deterministic

with ℓ(s) = max(0, 1 + s/margin)², at least 1 where j is ahead, so that r_i is no less than the rank and
F no less than −NDCG. Z_q is the greatest sum that an order can have; gain_i = (2^{y_i} − 1)/Z_q·M/Q for
M relevant documents.

Qiu, Hu, Zhong, Zhang, Yang: Large-scale stochastic optimization of NDCG surrogates for deep learning
with provable convergence, ICML 2022.
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
from nestax.errors import ProblemError, check_setting
from nestax.problems.coupled.pairs import Score, but_own, default_visit, over_anchors
from nestax.problems.losses import fit_together, read_labels, read_numbers, squared
from nestax.problems.tilted.tilting import nonnegative


def ahead(s: Array, margin: Array) -> Array:
    return jnp.maximum(1 + s / margin, 0) ** 2


class Ahead(eqx.Module):
    """Level 1; a draw is a relevant document and any of its query, each with its number."""

    score: Score

    def __call__(self, w: PyTree, pair: Any, margin: Array) -> Array:
        (x_i, i, count), (x_j, j) = pair
        loss = ahead(self.score(w, x_j) - self.score(w, x_i), margin)
        return but_own(i, j, loss, count)


class MeanGain(eqx.Module):
    """F in closed form, from all pairs of a query."""

    score: Score
    X: Array
    margin: Array
    relevant: Array
    first: Array
    count: Array
    gain: Array
    longest: int = eqx.field(static=True)

    def __call__(self, w: PyTree) -> Array:
        h = self.score.each(w, self.X)
        places = jnp.arange(self.longest)

        def of(document: Any) -> Array:
            i, first, count, gain = document
            others = first + places
            loss = ahead(h[jnp.minimum(others, len(h) - 1)] - h[i], self.margin)
            rank = 1 + jnp.sum(jnp.where((places < count) & (others != i), loss, 0))
            return -gain / jnp.log2(1 + rank)

        documents = (self.relevant, self.first, self.count, self.gain)
        return jnp.mean(over_anchors(of, documents, self.longest))


def ndcg(
    X: Any,
    y: Any,
    query: Any,
    *,
    margin: float = 1.0,
    visit: int | None = None,
    model: Callable[[PyTree, Any], Any] | None = None,
    w0: PyTree = None,
    l2: float = 0.0,
    **problem: Any,
) -> Problem:
    """Ranks the documents of every query by relevance; F is at least minus the mean NDCG.

    Queries without a relevant document say nothing and are left out. Memory grows with the documents.

    Args:
        X: one row a document.
        y: how relevant it is to its query, at least 0; 0, 1, 2, … as a rule.
        query: a label for every document.
        margin: of the squared hinge, positive, in units of the scores.
        visit: how many relevant documents a step visits; all, but at most 16, by default. From the
            query of each it draws ``batch_size`` documents.
        model, w0, l2, problem: as in ``nx.problems.term``; a linear score by default.
    """
    check_setting("margin", margin, "positive", lambda m: m > 0)
    y = read_numbers(y, "y of the data").astype(float)
    if y.ndim != 1 or (y < 0).any():
        got = f"{y.min():g}" if y.ndim == 1 else f"an array of {y.ndim} dimensions"
        raise ProblemError(f"y must hold one relevance of at least 0 for every document; got {got}.")
    names, which = read_labels("query", query, len(y))
    size = np.bincount(which)
    fit = fit_together([("the data", X, y)], squared, model, w0, False, l2)
    if (size < 2).any():
        raise ProblemError(
            f"query {names[np.argmin(size)]} has one document, which nothing can be ranked before: "
            "leave it out."
        )
    order = np.lexsort((-y, which))
    y, which = y[order], which[order]
    starts = np.cumsum(size) - size
    worth = 2.0**y - 1
    position = np.arange(len(y)) - starts[which]  # sorted by relevance, the best order
    best = np.bincount(which, worth / np.log2(2 + position))
    relevant = np.flatnonzero(y > 0)
    if len(relevant) == 0:
        raise ProblemError("no document is relevant: some y must be above 0.")
    queries_of = which[relevant]
    queries = len(np.unique(queries_of))
    gain = worth[relevant] / best[queries_of] * len(relevant) / queries
    score = Score(fit.row_loss.model)
    rows = fit.parts[0][0][order]
    visit = default_visit(visit, len(relevant))
    pairs = Conditional(
        (rows[relevant], relevant, jnp.asarray(size[queries_of], fit.dtype)),
        (rows, np.arange(len(y))),
        visit=visit,
        ranges=(starts[queries_of], size[queries_of]),
    )
    gains, others, by = (jnp.asarray(x, fit.dtype) for x in (gain, size[queries_of] - 1, margin))
    documents = Conditional((gains, others), visit=visit)
    exact = MeanGain(
        score,
        rows,
        by,
        jnp.asarray(relevant),
        jnp.asarray(starts[queries_of]),
        jnp.asarray(size[queries_of]),
        gains,
        int(size.max()),
    )
    return Problem(
        [
            Level(Ahead(score), pairs, args=(by,), project=nonnegative, name="ahead"),
            Level(lambda u, gain: -gain[0] / jnp.log2(2 + gain[1] * u), documents, name="gain"),
        ],
        w0=fit.w0,
        penalty=fit.penalty,
        exact=exact,
        **problem,
    )
