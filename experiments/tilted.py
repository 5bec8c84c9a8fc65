"""Rare and mislabelled classes, Section 5.2 of Jiang et al., ICML 2022: its Figure 3 and Table 2.

    F(w) = (1/t)·log Σ_g p_g e^{t R_g(w)},   R_g(w) = (1/τ)·log E_{z in g} e^{τℓ(w; z)},   τ = −2, t = 10

ℓ is the logistic loss of a linear model and the groups g are two classes, one of which is rare in
training. Every method is tried at the seven learning rates of the paper times five values of one knob of
its own, chosen by F on splits of their own and reported on others, with the same number of samples.

The paper leaves the rest open. As in the code of Li et al., label 1 is the rare class, the start is
zero, and a run is another split of the rows, with the number of the run as its seed. The following is
chosen here, the same for all sets and methods; it was chosen on full-gradient runs and on splits that
only tune, before the table was computed.

rows       all that a set has, both parts of svmguide1; features lie between −1 and 1, as in LIBSVM's
           scaled files; a column of ones is added unless the features span it, as one-hot ones do
test       a fifth of either class, with labels as they are
training   of the other rows all of class 0 and one of class 1 for every 20 of them; then the labels of
           30 % of the rows are shuffled among themselves, so that all splits have the same sizes
floor      a tracked mean of level 1 stays above a tenth of its start: the risk of a class is taken to
           rise by at most 1.15. Further down the slope of the logarithm throws the weights so far out
           that e^{τℓ} has no slope left to lead them back
budget     that of 5,000 steps; first batches and restarts are included

How a step draws is not given either, and matters, so there are three set-ups, each tuned by itself:

stratified    8 members of either class, drawn with replacement: 16 samples a step. The two classes are
              added up exactly at level 3, so that only level 1 draws
pooled        16 rows of both classes together, as a plain batch; a row of class g counts |D|/|g| times.
              Nearly half of all batches have no row of the rare class
both-levels   as pooled, and level 3 draws 16 classes, class g with probability p_g: 32 samples a step

F has no optimum to compare with. As the weights grow, e^{τℓ} of a row tends to 1 if its label is met and
to 0 if not, so with a_g, the share of class g whose labels are met,

    F → (1/t)·log Σ_g p_g a_g^{t/τ},   t/τ = −5

which depends on the direction of the weights alone, and is flat wherever no row changes sides. Descent
to the end therefore leads to weights without bound, and where it leads depends on where it begins. So
there are three references: as many steps of the full gradient as the budget pays for, each of length 1,
the longest of the paper; L-BFGS from there; and L-BFGS from zero. A method may end below the first.

Li, Beirami, Sanjabi, Smith: Tilted empirical risk minimization, ICLR 2021.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from nestax.chain.problem import Problem
from nestax.datasets import corrupt
from nestax.errors import ProblemError, check_count, choose
from nestax.figures import NAMES
from nestax.problems import groups_of, hierarchical_term
from nestax.run.sweep import Settings, Sweep, grid, sweep
from nestax.study.compare import TAIL, tuning_seeds
from nestax.table import Table

from experiments.cells import keep
from experiments.contenders import (
    Contender,
    atscgd,
    nested_spider,
    nlasg,
    scsc,
    smvr,
)
from experiments.figures import draw_panels

RARE = 1
TEST_SHARE = 0.2
IMBALANCE = 20
NOISE = 0.3
INNER_TILT = -2.0
OUTER_TILT = 10.0
BATCH_SIZE = 8
STEPS = 5_000
FULL_STEP = 1.0
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
FLOOR = 0.1
RECORDS = 50


class SetUp(NamedTuple):
    """How a step draws.

    pooled, sample_groups: of ``nx.problems.hierarchical_term``.
    """

    pooled: bool
    sample_groups: bool

    def rows(self, batch_size: int) -> int:
        """Draws a level and step, for so many of either class."""
        return batch_size if not self.pooled else 2 * batch_size

    def samples(self, batch_size: int) -> int:
        """Of a step that draws one batch a level."""
        return 2 * batch_size * (1 + self.sample_groups)


SETUPS = {
    "stratified": SetUp(pooled=False, sample_groups=False),
    "pooled": SetUp(pooled=True, sample_groups=False),
    "both-levels": SetUp(pooled=True, sample_groups=True),
}
BETAS = (0.01, 0.03, 0.1, 0.5, 0.9)
CONTENDERS = {
    "A-TSCGD": Contender(atscgd(levels=4), "scale", (0.25, 0.5, 1.0, 2.0, 4.0)),
    "SCSC": Contender(scsc, "beta", BETAS),
    "Nested-SPIDER": Contender(nested_spider(), "eps", (0.03, 0.1, 0.3, 1.0, 3.0)),
    "NLASG": Contender(nlasg, "tau", BETAS),
    "SMVR": Contender(smvr, "beta", BETAS),
}
FULL = "full gradient"
ONWARDS = "L-BFGS from there"
ANEW = "L-BFGS from zero"
PLAIN = "logistic regression"
#: L-BFGS ends where no entry of the gradient is larger than this, or after so many steps.
SMALL_GRADIENT = 1e-8
MOST_STEPS = 2_000

#: Table 2 of the paper: accuracy on the rare class and overall, each with its deviation, in percent.
PAPER = {
    "HIV-1": {
        "A-TSCGD": (71.3, 2.9, 88.1, 1.2),
        "SCSC": (76.7, 2.4, 88.7, 1.2),
        "Nested-SPIDER": (47.3, 9.2, 63.0, 6.7),
        "NLASG": (69.9, 3.0, 88.1, 1.3),
        "SMVR": (79.0, 2.5, 90.0, 1.2),
    },
    "Australian": {
        "A-TSCGD": (62.7, 8.9, 72.5, 5.2),
        "SCSC": (61.8, 8.4, 72.5, 5.2),
        "Nested-SPIDER": (68.5, 9.7, 72.9, 4.8),
        "NLASG": (79.4, 8.4, 78.7, 5.8),
        "SMVR": (82.9, 8.2, 82.6, 4.6),
    },
    "Breast-cancer": {
        "A-TSCGD": (55.1, 8.5, 80.6, 4.4),
        "SCSC": (55.6, 8.0, 80.7, 4.1),
        "Nested-SPIDER": (61.8, 8.6, 83.3, 6.6),
        "NLASG": (42.0, 8.5, 76.7, 5.2),
        "SMVR": (74.0, 8.5, 87.0, 4.3),
    },
    "svmguide1": {
        "A-TSCGD": (76.5, 4.6, 85.8, 2.1),
        "SCSC": (75.8, 4.7, 85.5, 2.1),
        "Nested-SPIDER": (74.3, 5.4, 84.8, 2.4),
        "NLASG": (73.3, 5.2, 85.0, 2.2),
        "SMVR": (80.9, 3.0, 87.3, 2.7),
    },
}


class Split(NamedTuple):
    """The rows of one run.

    groups: the rows to train on, (X, y) of class 0 and of class 1 as they are labelled.
    X_test, y_test: the rows to test on.
    """

    groups: list[tuple[np.ndarray, np.ndarray]]
    X_test: np.ndarray
    y_test: np.ndarray

    def accuracy(self, w: Any) -> tuple[float, float]:
        """Percent of the rare class and of all test rows whose score has the right sign."""
        right = (self.X_test @ np.asarray(w) > 0) == (self.y_test == 1)
        return 100 * float(right[self.y_test == RARE].mean()), 100 * float(right.mean())


@dataclasses.dataclass(frozen=True)
class Fits:
    """What runs ended at, one entry a run: F, norms of gradient and weights, accuracies in percent."""

    loss: np.ndarray
    grad_norm: np.ndarray
    length: np.ndarray
    rare: np.ndarray
    overall: np.ndarray

    def cells(self) -> list[str]:
        return [_cell(self.rare), _cell(self.overall)]


@dataclasses.dataclass(frozen=True)
class SetRuns:
    """One method on one set, at the setting that its tuning splits chose.

    step, samples: the axes of the curves.
    loss, grad_norm: runs × records; infinite for a run that diverged.
    grad_error: runs × records, the distance of the estimated gradient from the true one.
    fits: the end of every run.
    seconds: of compiling the grid and running it on the first split, and of all other splits.
    """

    setting: dict[str, float]
    step: np.ndarray
    samples: np.ndarray
    loss: np.ndarray
    grad_norm: np.ndarray
    grad_error: np.ndarray
    fits: Fits
    seconds: tuple[float, float]

    def noise(self) -> float:
        """The error of the estimated gradient over the last fifth, as a multiple of the gradient."""
        late = slice(-_tail(len(self.step)), None)
        return float(self.grad_error[:, late].mean() / self.grad_norm[:, late].mean())


@dataclasses.dataclass(frozen=True)
class TiltedRuns:
    """Result of ``reproduce_term``.

    trials: by set and method.
    references: by set, three descents of F with all rows (``FULL``, ``ONWARDS``, ``ANEW``), and the
        least mean loss (``PLAIN``).
    sizes: by set, the rows of class 0 and of class 1 in training, and the test rows.
    """

    trials: dict[str, dict[str, SetRuns]]
    references: dict[str, dict[str, Fits]]
    sizes: dict[str, tuple[int, int, int]]

    def accuracies(self) -> Table:
        """Table 2: test accuracy in percent, mean ± deviation over runs, beside that of the paper."""
        columns = [f"{name}, {what}" for name in self.trials for what in ("rare", "overall")]
        rows = []
        for method in self._methods():
            fits = [trials[method].fits for trials in self.trials.values()]
            rows.append([method, *(cell for fit in fits for cell in fit.cells())])
            published = [PAPER.get(name, {}).get(method) for name in self.trials]
            if any(published):
                rows.append(
                    ["  in the paper", *(cell for four in published for cell in _published(four))]
                )
        for reference in (FULL, ONWARDS, ANEW, PLAIN):
            fits = [references[reference] for references in self.references.values()]
            rows.append([reference, *(cell for fit in fits for cell in fit.cells())])
        return Table(["method", *columns], rows)

    def losses(self) -> Table:
        """F at the end of the budget, and how far that is above the full gradient on the same split."""
        columns = [f"{name}, {what}" for name in self.trials for what in ("F", "above")]
        rows = []
        for method in [*self._methods(), FULL, ONWARDS, ANEW]:
            cells = []
            for name in self.references:
                loss = self._ends(name)[method].loss
                above = self._above(name, method)
                cells += [f"{loss.mean():.4f}", "–" if method == FULL else paired(above, 4)]
            rows.append([method, *cells])
        return Table(["method", *columns], rows)

    def apart(self) -> Table:
        """SMVR less every other method on the same split, mean ± standard error; a lower F is better."""
        columns = ["set", "SMVR less", "F", "lower on", "rare %", "overall %"]
        rows = []
        for name, trials in self.trials.items():
            own = trials["SMVR"].fits
            for method, fits in self._ends(name).items():
                if method in ("SMVR", ONWARDS, ANEW, PLAIN):
                    continue
                loss = own.loss - fits.loss
                lower = f"{np.sum(loss < 0)} of {len(loss)}"
                points = [paired(x, 1) for x in (own.rare - fits.rare, own.overall - fits.overall)]
                rows.append([name, method, paired(loss, 4), lower, *points])
        return Table(columns, rows)

    def details(self) -> Table:
        """One row per set and method: chosen setting, cost, result, seconds."""
        columns = [
            "set",
            "method",
            "lr",
            "knob",
            "its value",
            "steps",
            "samples",
            "F",
            "± std",
            "median F",
            "above full",
            "gradient norm",
            "length of w",
            "rare %",
            "± rare",
            "overall %",
            "± overall",
            "error / gradient",
            "first split s",
            "others s",
        ]
        rows = []
        for name, trials in self.trials.items():
            for method, fits in self._ends(name).items():
                before = ["–"] * 5
                after = ["–"] * 3
                if method in trials:
                    trial = trials[method]
                    (_, lr), (knob, value) = trial.setting.items()
                    before = [lr, knob, value, int(trial.step[-1]), int(trial.samples[-1])]
                    after = [trial.noise(), *trial.seconds]
                above = float(self._above(name, method).mean())
                rows.append([name, method, *before, *_numbers(fits, above), *after])
        return Table(columns, rows)

    def rows(self) -> Table:
        """How many rows every split has."""
        columns = ["set", "class 0, training", "class 1, training", "test"]
        return Table(columns, [[name, *sizes] for name, sizes in self.sizes.items()])

    def curves(self) -> Table:
        """Figure 3 in numbers: one row per set, method and record."""
        words = [f"{word}_{x}" for word in ("loss", "grad_norm") for x in ("mean", "std")]
        rows = []
        for name, trials in self.trials.items():
            for method, trial in trials.items():
                lanes = [trial.loss, trial.grad_norm]
                numbers = [f(x, axis=0) for x in lanes for f in (np.mean, _spread)]
                table = np.stack([trial.step, trial.samples, *numbers], axis=1)
                rows += [[name, method, *map(int, row[:2]), *map(float, row[2:])] for row in table]
        return Table(["set", "method", "step", "samples", *words], rows)

    def findings(self) -> list[str]:
        """What the numbers say, set by set, and how many cells of Table 2 are reached."""
        out = [f"{name}: {self._place(name)} {self._distance(name)}" for name in self.trials]
        reached = [
            own.mean() >= published
            for name in self.trials.keys() & PAPER.keys()
            for own, published in self._beside_the_paper(name)
        ]
        if reached:
            out.append(
                f"SMVR reaches its accuracy in the paper in {sum(reached)} of {len(reached)} columns."
            )
        return out

    def _place(self, name: str) -> str:
        """Where SMVR ends among the methods: F, and the difference to the next on the same split."""
        loss = {method: trial.fits.loss for method, trial in self.trials[name].items()}
        first, second, *_ = sorted(loss, key=lambda method: loss[method].mean())
        verb, other = ("ends", second) if first == "SMVR" else ("does not end", first)
        apart = loss["SMVR"] - loss[other]
        lowest = loss["SMVR"] <= np.min(list(loss.values()), axis=0)
        return (
            f"SMVR {verb} at the lowest F of the {len(loss)} methods, {loss['SMVR'].mean():.4f} against "
            f"{loss[other].mean():.4f} of {other}; on the same split the difference is "
            f"{paired(apart, 4)}, and it is the lowest on {lowest.sum()} of {len(lowest)} splits."
        )

    def _distance(self, name: str) -> str:
        """How far the accuracy of SMVR on the rare class is from that of every reference."""
        own = self.trials[name]["SMVR"].fits.rare
        words = [
            f"{paired(own - self.references[name][reference].rare, 1)} from {reference}"
            for reference in (FULL, ONWARDS, ANEW)
        ]
        return f"Its accuracy on the rare class, in points: {', '.join(words)}."

    def _beside_the_paper(self, name: str) -> list[tuple[np.ndarray, float]]:
        own = self.trials[name]["SMVR"].fits
        rare, _, overall, _ = PAPER[name]["SMVR"]
        return [(own.rare, rare), (own.overall, overall)]

    def seconds(self) -> float:
        """Of all methods on all sets."""
        return sum(sum(trial.seconds) for trials in self.trials.values() for trial in trials.values())

    def plot(self) -> Any:
        """Figure 3: F and gradient norm against samples, mean and band over runs."""
        panels = {}
        for name, trials in self.trials.items():
            ends = np.asarray([0, max(trial.samples[-1] for trial in trials.values())])
            for row, word in enumerate(("loss", "grad_norm")):
                curves = {
                    method: (trial.samples, getattr(trial, word)) for method, trial in trials.items()
                }
                level = getattr(self.references[name][FULL], word).mean()
                panels[row, name] = curves | {FULL: (ends, np.full((1, 2), level))}
        figure = draw_panels(panels, [NAMES["exact_value"], "gradient norm"])
        for axis in figure.axes[: len(self.trials)]:
            low, high = axis.get_ylim()
            if high > 1_000 * low:
                continue
            axis.yaxis.get_major_locator().set_params(subs=(1, 2, 5))  # F spans few decades
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter("")
        return figure

    def _methods(self) -> list[str]:
        return list(next(iter(self.trials.values())))

    def _ends(self, name: str) -> dict[str, Fits]:
        """Of every method and every reference."""
        trials = self.trials[name].items()
        return {method: trial.fits for method, trial in trials} | self.references[name]

    def _above(self, name: str, method: str) -> np.ndarray:
        """F of every run less that of the full gradient on the same split."""
        return self._ends(name)[method].loss - self.references[name][FULL].loss


def reproduce_term(
    sets: Mapping[str, tuple[Any, Any]],
    *,
    seeds: int = 20,
    tune_seeds: int = 8,
    steps: int = STEPS,
    batch_size: int = BATCH_SIZE,
    rates: Sequence[float] = RATES,
    batches: str = "stratified",
    cells: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> TiltedRuns:
    """Runs figure and table on the given sets; splits of equal shape share one compilation.

    Args:
        sets: features and labels 0 and 1 by name; label 1 becomes the rare one.
        seeds: runs that are reported; run k has split k.
        tune_seeds: further splits that choose the settings.
        steps: the budget of a run, as steps with a batch a level; the full gradient's run is as long.
        batch_size: draws of either class a step; half as many as rows of both together.
        rates: learning rates.
        batches: one of ``SETUPS``.
        cells: a folder in which the runs of every set are kept, and found again; None keeps none.
        tell: called with a line of text after every method.
    """
    choose("batches", batches, tuple(SETUPS))
    check_count("batch_size", batch_size)
    runner = Runner(batch_size, check_count("steps", steps), SETUPS[batches])
    choosing = tuning_seeds(tune_seeds)
    reported_seeds = list(range(check_count("seeds", seeds)))
    sizes_of_runs = [steps, batch_size, seeds, tune_seeds, *map(float, rates)]
    found = TiltedRuns({}, {}, {})
    for name, (X, y) in sets.items():
        X = features(X)
        lanes = lambda seeds, X=X, y=y: [Lane(seed, split_rows(X, y, seed)) for seed in seeds]
        tuning = lanes(choosing)
        reported = lanes(reported_seeds)
        one = reported[0].split
        common, rare = (len(labels) for _, labels in one.groups)
        rows = (common, rare, len(one.y_test))
        file = None if cells is None else cells / f"{batches}-{name.lower()}.json"
        cell = _read(file, [*sizes_of_runs, *rows]) or Cell([*sizes_of_runs, *rows], {}, {})
        if not cell.references:
            begin = time.perf_counter()
            cell.references.update(runner.descend(reported))
            tell(f"{name:<14} {'references':<19} {time.perf_counter() - begin:.1f} s together")
        for reference, fits in cell.references.items():
            tell(f"{name:<14} {reference:<19} {_summary(fits)}")
        for method, contender in CONTENDERS.items():
            if method not in cell.trials:
                settings = grid(lr=rates, **{contender.knob: contender.values})
                cell.trials[method] = runner.try_out(contender, settings, tuning, reported)
                keep(file, cell, _plain)
            tell(f"{name:<14} {method:<19} {_line(cell.trials[method])}")
        found.trials[name] = {method: cell.trials[method] for method in CONTENDERS}
        found.references[name] = cell.references
        found.sizes[name] = rows
        jax.clear_caches()  # another set has other shapes
    return found


@dataclasses.dataclass(frozen=True)
class Cell:
    """The runs of one set that are done, as they are kept.

    sizes: steps, draws, numbers of seeds, learning rates and rows that they were made with.
    """

    sizes: list[float]
    references: dict[str, Fits]
    trials: dict[str, SetRuns]


def kept_runs(cells: Path, batches: str, names: Sequence[str]) -> TiltedRuns:
    """Those of a folder, of sets with all methods, for pages and figures."""
    found = TiltedRuns({}, {}, {})
    for name in names:
        cell = _read(cells / f"{batches}-{name.lower()}.json", None)
        if cell is not None and CONTENDERS.keys() <= cell.trials.keys():
            found.trials[name] = {method: cell.trials[method] for method in CONTENDERS}
            found.references[name] = cell.references
            found.sizes[name] = tuple(map(int, cell.sizes[-3:]))  # pyright: ignore[reportArgumentType]
    return found


def _plain(x: np.ndarray) -> list[Any]:
    """An array for a file; those with two axes are curves, and get four digits."""
    short = np.vectorize(lambda number: float(f"{number:.4g}"))
    return (short(x) if x.ndim == 2 else x).tolist()


def _arrays(held: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(x) if isinstance(x, list) else x for name, x in held.items()}


def _read(file: Path | None, sizes: list[float] | None) -> Cell | None:
    """What an earlier run has kept; refused if it was made with other sizes."""
    if file is None or not file.is_file():
        return None
    try:
        held = json.loads(file.read_text())
        references = {name: Fits(**_arrays(fits)) for name, fits in held["references"].items()}
        trials = {}
        for name, trial in held["trials"].items():
            fits = Fits(**_arrays(trial.pop("fits")))
            seconds = tuple(trial.pop("seconds"))
            trials[name] = SetRuns(**_arrays(trial), fits=fits, seconds=seconds)
        cell = Cell(held["sizes"], references, trials)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ProblemError(f"{file} is no cell of this experiment: delete it.") from None
    if sizes is not None and cell.sizes != sizes:
        raise ProblemError(f"{file} was made with other sizes: delete it, or use another folder.")
    return cell


def features(X: Any) -> np.ndarray:
    """Features between −1 and 1, by their ranges unless they are so already, that span a constant."""
    X = np.asarray(X, np.float64)
    if np.abs(X).max() > 1:
        low = X.min(axis=0)
        high = X.max(axis=0)
        if np.any(low == high):
            raise ProblemError(f"feature {np.argmax(low == high)} never changes: leave it out.")
        X = 2 * (X - low) / (high - low) - 1
    ones = np.ones(len(X))
    spanned = X @ np.linalg.lstsq(X, ones, rcond=None)[0]
    return X if np.allclose(spanned, ones) else np.column_stack([X, ones])


def split_rows(X: np.ndarray, y: np.ndarray, seed: int) -> Split:
    """Test rows as they are, and training rows made imbalanced and noisy; sizes depend on no seed."""
    y = np.asarray(y)
    if set(np.unique(y)) != {0, 1}:
        raise ProblemError(f"labels must be 0 and 1; got {', '.join(map(str, np.unique(y)[:5]))}.")
    rng = np.random.default_rng(seed)
    train = []
    test = []
    for label in (0, 1):
        members = rng.permutation(np.flatnonzero(y == label))
        kept_back = round(TEST_SHARE * len(members))
        test.append(members[:kept_back])
        train.append(members[kept_back:])
    rows = np.concatenate(train)
    held = np.concatenate(test)
    X_train, y_train, _ = corrupt(
        X[rows], y[rows], imbalance=IMBALANCE, noise=NOISE, rare=RARE, seed=int(rng.integers(2**31))
    )
    return Split(groups_of(X_train, y_train), X[held], y[held])


class Lane(NamedTuple):
    """A seed and the split that it makes."""

    seed: int
    split: Split

    def problem(
        self,
        inner_tilt: float = INNER_TILT,
        outer_tilt: float = OUTER_TILT,
        setup: SetUp = SETUPS["stratified"],
    ) -> Problem:
        return hierarchical_term(
            self.split.groups,
            inner_tilt=inner_tilt,
            outer_tilt=outer_tilt,
            floor=FLOOR,
            **setup._asdict(),
        )


class Runner(NamedTuple):
    """Runs on the splits of one set, all within the same budget of samples."""

    batch_size: int
    steps: int
    setup: SetUp = SETUPS["stratified"]

    @property
    def budget(self) -> int:
        return self.steps * self.setup.samples(self.batch_size)

    def descend(self, lanes: Sequence[Lane]) -> dict[str, Fits]:
        """Where descent with all rows leads on every split, by reference."""
        ends = {FULL: [], ONWARDS: [], ANEW: [], PLAIN: []}
        for lane in lanes:
            problem = lane.problem()
            mean = lane.problem(inner_tilt=0, outer_tilt=0)
            ends[FULL].append(full_descent(problem, jnp.asarray(self.steps)))
            ends[ONWARDS].append(lbfgs(problem, ends[FULL][-1]))
            ends[ANEW].append(lbfgs(problem, problem.w0))
            ends[PLAIN].append(lbfgs(mean, mean.w0))
        return {reference: measure(lanes, weights) for reference, weights in ends.items()}

    def try_out(
        self, contender: Contender, settings: Settings, tuning: Sequence[Lane], reported: Sequence[Lane]
    ) -> SetRuns:
        """Every setting on every split: those for tuning choose one, the others report it."""
        begin = time.perf_counter()
        tried = [self.run(contender, settings, tuning[0])]
        first = time.perf_counter()
        tried += [self.run(contender, settings, lane) for lane in tuning[1:]]
        best = int(np.argmin(np.mean([_late(run) for run in tried], axis=0)))
        runs = [self.run(contender, settings, lane) for lane in reported]
        return _trial(best, runs, reported, (first - begin, time.perf_counter() - first))

    def run(self, contender: Contender, settings: Settings, lane: Lane) -> Sweep:
        return sweep(
            lane.problem(setup=self.setup),
            contender.build,
            settings=settings,
            seeds=[lane.seed],
            samples=self.budget,
            batch_size=self.setup.rows(self.batch_size),
            record_every=max(1, self.steps // RECORDS),
            record=["exact_value", "grad_norm", "grad_error"],
            progress=False,
        ).whole()


@eqx.filter_jit
def full_descent(problem: Problem, steps: Any) -> Any:
    """w after so many steps of full-gradient descent of length ``FULL_STEP``."""

    def step(_: Any, w: Any) -> Any:
        return jax.tree.map(lambda x, g: x - FULL_STEP * g, w, problem.value_and_grad(w)[1])

    return jax.lax.fori_loop(0, steps, step, problem.w0)


def lbfgs(problem: Problem, w: Any) -> np.ndarray:
    """Descent until the gradient is gone, which may be far out."""

    def value_and_grad(w: np.ndarray) -> tuple[float, np.ndarray]:
        value, grad = _value_and_grad(problem, w)
        return float(value), np.asarray(grad, np.float64)

    options = {"maxiter": MOST_STEPS, "maxfun": 10 * MOST_STEPS, "ftol": 0.0, "gtol": SMALL_GRADIENT}
    start = np.asarray(w, np.float64)
    return scipy.optimize.minimize(value_and_grad, start, jac=True, method="L-BFGS-B", options=options).x


def measure(lanes: Sequence[Lane], weights: Sequence[Any]) -> Fits:
    """F at the published tilts and accuracy, of one vector of weights for every split."""
    ends = []
    for lane, w in zip(lanes, weights, strict=True):
        value, grad = _value_and_grad(lane.problem(), jnp.asarray(w))
        norms = np.linalg.norm(grad), np.linalg.norm(w)
        ends.append((value, *norms, *lane.split.accuracy(w)))
    return Fits(*np.asarray(ends, np.float64).T)


@eqx.filter_jit
def _value_and_grad(problem: Problem, w: Any) -> tuple[Any, Any]:
    return problem.value_and_grad(w)


def _late(run: Sweep) -> np.ndarray:
    """F over the last fifth of the run, for every setting; infinite where it diverged."""
    loss = run.records["exact_value"][:, 0]
    return np.where(run.finite[:, 0], loss[:, -_tail(loss.shape[1]) :].mean(axis=1), np.inf)


def _tail(records: int) -> int:
    return max(1, round(TAIL * records))


def _trial(
    best: int, runs: Sequence[Sweep], lanes: Sequence[Lane], seconds: tuple[float, float]
) -> SetRuns:
    finite = np.asarray([run.finite[best, 0] for run in runs])
    curve = lambda name: np.stack([run.records[name][best, 0] for run in runs])
    loss, norm, error = (
        np.where(finite[:, None], curve(name), np.inf)
        for name in ("exact_value", "grad_norm", "grad_error")
    )
    ends = measure(lanes, [run.w[best, 0] for run in runs])
    lost = lambda values, instead: np.where(finite, values, instead)
    fits = Fits(
        lost(ends.loss, np.inf),
        lost(ends.grad_norm, np.inf),
        lost(ends.length, np.inf),
        lost(ends.rare, np.nan),
        lost(ends.overall, np.nan),
    )
    return SetRuns(
        {name: float(column[best]) for name, column in runs[0].settings.items()},
        runs[0].records["step"],
        runs[0].records["samples"],
        loss,
        norm,
        error,
        fits,
        seconds,
    )


def _spread(x: np.ndarray, axis: int | None = None) -> Any:
    """The deviation; NaN where a run diverged."""
    with np.errstate(invalid="ignore"):
        return np.std(x, axis=axis)


def paired(x: np.ndarray, digits: int) -> str:
    """The mean over runs of a difference on the same split, and its standard error."""
    error = _spread(x) / np.sqrt(max(1, len(x) - 1))
    return f"{x.mean():+.{digits}f} ± {error:.{digits}f}"


def _numbers(fits: Fits, above: float) -> list[float]:
    accuracies = [f(x) for x in (fits.rare, fits.overall) for f in (np.mean, np.std)]
    norms = [fits.grad_norm.mean(), fits.length.mean()]
    loss = [fits.loss.mean(), _spread(fits.loss), np.median(fits.loss)]
    return [float(x) for x in (*loss, above, *norms, *accuracies)]


def _cell(percent: np.ndarray) -> str:
    return f"{percent.mean():.1f} ± {percent.std():.1f}"


def _published(four: tuple[float, ...] | None) -> list[str]:
    if four is None:
        return ["–", "–"]
    return [f"{four[0]} ± {four[1]}", f"{four[2]} ± {four[3]}"]


def _summary(fits: Fits) -> str:
    rare, overall = fits.cells()
    return f"F {fits.loss.mean():.4f}   rare {rare}, overall {overall}"


def _line(trial: SetRuns) -> str:
    setting = ", ".join(f"{name} {value:g}" for name, value in trial.setting.items())
    first, others = trial.seconds
    return f"{_summary(trial.fits)}   {setting:<18} {first:.1f} + {others:.1f} s"
