"""Normalised and clipped steps of SMVR where noise has heavy tails: a table of docs/portfolios.md.

``python benchmarks/heavy_tails.py`` measures, with NESTAX_DATA, what benchmarks/results/heavy_tails.json
does not hold yet. Industry-30 has single days of +112 %. In the made-up chain noise in value, Jacobian
and curvature follows Student's t with 1.5 degrees of freedom, whose variance is infinite.
"""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nestax as nx
from nestax.paper.portfolio import ROWS, mean_and_error, portfolio_problem
from nestax.problems.chains.smooth_chain import Exact, Outer, inner
from nestax.study.compare import TAIL
from nestax.table import Table
from pages import fill
from real_data import industry
from script import SMALL, parser, results, size

BUDGETS = size({1: 100_000, 16: 320_000, 128: 640_000}, small={4: 2_000})
BETAS = size([1e-3, 1e-2, 0.1, 0.5], small=[0.1])
SEEDS = size(20, small=2)
TUNE_SEEDS = size(6, small=1)
LENGTHS = [1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1]
RATES = [5e-4, 2e-3, 1e-2, 5e-2, 0.2, 1.0, 5.0]
#: By step rule: from a setting to a method, and its grid.
STEPS: dict[str, tuple[Any, dict[str, list[float]]]] = {
    "lr·v": (lambda s: (nx.SMVR(s.beta), nx.steps.Descent(s.lr)), {"lr": RATES}),
    "lr·v/‖v‖": (lambda s: (nx.SMVR(s.beta), nx.steps.Normalized(s.lr)), {"lr": LENGTHS}),
    "lr·v, clipped": (
        lambda s: (nx.SMVR(s.beta), nx.steps.Bounded(2 * s.lr, s.longest / (2 * s.lr))),
        {"lr": RATES, "longest": [1e-3, 1e-2, 0.1]},
    ),
}
FIRST = next(iter(STEPS))
FREEDOM = 1.5
LEVELS = 3
DIMENSION = 8


def market() -> nx.Problem:
    return portfolio_problem(industry(30)[-ROWS:])


def heavy_chain() -> nx.Problem:
    """``nx.problems.smooth_chain`` with other noise, whose mean over all rows is 0."""
    rng = np.random.default_rng(0)

    def noise() -> jax.Array:
        e = rng.standard_t(FREEDOM, (size(100_000, small=500), DIMENSION))
        return jnp.asarray(0.2 * (e - e.mean(axis=0)))

    bend = jnp.asarray(0.5)
    outer = Outer("nonconvex", False)
    chain = [
        nx.Level(inner, (noise(), noise()), args=((-1) ** k * bend,), name=f"inner {k + 1}")
        for k in range(LEVELS - 1)
    ]
    return nx.Problem(
        [*chain, nx.Level(outer, (noise(), noise()), name="outer")],
        w0=jnp.ones(DIMENSION),
        exact=Exact(outer, bend, LEVELS - 1),
        optimum=0.0,
    )


PROBLEMS = {"Industry-30": (market, "gap"), "Student's t": (heavy_chain, "grad_norm")}


def measure(problem: nx.Problem, by: str, batch: int, step: str) -> dict[str, Any]:
    """The setting that other seeds chose, and the mean over the last fifth of every reported run."""
    build, own = STEPS[step]
    few = {name: values[-3:-1] if SMALL else values for name, values in own.items()}
    found = nx.compare(
        problem,
        {step: build},
        tune=nx.grid(**few, beta=BETAS),
        samples=BUDGETS[batch],
        batch_size=batch,
        seeds=SEEDS,
        tune_seeds=TUNE_SEEDS,
        by=by,
        progress=False,
    )
    run = found.runs[step]
    records = np.where(run.finite[:, :, None], run.records[by], np.inf)[0]
    ends = records[:, -max(1, round(TAIL * records.shape[1])) :].mean(axis=1)
    chosen = {name: float(column[0]) for name, column in run.settings.items()}
    return {"setting": chosen, "ends": ends.tolist()}


def compute() -> dict[str, dict]:
    file = results("heavy_tails.json")
    cells = json.loads(file.read_text()) if file.exists() else {}
    for name, (problem_of, by) in PROBLEMS.items():
        problem = problem_of()
        for batch in BUDGETS:
            for step in STEPS:
                key = f"{name}, {batch}, {step}"
                if key not in cells:
                    cells[key] = measure(problem, by, batch, step)
                    file.write_text(json.dumps(cells, indent=1))
                    print(key, cells[key]["setting"], np.mean(cells[key]["ends"]), flush=True)
    return cells


def page_table(cells: dict[str, dict]) -> Table:
    """Gaps in 1e-4, gradients in 1e-2: mean, worst run, and less the plain step on the same draws."""
    rows = []
    for name, unit in (("Industry-30", 1e4), ("Student's t", 1e2)):
        for batch in BUDGETS:
            plain = unit * np.asarray(cells[f"{name}, {batch}, {FIRST}"]["ends"])
            for step in STEPS:
                cell = cells[f"{name}, {batch}, {step}"]
                ends = unit * np.asarray(cell["ends"])
                apart = "–" if step == FIRST else mean_and_error(ends - plain)
                setting = ", ".join(f"{key} {value:g}" for key, value in cell["setting"].items())
                rows.append(
                    [name, batch, step, f"{ends.mean():.2f}", f"{ends.max():.2f}", apart, setting]
                )
    head = ["noise", "batch", "step", "mean", "worst run", "less the plain step", "setting"]
    return Table(head, rows)


if __name__ == "__main__":
    parser(__doc__).parse_args()
    jax.config.update("jax_enable_x64", True)
    fill("portfolios.md", {"heavy tails": page_table(compute()).to_markdown()})
