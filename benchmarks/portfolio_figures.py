"""Figures and tables of docs/portfolios.md: Figures 1 and 2 of the SMVR paper on all four markets.

``python benchmarks/portfolio_figures.py --jobs 4`` measures, with NESTAX_DATA, what
benchmarks/results/portfolio_figures.json does not hold yet, and writes the page; delete the file to
start afresh. The pictures are drawn only when all markets are measured in one go. Reported seeds are 20
to 39, and the rows are the newest ones, as many as the paper has: the grids were settled while looking
at other seeds and at the rows of the paper. On these the methods of Figure 1 are run again, at the
settings that were chosen on the others.
"""

import json
import math
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import jax
import numpy as np

import nestax as nx
from nestax.table import Table
from pages import fill, page
from real_data import industry
from script import SMALL, few, parser, results, size

from experiments.portfolio import (
    AS_PRINTED,
    BATCH_SIZE,
    CONTENDERS,
    KINDS,
    OF_THE_PAPER,
    ROWS,
    Portfolios,
    Runner,
    best_portfolio,
    last_within,
    mean_and_error,
    portfolio_problem,
    reproduce_portfolio,
)
from experiments.portfolio import PASSES as PASSES_OF_A_RUN

MARKETS = size((30, 17, 12, 10), small=(10,))
SEEDS = size(range(20, 40), small=range(2))
#: What one unit of the returns is, in percent.
UNITS = few({"percent": 1.0, "decimal": 100.0}, small=1)
PAPER = "SMVR, β of the paper"
IN_DECIMALS = {name: CONTENDERS[name] for name in (*OF_THE_PAPER, AS_PRINTED, PAPER)}
FEW = {name: CONTENDERS[name] for name in ("NLASG", AS_PRINTED, "SMVR", PAPER, "SnapshotSMVR")}
PASSES = (2, 4, 6, 8, 10, 12)
#: Run again on the rows of the paper.
AGAIN = ("NLASG", AS_PRINTED, "SMVR", PAPER)


def measure(unit: str, market: int) -> tuple[dict, dict, dict]:
    """What is kept, and what pictures are drawn from."""
    nx.speed_up()
    jax.config.update("jax_enable_x64", True)
    name = f"Industry-{market}"
    percent = UNITS[unit]
    returns = industry(market)[-ROWS:] / percent
    contenders = FEW if SMALL else CONTENDERS if unit == "percent" else IN_DECIMALS
    more: dict[str, Any] = (
        {"passes": 2, "batch_size": 8, "rates": (0.1,), "tune_seeds": 1} if SMALL else {}
    )
    found = reproduce_portfolio(
        {name: returns}, contenders=contenders, percent=percent, seeds=SEEDS, **more
    )
    problem = found.problems[name]
    optimum = best_portfolio(returns, percent).value
    kept: dict[str, Any] = {"start": percent * (float(problem.value(problem.w0)) - optimum)}
    kept["methods"] = {}
    for method, trial in found.trials[name].items():
        kept["methods"][method] = {
            "setting": trial.setting,
            "steps": int(trial.step[trial.end]),
            "samples": int(trial.samples[trial.end]),
            "gap": (percent * trial.last()).tolist(),
        }
        if method == "SnapshotSMVR":
            once = 2 * len(returns)
            within = {str(k): (percent * trial.within(k * once)).tolist() for k in PASSES}
            kept["methods"][method]["within"] = within
    kept["balls"] = {
        kind: {
            "radius": balls.radius.tolist(),
            "lr": balls.lr.tolist(),
            "gap": (percent * balls.gap[:, :, -1]).tolist(),
            "active": balls.active.tolist(),
        }
        for kind, balls in found.balls[name].items()
    }
    kept["norms"] = found.norms().rows
    return kept, found.trials, found.balls


def confirm(market: int, chosen: dict[str, dict]) -> dict[str, list[float]]:
    """The gap of every seed on the rows of the paper, at settings that other rows and seeds chose."""
    jax.config.update("jax_enable_x64", True)
    problem = portfolio_problem(industry(market)[:ROWS])
    once = sum(level.source.size or 0 for level in problem.levels if level.source is not None)
    runner = Runner(problem, size(PASSES_OF_A_RUN, small=2) * once, size(BATCH_SIZE, small=8))
    found = {}
    for method in AGAIN:
        contender = CONTENDERS[method]
        settings = {name: np.asarray([value]) for name, value in chosen[method]["setting"].items()}
        run = runner.run(method, contender, settings, SEEDS)
        end = last_within(run.records["samples"], runner.budget)
        found[method] = run.records["gap"][0, :, end].tolist()
    return found


def compute(jobs: int) -> dict[str, dict]:
    file = results("portfolio_figures.json")
    cells = json.loads(file.read_text()) if file.exists() else {}
    todo = [(u, m) for u in UNITS for m in MARKETS if f"{u}, {m}" not in cells]
    drawn = {}
    # Started afresh: a forked process inherits threads of JAX that it cannot use.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(measure, *cell): cell for cell in todo}
        for done in as_completed(running):
            unit, market = running[done]
            cells[f"{unit}, {market}"], *of_market = done.result()
            file.write_text(json.dumps(cells, indent=1, sort_keys=True))
            print(unit, market, flush=True)
            if unit == "percent":
                drawn[market] = of_market
    if len(drawn) == len(MARKETS):
        draw(drawn)
    for market in MARKETS:
        key = f"rows of the paper, {market}"
        if key not in cells:
            cells[key] = confirm(market, cells[f"percent, {market}"]["methods"])
            file.write_text(json.dumps(cells, indent=1, sort_keys=True))
            print(key, flush=True)
    return cells


def draw(drawn: dict[int, Any]) -> None:
    names = {f"Industry-{market}": drawn[market] for market in sorted(MARKETS)}
    trials = {name: of_market[0][name] for name, of_market in names.items()}
    balls = {name: of_market[1][name] for name, of_market in names.items()}
    returns = {name: industry(int(name.split("-")[1]))[-ROWS:] for name in names}
    problems = {name: portfolio_problem(table) for name, table in returns.items()}
    best = {name: best_portfolio(table).w for name, table in returns.items()}
    found = Portfolios(problems, best, trials, balls)
    found.plot_methods().savefig(page("images/portfolio-methods.png"), dpi=120)
    found.plot_radii().savefig(page("images/portfolio-radii.png"), dpi=120)


# Tables


def of_markets(cells: dict[str, dict], unit: str = "percent") -> dict[str, dict]:
    return {f"Industry-{m}": cells[f"{unit}, {m}"] for m in sorted(MARKETS) if f"{unit}, {m}" in cells}


def methods(cells: dict[str, dict]) -> list[str]:
    """In the order of the contenders."""
    measured = next(iter(of_markets(cells).values()))["methods"]
    return [name for name in CONTENDERS if name in measured]


def gap(cell: dict, method: str) -> np.ndarray:
    return np.asarray(cell["methods"][method]["gap"])


def short(x: float) -> str:
    """Two digits, and no zeros in the exponent."""
    if not math.isfinite(x):
        return "diverged"
    mantissa, power = f"{x:.1e}".split("e")
    return f"{mantissa}e{int(power)}"


def knob(method: str) -> str:
    words = {"tau": "τ", "eps": "ε", "beta": "β", "scale": "scale of β"}
    contender = CONTENDERS[method]
    return f"{words[contender.knob]} {', '.join(f'{value:g}' for value in contender.values)}"


def gaps(cells: dict[str, dict]) -> Table:
    """F(w) − F*: mean ± standard error; the least of the methods of the paper in bold."""
    markets = of_markets(cells)
    least = {
        m: min(gap(c, x).mean() for x in OF_THE_PAPER if x in c["methods"]) for m, c in markets.items()
    }
    rows = [["equal weights", "", *(short(cell["start"]) for cell in markets.values())]]
    for method in methods(cells):
        row = [method, knob(method)]
        for market, cell in markets.items():
            x = gap(cell, method)
            words = f"{short(x.mean())} ± {error(x):.0e}".replace("e-0", "e-")
            row.append(f"**{words}**" if x.mean() == least[market] else words)
        rows.append(row)
    return Table(["method", "knob", *markets], rows)


def error(x: np.ndarray) -> float:
    return float(x.std(ddof=1)) / len(x) ** 0.5


def differences(cells: dict[str, dict], own: str, others: Sequence[str]) -> Table:
    """Gap less that of SMVR, run by run on the same draws, in 1e-4."""
    markets = of_markets(cells)
    rows = []
    for method in methods(cells):
        if method in others and method != own:
            apart = [1e4 * (gap(cell, method) - gap(cell, own)) for cell in markets.values()]
            rows.append([method, *map(mean_and_error, apart)])
    return Table([f"less {own}", *markets], rows)


def settings(cells: dict[str, dict]) -> Table:
    markets = of_markets(cells)
    rows = []
    for method in methods(cells):
        chosen = [cell["methods"][method]["setting"] for cell in markets.values()]
        names = ("lr", CONTENDERS[method].knob)
        rows.append([method, *(", ".join(f"{s[name]:g}" for name in names) for s in chosen)])
    return Table(["learning rate, knob", *markets], rows)


def passes(cells: dict[str, dict]) -> Table:
    rows = []
    for market, cell in of_markets(cells).items():
        kept = cell["methods"]["SnapshotSMVR"]["within"]
        within = [np.asarray(kept[str(k)]) for k in PASSES]
        rows.append(
            [market, *(f"{short(x.mean())} ({x.max():.0e})".replace("e-0", "e-") for x in within)]
        )
    return Table(["", *map(str, PASSES)], rows)


def radii(cells: dict[str, dict]) -> Table:
    """Gap with a ball less that without at the same learning rate, and how often it was active."""
    head = [f"{kind}, {radius}" for radius in (5, 10) for kind in KINDS]
    rows = []
    for market, cell in of_markets(cells).items():
        row = [market, short(float(np.mean(cell["balls"]["frobenius"]["gap"][4])))]
        for k in (0, 1):
            for kind in KINDS:
                balls = cell["balls"][kind]
                apart = 1e4 * (np.asarray(balls["gap"][k]) - np.asarray(balls["gap"][4]))
                row.append(f"{mean_and_error(apart)} ({100 * balls['active'][k][1]:.2g} %)")
        rows.append(row)
    return Table(["", "no ball", *head], rows)


def norms(cells: dict[str, dict]) -> Table:
    rows = []
    for market, cell in of_markets(cells).items():
        start, end = (row[2:] for row in cell["norms"])
        rows.append([market, *(f"{a:.1f}, {b:.1f}" for a, b in zip(start, end, strict=True))])
    names = [f"{level}, {kind}" for level in ("mean", "variance") for kind in KINDS]
    return Table(["equal weights, optimum", *names], rows)


def units(cells: dict[str, dict]) -> Table:
    """Gaps in 1e-4 percent a day with returns in percent and as decimals, and who is first."""
    rows = []
    for unit in UNITS:
        for market, cell in of_markets(cells, unit).items():
            for own, rival in ((PAPER, AS_PRINTED), (PAPER, "NLASG"), ("SMVR", "NLASG")):
                one, other = gap(cell, own), gap(cell, rival)
                numbers = [f"{1e4 * x.mean():.2f}" for x in (one, other)]
                rows.append([unit, market, own, rival, *numbers, mean_and_error(1e4 * (other - one))])
    return Table(["returns", "market", "SMVR", "NLASG", "its gap", "NLASG's", "difference"], rows)


def again(cells: dict[str, dict]) -> Table:
    """On the rows of the paper, in 1e-4: gap, and less that of SMVR on the same draws."""
    markets = {f"Industry-{m}": cells[f"rows of the paper, {m}"] for m in sorted(MARKETS)}
    rows = []
    for method in AGAIN:
        row = [method]
        for found in markets.values():
            x, own = (1e4 * np.asarray(found[name]) for name in (method, "SMVR"))
            row.append(f"{x.mean():.2f}" + ("" if method == "SMVR" else f", {mean_and_error(x - own)}"))
        rows.append(row)
    return Table(["gap, less SMVR's", *markets], rows)


def tables(cells: dict[str, dict]) -> dict[str, Table]:
    return {
        "gaps": gaps(cells),
        "differences": differences(cells, "SMVR", list(CONTENDERS)),
        "differences of the paper": differences(cells, PAPER, [*OF_THE_PAPER[:-1], AS_PRINTED]),
        "again": again(cells),
        "settings": settings(cells),
        "passes": passes(cells),
        "radii": radii(cells),
        "norms": norms(cells),
        "units": units(cells),
    }


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--jobs", type=int, default=1)
    made = tables(compute(arguments.parse_args().jobs))
    fill("portfolios.md", {name: table.to_markdown() for name, table in made.items()})
