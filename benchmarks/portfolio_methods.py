"""Every multi-level method on real portfolios: the tables of docs/comparison.md.

Data: Industry-10 and Industry-30, from NESTAX_DATA if it holds them. Cells that are already
in benchmarks/results/portfolio.json are not computed again; delete the file to start afresh.
"""

import json
import sys

import jax
import numpy as np

import nestax as nx
from nestax.study.compare import TAIL
from nestax.table import Table
from pages import fill
from real_data import industry
from script import SMALL, parser, results, size

jax.config.update("jax_enable_x64", True)

#: Batch size to samples: 50,000, 10,000 and 2,500 steps of a method that draws one batch a level.
BUDGETS = size({1: 100_000, 16: 320_000, 128: 640_000}, small={4: 4_000})
INDUSTRIES = size((10, 30), small=(10,))
RATES = [5e-4, 2e-3, 1e-2, 5e-2, 0.2, 1.0, 5.0]
BETAS = [1e-3, 1e-2, 0.1, 0.5]
#: The same learning rates for all; forgetting rates for the methods that leave theirs open.
GROUPS = [
    (["Plain", "TSCGD", "ATSCGD", "NestedSPIDER", "SSD"], nx.grid(lr=RATES)),
    (["SCSC", "SMVR", "AdjointSMVR", "ProductSMVR", "PMVR", "PMM"], nx.grid(lr=RATES, beta=BETAS)),
    (["MLNASA", "NLASG"], nx.grid(lr=RATES, tau=BETAS)),
    (["SnapshotSMVR", "PMFS"], nx.grid(lr=RATES, beta=[1e-2])),
]
SHOWN = ("steps", "samples", "gap", "± std", "grad_norm", "diverged")
#: Methods whose gaps are near those of the first, and how they are told apart: run by run.
NEAR = size(("SMVR", "AdjointSMVR", "NLASG", "MLNASA"), small=("SCSC", "MLNASA"))
if SMALL:  # one method of every group
    GROUPS = [(names[:1], tune) for names, tune in GROUPS]
SEEDS = size(10, small=2)
TUNE_SEEDS = size(3, small=1)


def portfolio(industries: int) -> nx.Problem:
    """The variance is kept above 0.01 (it is about 0.5): 1/sqrt of a tracker near 0 is a huge step."""
    returns = industry(industries)
    optimum = nx.problems.exact_portfolio(returns, delta=1e-12).least().value
    return nx.problems.mean_deviation(returns, delta=1e-12, least_variance=0.01, optimum=optimum)


def compute() -> dict:
    file = results("portfolio.json")
    cells = json.loads(file.read_text()) if file.exists() else {}
    for industries in INDUSTRIES:
        problem = portfolio(industries)
        cells[f"{industries} start"] = float(problem.value(problem.w0) - problem.optimum)
        cells[f"{industries} optimum"] = float(problem.optimum)
        for batch, samples in BUDGETS.items():
            for names, tune in GROUPS:
                for name in names:
                    key = f"{industries} {batch} {name}"
                    if key not in cells:
                        cells[key] = one_cell(problem, name, tune, batch, samples)
                        print(key, cells[key], file=sys.stderr, flush=True)
                        file.write_text(json.dumps(cells, indent=1))
                        jax.clear_caches()  # a process may map only so many compiled programs
    return cells


def one_cell(problem, name, tune, batch, samples) -> dict:
    result = nx.compare(
        problem,
        [name],
        samples=samples,
        tune=tune,
        seeds=SEEDS,
        tune_seeds=TUNE_SEEDS,
        batch_size=batch,
        progress=False,
    )
    if result.refused:
        return {"refused": result.refused[name]}
    row = dict(zip(result.table.columns, result.table.rows[0], strict=True))
    told = {name: row[name] for name in (*tune, *SHOWN)}
    return told | {"gaps": gaps(result.runs[name])}


def gaps(run: nx.Sweep) -> list[float]:
    """Of every seed, the mean over the last fifth of its run."""
    curves = run.records["gap"][0]
    return curves[:, -round(TAIL * curves.shape[1]) :].mean(axis=1).tolist()


def page_table(cells: dict) -> str:
    """Rows are methods; columns are data set and batch; cells are mean ± deviation over seeds."""
    names = [name for group, _ in GROUPS for name in group]
    drawing = [name for group, _ in GROUPS[:-1] for name in group]  # without whole passes over the rows
    columns = [(industries, batch) for industries in INDUSTRIES for batch in BUDGETS]
    best = {c: min(cells[f"{c[0]} {c[1]} {n}"].get("gap", np.inf) for n in drawing) for c in columns}
    rows = []
    for name in names:
        row = [f"`{name}`"]
        for c in columns:
            cell = cells[f"{c[0]} {c[1]} {name}"]
            if "refused" in cell:
                row.append("refused")
            else:
                text = f"{cell['gap']:.1e} ± {cell['± std']:.0e}"
                row.append(f"**{text}**" if cell["gap"] == best[c] else text)
        rows.append(row)
    head = ["method", *(f"Industry-{i}, batch {b}" for i, b in columns)]
    start = ["start (equal weights)", *(f"{cells[f'{i} start']:.1e}" for i, _ in columns)]
    return Table(head, [start, *rows]).to_markdown()


def difference_table(cells: dict) -> str:
    """What a gap is above that of the first in units of 1e-4, seed by seed: mean ± standard error."""
    first, *others = NEAR
    rows = []
    for name in others:
        row = [f"`{name}`"]
        for key in (f"{i} {b}" for i in INDUSTRIES for b in BUDGETS):
            above = 1e4 * np.subtract(cells[f"{key} {name}"]["gaps"], cells[f"{key} {first}"]["gaps"])
            row.append(f"{above.mean():+.2f} ± {above.std(ddof=1) / len(above) ** 0.5:.2f}")
        rows.append(row)
    head = [f"less `{first}`", *(f"Industry-{i}, batch {b}" for i in INDUSTRIES for b in BUDGETS)]
    return Table(head, rows).to_markdown()


def write_page(cells: dict) -> None:
    parts = {"portfolio table": page_table(cells), "portfolio differences": difference_table(cells)}
    fill("comparison.md", parts)


if __name__ == "__main__":
    parser(__doc__).parse_args()
    table = compute()
    write_page(table)
