"""Steps of a length that no draw can change, on days of +112 %: a table of docs/portfolios.md.

``python benchmarks/heavy_tails.py`` measures what benchmarks/results/heavy_tails.json does not hold yet
and writes the page; delete the file to start afresh. Data: the first 25,105 rows of Industry-30, whose
thin industries move by up to +112 % on single days before 1936. From NESTAX_DATA if it holds them.
"""

import json
from typing import Any

import jax
import numpy as np

import nestax as nx
from nestax.study.compare import TAIL
from nestax.table import Table
from pages import fill
from real_data import industry
from script import few, parser, results, size

jax.config.update("jax_enable_x64", True)

ROWS = 25_105
#: Batch size to samples: 20,000 and 4,000 steps.
BUDGETS = size({1: 40_000, 16: 128_000}, small={4: 800})
TUNE = nx.grid(lr=[1e-4, 5e-4, 2e-3, 1e-2, 5e-2, 0.2], beta=size([1e-3, 1e-2, 0.1, 0.5], small=[0.1]))
SEEDS = size(20, small=2)
TUNE_SEEDS = size(3, small=1)


def descent(s: Any) -> Any:
    return nx.SMVR(s.beta), nx.steps.Descent(s.lr)


def normalised(s: Any) -> Any:
    return nx.SMVR(s.beta), nx.steps.Normalized(s.lr)


def nothing_chosen(s: Any) -> Any:
    """η = β = T^(−2/3)."""
    return nx.SMVR(lambda count, horizon: horizon ** (-2 / 3)), nx.steps.Normalized()


METHODS = few(
    {
        "w − ηv": (descent, TUNE),
        "w − ηv/‖v‖": (normalised, TUNE),
        "w − ηv/‖v‖, η = β = T^(−2/3)": (nothing_chosen, nx.grid(lr=[1.0])),
    }
)


def compute() -> dict[str, Any]:
    file = results("heavy_tails.json")
    cells = json.loads(file.read_text()) if file.exists() else {}
    problem = None
    for batch, samples in BUDGETS.items():
        for name, (build, tune) in METHODS.items():
            key = f"{batch} {name}"
            if key not in cells:
                problem = market() if problem is None else problem
                cells[key] = measure(problem, build, tune, batch, samples)
                print(key, np.mean(cells[key]["gaps"]), flush=True)
                file.write_text(json.dumps(cells, indent=1))
    return cells


def market() -> nx.Problem:
    returns = industry(30)[:ROWS]
    optimum = nx.problems.exact_portfolio(returns, delta=1e-12).least().value
    return nx.problems.mean_deviation(returns, delta=1e-12, least_variance=0.01, optimum=optimum)


def measure(problem: nx.Problem, build: Any, tune: Any, batch: int, samples: int) -> dict[str, Any]:
    facts = {"samples": samples, "seeds": SEEDS, "tune_seeds": TUNE_SEEDS, "progress": False}
    run = nx.compare(problem, {"one": build}, tune=tune, batch_size=batch, **facts).runs["one"]
    curves = run.records["gap"][0]
    gaps = curves[:, -round(TAIL * curves.shape[1]) :].mean(axis=1)
    return {"setting": {k: float(v[0]) for k, v in run.settings.items()}, "gaps": gaps.tolist()}


def table(cells: dict[str, Any]) -> Table:
    """Gaps in 1e-4, and what they are above those of descent on the same draws."""
    rows = []
    for batch in BUDGETS:
        own = {name: 1e4 * np.asarray(cells[f"{batch} {name}"]["gaps"]) for name in METHODS}
        first = next(iter(own.values()))
        for name, gaps in own.items():
            above = gaps - first
            error = above.std(ddof=1) / len(above) ** 0.5
            setting = cells[f"{batch} {name}"]["setting"]
            chosen = [f"{setting[k]:g}" if "beta" in setting else "–" for k in ("lr", "beta")]
            beside = f"{above.mean():+.2f} ± {error:.2f}" if above.any() else "–"
            rows.append([batch, name, *chosen, f"{gaps.mean():.2f}", f"{gaps.max():.2f}", beside])
    return Table(["batch", "step", "η", "β", "gap", "worst run", "above the first"], rows)


if __name__ == "__main__":
    parser(__doc__).parse_args()
    fill("portfolios.md", {"heavy tails": table(compute()).to_markdown()})
