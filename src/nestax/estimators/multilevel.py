"""Multilevel Monte Carlo: a gradient without bias and without memory, where inner draws are simulated.

Blanchet, Glynn: Unbiased Monte Carlo for optimization and functions of expectations via multi-level
randomization, WSC 2015. As a gradient: Hu, Wang, Chen, He: On the bias-variance-cost trade-off of
stochastic optimization, NeurIPS 2021 (RT-MLMC). The probabilities are ours: with 3^{−n} the cost is two
parts on average.

symbol   here        meaning
b        –           inner draws of a part, batch_size
G(K)     _plugged    plain gradient of a block with the means over the parts in K
N        doublings   P(N = n) = 2/3·3^{−n}, the same for all blocks of a step
v_t      grad        G({1}) + [N ≥ 1]·1.5·3^N·( G({1…2^N}) − ½G({1…2^{N−1}}) − ½G({2^{N−1}+1…2^N}) )
"""

import functools
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import pull_through
from nestax.chain.level import Level, Map
from nestax.chain.problem import Problem
from nestax.draws.blocks import Visits
from nestax.errors import ProblemError
from nestax.parts.estimator import AbstractEstimator, Batches, Calls, Estimate, Trackers
from nestax.parts.tables import mean_of_visited, over_visits

#: More doublings are left out: they come once in 10^10 steps, and what they add is the bias of a batch
#: of a million parts.
MOST = 20
#: Folded into a key for N; parts of draws use 0, 1, 2, …
DOUBLINGS = 2**31 - 3


class MultilevelState(eqx.Module):
    """For diagnostics only; nothing is kept."""

    w: PyTree


class Multilevel(AbstractEstimator):
    """The plain gradient of one part of b inner draws, and with a falling probability what is missing.

    E G over 2^N parts comes to ∇F as N grows, and the differences between successive N, each divided by
    its probability, add up to the way there. Two parts are drawn on average, and the variance is finite
    where f_2 ∘ … ∘ f_K is smooth: it falls with visit, and a large batch_size makes the differences
    small. Steps differ in length. ``samples`` counts the average.
    """

    blocks: ClassVar = "visited"

    # On average: two parts, each of which is looked at less than twice.
    passes: ClassVar = {"value": Calls(2, 2), "more": Calls(2, 2)}

    def check(self, problem: Problem) -> None:
        if not problem.simulated:
            raise ProblemError(
                "Multilevel draws as often as it needs to, so all levels that draw need a simulator: "
                "nx.Conditional(outer, fn(ξ, key)). Rows come back and can be remembered: use nx.SOX() "
                "or nx.PerBlock(...) there, or nx.SMVR() without blocks."
            )

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        keys = next(visits["value"].index for visits in batches if visits["value"] is not None)
        u = jax.random.uniform(jax.random.fold_in(keys.ravel()[0], DOUBLINGS))
        doublings = jnp.clip(jnp.floor(-jnp.log(u) / jnp.log(3.0)), 0, MOST).astype(jnp.int32)

        def of_block(chain: Problem, visits: Batches) -> tuple[Array, PyTree]:
            plug = functools.partial(_plugged, problem, chain, w, visits)
            base = plug(0, 1)

            def corrected() -> Any:
                half = 2 ** (jnp.maximum(doublings, 1) - 1)
                weight = 1.5 * 3.0**doublings
                return jax.tree.map(
                    lambda x, whole, a, b: x + weight.astype(x.dtype) * (whole - (a + b) / 2),
                    *(base, plug(0, 2 * half), plug(0, half), plug(half, half)),
                )

            return jax.lax.cond(doublings > 0, corrected, lambda: base)

        value, grad = mean_of_visited(over_visits(problem, batches, of_block))
        return Estimate(value, grad, {}), MultilevelState(w)

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: MultilevelState):
        return self.init(problem, w, batches)

    def trackers(self, state: MultilevelState):
        return Trackers(state.w)


def _plugged(
    problem: Problem, chain: Problem, w: PyTree, visits: Batches, first: Any, count: Any
) -> tuple[Array, PyTree]:
    """Returns value and gradient of a block, with the means over parts first, …, first + count − 1."""

    def part(i: int, k: Array) -> Any:
        visit: Visits = visits[i]["value"]
        again = jax.vmap(lambda key: jax.random.fold_in(key, k))(visit.index)
        source: Any = problem.levels[i].source
        return source.batch(Visits(visit.blocks, again, visit.shared))

    def mean(fn: Any) -> PyTree:
        shapes = jax.eval_shape(fn, jax.ShapeDtypeStruct((), jnp.int32))
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

        def add(k: Array, total: PyTree) -> PyTree:
            return jax.tree.map(lambda t, y: t + y / count, total, fn(k))

        return jax.lax.fori_loop(first, first + count, add, zero)

    def means(i: int, level: Level, x: PyTree) -> tuple[PyTree, Map]:
        def at(k: Array) -> tuple[PyTree, Map]:
            return level.value_and_pull(x, part(i, k))

        return mean(lambda k: at(k)[0]), lambda p: mean(lambda k: at(k)[1](p))

    x = w
    pulls = []
    for i, level in enumerate(chain.levels):
        x, pull = level.value_and_pull(x, None) if level.deterministic else means(i, level, x)
        x = level.project(x)
        pulls.append(pull)
    return x, pull_through(pulls, x)
