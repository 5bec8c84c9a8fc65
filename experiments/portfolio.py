"""Portfolios of industries, Section 5.1 of Jiang et al., ICML 2022: its Figures 1 and 2.

    F(x) = −E[r·x] + λ·sqrt(Var[r·x]),   x on the probability simplex, λ = 0.2, r in percent

Every method is tried at the seven learning rates of the paper times three values of one knob of its own,
chosen on seeds of their own and reported on others, with the same number of samples. A learning rate is
the length of a step here: what a step rule multiplies it by is divided out first.

The paper leaves open what is fixed here: the feasible set is the simplex, the batch size 128
(SnapshotSMVR, which is not one of the paper's methods, has 64), the budget six passes over the rows for
each of the two levels that draw, the start equal weights, and samples are draws summed over levels,
first batches, restarts and snapshots included.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nestax.chain.problem import Problem
from nestax.errors import ProblemError, check_count
from nestax.estimators import NLASG, SMVR, AdjointSMVR, SnapshotSMVR
from nestax.figures import NAMES
from nestax.problems import exact_portfolio, mean_deviation
from nestax.problems.portfolio.exact import Optimum
from nestax.run.sweep import Settings, Sweep, grid, sweep
from nestax.study.compare import TAIL, tuning_seeds
from nestax.table import Table

from experiments.cells import kept_in
from experiments.contenders import (
    Contender,
    atscgd,
    last_within,
    nested_spider,
    nlasg,
    scsc,
    smvr,
)
from experiments.figures import draw_panels

#: The sample of the paper: July 1926 to October 2021.
ROWS = 25_105
INDUSTRIES = (10, 12, 17, 30)
BATCH_SIZE = 128
PASSES = 6
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
#: The last stands for no ball, as in the paper.
RADII = (5.0, 10.0, 50.0, 100.0, 1e7)
#: A tracked variance is kept above this; no portfolio of these rows has less than 0.3. Next to zero the
#: square root has a derivative that throws the weights into a corner.
LEAST_VARIANCE = 0.01
DELTA = 1e-12
#: What F* may be off by, proved by convexity.
OPTIMUM_GAP = 1e-13

SMALL_BETAS = (0.01, 0.03, 0.1)
PAPER_BETAS = (0.1, 0.5, 0.9)
ACCURACIES = (0.03, 0.1, 0.3)
#: For n rows the authors of Nested-SPIDER restart with a full pass every √n steps.
FULL_PASSES: dict[str, Any] = {"restart_batch": "population", "period": round(ROWS**0.5)}
#: Of NLASG where a learning rate is 1/β of its paper: a step is τ times as long.
AS_PRINTED = "NLASG, lr = 1/β"
#: The methods that the paper compares.
OF_THE_PAPER = ("A-TSCGD", "NLASG", "Nested-SPIDER", "SCSC", "SMVR")
CONTENDERS = {
    "A-TSCGD": Contender(atscgd(levels=3), "scale", (0.5, 1.0, 2.0)),
    "NLASG": Contender(nlasg, "tau", SMALL_BETAS),
    AS_PRINTED: Contender(lambda s: NLASG(s.tau, lr=s.lr), "tau", PAPER_BETAS),
    "Nested-SPIDER": Contender(nested_spider(), "eps", ACCURACIES),
    "SCSC": Contender(scsc, "beta", PAPER_BETAS),
    "SMVR": Contender(smvr, "beta", SMALL_BETAS),
    "SMVR, β of the paper": Contender(smvr, "beta", PAPER_BETAS),
    "AdjointSMVR": Contender(lambda s: AdjointSMVR(s.beta, lr=s.lr), "beta", SMALL_BETAS),
    "Nested-SPIDER, full passes": Contender(nested_spider(**FULL_PASSES), "eps", ACCURACIES),
    "SnapshotSMVR": Contender(lambda s: SnapshotSMVR(s.beta, lr=s.lr), "beta", SMALL_BETAS, 2, 2),
}


@dataclasses.dataclass(frozen=True)
class MarketRuns:
    """One method on one market, at the setting that its tuning seeds chose.

    step, samples: the axes of the curves.
    gap, grad_norm: seeds × records; infinite for a run that diverged.
    end: the last record within the budget.
    compile_seconds, run_seconds: of the whole grid.
    """

    setting: dict[str, float]
    step: np.ndarray
    samples: np.ndarray
    gap: np.ndarray
    grad_norm: np.ndarray
    end: int
    compile_seconds: float
    run_seconds: float

    def last(self) -> np.ndarray:
        """The gap of every seed at the end of the budget."""
        return self.gap[:, self.end]

    def result(self) -> tuple[float, float, float]:
        """At the end of the budget: mean gap, its deviation over seeds, mean gradient mapping."""
        gap = self.last()
        spread = float(gap.std()) if np.isfinite(gap).all() else float("nan")
        return float(gap.mean()), spread, float(self.grad_norm[:, self.end].mean())

    def within(self, samples: float) -> np.ndarray:
        """The gap of every seed at the last record that draws no more than this."""
        return self.gap[:, last_within(self.samples, samples)]


@dataclasses.dataclass(frozen=True)
class Balls:
    """SMVR with balls of one kind on one market, otherwise at the setting of Figure 1.

    radius, lr: of every setting.
    gap, grad_norm: settings × seeds × records.
    active: settings × levels, the share of steps at which the ball cut something off.
    """

    radius: np.ndarray
    lr: np.ndarray
    samples: np.ndarray
    gap: np.ndarray
    grad_norm: np.ndarray
    active: np.ndarray


@dataclasses.dataclass(frozen=True)
class Portfolios:
    """Result of ``reproduce_portfolio``.

    problems: by market; each knows its optimum.
    best: by market, the weights of that value.
    trials: by market and method.
    balls: by market and kind of ball.
    """

    problems: dict[str, Problem]
    best: dict[str, np.ndarray]
    trials: dict[str, dict[str, MarketRuns]]
    balls: dict[str, dict[str, Balls]]

    def gaps(self) -> Table:
        """F(w) − F* at equal samples, mean ± deviation over seeds: methods × markets."""
        start = [f"{_start(problem):.1e}" for problem in self.problems.values()]
        cell = lambda mean, spread, _: f"{mean:.1e} ± {spread:.0e}"
        rows = [
            [name, *(cell(*trials[name].result()) for trials in self.trials.values())]
            for name in self._methods()
        ]
        return Table(["method", *self.trials], [["equal weights", *start], *rows])

    def differences(self, own: str = "SMVR") -> Table:
        """Gap less that of SMVR, run by run on the same draws: mean ± standard error, in 1e-4."""
        rows = []
        for name in self._methods():
            if name != own:
                apart = [trials[name].last() - trials[own].last() for trials in self.trials.values()]
                rows.append([name, *(mean_and_error(1e4 * gaps) for gaps in apart)])
        return Table([f"method, less {own}", *self.trials], rows)

    def details(self) -> Table:
        """One row per market and method: chosen setting, cost, result, seconds."""
        columns = [
            "market",
            "method",
            "lr",
            "knob",
            "its value",
            "steps",
            "samples",
            "gap",
            "± std",
            "gradient mapping",
            "compile s",
            "run s",
        ]
        rows = []
        for market, trials in self.trials.items():
            for name, trial in trials.items():
                (_, lr), (knob, value) = trial.setting.items()
                cost = [int(trial.step[trial.end]), int(trial.samples[trial.end])]
                seconds = [trial.compile_seconds, trial.run_seconds]
                rows.append([market, name, lr, knob, value, *cost, *trial.result(), *seconds])
        return Table(columns, rows)

    def seconds(self) -> Table:
        """Compiling and computing the whole grid on all markets, by method."""
        rows = []
        for name in self._methods():
            trials = [of_market[name] for of_market in self.trials.values()]
            rows.append(
                [name, sum(t.compile_seconds for t in trials), sum(t.run_seconds for t in trials)]
            )
        together = ["together", sum(row[1] for row in rows), sum(row[2] for row in rows)]
        return Table(["method", "compile s", "run s"], [*rows, together])

    def epochs(self) -> Table:
        """SnapshotSMVR after each snapshot and the pass that follows it: mean gap, and the worst."""
        marks = []
        rows = []
        for market, trials in self.trials.items():
            once = _pass(self.problems[market])
            trial = trials["SnapshotSMVR"]
            marks = range(2, round(trial.samples[-1] / once) + 1, 2)
            gaps = [trial.within(mark * once) for mark in marks]
            rows.append([market, *(f"{gap.mean():.1e} (worst {gap.max():.1e})" for gap in gaps)])
        return Table(["market", *(f"{mark} passes" for mark in marks)], rows)

    def radii(self) -> Table:
        """Figure 2 in numbers: what a ball does to SMVR, and how often it is active at each level."""
        names = [level.name for level in next(iter(self.problems.values())).levels]
        columns = ["market", "ball", "radius", "lr", "gap", "± std", "gradient mapping"]
        rows = []
        for market, kinds in self.balls.items():
            for kind, balls in kinds.items():
                for k, radius in enumerate(balls.radius):
                    gap = balls.gap[k, :, -1]
                    mapping = balls.grad_norm[k, :, -1]
                    numbers = (balls.lr[k], gap.mean(), gap.std(), mapping.mean(), *balls.active[k])
                    rows.append([market, kind, _radius(radius), *map(float, numbers)])
        return Table([*columns, *(f"active at {name}" for name in names)], rows)

    def norms(self) -> Table:
        """Norms of the true Jacobians of the levels that draw, at the start and at the optimum."""
        rows = []
        for market, problem in self.problems.items():
            best = jnp.asarray(self.best[market])
            for where, w in (("equal weights", problem.w0), ("optimum", best)):
                dense = [np.asarray(jac.dense()) for jac in problem.level_jacobians(w)[:-1]]
                sizes = [float(np.linalg.norm(jac, kind)) for jac in dense for kind in ("fro", 2)]
                rows.append([market, where, *sizes])
        names = [f"{level}, {kind}" for level in ("mean", "variance") for kind in KINDS]
        return Table(["market", "at", *names], rows)

    def findings(self) -> list[str]:
        """What the numbers say, market by market."""
        out = []
        for market, trials in self.trials.items():
            gap = {name: trials[name].result()[0] for name in OF_THE_PAPER}
            first, second, *_ = sorted(gap, key=gap.__getitem__)
            word, other = ("first", second) if first == "SMVR" else ("not first", first)
            once = _pass(self.problems[market])
            snapshots = trials["SnapshotSMVR"]
            ends = [snapshots.within(passes * once) for passes in (8, 12)]
            early, late = (f"{end.mean():.1e} (worst run {end.max():.1e})" for end in ends)
            out.append(
                f"{market}: SMVR is {word} of the {len(gap)} methods of the paper, with "
                f"{gap['SMVR'] / gap[other]:.2f} times the gap of {other}; SnapshotSMVR reaches {early} "
                f"within 8 passes per level and {late} within 12."
            )
        return out

    def curves(self) -> Table:
        """Figure 1 in numbers: one row per market, method and record."""
        words = ["gap", "grad_norm"]
        columns = [
            "market",
            "method",
            "step",
            "samples",
            *(f"{w}_{x}" for w in words for x in ("mean", "std")),
        ]
        rows = []
        for market, trials in self.trials.items():
            for name, trial in trials.items():
                lanes = [trial.gap, trial.grad_norm]
                numbers = [f(x, axis=0) for x in lanes for f in (np.mean, np.std)]
                table = np.stack([trial.step, trial.samples, *numbers], axis=1)
                rows += [[market, name, *map(int, row[:2]), *map(float, row[2:])] for row in table]
        return Table(columns, rows)

    def plot_methods(self) -> Any:
        """Figure 1: gap and gradient mapping against samples, mean and band over seeds."""
        panels = {}
        for market, trials in self.trials.items():
            for row, word in enumerate(("gap", "grad_norm")):
                panels[row, market] = {
                    name: (trial.samples[: trial.end + 1], getattr(trial, word)[:, : trial.end + 1])
                    for name, trial in trials.items()
                }
        return draw_panels(panels, [NAMES["gap"], "gradient mapping"])

    def plot_radii(self) -> Any:
        """Figure 2: the gap of SMVR against samples for every radius and both kinds of ball."""
        panels = {}
        for market, kinds in self.balls.items():
            for row, balls in enumerate(kinds.values()):
                curves = zip(RADII, balls.gap, strict=False)  # those at the chosen learning rate
                panels[row, market] = {
                    f"radius {_radius(radius)}": (balls.samples, lanes) for radius, lanes in curves
                }
        return draw_panels(panels, [f"{NAMES['gap']}, {kind} ball" for kind in KINDS])

    def _methods(self) -> list[str]:
        return list(next(iter(self.trials.values())))


KINDS = ("frobenius", "spectral")


def mean_and_error(x: np.ndarray) -> str:
    """Mean ± standard error, with two digits of the error."""
    if not np.isfinite(x).all():
        return "diverged"
    error = float(x.std(ddof=1)) / len(x) ** 0.5 if len(x) > 1 else math.nan
    digits = 2 if not error > 0 else max(0, 1 - math.floor(math.log10(error)))
    return f"{x.mean():+.{digits}f} ± {error:.{digits}f}"


def reproduce_portfolio(
    markets: Mapping[str, Any],
    *,
    contenders: Mapping[str, Contender] = CONTENDERS,
    percent: float = 1.0,
    seeds: int | Sequence[int] = 20,
    tune_seeds: int = 8,
    passes: int = PASSES,
    batch_size: int = BATCH_SIZE,
    rates: Sequence[float] = RATES,
    cells: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Portfolios:
    """Runs both figures on the given markets, all settings and seeds of a method side by side.

    Args:
        markets: tables of returns, one row a day, by name.
        contenders: what is compared, "SMVR" among them; its setting is that of Figure 2.
        percent: what one unit of the returns is, in percent: 100 for decimals.
        seeds: runs that are reported, how many or which.
        tune_seeds: further runs that choose the settings.
        passes: the budget of a run: samples per level, as a multiple of the rows.
        batch_size: draws per level and step.
        rates: learning rates.
        cells: a folder in which every sweep is kept, and found again; None keeps none. Seconds are then
            those of the call that has ended a sweep.
        tell: called with a line of text after every method.
    """
    check_count("passes", passes)
    tuning = tuning_seeds(tune_seeds)
    reported = list(range(check_count("seeds", seeds))) if isinstance(seeds, int) else list(seeds)
    problems = {}
    best = {}
    trials = {}
    balls = {}
    for market, returns in markets.items():
        problem = problems[market] = portfolio_problem(returns, percent)
        best[market] = best_portfolio(returns, percent).w
        inside = None if cells is None else cells / market
        runner = Runner(problem, passes * _pass(problem), batch_size, inside)
        trials[market] = {}
        for name, contender in contenders.items():
            settings = grid(lr=rates, **{contender.knob: contender.values})
            run, *seconds = runner.timed(name, contender, settings, [*tuning, *reported])
            trial = trials[market][name] = _choose(run, len(tuning), runner.budget, *seconds)
            tell(f"{market:<12} {name:<26} {_line(trial)}")
        balls[market] = {
            kind: _balls(runner.run(kind, _with_ball(kind), _radii(trials[market]["SMVR"]), reported))
            for kind in KINDS
        }
        jax.clear_caches()  # another market has other shapes
    return Portfolios(problems, best, trials, balls)


def portfolio_problem(returns: Any, percent: float = 1.0) -> Problem:
    """The portfolio on the simplex with its optimum, and a floor under the tracked variance."""
    unit = percent**2
    problem = mean_deviation(returns, delta=DELTA / unit, least_variance=LEAST_VARIANCE / unit)
    return problem.replace(optimum=best_portfolio(returns, percent).value)


def best_portfolio(returns: Any, percent: float = 1.0) -> Optimum:
    """The exact optimum; what it may be off by is proved by convexity."""
    least = exact_portfolio(returns, delta=DELTA / percent**2).least()
    if least.error > OPTIMUM_GAP:
        raise ProblemError(
            f"the optimum is known to within {least.error:.0e} only: one asset may be a mixture of "
            "others; leave it out."
        )
    return least


#: The file of seconds beside a sweep that is kept.
SECONDS = "seconds.json"


class Runner(NamedTuple):
    """Sweeps of one market, all within the same budget of samples."""

    problem: Problem
    budget: int
    batch_size: int
    cells: Path | None = None

    @property
    def stride(self) -> int:
        """Steps between records, of a method with whole batches: sixteen records in a pass."""
        return max(1, _pass(self.problem) // self.batch_size // 32)

    def run(
        self, name: str, contender: Contender, settings: Settings, seeds: Any, **length: Any
    ) -> Sweep:
        kept = {} if length else kept_in(self.cells, name)
        length = length or {"samples": contender.length * self.budget}
        return sweep(
            self.problem,
            contender.build,
            settings=settings,
            seeds=seeds,
            batch_size=max(1, self.batch_size // contender.parts),
            record_every=self.stride * contender.parts,
            record=["gap", "grad_norm"],
            progress=False,
            **kept,
            **length,
        ).whole()

    def timed(
        self, name: str, contender: Contender, settings: Settings, seeds: Any
    ) -> tuple[Sweep, float, float]:
        """The sweep, the seconds of a first one of one stride, which compiles it, and its own."""
        file = None if self.cells is None else self.cells / name / SECONDS
        if file is not None and file.exists():
            return (self.run(name, contender, settings, seeds), *json.loads(file.read_text()))
        begin = time.perf_counter()
        self.run(name, contender, settings, seeds, steps=self.stride * contender.parts)
        compiled = time.perf_counter()
        run = self.run(name, contender, settings, seeds)
        seconds = (compiled - begin, time.perf_counter() - compiled)
        if file is not None:
            file.write_text(json.dumps(seconds))
        return (run, *seconds)


def _choose(
    run: Sweep, tuning: int, budget: int, compile_seconds: float, run_seconds: float
) -> MarketRuns:
    """The best setting on the first ``tuning`` seeds, and its curves on the others.

    The mean over the last fifth of the run chooses, because that over the last record is often luck.
    """
    end = last_within(run.records["samples"], budget)
    lanes = lambda name: np.where(run.finite[:, :, None], run.records[name], np.inf)
    late = lanes("gap")[:, :tuning, -round(TAIL * len(run.records["samples"])) :]
    best = int(np.argmin(late.mean(axis=(1, 2))))
    return MarketRuns(
        {name: float(column[best]) for name, column in run.settings.items()},
        run.records["step"],
        run.records["samples"],
        lanes("gap")[best, tuning:],
        lanes("grad_norm")[best, tuning:],
        end,
        compile_seconds,
        run_seconds,
    )


def _with_ball(kind: str) -> Contender:
    return Contender(lambda s: SMVR(s.beta, radius=s.radius, ball=kind, lr=s.lr), "radius", RADII)


def _radii(trial: MarketRuns) -> Settings:
    """Every radius at the chosen learning rate; then the least and none at twice that."""
    factor = np.asarray([1.0] * len(RADII) + [2.0, 2.0])
    return {
        "radius": np.asarray([*RADII, RADII[0], RADII[-1]]),
        "lr": factor * trial.setting["lr"],
        "beta": np.full(len(factor), trial.setting["beta"]),
    }


def _balls(run: Sweep) -> Balls:
    records = run.records
    active = records["ball_active"][:, :, -1].mean(axis=1)
    radius = run.settings["radius"]
    lr = run.settings["lr"]
    return Balls(radius, lr, records["samples"], records["gap"], records["grad_norm"], active)


def _pass(problem: Problem) -> int:
    """Samples of one pass over the rows of every level that draws."""
    return sum(level.source.size or 0 for level in problem.levels if level.source is not None)


def _start(problem: Problem) -> float:
    return float(problem.value(problem.w0)) - float(problem.optimum)  # pyright: ignore[reportArgumentType]


def _radius(radius: float) -> str:
    return "none" if radius == RADII[-1] else f"{radius:g}"


def _line(trial: MarketRuns) -> str:
    setting = ", ".join(f"{name} {value:g}" for name, value in trial.setting.items())
    mean, spread, _ = trial.result()
    return (
        f"{setting:<20} gap {mean:.1e} ± {spread:.0e}   compiled {trial.compile_seconds:.1f} s, "
        f"ran {trial.run_seconds:.1f} s"
    )
