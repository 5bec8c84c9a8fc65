"""Expected information gain of an experiment: a nested expectation with simulated draws, K = 2.

    F(w) = −EIG(w) = E_{θ,y} log( E_θ' p(y|θ', w)/p(y|θ, w) ),   θ, θ' ~ prior, y ~ p(·|θ, w)

level 1   f_1(w; θ' | θ, ε) = p(y|θ', w)/p(y|θ, w),  y = y(w, θ, ε)     evidence
level 2   f_2(u) = log u                                                log, deterministic

The design w is chosen before the outcome y is known; EIG is how much y is expected to tell of θ.
Outcomes never come back, so that nothing can be remembered of them, unless a number of them is kept.

Lindley, Ann. Math. Stat. 1956; Rainforth, Cornish, Yang, Warrington, Wood: On nesting Monte Carlo
estimators, ICML 2018; Goda, Hironaka, Kitade, Foster: Unbiased MLMC stochastic gradient-based
optimization of Bayesian experimental designs, SIAM J. Sci. Comput. 2022.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.conditional import Conditional
from nestax.draws.source import Sampler
from nestax.errors import ProblemError, check_count
from nestax.problems.coupled.pairs import VISIT
from nestax.problems.losses import refusing, start_of
from nestax.problems.nested.ratios import Positive, dtype_of, ratio


class Evidence(eqx.Module):
    """Level 1; a draw is an outcome, as a cause and a key, and another cause."""

    simulate: Callable[[PyTree, PyTree, Array], PyTree]
    log_prob: Callable[[PyTree, PyTree, PyTree], Array]

    def __call__(self, w: PyTree, draw: Any) -> Array:
        (cause, key_data), other = draw
        outcome = self.simulate(w, cause, jax.random.wrap_key_data(key_data))
        beside, likelihood = (jnp.reshape(self.log_prob(w, c, outcome), ()) for c in (other, cause))
        return ratio(beside - likelihood)


class Outcomes(eqx.Module):
    """Causes, and the keys that outcomes are simulated with, as words."""

    prior: Callable[[Array], PyTree]

    def __call__(self, key: Array) -> tuple[PyTree, Array]:
        cause, noise = jax.random.split(key)
        return self.prior(cause), jax.random.key_data(noise)


class Anew(eqx.Module):
    """Causes that know nothing of the outcome."""

    prior: Callable[[Array], PyTree]

    def __call__(self, outcome: PyTree, key: Array) -> PyTree:
        del outcome
        return self.prior(key)


def information_gain(
    prior: Callable[[Array], PyTree],
    simulate: Callable[[PyTree, PyTree, Array], PyTree],
    log_prob: Callable[[PyTree, PyTree, PyTree], Array],
    w0: PyTree,
    *,
    outcomes: int | None = None,
    visit: int = VISIT,
    seed: int = 0,
    **problem: Any,
) -> Problem:
    """Minus the expected information gain of a design, which is to be minimised.

    Args:
        prior: ``fn(key)``, a draw of what is to be learned, θ.
        simulate: ``fn(w, θ, key)``, an outcome of the experiment w if θ is true; its derivative by w is
            taken, so noise must come from the key alone, and outcomes must be continuous: that of a coin
            or a count is zero or none, and would leave out that w changes how likely it is.
        log_prob: ``fn(w, θ, y)``, log p(y|θ, w).
        w0: the starting design, a tree or ``fn(key)``.
        outcomes: None for new ones at every step; or how many (θ, noise) are kept, which a method with
            memory can then come back to: the information gain of a sample.
        visit: how many outcomes a step simulates, each beside ``batch_size`` draws of the prior.
        seed: for the outcomes that are kept.
        problem: further arguments of ``nx.Problem``; ``project`` is the set of possible designs.
    """
    for name, fn in (("prior", prior), ("simulate", simulate), ("log_prob", log_prob)):
        if not callable(fn):
            raise ProblemError(f"{name} must be a function; got {type(fn).__name__}.")
    outer: Any = Sampler(Outcomes(prior))
    if outcomes is not None:
        keys = jax.random.split(jax.random.key(seed), check_count("outcomes", outcomes))
        outer = jax.vmap(Outcomes(prior))(keys)
        visit = min(visit, outcomes)
    start = start_of(w0)
    evidence = Evidence(simulate, log_prob)
    key = jax.random.key(seed)
    first = (Outcomes(prior)(key), prior(key))
    with refusing("prior, simulate, log_prob and w0 do not fit together"):
        at_start = evidence(start, first)
    if not bool(jnp.isfinite(at_start)):
        raise ProblemError(
            f"p(y|θ', w)/p(y|θ, w) is {at_start} at the start: log_prob must be finite for all outcomes."
        )
    _check_continuous(evidence, start, first[0])
    return Problem(
        [
            Level(
                evidence,
                Conditional(outer, Anew(prior), visit=visit),
                project=Positive(dtype_of(start)),
                name="evidence",
            ),
            Level(jnp.log, name="log"),
        ],
        w0=w0,
        **problem,
    )


def _check_continuous(evidence: Evidence, w: PyTree, first: tuple[PyTree, Array]) -> None:
    """Refuses outcomes whose derivative by w does not tell how w changes them."""
    cause, key_data = first
    key = jax.random.wrap_key_data(key_data)
    outcome = evidence.simulate(w, cause, key)
    kinds = sorted({str(jnp.asarray(x).dtype) for x in jax.tree.leaves(outcome)})
    whole = [kind for kind in kinds if not jnp.issubdtype(kind, jnp.floating)]
    if whole:
        raise ProblemError(
            f"simulate returns {', '.join(whole)}: outcomes must be continuous, for the gradient is "
            "taken through them. Sum over the possible ones in a level of your own instead."
        )
    somewhere = jax.tree.map(lambda x: jax.random.normal(key, jnp.shape(x), jnp.asarray(x).dtype), w)
    _, moves = jax.jvp(lambda w: evidence.simulate(w, cause, key), (w,), (somewhere,))
    likely = jax.grad(lambda w: jnp.reshape(evidence.log_prob(w, cause, outcome), ()))(w)
    if _has_no_slope(moves) and not _has_no_slope(likely):
        raise ProblemError(
            "the outcomes of simulate do not move with w, and log_prob says that w changes how likely "
            "they are: they are discrete, or made elsewhere, and the gradient would be wrong. Sum "
            "over the possible ones in a level of your own instead."
        )


def _has_no_slope(tree: PyTree) -> bool:
    return not any(bool(jnp.any(x != 0)) for x in jax.tree.leaves(tree))
