"""What memory of every task is worth in meta-learning: sinusoids with a part of the support rows a step.

M = 16 tasks with 20 support and 20 query rows, two inner steps of length 0.01, a perceptron 1-20-20-1.
A visit to a task costs 4 support rows at every inner step and 4 query rows, for all methods: those with
draws of their own for values and for adjoints take 2 and 2. Weights move by Adam, so that the learning
rate is about the length of a step in every weight, whatever a method makes of the gradient.

Over the last 200 of 500 steps and three seeds:

    error    root mean square over tasks of ‖u^i − f_i(u^{i-1})‖ (the record "value_error"), at both
             inner steps together, divided by that of batches without memory (PerBlock(Plain))
    loss     query loss of 40 new tasks after two steps on all of their support rows

Takes five minutes of CPU time, most of it compiling. Writes benchmarks/results/maml_sinusoids.csv and
the table of docs/meta-learning.md.
"""

from typing import Any

import numpy as np
import optax

import nestax as nx
from nestax.problems.few_shot.networks import perceptron
from nestax.table import Table
from pages import fill
from script import few, parser, results, size

M = 16
#: M/B: a task is visited every so many steps.
EVERY = size((2, 8), small=(8,))
ROWS = 4
STEPS = size(500, small=10)
SEEDS = size(3, small=1)
RATES = (1e-4, 1e-3, 1e-2)
BETAS = (0.1, 0.3, 0.6, 0.9)
METHODS = few(
    {
        "no memory": lambda beta: nx.PerBlock(nx.Plain()),
        "SCSC": lambda beta: nx.PerBlock(nx.SCSC(beta)),
        "AdjointSMVR": lambda beta: nx.PerBlock(nx.AdjointSMVR(beta, mode="fresh")),
        "ProductSMVR": lambda beta: nx.PerBlock(nx.ProductSMVR(beta, mode="reuse")),
        "NLASG": lambda beta: nx.PerBlock(nx.NLASG(beta)),
        "BlockSMVR": nx.BlockSMVR,
    }
)


def problem_of(visit: int) -> nx.Problem:
    network = perceptron(1, 20, 20, 1)
    new = nx.datasets.sinusoids(40, seed=1)
    return nx.problems.maml(
        network.apply,
        nx.datasets.sinusoids(M),
        network.init,
        visit=visit,
        inner_steps=2,
        score={"loss": new},
    )


def measure(name: str, visit: int) -> dict[tuple[float, float], tuple[float, float]]:
    """Error and loss of every learning rate and beta."""
    problem = problem_of(visit)
    build = METHODS[name]
    passes = build(0.5).level_passes(problem)
    sizes = {lv.name: ROWS // len(own) for lv, own in zip(problem.levels, passes, strict=True)}
    betas = BETAS if name != "no memory" else (1.0,)
    runs = nx.sweep(
        problem,
        lambda s: (build(s.beta), optax.adam(s.lr)),
        settings=nx.grid(lr=RATES, beta=betas),
        seeds=SEEDS,
        steps=STEPS,
        batch_size=sizes,
        record=["value_error", "loss"],
        record_every=STEPS // 10,
        progress=False,
    )
    each_step = np.diff(runs.records["samples"]) / (STEPS // 10)
    assert np.all(each_step == 3 * ROWS * visit), each_step
    late = slice(-5, None)  # records of steps 300 to 500
    squares = np.sum(runs.records["value_error"][:, :, late, :2] ** 2, axis=3)
    errors = np.sqrt(squares.mean(axis=(1, 2)))
    losses = runs.records["loss"][:, :, late].mean(axis=(1, 2))
    whole = runs.finite.all(axis=1) & np.isfinite(errors)
    where = zip(runs.settings["lr"].tolist(), runs.settings["beta"].tolist(), strict=True)
    nothing = (float("inf"), float("inf"))
    return {
        place: (float(e), float(x)) if ok else nothing
        for place, e, x, ok in zip(where, errors, losses, whole, strict=True)
    }


def word(x: float) -> str:
    return "diverges" if not x < 1e3 else f"{x:.3g}"


def summary(rows: list[list[Any]]) -> Table:
    """A line for every M/B, learning rate and method, at the beta with the least error."""
    out = []
    for every in EVERY:
        for lr in RATES:
            here = [row[2:] for row in rows if row[:2] == [every, lr]]
            plain = next(loss for name, _, _, loss in here if name == "no memory")
            for name in METHODS:
                own = [row for row in here if row[0] == name]
                if name == "no memory":
                    continue
                _, beta, error, loss = min(own, key=lambda row: row[2])
                below = ", ".join(f"{row[1]:g}" for row in own if row[2] < 1) or "none"
                out.append(
                    [every, f"{lr:g}", name, below, f"{beta:g}", word(error), word(loss), word(plain)]
                )
    columns = [
        "M/B",
        "lr",
        "method",
        "below 1 at beta",
        "best beta",
        "error",
        "loss",
        "loss without memory",
    ]
    return Table(columns, out)


if __name__ == "__main__":
    parser(__doc__).parse_args()
    rows: list[list[Any]] = []
    for every in EVERY:
        found = {name: measure(name, M // every) for name in METHODS}
        for name, own in found.items():
            for (lr, beta), (error, loss) in own.items():
                rate = min(RATES, key=lambda r: abs(r - lr))  # settings come back in single precision
                base = next(e for (r, _), (e, _) in found["no memory"].items() if r == lr)
                rows.append([every, rate, name, round(beta, 3), error / base, loss])
                print(*rows[-1], flush=True)
    Table(["M/B", "lr", "method", "beta", "error", "loss"], rows).to_csv(results("maml_sinusoids.csv"))
    fill("meta-learning.md", {"sinusoids": summary(rows).to_markdown()})
