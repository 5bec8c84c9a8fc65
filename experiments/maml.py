"""Few-shot classification of handwriting, Section 5.3 of Jiang et al., ICML 2022: its Figure 4.

    F(w) = 1/M Σ_m f_6^m ∘ f_5^m ∘ … ∘ f_1^m(w)

with five inner gradient steps on support images of task m and its loss on query images: a chain with
blocks, see ``nx.problems.maml``. The paper gives neither the inner learning rate, the tasks, nor how the
methods are meant for inner levels that belong to tasks. Chosen here; the inner learning rate after a
trial of 0.4 and 0.1 with Adam on episodes, the numbers of tasks and settings by what a GPU holds:

tasks      tell five classes apart; M tasks are drawn once from 1,200 characters in four rotations, test
           tasks from the other 423. A training task has 10 images of every class to learn from and 10
           others to be judged by
draws      an inner step sees "shots" of the 10 support images of every class, drawn anew in each of the
           five steps, so that the chain is truly multi-level; the outer level sees all 10 query images.
           A draw is an image of each of the five classes, counted as five samples
methods    every method runs in every task with memory of its own (``nx.PerBlock``), correcting from the
           weights of a task's last visit, and steps along the average over the visited tasks. Dense
           Jacobians have 10¹⁰ entries, so SMVR tracks values and the whole product of Jacobians
           (``nx.ProductSMVR``). One batch a level serves values and derivatives, as for dense SMVR:
           separate draws for the product would be unbiased, and have several times the noise
           (benchmarks/maml_draws.py). "SMVR, restarts" forgets everything at every so many visits
           and nothing in between, with batches of one size: what is left of Nested-SPIDER where a
           restart reaches only the visited tasks
steps      SMVR-ADAM has the Adam-type rule of the paper, which averages squares and not the gradient;
           "first moment" is Adam itself
baselines  the same two steps on the same draws without any memory ("Plain-ADAM", "Plain, first
           moment"), and Adam on episodes, as is usual: 20,000 tasks whose support images are fixed, in
           full in each of the five steps. Those inner levels have no noise: there is one level
tuning     two learning rates times two values of a knob, chosen by the accuracy on training tasks over
           the last third of a run with the first seed; the best is run with the other seeds too
accuracy   on 100 of the training tasks and on 400 test tasks, after five steps on "shots" images a class

A cell is a method at a number of shots. It is kept as a file, and not computed again if it is there; so
is every run of a cell that is not done.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from nestax.chain.problem import Problem
from nestax.errors import ProblemError, SettingError
from nestax.estimators import ATSCGD, NLASG, SCSC, Plain, ProductSMVR
from nestax.estimators.per_block import PerBlock
from nestax.estimators.tscgd import published_beta
from nestax.figures import COLOURS
from nestax.problems import maml
from nestax.run.sweep import grid, sweep
from nestax.steps import Averaged, Descent, adam_type
from nestax.table import Table

from experiments.cells import keep
from experiments.figures import empty_panels
from experiments.handwriting import Omniglot
from experiments.networks import convolutional, in_one_vector

WAYS = 5
INNER_STEPS = 5
QUERY = 10


class SetUp(NamedTuple):
    """Sizes of the experiment; ``FULL`` is the one that is reported, ``QUICK`` runs on a laptop.

    side, filters: of the images and of the network's four layers.
    tasks, episodes: training tasks with a memory each, and tasks of Adam on episodes.
    visit: tasks a step.
    inner_lr: α of the inner steps.
    """

    side: int
    filters: int
    tasks: int
    episodes: int
    visit: int
    steps: int
    seeds: int
    train_tasks: int
    test_tasks: int
    inner_lr: float = 0.1
    records: int = 20


FULL = SetUp(28, 64, 200, 20_000, 16, 1_000, 3, 100, 400)
QUICK = SetUp(14, 8, 30, 60, 4, 60, 1, 10, 20, records=6)


#: How a word is put above the right end of a level line.
CORNER: dict[str, Any] = {
    "xycoords": ("axes fraction", "data"),
    "textcoords": "offset points",
    "ha": "right",
    "color": "0.5",
    "fontsize": "small",
}


class Restarts(eqx.Module):
    """A forgetting rate of 1 at every so many visits, and 0 in between."""

    period: Array

    def __call__(self, count: Array) -> Array:
        return (count % self.period.astype(count.dtype) == 0).astype(self.period.dtype)


class Rival(NamedTuple):
    """A method of the figure.

    build: from a setting with ``lr`` and the knob to what ``nx.sweep`` takes.
    lrs: its learning rates.
    knob, values: what else is tuned.
    repeated: whether it is run with all seeds of the set-up, or with one.
    """

    build: Callable[[Any], Any]
    lrs: Sequence[float]
    knob: str = "beta"
    values: Sequence[float] = (0.5, 0.9)
    repeated: bool = False
    episodes: bool = False


DESCENT = (0.1, 0.3)
ADAM = (0.001, 0.003)


def _smvr(beta: Any) -> PerBlock:
    return PerBlock(ProductSMVR(beta, mode="reuse"))


def _atscgd(s: Any) -> Any:
    beta = lambda count: jnp.minimum(1, s.scale * published_beta(count, 6))
    return PerBlock(ATSCGD(beta)), Descent(s.lr)


RIVALS = {
    "A-TSCGD": Rival(_atscgd, DESCENT, "scale", (0.5, 1.0)),
    "NLASG": Rival(lambda s: (PerBlock(NLASG(s.tau)), Averaged(s.lr / s.tau, s.tau)), DESCENT, "tau"),
    "SCSC": Rival(lambda s: (PerBlock(SCSC(s.beta)), Descent(s.lr)), DESCENT),
    "SMVR, restarts": Rival(
        lambda s: (_smvr(Restarts(s.period)), Descent(s.lr)), DESCENT, "period", (2, 4)
    ),
    "SMVR": Rival(lambda s: (_smvr(s.beta), Descent(s.lr)), DESCENT, repeated=True),
    "SMVR-ADAM": Rival(
        lambda s: (_smvr(s.beta), adam_type(s.lr)), ADAM, values=(0.1, 0.3, 0.5, 0.9), repeated=True
    ),
    "SMVR, first moment": Rival(lambda s: (_smvr(s.beta), optax.adam(s.lr)), ADAM, repeated=True),
    "Plain-ADAM": Rival(lambda s: (Plain(), adam_type(s.lr)), ADAM, "none", (0,), repeated=True),
    "Plain, first moment": Rival(
        lambda s: (Plain(), optax.adam(s.lr)), ADAM, "none", (0,), repeated=True
    ),
    "Adam, episodes": Rival(
        lambda s: (Plain(), optax.adam(s.lr)), ADAM, "none", (0,), repeated=True, episodes=True
    ),
}


#: What is compared run by run, on the same draws.
PAIRS = (
    ("SMVR-ADAM", "SMVR"),
    ("SMVR-ADAM", "Plain-ADAM"),
    ("SMVR, first moment", "SMVR"),
    ("SMVR, first moment", "Plain, first moment"),
    ("SMVR, first moment", "Adam, episodes"),
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A method at a number of shots: what was chosen, and its curves.

    setup: the sizes it was run with.
    chosen: learning rate and knob, from the training tasks.
    images: images drawn, at every record.
    train, test: accuracies, seeds × records, at the chosen setting.
    grid: mean accuracy on training tasks over the last third, of every setting that was run with the
        first seed; 0 for a run that diverged.
    step_ms: milliseconds a step, records included; None if it was not alone on its device.
    """

    method: str
    shots: int
    setup: list[float]
    chosen: dict[str, float]
    images: list[float]
    train: list[list[float]]
    test: list[list[float]]
    grid: list[float]
    step_ms: float | None
    device: str

    @property
    def diverged(self) -> bool:
        """Whether it did at every setting."""
        return max(self.grid) == 0

    def at(self, images: float) -> float:
        """Mean accuracy on test tasks at the last record that draws no more than this, or the first."""
        return float(np.mean(self.runs_at(images)))

    def runs_at(self, images: float) -> np.ndarray:
        """The same for every run."""
        last = np.searchsorted(self.images, images, side="right") - 1
        return np.asarray(self.test)[:, max(last, 0)]


@dataclasses.dataclass(frozen=True)
class CellRun:
    """One run of a cell.

    finite: whether it did not diverge.
    """

    setup: list[float]
    images: list[float]
    train: list[float]
    test: list[float]
    finite: bool
    seconds: float

    @property
    def late(self) -> float:
        """Mean accuracy on training tasks over the last third; 0 if the run diverged."""
        return float(np.mean(self.train[2 * len(self.train) // 3 :])) if self.finite else 0.0


Held = TypeVar("Held", Cell, CellRun)


def run_cell(
    method: str,
    images: Omniglot,
    shots: int,
    setup: SetUp,
    cells: Path | None = None,
    chosen: dict[str, float] | None = None,
) -> Cell:
    """Computes one cell: every setting, or only a chosen one, with the first seed, and the best one with
    the others. One run after the other, so that the tables of one are in memory at a time; all
    share one program. With a folder a run that is done is kept until the cell is."""
    rival = RIVALS[method]
    settings = grid(lr=rival.lrs, **{rival.knob: rival.values})
    rows = [
        row
        for row in range(len(settings["lr"]))
        if all(name in settings and settings[name][row] == x for name, x in (chosen or {}).items())
    ]
    if not rows:
        raise ProblemError(f"{method} has no setting with {_words(chosen or {})}: tune it again.")
    stride = setup.steps // setup.records
    sizes = {f"step {k}": shots for k in range(1, INNER_STEPS + 1)} | {"query": QUERY}
    problem = task_problem(images, shots, setup, rival.episodes)
    files = []

    def run(row: int, seed: int, steps: int) -> CellRun:
        began = time.perf_counter()
        lane = sweep(
            problem,
            rival.build,
            settings={name: column[[row]] for name, column in settings.items()},
            seeds=[seed],
            steps=steps,
            batch_size=sizes,
            record=["train", "test"],
            record_every=stride,
            progress=False,
        ).whole()
        train, test = (np.nan_to_num(lane.records[name][0, 0]) for name in ("train", "test"))
        return CellRun(
            setup=list(setup),
            images=(WAYS * lane.records["samples"]).tolist(),
            train=train.tolist(),
            test=test.tolist(),
            finite=bool(lane.finite.all()),
            seconds=time.perf_counter() - began,
        )

    def trial(row: int, seed: int) -> CellRun:
        files.append(_file(cells, method, shots, f"-setting-{row}-seed-{seed}"))
        return _kept(files[-1], CellRun, setup) or keep(files[-1], run(row, seed, setup.steps))

    tried = {row: trial(row, 0) for row in rows}
    best = max(tried, key=lambda row: tried[row].late)
    repeated = [trial(best, seed) for seed in range(1, setup.seeds if rival.repeated else 1)]
    runs = [tried[best], *repeated]
    short = run(best, 0, stride)
    longer = run(best, 0, 2 * stride)
    cell = Cell(
        method=method,
        shots=shots,
        setup=list(setup),
        chosen={name: float(column[best]) for name, column in settings.items() if name != "none"},
        images=tried[best].images,
        train=[one.train for one in runs],
        test=[one.test for one in runs],
        grid=[one.late for one in tried.values()],
        step_ms=1e3 * (longer.seconds - short.seconds) / stride,
        device=jax.devices()[0].device_kind,
    )
    keep(_file(cells, method, shots), cell)
    for file in filter(None, files):
        file.unlink()
    return cell


def task_problem(images: Omniglot, shots: int, setup: SetUp, episodes: bool) -> Problem:
    """Training tasks as a chain with blocks, with accuracies on training and on test tasks."""
    network = in_one_vector(convolutional(WAYS, side=setup.side, filters=setup.filters))
    pool = images.tasks(setup.episodes if episodes else setup.tasks, ways=WAYS, query=QUERY)
    test = images.tasks(setup.test_tasks, ways=WAYS, support=5, query=15, test=True)
    scored = {
        "train": pool.first(setup.train_tasks).with_shots(shots),
        "test": test.with_shots(shots),
    }
    return maml(
        network.apply,
        pool.with_shots(shots) if episodes else pool,
        network.init,
        visit=setup.visit,
        inner_steps=INNER_STEPS,
        inner_lr=setup.inner_lr,
        score=scored,
    )


def reproduce_maml(
    images: Omniglot,
    *,
    shots: Sequence[int] = (1, 5),
    setup: SetUp = QUICK,
    methods: Sequence[str] | None = None,
    cells: Path | None = None,
    tuned: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> "FewShot":
    """Figure 4, from cells that are computed unless they are kept in a folder.

    Args:
        images: from ``handwriting.omniglot``, of the side of the set-up.
        shots: images of a class that a task may learn from.
        setup: ``FULL`` or ``QUICK``.
        methods: which of ``RIVALS`` to compute; None means all. Kept cells of others are shown too.
        cells: the folder of cells; None keeps none.
        tuned: a folder of cells whose settings are taken, as for longer runs; None tunes.
        tell: is told a line about every cell.
    """
    chosen = list(RIVALS) if methods is None else list(methods)
    for name in chosen:
        if name not in RIVALS:
            raise SettingError(f"no method is called {name!r}; there are {'; '.join(RIVALS)}.")
    done: dict[tuple[str, int], Cell] = {}
    for number in shots:
        for name in RIVALS:
            cell = _kept(_file(cells, name, number), Cell, setup)
            if cell is None and name in chosen:
                cell = run_cell(name, images, number, setup, cells, _chosen(tuned, name, number))
            if cell is not None:
                done[name, number] = cell
                tell(
                    f"{number}-shot {name:<15} test {100 * np.mean(cell.test, axis=0)[-1]:.1f} % after "
                    f"{setup.steps:,} steps and {cell.images[-1]:,.0f} images, {_words(cell.chosen)}"
                )
    return FewShot(done, setup)


@dataclasses.dataclass(frozen=True)
class FewShot:
    """The cells of Figure 4, by method and shots."""

    cells: dict[tuple[str, int], Cell]
    setup: SetUp

    @property
    def shots(self) -> list[int]:
        return sorted({number for _, number in self.cells})

    def of(self, shots: int) -> dict[str, Cell]:
        return {name: cell for (name, number), cell in self.cells.items() if number == shots}

    def budget(self, shots: int) -> float:
        """Images that every method has drawn by its last step."""
        return min(cell.images[-1] for cell in self.of(shots).values())

    def missing(self, shots: int) -> list[str]:
        """Methods without a cell."""
        return [name for name in RIVALS if name not in self.of(shots)]

    def accuracies(self) -> Table:
        """Accuracy on test tasks at every third of the common budget, and at the end of each run."""
        columns = ["shots", "method", "runs", "1/3", "2/3", "3/3", "last step", "deviation", "train"]
        rows = []
        for number in self.shots:
            budget = self.budget(number)
            for name, cell in self.of(number).items():
                if cell.diverged:
                    rows.append([number, name, len(cell.test), *["diverged"] * 6])
                    continue
                thirds = [round(100 * cell.at(budget * k / 3), 1) for k in (1, 2, 3)]
                last = 100 * np.asarray(cell.test)[:, -1]
                train = 100 * np.mean(cell.train, axis=0)[-1]
                rows.append(
                    [
                        number,
                        name,
                        len(last),
                        *thirds,
                        round(float(last.mean()), 1),
                        round(float(last.std()), 1) if len(last) > 1 else "–",
                        round(float(train), 1),
                    ]
                )
        return Table(columns, rows)

    def apart(self) -> Table:
        """Accuracy on test tasks, one method less another in the same run, points ± standard error."""
        columns = ["shots", "method", "less", "runs", "1/3", "2/3", "3/3"]
        rows = []
        for number in self.shots:
            budget = self.budget(number)
            cells = self.of(number)
            for one, other in PAIRS:
                runs = min((len(cells[name].test) for name in (one, other) if name in cells), default=0)
                if runs < 2 or not {one, other} <= cells.keys():
                    continue
                thirds = []
                for k in (1, 2, 3):
                    own, beside = (cells[name].runs_at(budget * k / 3)[:runs] for name in (one, other))
                    apart = 100 * (own - beside)
                    thirds.append(f"{apart.mean():+.1f} ± {apart.std(ddof=1) / runs**0.5:.1f}")
                rows.append([number, one, other, runs, *thirds])
        return Table(columns, rows)

    def details(self) -> Table:
        """What was chosen, and what it cost."""
        columns = [
            "shots",
            "method",
            "lr",
            "knob",
            "images a step",
            "visits a task",
            "ms a step",
            "device",
        ]
        rows = []
        for (name, number), cell in self.cells.items():
            knob = {k: v for k, v in cell.chosen.items() if k != "lr"}
            steps = len(cell.images) - 1
            each = (cell.images[-1] - cell.images[0]) / (self.setup.steps // steps * steps)
            tasks = self.setup.episodes if RIVALS[name].episodes else self.setup.tasks
            visits = self.setup.steps * self.setup.visit / tasks
            rows.append(
                [
                    number,
                    name,
                    cell.chosen["lr"],
                    _words(knob) or "–",
                    round(each),
                    round(visits, 1),
                    "–" if cell.step_ms is None else round(cell.step_ms, 1),
                    cell.device,
                ]
            )
        return Table(columns, rows)

    def findings(self) -> list[str]:
        """The methods by their accuracy on test tasks, at every third of the common budget."""
        out = []
        for number in self.shots:
            cells = self.of(number)
            budget = self.budget(number)
            for k in (1, 2, 3):
                at = {n: cell.at(budget * k / 3) for n, cell in cells.items() if not cell.diverged}
                ranked = sorted(at.items(), key=lambda pair: -pair[1])
                words = "; ".join(f"{name} {100 * value:.1f} %" for name, value in ranked)
                out.append(f"{number}-shot, {k}/3 of {budget:,.0f} images: {words or 'none'}.")
            diverged = [name for name, cell in cells.items() if cell.diverged]
            for words, names in (("diverged", diverged), ("not computed", self.missing(number))):
                if names:
                    out.append(f"{number}-shot, {words}: {'; '.join(names)}.")
        return out

    def curves(self) -> Table:
        """Every record of every run at its chosen setting."""
        columns = ["shots", "method", "run", "images", "train", "test"]
        rows = [
            [number, name, run, x, a, b]
            for (name, number), cell in self.cells.items()
            for run, (train, test) in enumerate(zip(cell.train, cell.test, strict=True))
            for x, a, b in zip(cell.images, train, test, strict=True)
        ]
        return Table(columns, rows)

    def plot(self) -> Any:
        """Accuracy on training and test tasks against images drawn."""
        size = (9.5, 3.4 * len(self.shots) + 0.8)
        figure, axes = empty_panels(len(self.shots), 2, size, sharey="row")
        # A colour for every method with memory; the baselines are black. Dashes have a first moment.
        *own, black = COLOURS
        colours = [*own, own[-1], black, black, black]
        dashes = ["-"] * 6 + ["--", ":", "--", "-"]
        looks = dict(zip(RIVALS, zip(colours, dashes, strict=True), strict=True))
        for row, number in enumerate(self.shots):
            for column, kind in enumerate(("train", "test")):
                axis = axes[row, column]
                for name, cell in self.of(number).items():
                    if cell.diverged:
                        continue
                    colour, dash = looks[name]
                    runs = 100 * np.asarray(getattr(cell, kind))
                    axis.plot(cell.images, runs.mean(axis=0), color=colour, ls=dash, label=name)
                    axis.fill_between(
                        cell.images, runs.min(axis=0), runs.max(axis=0), color=colour, alpha=0.15, lw=0
                    )
                axis.axhline(100 / WAYS, color="0.6", lw=0.8)
                axis.annotate("chance", (1, 100 / WAYS), (-4, 3), **CORNER)
                axis.set_title(f"{number}-shot, {'training' if kind == 'train' else 'test'} tasks")
            axes[row, 0].set_ylabel("accuracy, percent")
        for axis in axes[-1]:
            axis.set_xlabel("images drawn, all levels")
        lines = {line.get_label(): line for axis in axes.flat for line in axis.get_lines()}
        shown = [lines[name] for name in RIVALS if name in lines]
        figure.legend(handles=shown, loc="outside lower center", ncols=4, frameon=False)
        return figure


def _words(setting: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in setting.items())


def _file(cells: Path | None, method: str, shots: int, part: str = "") -> Path | None:
    """Where a cell is kept, or a part of it."""
    if cells is None:
        return None
    plain = "".join(c if c.isalnum() else "-" for c in method.lower().replace(", ", "-"))
    return cells / f"{shots}-shot-{plain}{part}.json"


def _chosen(tuned: Path | None, method: str, shots: int) -> dict[str, float] | None:
    """The setting that an earlier cell has chosen."""
    file = _file(tuned, method, shots)
    if file is None:
        return None
    earlier = _read(file, Cell)
    if earlier is None:
        raise ProblemError(f"{file} is missing: settings are taken from cells that are done.")
    return earlier.chosen


def _kept(file: Path | None, kind: type[Held], setup: SetUp) -> Held | None:
    """What an earlier run has kept; refused if it was made with other sizes."""
    held = None if file is None else _read(file, kind)
    if held is not None and held.setup != list(setup):
        raise ProblemError(f"{file} was made with other sizes: delete it, or use another folder.")
    return held


def _read(file: Path, kind: type[Held]) -> Held | None:
    if not file.is_file():
        return None
    try:
        return kind(**json.loads(file.read_text()))
    except (ValueError, TypeError):
        raise ProblemError(f"{file} is no cell of this experiment: delete it.") from None
