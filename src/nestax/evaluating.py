"""F(w) with a confidence interval: how good weights are on data they have not seen."""

import dataclasses
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from nestax import trees
from nestax.errors import check_count, check_setting
from nestax.level import Level
from nestax.loop import draw_batches
from nestax.problem import Problem


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
    p^{i+1}·(f_i(u^{i-1}; ξ) − u^i), with p the adjoint of the chain. Levels that draw from the same
    array see the same rows, so there the contributions of a row are added before their variance is
    taken; levels with arrays of their own are independent.

    Args:
        problem: the problem, on the rows to evaluate on.
        w: the weights.
        confidence: of the interval, in (0, 1).
        draws: how many draws per level to use; needed for a Sampler, where there are no rows.
            None uses every row.
        seed: for the draws.
    """
    check_setting("confidence", confidence, "in (0, 1)", lambda c: (c > 0) & (c < 1))
    if draws is None:
        batches = [level.source and level.source.population() for level in problem.levels]
    else:
        sizes = tuple(check_count("draws", draws) for _ in problem.levels)
        drawn = draw_batches(problem, ("value",), jax.random.key(seed), 0, sizes)
        batches = [batch["value"] for batch in drawn]
    value, influences = eqx.filter_jit(_influences)(problem, w, batches)
    # Rows of one array are one sample, whatever the number of levels that look at it.
    shared: dict[Any, np.ndarray] = {}
    for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
        if batch is None:
            continue
        rows = i if draws is not None else _identity(level)
        shared[rows] = shared.get(rows, 0.0) + np.asarray(influences[i], np.float64)
    stderr = float(np.sqrt(sum(v.var() / len(v) for v in shared.values())))
    reach = NormalDist().inv_cdf(0.5 + confidence / 2) * stderr
    centre = float(value)
    return Interval(centre, centre - reach, centre + reach, stderr)


def _influences(problem: Problem, w: PyTree, batches: list[Any]) -> tuple[Array, list[Any]]:
    """F(w), and for every level the first-order effect of each draw on it."""
    pulls, inputs = [], [w]
    for level, batch in zip(problem.levels, batches, strict=True):
        value, pull = level.value_and_pull(inputs[-1], batch)
        inputs.append(value)
        pulls.append(pull)
    adjoint, out = jnp.ones_like(inputs[-1]), []
    for i, level in reversed(list(enumerate(problem.levels))):
        out.insert(0, None if batches[i] is None else _effects(level, inputs[i], batches[i], adjoint))
        adjoint = pulls[i](adjoint)
    penalty = 0 if problem.penalty is None else problem.penalty(w)
    return inputs[-1] + penalty, out


def _effects(level: Level, x: PyTree, batch: Any, adjoint: PyTree) -> Array:
    one = lambda k: trees.inner(adjoint, level.value(x, batch.part(k, 1)))
    effects = jax.lax.map(one, jnp.arange(batch.size), batch_size=1024)
    # A weighted row counts as that many equal rows.
    return effects if batch.weights is None else effects * batch.weights * batch.size


def _identity(level: Level) -> tuple[int, ...]:
    return tuple(id(x) for x in jax.tree.leaves(level.source))
