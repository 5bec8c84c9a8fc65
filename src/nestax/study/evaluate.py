"""F(w) with a confidence interval: how good weights are on data they have not seen."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.devices.asked import Devices, sharing
from nestax.devices.hosts import gathered
from nestax.devices.mesh import at_place
from nestax.draws.rows import HERE, Batch, Coupling, held_by
from nestax.draws.source import AbstractSource, Groups
from nestax.errors import ProblemError, check_count, check_setting
from nestax.parts.estimator import draw_batches
from nestax.programs import compute
from nestax.run.prepare import shared_by
from nestax.streams.feed import PORTION_BYTES, streams_of, with_first_rows
from nestax.streams.stream import Stream


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate of F(w): ``low`` to ``high`` covers it with the asked confidence."""

    value: float
    low: float
    high: float
    stderr: float
    confidence: float = 0.95

    def __repr__(self) -> str:
        return f"{self.value:.6g} [{self.low:.6g}, {self.high:.6g}], {100 * self.confidence:g} %"


def evaluate(
    problem: Problem,
    w: PyTree,
    *,
    confidence: float = 0.95,
    draws: int | None = None,
    seed: int = 0,
    devices: int | Mesh | Devices | None = None,
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
    Where outer draws of ``nx.Conditional`` never come back, ``draws`` of them are made, each with as
    many inner draws. The bias that these leave, of order 1/draws, is taken off by comparing them with
    their halves, which leaves 1/draws².
    Streams of arrays and files are read in passes, two a level and one for the interval, so that their
    rows need not fit into memory.

    Args:
        problem: the problem, on the rows to evaluate on.
        w: the weights.
        confidence: of the interval, in (0, 1).
        draws: how many draws per level to use; needed for a Sampler, where there are no rows, and
            for a Stream of an iterator, where it means the first rows. None uses every row.
        seed: for the draws.
        devices: as in ``minimize``, for rows and for blocks.
    """
    check_setting("confidence", confidence, "in (0, 1)", lambda c: (c > 0) & (c < 1))
    if problem.blocks is not None and problem.blocks.weighted:
        raise ProblemError(
            "nx.evaluate needs blocks of one length: evaluate problem.block(m) one by one, or use "
            "problem.value(w), which has no interval."
        )
    if problem.endless:
        return _nested(problem, w, confidence, draws, seed)
    sharded = sharing(devices, ("rows", "blocks"), problem)
    if sharded is not None and streams_of(problem) and jax.process_count() > 1:
        raise ProblemError(
            "nx.evaluate does not read a Stream in several processes together: leave devices out, and "
            "let one of them evaluate it."
        )
    if sharded is not None:
        problem = at_place(shared_by(problem, sharded), sharded.everywhere)
        w = at_place(w, sharded.everywhere)
    if problem.blocks is not None:  # side by side, where their devices are
        problem = held_by(problem, HERE).every_block()
    drawn = None
    if draws is not None:
        sizes = tuple(check_count("draws", draws) for _ in problem.levels)
        passes = draw_batches(
            with_first_rows(problem, draws), ("value",), jax.random.key(seed), 0, sizes
        )
        drawn = [b["value"] and dataclasses.replace(b["value"], many=True) for b in passes]
    if drawn is None and streams_of(problem):
        value, influences, streamed = _survey(problem, w)
    else:
        value, influences = compute(_influences, problem, w, drawn)
        streamed = 0.0
    samples: list[tuple[Any, np.ndarray]] = []
    for level, per_sample in zip(problem.levels, influences, strict=True):
        members = _members(level.source) if drawn is None and per_sample else [None] * len(per_sample)
        for member, effects in zip(members, per_sample, strict=True):
            _add(samples, member, np.asarray(gathered(effects), np.float64))
    variance = streamed + sum(_variance_of_mean(effects) for _, effects in samples)
    return _interval(float(value), variance, confidence)


def _interval(centre: float, variance: float, confidence: float) -> Interval:
    stderr = math.sqrt(variance)
    reach = NormalDist().inv_cdf(0.5 + confidence / 2) * stderr
    return Interval(centre, centre - reach, centre + reach, stderr, confidence)


#: Inner draws that are made at once, of some outer ones.
NESTED_AT_ONCE = 2**18


def _nested(problem: Problem, w: PyTree, confidence: float, draws: int | None, seed: int) -> Interval:
    """Over outer draws that never come back: nested means, the bias of the inner ones taken off."""
    if draws is None:
        raise ProblemError("outer draws never end: say how many to use, nx.evaluate(..., draws=1000).")
    draws = max(2, check_count("draws", draws))
    values = np.asarray(compute(_values_of_outer, problem, w, jax.random.key(seed), draws), np.float64)
    return _interval(values.mean(), _variance_of_mean(values), confidence)


def _values_of_outer(problem: Problem, w: PyTree, key: Array, draws: int) -> Array:
    """2 F_ξ(all) − (F_ξ(one half) + F_ξ(other half))/2 for each outer draw ξ."""
    penalty = 0 if problem.penalty is None else problem.penalty(w)

    def of_outer(key: Array) -> Array:
        outer, inner = jax.random.split(key)
        chain = problem.block(outer)
        half = -(-draws // 2)
        sizes = (2 * half,) * len(chain.levels)
        batches = [batch["value"] for batch in draw_batches(chain, ("value",), inner, 0, sizes)]

        def value(cut: Callable[[Batch], Batch]) -> Array:
            x = w
            for level, batch in zip(chain.levels, batches, strict=True):
                x = level.project(level.value(x, batch and cut(batch)))
            return x

        halves = [value(lambda batch, at=at: batch.part(at, half)) for at in (0, half)]
        return 2 * value(lambda batch: batch) - (halves[0] + halves[1]) / 2

    width = max(1, NESTED_AT_ONCE // draws)
    return (
        jax.lax.map(of_outer, jax.random.split(key, draws), batch_size=width)
        + penalty
        + problem.nonsmooth(w)
    )


def _influences(problem: Problem, w: PyTree, drawn: list[Any] | None) -> tuple[Array, list[Any]]:
    """F(w), and for every level the first-order effects of the draws of each of its samples."""
    sources = [level.source for level in problem.levels]
    batches = [source and source.population() for source in sources] if drawn is None else drawn
    pulls = []
    inputs = [w]
    for level, batch in zip(problem.levels, batches, strict=True):
        value, pull = level.value_and_pull(inputs[-1], batch)
        inputs.append(value)
        pulls.append(pull)
    adjoint = jnp.ones_like(inputs[-1])
    out = []
    for i, level in reversed(list(enumerate(problem.levels))):
        out.insert(0, [] if batches[i] is None else _effects(level, inputs[i], batches[i], adjoint))
        adjoint = pulls[i](adjoint)
    penalty = 0 if problem.penalty is None else problem.penalty(w)
    return inputs[-1] + penalty + problem.nonsmooth(w), out


# Streams: the same in passes over rows that need not fit into memory


class Moments:
    """Variance of the mean of numbers that come in parts (Chan, Golub and LeVeque's update)."""

    def __init__(self):
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0

    def add(self, part: np.ndarray) -> None:
        count = self.count + len(part)
        mean = float(part.mean())
        off = mean - self.mean
        self.squares += float(np.sum((part - mean) ** 2)) + off**2 * self.count * len(part) / count
        self.mean += off * len(part) / count
        self.count = count

    def variance_of_mean(self) -> float:
        return self.squares / (self.count - 1) / self.count if self.count > 1 else math.inf


def _survey(problem: Problem, w: PyTree) -> tuple[Array, list[Any], float]:
    """F(w), the effects of the rows that are in memory, and the variance due to those that are not."""
    inputs = [w]
    adjoints = [jnp.ones((), problem.dtype)]
    for level in problem.levels:
        inputs.append(_mean_over(Level.value, level, inputs[-1]))
    for level, x in zip(reversed(problem.levels), inputs[-2::-1], strict=True):
        adjoints.insert(0, _mean_over(_pulled, level, x, adjoints[0]))
    effects = []
    by_reader = {}
    for level, x, adjoint in zip(problem.levels, inputs, adjoints[1:], strict=False):
        in_memory: list[Any] = []
        if isinstance(level.source, Stream):
            by_reader.setdefault(id(level.source.reader), []).append((level, x, adjoint))
        elif level.source is not None:
            in_memory = compute(_effects, level, x, level.source.population(), adjoint)
        effects.append(in_memory)
    variance = 0.0
    for readings in by_reader.values():
        moments = Moments()
        for _, part in _parts(readings[0][0].source):
            together = [compute(_effects, v, x, part, p)[0] for v, x, p in readings]
            moments.add(np.sum(np.asarray(together, np.float64), axis=0))
        variance += moments.variance_of_mean()
    penalty = 0 if problem.penalty is None else problem.penalty(w)
    return inputs[-1] + penalty + problem.nonsmooth(w), effects, variance


def _pulled(level: Level, x: PyTree, batch: Any, adjoint: PyTree) -> PyTree:
    return level.value_and_pull(x, batch)[1](adjoint)


def _mean_over(fn: Callable[..., PyTree], level: Level, x: PyTree, *rest: PyTree) -> PyTree:
    """The mean of ``fn(level, x, batch, *rest)`` over its population, in parts if it is a stream."""
    if not isinstance(level.source, Stream):
        return compute(fn, level, x, level.source and level.source.population(), *rest)
    total: PyTree = None
    for share, part in _parts(level.source):
        mean = compute(fn, level, x, part, *rest)
        # In float64 on the host: over many parts single precision would lose digits.
        part_of_total = jax.tree.map(lambda x, s=share: s * np.asarray(x, np.float64), mean)
        total = part_of_total if total is None else jax.tree.map(np.add, total, part_of_total)
    return jax.tree.map(lambda x: jnp.asarray(x, level.shape.inputs.leaves[0][1]), total)


def _parts(stream: Stream) -> Iterator[tuple[float, Batch]]:
    """Yields every row of a stream once, in parts of bounded size, each with its share of all rows."""
    size = stream.reader.size
    example = stream.example()
    if size is None:
        raise ProblemError(
            "an iterator can be read only once, so nothing exact can be computed from it: estimate F(w) "
            "with nx.evaluate(problem, w, draws=...)."
        )
    row = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(example))
    most = max(1, PORTION_BYTES // max(row, 1))
    for start in range(0, size, most):
        rows, why = stream.reader.read(start, min(most, size - start))
        if why is not None:
            raise ProblemError(why)
        rows = jax.tree.map(lambda x, s: jnp.asarray(x, s.dtype), rows, example)
        yield min(most, size - start) / size, Batch(rows, many=True)


def _effects(level: Level, x: PyTree, batch: Any, adjoint: PyTree) -> list[Array]:
    """Up to a constant, the effect of every draw; one array for each independent sample."""

    def over(rows: Callable[[Array], Batch], count: int) -> Array:
        def effect(k: Array) -> Any:
            return optax.tree.vdot(adjoint, level.value(x, rows(k)))

        return jax.lax.map(effect, jnp.arange(count), batch_size=1024)

    if isinstance(batch, Coupling):
        # Outputs are sums over the groups, so the effect of a row is the same whatever the other rows.
        sizes = [member.size for member in batch.members]
        return [over(lambda k, g=g: _vary(batch, g, k), size) for g, size in enumerate(sizes)]

    def of_part(draws: PyTree) -> tuple[tuple[()], Array]:
        part = Batch(draws)
        return (), over(lambda k: part.part(k, 1), part.size)

    effects = batch.holder.total_and_rows(of_part, batch.draws)[1]
    if batch.weights is None:
        return [effects]
    # Σ weight·(effect − mean), written as a mean over the draws.
    return [(effects - batch.weights @ effects) * batch.weights * batch.size]


def _vary(groups: Coupling, group: int, k: Array) -> Batch:
    """Returns one draw: row k of one group, the first row of all others."""
    first = jnp.zeros(1, jnp.int32)
    members = enumerate(groups.members)
    return Batch(tuple(m.rows(k[None] if number == group else first).draws for number, m in members))


def _members(source: AbstractSource | None) -> tuple[Any, ...]:
    """Returns the samples that a source holds; none for a deterministic level."""
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
