"""Rates of convergence, measured: how the number of samples grows with the accuracy reached.

A method is run with its published schedule for T steps, T doubling over a factor of 16, all constants of
the schedule fixed over T. If the error falls like T^(−p), the samples needed for an error ε grow like
ε^(−1/p); 1/p is what is compared with the claim.

SMVR ties β to the learning rate as its theorem does, β_t = c·η_t², so that every method has one constant
to choose: the factor of its learning rate.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nestax.chain.problem import Problem
from nestax.errors import SettingError, check_count, choose
from nestax.estimators import ATSCGD, NLASG, SCSC, SMVR
from nestax.figures import COLOURS, DASHES
from nestax.parts.settings import Decay, Schedule
from nestax.run.sweep import Sweep, grid, sweep
from nestax.steps import Descent
from nestax.study.compare import tuning_seeds
from nestax.table import Table
from nestax.theory.regularise import regularised

from experiments.cells import kept_in
from experiments.figures import empty_panels
from experiments.smooth_chain import KINDS, smooth_chain

#: Length of the first stage, where stages double.
FIRST_STAGE = 100
#: c of β_t = c·η_t². Far below the family's curvature the error is that of the tracked gradient, which
#: is the part that the theorems bound; the best c for a given T trades it for the way from the start.
SMVR_C = 0.1
#: μ·√T of the quadratic term that a convex objective gets.
CONVEX_MU = 0.1
#: Records of a run; the error of the non-convex family is the mean over the second half of them.
RECORDS = 64
RESAMPLES = 400
#: Constants are chosen for runs this many times shorter than the longest: a rate is what happens when T
#: grows and the constants stay. Chosen for the runs that are measured they are a compromise between the
#: way from the start and the noise, and the fit sees the way from the start end.
TUNED_AT = 256


class Entry(NamedTuple):
    """How a method is run, the factors of its learning rate, and the exponent its authors claim."""

    build: Callable[[Any], Any]
    lr: Sequence[float]
    claim: Callable[[str, int], float | None]
    prepare: Callable[[Problem, int], Problem] = lambda problem, steps: problem


class Halving(eqx.Module):
    """2^(−exponent·stage), where stage s = 0, 1, … takes FIRST_STAGE·2^s steps."""

    exponent: float = eqx.field(static=True)
    shift: int = eqx.field(static=True)

    def __call__(self, count: Array) -> Array:
        number = (count - self.shift) // FIRST_STAGE + 1
        stage = 31 - jax.lax.clz(jnp.maximum(number, 1).astype(jnp.int32))
        return 2.0 ** (-self.exponent * stage.astype(count.dtype))


def smvr(s: Any) -> Any:
    beta = Schedule(Decay(2 / 3), scale=SMVR_C * s.lr**2)
    return SMVR(beta), Descent(Schedule(Decay(1 / 3), scale=s.lr))


def staged_smvr(s: Any) -> Any:
    beta = Schedule(Halving(1.0, 1), scale=SMVR_C * s.lr**2)
    return SMVR(beta), Descent(Schedule(Halving(0.5, 0), scale=s.lr))


def only(family: str, exponent: Callable[[int], float]) -> Callable[[str, int], float | None]:
    return lambda given, levels: exponent(levels) if given == family else None


SMVR_LR = (0.5, 1.0, 2.0)
WIDE = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
CONTENDERS = {
    "SMVR": Entry(
        smvr,
        SMVR_LR,
        only("nonconvex", lambda levels: 3.0),  # with PL it implies 1.5, which nobody claims
    ),
    "SMVR in stages": Entry(
        staged_smvr,
        SMVR_LR,
        lambda family, levels: {"strongly convex": 1.0, "PL": 1.0}.get(family),
    ),
    "SMVR in stages, regularised": Entry(
        staged_smvr,
        SMVR_LR,
        only("convex", lambda levels: 2.0),
        lambda problem, steps: regularised(problem, CONVEX_MU * steps**-0.5),
    ),
    "SCSC": Entry(lambda s: SCSC(lr=s.lr), WIDE, only("nonconvex", lambda levels: 4.0)),
    "NLASG": Entry(lambda s: NLASG(lr=s.lr), WIDE, only("nonconvex", lambda levels: 4.0)),
    "ATSCGD": Entry(lambda s: ATSCGD(lr=s.lr), WIDE, only("nonconvex", lambda levels: (7 + levels) / 2)),
}


@dataclasses.dataclass(frozen=True)
class Rates:
    """Result of ``measure_rates``.

    table: one row per method and number of levels: exponent with a 95 % interval, claim, settings.
    points: every measured point: method, levels, steps, samples, mean error, standard error.
    """

    family: str
    table: Table
    points: Table

    def __str__(self) -> str:
        return str(self.table)

    __repr__ = __str__

    def plot(self) -> Any:
        """Error against samples on logarithmic axes, one panel per number of levels."""
        numbers = sorted(set(self.points.column("levels")))
        wide = 2 if len(numbers) == 4 else min(3, len(numbers))
        high = -(-len(numbers) // wide)
        size = (4.2 * wide, 3.4 * high)
        figure, axes = empty_panels(high, wide, size, sharex=True, sharey=True)
        for axis in axes.flat[len(numbers) :]:
            axis.set_visible(False)
        names = list(dict.fromkeys(self.points.column("method")))
        for axis, K in zip(axes.flat, numbers, strict=False):
            for number, name in enumerate(names):
                rows = [row for row in self.points.rows if row[:2] == [K, name]]
                fitted = next(row for row in self.table.rows if row[:2] == [K, name])
                _, _, exponent, low, top, claimed, _ = fitted
                claim = f", claimed {claimed:g}" if isinstance(claimed, float) else ""
                axis.errorbar(
                    [row[3] for row in rows],
                    [row[4] for row in rows],
                    yerr=[row[5] for row in rows],
                    color=COLOURS[number],
                    ls=DASHES[number % len(DASHES)],
                    marker="o",
                    ms=3,
                    label=f"{name}: {exponent:.2f} ({low:.2f}–{top:.2f}){claim}",
                )
            axis.set(xscale="log", yscale="log", title=f"{K} level{'s' if K > 1 else ''}")
            axis.set_xlabel("samples drawn, all levels")
            axis.xaxis.set_minor_formatter("")
            axis.tick_params(labelbottom=True)
            axis.legend(frameon=False, fontsize=7)
        for row in axes:
            row[0].set_ylabel("mean ‖∇F‖" if self.family == "nonconvex" else "F(w) − F*")
        return figure


def measure_rates(
    family: str = "nonconvex",
    methods: Sequence[str] = ("SMVR", "SCSC", "NLASG", "ATSCGD"),
    levels: Sequence[int] = (1, 2, 3),
    *,
    longest: int = 2**18,
    seeds: int = 16,
    tune_seeds: int = 8,
    noise: float = 0.5,
    cells: Path | None = None,
) -> Rates:
    """Measures how samples grow with accuracy, per method and number of levels, at batch size 1.

    The factor of each learning rate is chosen on a grid for short runs, with seeds of their own, and
    then fixed; the least mean gap F − F* plus one deviation wins, so that neither luck does nor a place
    far away where the gradient is small. Errors are means over seeds: of ‖∇F‖ over the second half of
    the run for the non-convex family (a random iterate, without the way from the start), of F − F* over
    the last sixteenth for the others. The exponent is fitted by least squares over five lengths; its
    interval comes from resampling the seeds.

    Args:
        family: "nonconvex", "convex", "strongly convex" or "PL"; see ``smooth_chain``.
        methods: names from "SMVR", "SMVR in stages", "SMVR in stages, regularised", "SCSC", "NLASG",
            "ATSCGD".
        levels: numbers of levels.
        longest: steps of the longest run; the shortest is a sixteenth of it.
        seeds, tune_seeds: how many.
        noise: of the family.
        cells: a folder in which every sweep is kept, and found again; None keeps none.
    """
    choose("family", family, KINDS)
    check_count("seeds", seeds)
    for name in methods:
        choose("methods", name, tuple(CONTENDERS))
    if check_count("longest", longest) < TUNED_AT * RECORDS:
        raise SettingError(f"longest must be at least {TUNED_AT * RECORDS} steps; got {longest}.")
    lengths = [longest // 2**k for k in (4, 3, 2, 1, 0)]
    column = "grad_norm" if family == "nonconvex" else "gap"
    rows = []
    points = []
    for K in levels:
        problem = smooth_chain(family, K, noise=noise)
        for name in methods:
            contender = CONTENDERS[name]
            tuning = tuning_seeds(tune_seeds)
            inside = None if cells is None else cells / f"{family} {K} {name}".replace(" ", "-")
            short = longest // TUNED_AT
            tried = _errors(problem, contender, contender.lr, tuning, short, "gap", inside)[1]
            with np.errstate(invalid="ignore"):
                best = int(np.nanargmin(tried.mean(axis=1) + tried.std(axis=1)))
            lr = contender.lr[best]
            one = functools.partial(_errors, problem, contender, [lr], range(seeds), column=column)
            runs = [one(steps=steps, cells=inside) for steps in lengths]
            samples = np.asarray([count for count, _ in runs])
            errors = np.stack([error[0] for _, error in runs])
            exponent, low, high = fit(samples, errors)
            claim = contender.claim(family, K)
            rows.append([K, name, exponent, low, high, "–" if claim is None else claim, lr])
            for steps, count, each in zip(lengths, samples, errors, strict=True):
                spread = float(each.std(ddof=1) / len(each) ** 0.5) if len(each) > 1 else 0.0
                points.append([K, name, steps, int(count), float(each.mean()), spread])
            jax.clear_caches()  # programs of other lengths and methods are not used again
    columns = ["levels", "method", "exponent", "low", "high", "claimed", "lr"]
    named = ["levels", "method", "steps", "samples", "error", "standard error"]
    return Rates(family, Table(columns, rows), Table(named, points))


def fit(samples: np.ndarray, errors: np.ndarray) -> tuple[float, float, float]:
    """1/p for mean errors that fall like samples^(−p), and a 95 % interval from resampled seeds."""
    rng = np.random.default_rng(0)
    seeds = errors.shape[1]
    slope = lambda means: -float(np.polyfit(np.log(samples), np.log(means), 1)[0])
    again = [slope(errors[:, rng.integers(seeds, size=seeds)].mean(axis=1)) for _ in range(RESAMPLES)]
    low, high = np.quantile(again, [0.025, 0.975])
    inverse = lambda p: 1 / p if p > 0 else float("inf")
    return inverse(slope(errors.mean(axis=1))), inverse(high), inverse(low)


def _errors(
    problem: Problem,
    contender: Entry,
    lr: Sequence[float],
    seeds: Any,
    steps: int,
    column: str,
    cells: Path | None = None,
) -> tuple[int, np.ndarray]:
    """Samples of a run, and errors: learning rates × seeds."""
    given = contender.prepare(problem, steps)
    if given is not problem:
        column = "objective"  # F without what was added to it; F* = 0, so that this is a gap
    run: Sweep = sweep(
        given,
        contender.build,
        settings=grid(lr=lr),
        seeds=list(seeds),
        steps=steps,
        batch_size=1,
        record_every=steps // RECORDS,
        record=[column],
        progress=False,
        **kept_in(cells, f"{len(lr)}-rates-{steps}-steps"),
    ).whole()
    kept = RECORDS // 2 if column == "grad_norm" else RECORDS // 16
    error = run.records[column][:, :, -kept:].mean(axis=2)
    return run.records["samples"][-1], np.where(run.finite & np.isfinite(error), error, np.inf)
