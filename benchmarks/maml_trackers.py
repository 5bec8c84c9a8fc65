"""Figure 4 of the SMVR paper in other set-ups: where a memory of tasks can show what it is worth.

    python benchmarks/maml_trackers.py CASE METHOD ...   computes cells that are not kept; a GPU helps
    python benchmarks/maml_trackers.py                   writes the tables of docs/meta-learning.md

Cases:

sinusoids, every task   M = B = 16 tasks, two inner steps of 0.01, 2 of 20 rows a level, 500 steps
sinusoids, 16 of 128    B = 16 of M = 128 tasks a step, otherwise the same: a task rests for 8 steps
Omniglot, every task    M = B = 16 tasks of five classes, 14 × 14, 32 filters, five inner steps of 0.1,
                        400 steps. A level draws one of the 20 images of every class; inner levels
                        and the outer one draw from the same twenty, as in the paper's formula

Every method has the samples of so many steps with one batch a level. Settings (learning rates times
four forgetting rates, or bounds of a step) are chosen by F on seeds of their own, over the last fifth of
a run; differences are taken on other seeds, on the same draws.

F is noise-free: the mean over all tasks of the loss on all query rows after steps on all support rows.
"""

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import nestax as nx
from nestax.estimators.tscgd import published_beta
from nestax.problems.few_shot.maml import InnerStep, MeanLoss
from nestax.problems.few_shot.networks import perceptron
from nestax.problems.losses import RowLoss, multinomial, squared
from nestax.steps import Averaged, Bounded, Descent
from nestax.table import Table
from pages import fill
from real_data import omniglot
from script import SMALL, parser, results, size
from tables import with_error
from task_memory import ProductSPIDER, TaskMemory

from experiments.maml import INNER_STEPS, WAYS
from experiments.networks import convolutional, in_one_vector

FIRST_TUNING_SEED = 1_000_000
RECORDS = size(20, small=2)
BETAS = (0.1, 0.3, 0.5, 0.9)
#: A method without a knob, tried as often as the others.
NO_KNOB = (1.0,) * len(BETAS)
SCALES = (0.25, 0.5, 1.0, 2.0)
BOUNDS = (0.1, 0.3, 1.0, 3.0)
#: Steps between restarts, and the rows of a task that a restart looks at: all.
PERIOD = 10
ALL_ROWS = 20


class Case(NamedTuple):
    """A problem, the same with one chain for all tasks, and sizes.

    rows: draws a level, task and step.
    tuning: seeds that choose.
    descent, adaptive: learning rates of the two kinds of steps.
    """

    problem: nx.Problem
    shared: nx.Problem
    rows: int
    steps: int
    tuning: int
    descent: tuple[float, ...]
    adaptive: tuple[float, ...]

    @property
    def samples(self) -> int:
        visit: Any = self.problem.blocks
        levels = len(self.problem.levels)
        start = 10 * visit.blocks
        return self.rows * levels * (visit.visit * self.steps + start)


class Rival(NamedTuple):
    """A method.

    build: from a setting and the number of levels to estimator and optimiser.
    rates: which learning rates of a case it has.
    values: of its knob.
    shared: whether it runs on one chain for all tasks.
    """

    build: Callable[[Any, int], Any]
    rates: str
    values: tuple[float, ...] = BETAS
    shared: bool = False


def rule(lr: Any) -> optax.GradientTransformation:
    """The Adam-type rule of the paper, which has no first moment."""
    return nx.steps.adam_type(lr)


def smvr(beta: Any) -> nx.PerBlock:
    return nx.PerBlock(nx.ProductSMVR(beta, mode="reuse"))


def atscgd(s: Any, levels: int) -> Any:
    beta = lambda count: jnp.minimum(1, s.knob * published_beta(count, levels))
    return nx.PerBlock(nx.ATSCGD(beta)), Descent(s.lr)


def spider(s: Any, _: int) -> Any:
    """With its restarts and its step, whose length is at most lr·eps."""
    own = ProductSPIDER(period=PERIOD, restart_batch=ALL_ROWS)
    return nx.PerBlock(own), Bounded(2 * s.lr, s.knob)


DESCENT = {
    "Plain": Rival(lambda s, _: (nx.Plain(), Descent(s.lr)), "descent", NO_KNOB),
    "A-TSCGD": Rival(atscgd, "descent", SCALES),
    "NLASG": Rival(
        lambda s, _: (nx.PerBlock(nx.NLASG(s.knob)), Averaged(s.lr / s.knob, s.knob)), "descent"
    ),
    "SCSC": Rival(lambda s, _: (nx.PerBlock(nx.SCSC(s.knob)), Descent(s.lr)), "descent"),
    "Nested-SPIDER": Rival(spider, "descent", BOUNDS),
    "SMVR": Rival(lambda s, _: (smvr(s.knob), Descent(s.lr)), "descent"),
}
ADAPTIVE = {
    "Plain-ADAM": Rival(lambda s, _: (nx.Plain(), rule(s.lr)), "adaptive", NO_KNOB),
    "MOML-ADAM": Rival(lambda s, _: (TaskMemory(s.knob, "average", "raw"), rule(s.lr)), "adaptive"),
    "NLASG-ADAM": Rival(lambda s, _: (nx.PerBlock(nx.NLASG(s.knob)), rule(s.lr)), "adaptive"),
    "SCSC-ADAM": Rival(lambda s, _: (nx.PerBlock(nx.SCSC(s.knob)), rule(s.lr)), "adaptive"),
    "SMVR-ADAM": Rival(lambda s, _: (smvr(s.knob), rule(s.lr)), "adaptive"),
}
LITERAL = {
    "one chain, SMVR-ADAM": Rival(
        lambda s, _: (nx.ProductSMVR(s.knob, mode="reuse"), rule(s.lr)), "adaptive", shared=True
    ),
}
FIRST_MOMENT = {
    "Plain, first moment": Rival(lambda s, _: (nx.Plain(), optax.adam(s.lr)), "adaptive", NO_KNOB),
    "SMVR, first moment": Rival(lambda s, _: (smvr(s.knob), optax.adam(s.lr)), "adaptive"),
}
RESTING = {
    "NLASG-ADAM, weights of now": Rival(
        lambda s, _: (TaskMemory(s.knob, "linear", "average"), rule(s.lr)), "adaptive"
    ),
    "MSVR-ADAM, K levels": Rival(
        lambda s, _: (TaskMemory(s.knob, "storm", "storm"), rule(s.lr)), "adaptive"
    ),
}
#: With --small.
SOME = {"sinusoids, every task": ["Nested-SPIDER"], "sinusoids, 16 of 128": ["MSVR-ADAM, K levels"]}
RIVALS = DESCENT | ADAPTIVE | LITERAL | FIRST_MOMENT | RESTING
#: What is computed in every case, and what SMVR, SMVR-ADAM or the last one is compared with.
METHODS = {
    "sinusoids, every task": [*DESCENT, *ADAPTIVE, *LITERAL, *FIRST_MOMENT],
    "sinusoids, 16 of 128": [*ADAPTIVE, *RESTING],
    "Omniglot, every task": [*DESCENT, *ADAPTIVE, *LITERAL],
}


#: Records by case, and what they are called on the page.
RECORDS_OF = {
    "sinusoids, every task": {"F": "F", "new": "loss on 40 new tasks"},
    "sinusoids, 16 of 128": {"F": "F", "new": "loss on 40 new tasks"},
    "Omniglot, every task": {
        "F": "F",
        "train": "its tasks, 1 image, %",
        "test": "new tasks, 1 image, %",
        "five": "new tasks, 5 images, %",
    },
}


class Objective(eqx.Module):
    """F(w) of a problem, as a record of another one."""

    of: nx.Problem

    def __call__(self, w: Any) -> Any:
        return self.of.value(w)


def one_chain(problem: nx.Problem, tasks: Any, row_loss: RowLoss, lr: float) -> nx.Problem:
    """Algorithm 1 taken literally: rows of all tasks are draws of one chain, and no task adapts."""
    rows = lambda pair: jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), pair)
    loss = MeanLoss(row_loss)
    images = () if tasks.images is None else (jnp.asarray(tasks.images),)
    args = (jnp.asarray(lr), *images)
    levels = [
        nx.Level(InnerStep(loss), rows(tasks.support), args=args, name=level.name, batched=True)
        for level in problem.levels[:-1]
    ]
    levels.append(nx.Level(loss, rows(tasks.query), args=images, name="query", batched=True))
    return nx.Problem(levels, problem.w0, metrics=problem.metrics)


def both_problems(
    tasks: Any, network: Any, loss: Any, inner: tuple[int, float], visit: int, score: Any
) -> tuple[nx.Problem, nx.Problem]:
    """The problem with F and scores among its records, and that of one chain."""
    steps, lr = inner
    build = lambda **more: nx.problems.maml(
        network.apply, tasks, network.init, visit=visit, inner_steps=steps, inner_lr=lr, **more
    )
    problem = build(score=score, metrics={"F": Objective(build())})
    return problem, one_chain(problem, tasks, RowLoss(network.apply, loss), lr)


def in_float32(network: Any) -> Any:
    init = lambda key: jax.tree.map(lambda x: x.astype(jnp.float32), network.init(key))
    return network._replace(init=init)


def sinusoid_case(count: int, visit: int) -> Case:
    network = in_float32(perceptron(1, 20, 20, 1))
    tasks = nx.datasets.sinusoids(count)
    new = {"new": nx.datasets.sinusoids(40, seed=1)}
    pair = both_problems(tasks, network, squared, (size(2, small=1), 0.01), visit, new)
    return Case(
        *pair,
        rows=2,
        steps=size(500, small=4),
        tuning=size(3, small=1),
        descent=(0.01, 0.03, 0.1, 0.3),
        adaptive=(0.003, 0.01, 0.03, 0.1),
    )


def omniglot_case() -> Case:
    side, filters = size((14, 32), small=(7, 2))
    images = omniglot(side)
    network = in_float32(in_one_vector(convolutional(WAYS, side=side, filters=filters)))
    count = size(16, small=2)
    halves = images.tasks(count, ways=WAYS, support=10, query=10)
    whole = jax.tree.map(lambda a, b: np.concatenate([a, b], axis=1), halves.support, halves.query)
    test = images.tasks(size(100, small=3), ways=WAYS, support=5, query=15, test=True)
    scores = {"train": halves.with_shots(1), "test": test.with_shots(1), "five": test}
    tasks = halves._replace(support=whole, query=whole)
    inner = (size(INNER_STEPS, small=1), 0.1)
    pair = both_problems(tasks, network, multinomial, inner, count, scores)
    return Case(
        *pair,
        rows=1,
        steps=size(400, small=4),
        tuning=1,
        descent=(0.1, 0.3, 1.0),
        adaptive=(0.0003, 0.001, 0.003),
    )


CASES = {
    "sinusoids, every task": lambda: sinusoid_case(size(16, small=3), size(16, small=3)),
    "sinusoids, 16 of 128": lambda: sinusoid_case(size(128, small=4), size(16, small=2)),
    "Omniglot, every task": omniglot_case,
}


def runs_of(case: Case, rival: Rival, records: list[str], settings: Any, seeds: np.ndarray) -> nx.Sweep:
    problem = case.shared if rival.shared else case.problem
    rows = case.rows * (case.problem.blocks.visit if rival.shared else 1)
    return nx.sweep(
        problem,
        lambda s: rival.build(s, len(problem.levels)),
        settings=settings,
        seeds=seeds,
        samples=case.samples,
        batch_size=rows,
        record=records,
        record_every=max(1, case.steps // RECORDS),
        progress=False,
    ).whole()


def late(runs: nx.Sweep, name: str) -> np.ndarray:
    """The mean over the last fifth, settings × seeds; infinite where a run diverged."""
    curve = runs.records[name]
    found = curve[:, :, -max(1, curve.shape[2] // 5) :].mean(axis=2)
    return np.where(runs.finite & np.isfinite(found), found, np.inf)


def cell(title: str, case: Case, name: str) -> dict[str, Any]:
    rival = RIVALS[name]
    records = list(RECORDS_OF[title])
    rates = getattr(case, rival.rates)
    settings = nx.grid(lr=rates, knob=rival.values)
    begin = time.perf_counter()
    # As many lanes for the chosen setting as for all, so that one program does both.
    shape = (len(settings["lr"]), case.tuning)
    tuning_seeds = np.broadcast_to(FIRST_TUNING_SEED + np.arange(case.tuning), shape)
    tuning = late(runs_of(case, rival, records, settings, tuning_seeds), "F")
    print(f"{title}: {name} tuned after {time.perf_counter() - begin:.0f} s", flush=True)
    best = int(np.argmin(tuning.mean(axis=1)))
    chosen = {key: np.full(shape[0], column[best]) for key, column in settings.items()}
    runs = runs_of(case, rival, records, chosen, np.arange(np.prod(shape)).reshape(shape))
    return {
        "lr": float(chosen["lr"][0]),
        "knob": float(chosen["knob"][0]),
        "tuning": tuning.mean(axis=1).reshape(len(rates), -1).tolist(),
        "samples": runs.records["samples"].tolist(),
        "curve": {key: runs.records[key].mean(axis=(0, 1)).tolist() for key in records},
        "runs": {key: late(runs, key).ravel().tolist() for key in records},
        "seconds": time.perf_counter() - begin,
        "device": jax.devices()[0].device_kind,
    }


def file_of(case: str, name: str) -> Any:
    plain = "".join(c if c.isalnum() else "-" for c in f"{case} {name}".lower())
    return results(f"maml_trackers/{plain.replace('--', '-')}.json")


# The page


def table_of(title: str) -> Table:
    """F and scores of every method, and the paired differences of the SMVR of its group to it."""
    words = RECORDS_OF[title]
    kept = {
        name: json.loads(file_of(title, name).read_text())
        for name in METHODS[title]
        if file_of(title, name).is_file()
    }
    rows = []
    for name, found in kept.items():
        own = rival_of(name)
        numbers = []
        for key, word in words.items():
            runs = np.asarray(found["runs"][key])
            unit = 100.0 if word.endswith("%") else 1.0
            lost = np.sum(~np.isfinite(runs))
            numbers.append(f"{lost} of {runs.size} diverged" if lost else with_error(runs, unit=unit))
        for key in ("F", list(words)[-1]):
            both = [np.asarray(kept[one]["runs"][key]) for one in (own, name) if one in kept]
            if len(both) < 2 or not np.isfinite(both).all():
                numbers.append("–")
                continue
            unit = 100.0 if words[key].endswith("%") else 1.0
            numbers.append(with_error(both[0] - both[1], signed="+", unit=unit))
        knob = "–" if RIVALS[name].values == NO_KNOB else f"{found['knob']:g}"
        rows.append([name, f"{found['lr']:g}", knob, *numbers])
    last = list(words.values())[-1]
    columns = ["method", "lr", "knob", *words.values(), "SMVR less it: F", f"the same, {last}"]
    return Table(columns, rows)


def by_rate(title: str) -> Table:
    """F on the seeds that tune, at the best value of the knob for every learning rate."""
    case = CASES[title]()
    names = [n for n in METHODS[title] if RIVALS[n].rates == "adaptive" and file_of(title, n).is_file()]
    rows = []
    for name in names:
        tuning = np.asarray(json.loads(file_of(title, name).read_text())["tuning"])
        best = tuning.argmin(axis=1)
        knobs = RIVALS[name].values
        tried = knobs != NO_KNOB
        cells = [
            (f"{row[k]:.2f}" + (f" (β {knobs[k]:g})" if tried else ""))
            if np.isfinite(row[k])
            else "diverged"
            for row, k in zip(tuning, best, strict=True)
        ]
        rows.append([name, *cells])
    return Table(["method", *(f"lr {rate:g}" for rate in case.adaptive)], rows)


def rival_of(name: str) -> str | None:
    """The form of SMVR that has the same step."""
    if name in ("SMVR", "SMVR-ADAM"):
        return None
    return "SMVR" if name in DESCENT else "SMVR-ADAM"


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("case", nargs="?", help="; ".join(CASES))
    arguments.add_argument("methods", nargs="*", help="; ".join(RIVALS))
    given = arguments.parse_args()
    wanted = SOME if SMALL else {}
    if given.case is not None:
        wanted = {given.case: given.methods or METHODS[given.case]}
    for title, names in wanted.items():
        case = CASES[title]()
        for name in names:
            if file_of(title, name).is_file():
                continue
            found = cell(title, case, name)
            file_of(title, name).write_text(json.dumps(found))
            print(
                f"{title}: {name}, F {np.mean(found['runs']['F']):.4f} at lr {found['lr']:g}, "
                f"{found['knob']:g}, {found['seconds']:.0f} s",
                flush=True,
            )
    if given.case is None:
        tables = {title: table_of(title) for title in METHODS}
        tables |= {f"{title}, by rate": by_rate(title) for title in METHODS}
        fill("meta-learning.md", {name: table.to_markdown() for name, table in tables.items()})
