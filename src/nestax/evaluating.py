"""F(w) with a confidence interval: how good weights are on data they have not seen."""

import dataclasses
import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from nestax import trees
from nestax.errors import ProblemError, check_count, check_setting
from nestax.level import Level
from nestax.loop import draw_batches
from nestax.problem import Problem
from nestax.source import AbstractSource, Batch, Coupling, Groups


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate of F(w): ``low`` to ``high`` covers it with the asked confidence."""

    value: float
    low: float
    high: float
    stderr: float

    def __repr__(self) -> str:
        return f"{self.value:.6g} [{self.low:.6g}, {self.high:.6g}]"


def evaluate(
    problem: Problem,
    w: PyTree,
    *,
    confidence: float = 0.95,
    draws: int | None = None,
    seed: int = 0,
) -> Interval:
    """F(w) with a confidence interval, treating the rows as a sample of something larger.

    For an honest value give it rows that the run has not seen:
    ``nx.evaluate(problem.with_data(mean=test, variance=test), result.w)``.

    The interval comes from the delta method: to first order, a row ξ of level i moves F by
    p^{i+1}·(f_i(u^{i-1}; ξ) − u^i), with p the adjoint of the chain, times its weight where rows have
    weights. Levels that draw from equal arrays see the same rows, so there the contributions of a row
    are added before their variance is taken; all other arrays are independent samples, as is every
    group of ``nx.Groups``. A sample of one row says nothing about others: the interval is then infinite.
    With ``nx.Blocks`` the rows are samples as well, and the blocks are not: F is the average over these
    blocks and no others. Rows of equal number in different blocks may depend on each other.

    Args:
        problem: the problem, on the rows to evaluate on.
        w: the weights.
        confidence: of the interval, in (0, 1).
        draws: how many draws per level to use; needed for a Sampler, where there are no rows.
            None uses every row.
        seed: for the draws.
    """
    check_setting("confidence", confidence, "in (0, 1)", lambda c: (c > 0) & (c < 1))
    if problem.blocks is not None and problem.blocks.counts is not None:
        raise ProblemError(
            "nx.evaluate needs blocks of one length: evaluate problem.block(m) one by one, or use "
            "problem.value(w), which has no interval."
        )
    problem, drawn = problem.every_block(), None
    if draws is not None:
        sizes = tuple(check_count("draws", draws) for _ in problem.levels)
        passes = draw_batches(problem, ("value",), jax.random.key(seed), 0, sizes)
        drawn = [batch["value"] for batch in passes]
    value, influences = eqx.filter_jit(_influences)(problem, w, drawn)
    samples: list[tuple[Any, np.ndarray]] = []
    for level, per_sample in zip(problem.levels, influences, strict=True):
        members = _members(level.source) if drawn is None else [None] * len(per_sample)
        for member, effects in zip(members, per_sample, strict=True):
            _add(samples, member, np.asarray(effects, np.float64))
    stderr = math.sqrt(sum(_variance_of_mean(effects) for _, effects in samples))
    reach = NormalDist().inv_cdf(0.5 + confidence / 2) * stderr
    centre = float(value)
    return Interval(centre, centre - reach, centre + reach, stderr)


def _influences(problem: Problem, w: PyTree, drawn: list[Any] | None) -> tuple[Array, list[Any]]:
    """F(w), and for every level the first-order effects of the draws of each of its samples."""
    sources = [level.source for level in problem.levels]
    batches = [source and source.population() for source in sources] if drawn is None else drawn
    pulls, inputs = [], [w]
    for level, batch in zip(problem.levels, batches, strict=True):
        value, pull = level.value_and_pull(inputs[-1], batch)
        inputs.append(value)
        pulls.append(pull)
    adjoint, out = jnp.ones_like(inputs[-1]), []
    for i, level in reversed(list(enumerate(problem.levels))):
        out.insert(0, [] if batches[i] is None else _effects(level, inputs[i], batches[i], adjoint))
        adjoint = pulls[i](adjoint)
    penalty = 0 if problem.penalty is None else problem.penalty(w)
    return inputs[-1] + penalty + problem.nonsmooth(w), out


def _effects(level: Level, x: PyTree, batch: Any, adjoint: PyTree) -> list[Array]:
    """Up to a constant, the effect of every draw; one array for each independent sample."""

    def over(rows: Callable[[Array], Batch], count: int) -> Array:
        one = lambda k: trees.inner(adjoint, level.value(x, rows(k)))
        return jax.lax.map(one, jnp.arange(count), batch_size=1024)

    if isinstance(batch, Coupling):
        # Outputs are sums over the groups, so the effect of a row is the same whatever the other rows.
        sizes = [member.size for member in batch.members]
        return [over(lambda k, g=g: _vary(batch, g, k), size) for g, size in enumerate(sizes)]
    effects = over(lambda k: batch.part(k, 1), batch.size)
    if batch.weights is None:
        return [effects]
    # Σ weight·(effect − mean), written as a mean over the draws.
    return [(effects - batch.weights @ effects) * batch.weights * batch.size]


def _vary(groups: Coupling, group: int, k: Array) -> Batch:
    """One draw: row k of one group, the first row of all others."""
    at = lambda number: k[None] if number == group else jnp.zeros(1, jnp.int32)
    members = enumerate(groups.members)
    return Batch(tuple(member.rows(at(number)).draws for number, member in members))


def _members(source: AbstractSource | None) -> tuple[Any, ...]:
    """The samples that a source holds; none for a deterministic level."""
    if source is None:
        return ()
    return source.members if isinstance(source, Groups) else (source,)


def _add(samples: list[tuple[Any, np.ndarray]], member: Any, effects: np.ndarray) -> None:
    """Adds the effects of a sample to those it has elsewhere; None is a sample of its own."""
    arrays = None if member is None else jax.tree.leaves(member)
    for k, (others, before) in enumerate(samples):
        if arrays is not None and eqx.tree_equal(arrays, others):
            samples[k] = (others, before + effects)
            return
    samples.append((arrays, effects))


def _variance_of_mean(effects: np.ndarray) -> float:
    return effects.var(ddof=1) / len(effects) if len(effects) > 1 else math.inf
