"""When a cone solver is the better tool: the tables of docs/cone-solvers.md.

Two portfolios on the simplex over made-up returns, T rows of d assets. The mean-deviation portfolio
needs the rows only for their mean and covariance, so the cone solver gets a cone of d dimensions; the
mean-semideviation portfolio has no such short form, so it gets every row. Both sides begin with the
table of returns. Everything runs on one thread, and what counts is CPU time. Cells that are already in
benchmarks/results/cone_solver.json are not computed again; delete the file to start afresh.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from measure import on_one_thread
from pages import fill
from script import parser, results, size

on_one_thread()

import cvxpy as cp  # noqa: E402
import jax  # noqa: E402

import nestax as nx  # noqa: E402
from nestax.steps import Descent  # noqa: E402
from nestax.table import Table  # noqa: E402

jax.config.update("jax_enable_x64", True)

ROWS = size((1_000, 10_000, 100_000, 1_000_000), small=(1_000,))
ASSETS = size((10, 100, 1_000), small=(5,))
#: The largest rows × assets (mean-deviation), and rows × assets² (mean-semideviation, which is what an
#: interior point spends on an iteration there), that is tried.
MOST = 10**8
#: Seconds after which a cone solver is given up.
PATIENCE = 1_200
RISK = 0.2
BATCH = 128
BETA = 0.01
#: Gaps F(w) − F* in percent a day; equal weights are a few hundredths off.
TARGETS = (1e-3, 1e-4, 1e-7)


def mean_deviation_cone(returns: np.ndarray) -> float | None:
    mean = returns.mean(axis=0)
    centred = returns - mean
    root = np.linalg.cholesky(centred.T @ centred / len(returns) + 1e-12 * np.eye(len(mean)))
    x = cp.Variable(len(mean))
    return _solved(-mean @ x + RISK * cp.norm(root.T @ x), [x >= 0, cp.sum(x) == 1])


def mean_semideviation_cone(returns: np.ndarray) -> float | None:
    mean = returns.mean(axis=0)
    x = cp.Variable(len(mean))
    below = cp.Variable(len(returns))
    goal = -mean @ x + RISK / len(returns) ** 0.5 * cp.norm(below)
    return _solved(goal, [below >= 0, below >= (mean - returns) @ x, x >= 0, cp.sum(x) == 1])


def _solved(goal: Any, constraints: list[Any]) -> float | None:
    problem = cp.Problem(cp.Minimize(goal), constraints)
    try:
        problem.solve(solver=cp.CLARABEL, time_limit=PATIENCE)
    except cp.SolverError:
        return None
    return float(goal.value) if problem.status == cp.OPTIMAL else None


PROBLEMS = {
    "mean-deviation": (mean_deviation_cone, nx.problems.mean_deviation, 1),
    "mean-semideviation": (mean_semideviation_cone, nx.problems.mean_semideviation, 2),
}


def cpu_seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.process_time()
    out = run()
    return time.process_time() - begin, out


def learning_rate(returns: np.ndarray) -> float:
    """One over the curvature of F at equal weights, λ·λ_max(Σ)/σ, from the first rows."""
    covariance = np.cov(returns[:10_000].T, bias=True)
    deviation = np.sqrt(covariance.mean())  # equal weights: the mean of all entries is their variance
    return float(deviation / (RISK * np.linalg.eigvalsh(covariance)[-1]))


def one_cell(name: str, rows: int, assets: int) -> dict[str, Any]:
    returns = nx.datasets.synthetic_returns(rows, assets)
    cone, build, _ = PROBLEMS[name]
    cell: dict[str, Any] = {"problem": name, "rows": rows, "assets": assets}
    seconds, optimum = cpu_seconds(lambda: cone(returns))
    cell["cone s"] = None if optimum is None else seconds
    epoch = math.ceil(rows / BATCH)

    def solve(method, steps: int, every: int, **facts: Any) -> Any:
        problem = build(returns, risk=RISK, delta=1e-12, optimum=optimum)
        step = Descent(learning_rate(returns))
        return nx.minimize(
            problem,
            method,
            step,
            steps=steps,
            record_every=every,
            batch_size=BATCH,
            progress=False,
            **facts,
        )

    many = max(64 * epoch, 10_000 - 10_000 % epoch)
    if optimum is None:
        run = solve(nx.SnapshotSMVR(BETA), many, epoch, record=["exact_value"], stop=nx.stop.Patience(8))
        optimum = float(run.records["exact_value"].min())
    for method, every, most_steps in ((nx.SnapshotSMVR(BETA), epoch, many), (nx.SMVR(BETA), 25, 10_000)):
        # A first run finds the step at which a target is reached; its records need passes over the
        # rows, so a second without any is timed, compiled before.
        found = solve(method, most_steps, every, record=["gap"], stop=nx.stop.Gap(min(TARGETS))).records
        for target in TARGETS:
            there = np.flatnonzero(found["gap"] <= target)
            if len(there):
                steps = int(found["step"][there[0]])
                run = lambda m=method, n=steps, k=every: solve(m, n, k, record=["value"])
                first = cpu_seconds(run)[0]
                second = cpu_seconds(run)[0]
                cell[f"{type(method).__name__} {target:g} s"] = second
                cell["compile s"] = max(first - second, cell.get("compile s", 0))
    return cell


def compute() -> dict[str, Any]:
    file = results("cone_solver.json")
    cells = json.loads(file.read_text()) if file.exists() else {}
    for name in PROBLEMS:
        for assets in ASSETS:
            for rows in ROWS:
                key = f"{name} {rows} {assets}"
                if key not in cells and rows * assets ** PROBLEMS[name][2] <= MOST:
                    cells[key] = one_cell(name, rows, assets)
                    print(key, cells[key], file=sys.stderr, flush=True)
                    file.write_text(json.dumps(cells, indent=1))
                    jax.clear_caches()
    return cells


def page_table(cells: dict[str, Any], name: str) -> str:
    columns = {"cone s": "cone solver"}
    columns |= {f"SnapshotSMVR {t:g} s": f"`SnapshotSMVR`, gap {t:g}" for t in TARGETS[1:]}
    columns |= {f"SMVR {t:g} s": f"`SMVR`, gap {t:g}" for t in TARGETS[:2]}
    columns["compile s"] = "compiling"
    shown = lambda x: "–" if x is None else f"{x:.2g}" if x < 10 else f"{x:,.0f}"
    rows = [
        [f"{cell['rows']:,}", f"{cell['assets']:,}", *(shown(cell.get(c)) for c in columns)]
        for cell in cells.values()
        if cell["problem"] == name
    ]
    return Table(["rows", "assets", *columns.values()], rows).to_markdown()


def write_page(cells: dict[str, Any]) -> None:
    fill("cone-solvers.md", {name: page_table(cells, name) for name in PROBLEMS})


if __name__ == "__main__":
    parser(__doc__).parse_args()
    table = compute()
    write_page(table)
