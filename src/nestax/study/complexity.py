"""How many samples a method needs for an accuracy ε, with the best of its settings for every ε.

N(ε) is the least number of samples after which E‖∇F(w_τ)‖ ≤ ε, τ uniform over the steps so far: what the
theorems bound. Learning rate and forgetting rate are constant in a run and chosen for each ε, so that no
schedule takes part. The problem changes with ε too (``nx.problems.sloped_chain``): a bound says what
happens on the worst problem for each ε, and on a fixed one the way from the start soon costs nothing.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from nestax.chain.problem import Problem
from nestax.errors import check_count, choose
from nestax.estimators import ATSCGD, NLASG, SCSC, SMVR, NestedSPIDER, Plain, SelfTuning
from nestax.estimators.tscgd import published_beta
from nestax.problems import sloped_chain
from nestax.run.sweep import Sweep, grid, sweep
from nestax.steps import Descent
from nestax.study.compare import tuning_seeds

#: ε falls by √2 from one problem to the next.
ACCURACIES = tuple(0.2 * 2 ** (-k / 2) for k in range(9))
#: Learning rates are 2^−i and forgetting rates 4^−j; all of these are tried for the first ε.
FIRST_LR = range(-1, 11)
FIRST_KNOB = range(7)
#: For the others those around the best so far, moved until the best of them is inside.
AROUND_LR = 2
AROUND_KNOB = 1
MOVES = 5
#: Reported runs are twice as long as those that chose the setting, and have at least so many records.
REPORTED = 1024
RESAMPLES = 200
#: Points that an exponent is fitted to: those with the smallest ε.
FITTED = 5


class Entry(NamedTuple):
    """How a method is run: from a setting (lr, knob) and ε. ``knob`` says whether it has one.

    stride: steps between looks at ‖∇F‖.
    batch: from ε to its batch size.
    """

    build: Callable[[Any, float, int], Any]
    knob: bool
    stride: int
    batch: Callable[[float], int] = lambda eps: 1


def _atscgd(s: Any, eps: float, levels: int) -> Any:
    return ATSCGD(lambda count: jnp.minimum(1, s.knob * published_beta(count, levels)), lr=s.lr)


def _spider(s: Any, eps: float, levels: int) -> Any:
    """Period and batches of order 1/ε, restarts with 1/ε² draws, steps never longer than lr·ε."""
    return NestedSPIDER(period=_over(eps), restart_batch=math.ceil(1 / eps**2), eps=eps, lr=s.lr)


def _over(eps: float) -> int:
    return math.ceil(0.5 / eps)


CONTENDERS = {
    "Plain": Entry(lambda s, eps, levels: (Plain(), Descent(s.lr)), False, 64),
    "SCSC": Entry(lambda s, eps, levels: (SCSC(s.knob), Descent(s.lr)), True, 64),
    "NLASG": Entry(lambda s, eps, levels: NLASG(s.knob, lr=s.lr / s.knob), True, 64),
    "ATSCGD": Entry(_atscgd, True, 64),
    "NestedSPIDER": Entry(_spider, False, 8, _over),
    "SMVR": Entry(lambda s, eps, levels: (SMVR(s.knob), Descent(s.lr)), True, 8),
    "SelfTuning": Entry(lambda s, eps, levels: (SelfTuning(), Descent(s.lr)), False, 8),
}


@dataclasses.dataclass(frozen=True)
class Point:
    """N(ε) of one method on one problem, on seeds that did not choose its setting.

    samples: infinite where ε was not reached within the steps allowed.
    again: the same from resampled seeds.
    least: the least E‖∇F(w_τ)‖ that any setting came to, on the tuning seeds.
    inside: whether the settings were not at an end of what was tried.
    """

    eps: float
    samples: float
    again: tuple[float, ...]
    lr: float
    knob: float
    inside: bool
    least: float
    steps: int


def complexity(
    method: str,
    levels: int = 3,
    bowl: str = "symmetric",
    *,
    accuracies: Sequence[float] = ACCURACIES,
    seeds: int = 24,
    tune_seeds: int = 6,
    longest: int = 2**19,
    noise: float = 0.5,
) -> list[Point]:
    """N(ε) for falling ε, until a method would need more than ``longest`` steps.

    Settings are chosen by the least number of samples after which the mean plus one standard error over
    the tuning seeds is at most ε; what is returned is measured on other seeds.

    Args:
        method: "Plain", "SCSC", "NLASG", "ATSCGD", "NestedSPIDER", "SMVR" or "SelfTuning".
        levels, bowl, noise: of ``nx.problems.sloped_chain``.
        accuracies: ε, falling.
        seeds, tune_seeds: how many, at least 2.
        longest: steps of the longest run that settings are chosen by; reported runs may be longer.
    """
    choose("method", method, tuple(CONTENDERS))
    check_count("seeds", seeds)
    entry = CONTENDERS[method]
    lrs: Sequence[int] = FIRST_LR
    knobs: Sequence[int] = FIRST_KNOB if entry.knob else (0,)
    steps = entry.stride * 64
    points: list[Point] = []
    for eps in accuracies:
        problem = sloped_chain(eps, levels, bowl=bowl, noise=noise)
        moves = 0
        while True:
            moves += 1
            i, j, needed, least = _tune(problem, entry, eps, (lrs, knobs), tune_seeds, steps, longest)
            inside = _within(i, lrs, -1) and (not entry.knob or _within(j, knobs, 0))
            lrs = range(max(i - AROUND_LR, -1), i + AROUND_LR + 1)
            knobs = range(max(j - AROUND_KNOB, 0), j + AROUND_KNOB + 1) if entry.knob else (0,)
            if inside or moves == MOVES or math.isinf(needed):
                break
            steps = int(needed)
        if math.isinf(needed):
            points.append(Point(eps, math.inf, (), 2.0**-i, 4.0**-j, inside, least, 0))
            break
        steps = int(needed)
        length = max(2 * steps, REPORTED * entry.stride)
        samples, again = _reported(_run(problem, entry, eps, [i], [j], np.arange(seeds), length), eps)
        points.append(Point(eps, samples, again, 2.0**-i, 4.0**-j, inside, least, length))
        if steps > longest / 2:
            break
    return points


def exponent(points: Sequence[Point]) -> tuple[float, float, float]:
    """p of N(ε) ∝ ε^(−p) through the points with the smallest ε; a 95 % interval by resampled seeds."""
    last = [point for point in points if math.isfinite(point.samples)][-FITTED:]
    if len(last) < 3:
        return math.nan, math.nan, math.nan
    slope = lambda counts: -float(np.polyfit(np.log([p.eps for p in last]), np.log(counts), 1)[0])
    again = np.asarray([p.again for p in last]).T
    finite = np.isfinite(again).all(axis=1)
    ends = [slope(row) for row in again[finite]] or [math.nan]
    low, high = np.quantile(ends, [0.025, 0.975])
    # Where more than a few resampled runs do not arrive, there is no upper end.
    return (
        slope([p.samples for p in last]),
        float(low),
        float(high) if finite.mean() > 0.975 else math.inf,
    )


def running_mean(run: Sweep) -> np.ndarray:
    """Mean of ‖∇F‖ up to every record: settings × seeds × records; lost lanes are infinite."""
    norms = run.records["grad_norm"][:, :, 1:]
    mean = np.cumsum(norms, axis=2) / np.arange(1, norms.shape[2] + 1)
    return np.where(np.isfinite(mean), mean, np.inf)


def first_at_most(curve: np.ndarray, eps: float) -> float:
    """Index of the first entry that is at most eps; infinite if there is none."""
    found = np.flatnonzero(curve <= eps)
    return float(found[0]) if len(found) else math.inf


def _run(
    problem: Problem, entry: Entry, eps: float, lrs: Any, knobs: Any, seeds: Any, steps: int
) -> Sweep:
    return sweep(
        problem,
        lambda s: entry.build(s, eps, len(problem.levels)),
        settings=grid(lr=[2.0**-i for i in lrs], knob=[4.0**-j for j in knobs]),
        seeds=seeds,
        steps=steps,
        batch_size=entry.batch(eps),
        record_every=entry.stride,
        record=["grad_norm"],
        progress=False,
    ).whole()


def _tune(
    problem: Problem, entry: Entry, eps: float, lattice: Any, tune_seeds: int, steps: int, longest: int
) -> tuple[int, int, float, float]:
    """The best i and j, how many steps they take, and the least mean norm of all settings.

    Lengths double until a setting reaches ε: then no other does with fewer.
    """
    lrs, knobs = lattice
    places = [(i, j) for i in lrs for j in knobs]
    while True:
        run = _run(problem, entry, eps, lrs, knobs, tuning_seeds(tune_seeds), steps)
        curves = running_mean(run)
        with np.errstate(invalid="ignore"):
            spread = curves.std(axis=1, ddof=1) / tune_seeds**0.5
        bound = curves.mean(axis=1) + np.where(np.isfinite(spread), spread, np.inf)
        first = [first_at_most(curve, eps) for curve in bound]
        best = int(np.argmin(first))
        least = float(curves.mean(axis=1).min())
        if math.isfinite(first[best]):
            return *places[best], int(first[best] + 1) * entry.stride, least
        if steps >= longest:
            return *places[int(np.argmin(bound[:, -1]))], math.inf, least
        steps = 2 * steps


def _within(place: int, tried: Sequence[int], end: int) -> bool:
    """Not at an end of what was tried, unless nothing lies beyond it."""
    return place < max(tried) and (place > min(tried) or place == end)


def _reported(run: Sweep, eps: float) -> tuple[float, tuple[float, ...]]:
    curves = running_mean(run)[0]
    drawn = run.records["samples"][1:]
    after = lambda curve: _at(drawn, first_at_most(curve, eps))
    rng = np.random.default_rng(0)
    rows = [rng.integers(len(curves), size=len(curves)) for _ in range(RESAMPLES)]
    return after(curves.mean(axis=0)), tuple(after(curves[row].mean(axis=0)) for row in rows)


def _at(drawn: np.ndarray, index: float) -> float:
    return float(drawn[int(index)]) if math.isfinite(index) else math.inf
