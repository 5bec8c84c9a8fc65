"""Partial area under the ROC curve: a coupled problem with one block per positive row, K = 2.

    one-way   F(w) = 1/P Σ_i λ log( 1/N Σ_j e^{ℓ(h_j − h_i)/λ} )
    two-way   F(w, a) = a + λ'·( 1/P Σ_i e^{(r_i − a)/λ'} − 1 )
                        where r_i = λ log( 1/N Σ_j e^{ℓ(h_j − h_i)/λ} )

level 1   f_1^i(w; j) = e^{ℓ(h_j − h_i)/λ}                     overtaking
level 2   f_2(u) = λ log u                                      risk, deterministic
          f_2(u, a) = a + λ'·(e^{(λ log u − a)/λ'} − 1)         the same, two-way

with i over the P positive rows, j over the N others, scores h = h(w; x), and ℓ a loss of being
overtaken, growing. λ is the penalty of an adversary who chooses among the negative rows those that come
first, max_q E_q ℓ − λ KL(q‖uniform): the left end of the ROC curve. For λ → ∞ it is the area under the
whole curve. λ' does the same among the positive rows; the least value over a is λ' log 1/P Σ e^{r_i/λ'}.

Zhu, Li, Wang, Wu, Yang: When AUC meets DRO: optimizing partial AUC for deep learning with non-convex
convergence guarantee, ICML 2022.
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
from nestax.draws.conditional import Conditional
from nestax.errors import POSITIVE, ProblemError, check_setting, choose
from nestax.problems.coupled.pairs import Score, default_visit, over_anchors, two_classes
from nestax.problems.losses import OnPart, Ridge, start_of
from nestax.problems.robust.dro import OfModel, with_dual
from nestax.problems.tilted.tilting import largest_exponent, tilted

Surrogate = Callable[[Array], Array]

#: What it costs to be overtaken by s.
SURROGATES: dict[str, Surrogate] = {
    "logistic": jax.nn.softplus,
    "squared hinge": lambda s: jnp.maximum(1 + s, 0) ** 2,
}


class Overtaking(eqx.Module):
    """Level 1; a draw is a positive and a negative row. Two-way, the threshold is handed on."""

    score: Score
    surrogate: Surrogate
    both: bool = eqx.field(static=True)

    def __call__(self, w: PyTree, pair: Any, scale: Array, *_: Array) -> Any:
        positive, negative = pair
        model = w["model"] if self.both else w
        by = self.score(model, negative) - self.score(model, positive)
        u = tilted(self.surrogate(by), 1 / scale, jnp.zeros_like(scale))
        return (u, w["threshold"]) if self.both else u


def at_least_one(value: Any) -> Any:
    """Where means of e^{ℓ/λ} lie for ℓ ≥ 0."""
    if isinstance(value, tuple):
        return jnp.maximum(value[0], 1), value[1]
    return jnp.maximum(value, 1)


def two_way(value: tuple[Array, Array], scale: Array, other: Array) -> Array:
    u, threshold = value
    # expm1 keeps the digits where the threshold is close to the risk, which is where it ends.
    return threshold + other * jnp.expm1((scale * jnp.log(u) - threshold) / other)


class PartialRisk(eqx.Module):
    """F in closed form, from all pairs."""

    score: Score
    surrogate: Surrogate
    positives: Array
    negatives: Array
    scale: Array
    other: Array | None

    def risks(self, model: PyTree) -> Array:
        """r_i of every positive row."""
        h = self.score.each(model, self.negatives)

        def of(score: Array) -> Array:
            losses = self.surrogate(h - score) / self.scale
            return self.scale * (jax.nn.logsumexp(losses) - np.log(len(h)))

        return over_anchors(of, self.score.each(model, self.positives), len(h))

    def __call__(self, w: PyTree) -> Array:
        if self.other is None:
            return jnp.mean(self.risks(w))
        threshold = w["threshold"]
        over = jnp.expm1((self.risks(w["model"]) - threshold) / self.other)
        return threshold + self.other * jnp.mean(over)

    def best_threshold(self, model: PyTree) -> Array:
        assert self.other is not None
        risks = self.risks(model) / self.other
        return self.other * (jax.nn.logsumexp(risks) - np.log(len(risks)))


def partial_auc(
    X: Any,
    y: Any,
    *,
    temperature: float = 1.0,
    positive_temperature: float | None = None,
    surrogate: str | Surrogate = "logistic",
    visit: int | None = None,
    model: Callable[[PyTree, Any], Any] | None = None,
    w0: PyTree = None,
    l2: float = 0.0,
    project: Callable[[PyTree], PyTree] | None = None,
    shared: bool | None = None,
    **problem: Any,
) -> Problem:
    """Ranks positive rows before the negative rows that come first: few false alarms.

    One-way the weights are those of the model. Two-way, with a ``positive_temperature``, they are
    {"model": w, "threshold": a}, and a is minimised over like w. Memory grows with the rows, as in
    ``average_precision``.

    Args:
        X: one row an example.
        y: labels 0 and 1.
        temperature: λ, positive, in units of the surrogate: the smaller, the shorter the left end of the
            curve that counts. A share β of the negative rows weighs as much as λ log 1/β.
        positive_temperature: λ', the same for positive rows, of which those that come last count; None
            for the one-way form, in which all count alike.
        surrogate: "logistic", log(1 + e^s); "squared hinge", max(0, 1 + s)²; or ℓ(s) ≥ 0, growing.
        visit, shared: as in ``average_precision``.
        model, w0, l2, project, problem: as in ``nx.problems.dro``; a linear score by default.
    """
    check_setting("temperature", temperature, *POSITIVE)
    check_setting("positive_temperature", positive_temperature, *POSITIVE)
    if not callable(surrogate):
        surrogate = SURROGATES[choose("surrogate", surrogate, tuple(SURROGATES))]
    fit = two_classes(X, y, model, w0, l2)
    rows, labels = fit.parts[0]
    positive = np.asarray(labels) == 1
    positives, negatives = rows[positive], rows[~positive]
    scale = jnp.asarray(temperature, fit.dtype)
    other = None if positive_temperature is None else jnp.asarray(positive_temperature, fit.dtype)
    score = Score(fit.row_loss.model)
    exact = PartialRisk(score, surrogate, positives, negatives, scale, other)
    start = start_of(fit.w0)
    _refuse_overflow(exact, start)
    both = other is not None
    pairs = Conditional(
        positives,
        negatives,
        visit=default_visit(visit, len(positives)),
        shared=model is not None if shared is None else shared,
    )
    first = Level(
        Overtaking(score, surrogate, both), pairs, args=(scale,), project=at_least_one, name="overtaking"
    )
    if not both:
        levels = [first, Level(lambda u, scale: scale * jnp.log(u), args=(scale,), name="risk")]
        return Problem(levels, w0=fit.w0, penalty=fit.penalty, exact=exact, project=project, **problem)
    ridge = fit.penalty
    # About a thousand rows of each class, from everywhere, are enough to begin with.
    some, others = (rows[:: -(-len(rows) // 1024)] for rows in (positives, negatives))
    at_start = PartialRisk(score, surrogate, some, others, scale, other)
    return Problem(
        [first, Level(two_way, args=(scale, other), name="risk")],
        w0=with_dual(fit.w0, {"threshold": at_start.best_threshold(start)}),
        penalty=None if ridge is None else Ridge(ridge.strength, OfModel(ridge.part)),
        exact=exact,
        project=None if project is None else OnPart("model", project),
        **problem,
    )


def _refuse_overflow(exact: PartialRisk, model: PyTree) -> None:
    """Losses at the start must leave room for e^{ℓ/λ}."""
    first = jnp.max(exact.score.each(model, exact.negatives))
    last = jnp.min(exact.score.each(model, exact.positives))
    loss = exact.surrogate(first - last)
    if not bool(loss / exact.scale <= largest_exponent(loss.dtype)):
        raise ProblemError(
            f"the loss of the worst pair is {loss:.3g} at the start, too large for a temperature of "
            f"{exact.scale:g} in {loss.dtype}: raise the temperature, scale X, or choose another w0."
        )
