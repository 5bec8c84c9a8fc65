"""How many samples a method needs for an accuracy ε, with the best of its settings for every ε.

N(ε) is the least number of samples after which E‖∇F(w_τ)‖ ≤ ε, τ uniform over the steps so far: what the
theorems bound. Of a method that returns an average, w_τ are its averages. Learning rate and forgetting
rate are constant in a run and chosen for each ε, so that no schedule takes part. The problem changes
with ε too (``sloped_chain``, ``zero_chain``): a bound says what happens on the worst problem
for each ε, and on a fixed one the way from the start soon costs nothing.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from nestax.chain.problem import Problem
from nestax.errors import check_count, choose
from nestax.estimators import ATSCGD, NLASG, SCSC, SMVR, SSD, NestedSPIDER, Plain, SelfTuning
from nestax.estimators.tscgd import published_beta
from nestax.run.sweep import Sweep, grid, sweep
from nestax.steps import Descent
from nestax.study.compare import tuning_seeds

#: ε falls by √2 from one problem to the next.
ACCURACIES = tuple(0.2 * 2 ** (-k / 2) for k in range(9))
#: Every method is tried at all learning rates and all values of its knob, for every ε.
LEARNING_RATES = tuple(2.0**-i for i in range(-3, 12))
KNOBS = tuple(4.0**-j for j in range(8))
#: Records of the first, shortest runs that settings are chosen by.
FIRST_RECORDS = 64
#: Reported runs have at least so many records.
REPORTED = 1024
RESAMPLES = 200
#: Points that an exponent is fitted to: those with the smallest ε.
FITTED = 5


class Entry(NamedTuple):
    """How a method is run: from a setting (lr, knob), ε and the number of levels.

    knob: whether it has one besides the learning rate.
    stride: steps between looks at ‖∇F‖.
    ends: knobs beyond which there is nothing to try.
    batch: from ε to its batch size.
    """

    build: Callable[[Any, float, int], Any]
    knob: bool
    stride: int
    ends: tuple[float, ...] = (1.0,)
    batch: Callable[[float], int] = lambda eps: 1


def _atscgd(s: Any, eps: float, levels: int) -> Any:
    return ATSCGD(lambda count: jnp.minimum(1, s.knob * published_beta(count, levels)), lr=s.lr)


def _ssd(s: Any, eps: float, levels: int) -> Any:
    """Steps 1/(2/(lr·t) + 1/knob): they grow, as accelerated ones do, until the noise caps them."""
    return SSD(lr=lambda count: 1 / (2 / (s.lr * (count + 1)) + 1 / s.knob))


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
    "SSD": Entry(_ssd, True, 64, ends=()),
    "NestedSPIDER": Entry(_spider, False, 8, batch=_over),
    "SMVR": Entry(lambda s, eps, levels: (SMVR(s.knob), Descent(s.lr)), True, 8),
    "SelfTuning": Entry(lambda s, eps, levels: (SelfTuning(), Descent(s.lr)), False, 8),
}


@dataclasses.dataclass(frozen=True)
class Point:
    """N(ε) of one method on one problem, on seeds that did not choose its setting.

    samples: infinite where ε was not reached within the steps allowed, or not on the other seeds.
    again: the same from resampled seeds, the same ones for every method.
    least: the least E‖∇F(w_τ)‖ that any setting came to, on the tuning seeds.
    inside: whether neither setting is at an end of what was tried.
    steps: of the runs that chose the setting, when the best of them reached ε; 0 where none did.
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
    family: Callable[[float], Problem],
    *,
    accuracies: Sequence[float] = ACCURACIES,
    seeds: int = 48,
    tune_seeds: int = 12,
    longest: int = 2**19,
    found: Sequence[Point] = (),
) -> Iterator[Point]:
    """N(ε) for falling ε, until a method would need more than ``longest`` steps.

    For every ε all learning rates from 2⁻¹¹ to 8 and all knobs from 4⁻⁷ to 1 are tried. The setting is
    chosen by the least number of samples after which the mean plus one standard error over the tuning
    seeds is at most ε; what is yielded is measured on other seeds.

    Args:
        method: "Plain", "SCSC", "NLASG", "ATSCGD", "SSD", "NestedSPIDER", "SMVR" or "SelfTuning".
        family: from ε to the problem, such as ``sloped_chain``.
        accuracies: ε, falling.
        seeds, tune_seeds: how many, at least 2.
        longest: steps of the longest run that settings are chosen by; reported runs may be longer.
        found: what an earlier call yielded for the first accuracies; it goes on from there.
    """
    choose("method", method, tuple(CONTENDERS))
    check_count("seeds", seeds)
    entry = CONTENDERS[method]
    shortest = entry.stride * FIRST_RECORDS
    last = found[-1] if found else None
    for eps in accuracies[len(found) :]:
        if last is not None and (last.steps == 0 or last.steps > longest / 2):
            return
        start = shortest if last is None else max(shortest, last.steps)
        last = _point(family(eps), entry, eps, start, seeds, tune_seeds, longest)
        yield last


def exponent(points: Sequence[Point]) -> tuple[float, float, float]:
    """p of N(ε) ∝ ε^(−p) through the points with the smallest ε; a 95 % interval by resampled seeds."""
    last = [point for point in points if math.isfinite(point.samples)][-FITTED:]
    if len(last) < 3:
        return math.nan, math.nan, math.nan
    slope = lambda counts: -float(np.polyfit(np.log([p.eps for p in last]), np.log(counts), 1)[0])
    again = np.asarray([p.again for p in last]).T
    finite = np.isfinite(again).all(axis=1)
    return slope([p.samples for p in last]), *_interval([slope(row) for row in again[finite]], finite)


def ratio(one: Point, other: Point) -> tuple[float, float, float]:
    """N of one method over that of another on the same problem and seeds; a 95 % interval, paired."""
    with np.errstate(invalid="ignore"):  # where neither arrives
        again = np.asarray(one.again) / np.asarray(other.again)
    finite = np.isfinite(again) & (again > 0)
    return one.samples / other.samples, *_interval(again[finite], finite)


def _interval(resampled: Any, finite: Any) -> tuple[float, float]:
    low, high = np.quantile(resampled if len(resampled) else [math.nan], [0.025, 0.975])
    # Where more than a few resampled runs do not arrive, there is no upper end.
    return float(low), float(high) if finite.mean() > 0.975 else math.inf


def running_mean(run: Sweep) -> np.ndarray:
    """Mean of ‖∇F‖ up to every record: settings × seeds × records; lost lanes are infinite."""
    norms = run.records["grad_norm"][:, :, 1:]
    mean = np.cumsum(norms, axis=2) / np.arange(1, norms.shape[2] + 1)
    return np.where(np.isfinite(mean), mean, np.inf)


def first_at_most(curve: np.ndarray, eps: float) -> float:
    """Index of the first entry that is at most eps; infinite if there is none."""
    found = np.flatnonzero(curve <= eps)
    return float(found[0]) if len(found) else math.inf


def _point(
    problem: Problem, entry: Entry, eps: float, start: int, seeds: int, tune_seeds: int, longest: int
) -> Point:
    setting, steps, least = _tune(problem, entry, eps, start, tune_seeds, longest)
    lr = setting["lr"][0]
    knob = setting["knob"][0]
    edge = _at_an_end(entry, lr, knob)
    if steps is None:
        return Point(eps, math.inf, (), lr, knob, not edge, least, 0)
    length = max(2 * steps, REPORTED * entry.stride)
    samples, again = _reported(_run(problem, entry, eps, setting, np.arange(seeds), length), eps)
    if not np.isfinite(again).all():
        longer = _run(problem, entry, eps, setting, np.arange(seeds), 2 * length)
        samples, again = _reported(longer, eps)
    return Point(eps, samples, again, lr, knob, not edge, least, steps)


def _at_an_end(entry: Entry, lr: float, knob: float) -> bool:
    ends = (KNOBS[0], KNOBS[-1]) if entry.knob else ()
    return lr in (LEARNING_RATES[0], LEARNING_RATES[-1]) or (knob in ends and knob not in entry.ends)


def _run(problem: Problem, entry: Entry, eps: float, settings: Any, seeds: Any, steps: int) -> Sweep:
    return sweep(
        problem,
        lambda s: entry.build(s, eps, len(problem.levels)),
        settings=settings,
        seeds=seeds,
        steps=steps,
        batch_size=entry.batch(eps),
        record_every=entry.stride,
        record=["grad_norm"],
        progress=False,
    ).whole()


def _tune(
    problem: Problem, entry: Entry, eps: float, steps: int, tune_seeds: int, longest: int
) -> tuple[dict[str, list[float]], int | None, float]:
    """The best setting, how many steps it takes, and the least mean norm of all settings.

    Lengths double until a setting reaches ε: then no other does with fewer. Of several that reach it at
    the same record one that is at no end of the grid is taken.
    """
    lattice = grid(lr=LEARNING_RATES, knob=KNOBS if entry.knob else KNOBS[:1])
    one = lambda k: {name: [float(column[k])] for name, column in lattice.items()}
    while True:
        curves = running_mean(_run(problem, entry, eps, lattice, tuning_seeds(tune_seeds), steps))
        with np.errstate(invalid="ignore"):
            spread = curves.std(axis=1, ddof=1) / tune_seeds**0.5
        bound = curves.mean(axis=1) + np.where(np.isfinite(spread), spread, np.inf)
        first = [first_at_most(curve, eps) for curve in bound]
        soonest = np.flatnonzero(np.asarray(first) == min(first))
        inside = [k for k in soonest if not _at_an_end(entry, lattice["lr"][k], lattice["knob"][k])]
        best = int([*inside, *soonest][0])
        least = float(curves.mean(axis=1).min())
        if math.isfinite(first[best]):
            return one(best), int(first[best] + 1) * entry.stride, least
        if steps >= longest:
            return one(int(np.argmin(bound[:, -1]))), None, least
        steps = 2 * steps


def _reported(run: Sweep, eps: float) -> tuple[float, tuple[float, ...]]:
    curves = running_mean(run)[0]
    drawn = run.records["samples"][1:]
    after = lambda curve: _at(drawn, first_at_most(curve, eps))
    rng = np.random.default_rng(0)
    rows = [rng.integers(len(curves), size=len(curves)) for _ in range(RESAMPLES)]
    return after(curves.mean(axis=0)), tuple(after(curves[row].mean(axis=0)) for row in rows)


def _at(drawn: np.ndarray, index: float) -> float:
    return float(drawn[int(index)]) if math.isfinite(index) else math.inf
