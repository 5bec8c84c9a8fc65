"""The demonstration: one portfolio, four estimators, equal samples, one table and one figure."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import typer
from rich.console import Console
from rich.table import Table

import nestax as nx
from nestax.figure import plot_curves

SAMPLES = 400_000
BATCH = 4
LEARNING_RATES = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2]
#: Gaps below this are rounding error in F* itself.
FLOOR = 1e-14
METHODS = {
    "Plain": lambda s: (nx.Plain(), optax.sgd(s.lr)),
    "SMVR": lambda s: (nx.SMVR(beta=0.01), optax.sgd(s.lr)),
    "AdjointSMVR": lambda s: (nx.AdjointSMVR(beta=0.01), optax.sgd(s.lr)),
    "SnapshotSMVR": lambda s: (nx.SnapshotSMVR(beta=0.01), optax.sgd(s.lr)),
}
ABOUT = {
    "Plain": "no memory; biased",
    "SMVR": "tracks Jacobians",
    "AdjointSMVR": "tracks adjoints",
    "SnapshotSMVR": "with full passes",
}


def run_demo(out: Path, seeds: int) -> None:
    """Writes ``portfolio.png`` and ``portfolio.csv`` to a folder and prints the table."""
    jax.config.update("jax_enable_x64", True)  # to see gaps far below a float32's precision
    console = Console()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        typer.echo(f"nestax demo: cannot write to {out}: {error.strerror}.", err=True)
        raise typer.Exit(2) from None
    problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(5_000, 10))
    console.print("Minimise [bold]−mean + 0.2·deviation[/] of a portfolio of 10 assets:\n")
    console.print(problem.describe(), highlight=False)
    optimum = reference_optimum(problem)
    curves, samples, rows = {}, {}, []
    for name, build in METHODS.items():
        rate, curve, axis = run_method(problem, build, seeds)
        curves[name], samples[name] = np.maximum(curve - optimum, FLOOR), axis
        last = curves[name][:, -1]
        rows.append([name, ABOUT[name], rate, int(axis[-1]), last.mean(), last.std()])
    uniform = float(problem.value(problem.w0)) - optimum
    console.print(f"\nF* = {optimum:.6f}; equal weights are {uniform:.2e} above it.")
    console.print(table(rows, seeds))
    write_csv(out / "portfolio.csv", rows)
    try:
        plot_curves(samples, curves, "gap", out / "portfolio.png")
    except ImportError as error:
        console.print(f"No figure: {error}")
    console.print(f"Written: {', '.join(str(p) for p in sorted(out.glob('portfolio.*')))}")


def reference_optimum(problem: nx.Problem) -> float:
    """F* by full gradient descent on the closed form, run until nothing moves."""
    result = nx.minimize(
        problem, nx.Exact(), optax.sgd(0.5), steps=2_000, record_every=500, progress=False
    )
    return float(np.min(result.records["exact_value"]))


def run_method(
    problem: nx.Problem, build: Callable[[Any], Any], seeds: int
) -> tuple[float, np.ndarray, np.ndarray]:
    """All learning rates on all seeds in one sweep; tuning seeds choose the rate, others report."""
    tuning = range(1_000, 1_004)
    runs = nx.sweep(
        problem, build, settings=nx.grid(lr=LEARNING_RATES), seeds=[*tuning, *range(seeds)],
        samples=SAMPLES, batch_size=BATCH, record=["exact_value"], progress=False,
    )  # fmt: skip
    curves = np.where(runs.finite[:, :, None], runs.records["exact_value"], np.inf)
    best = int(np.argmin(curves[:, : len(tuning), -1].mean(axis=1)))
    return LEARNING_RATES[best], curves[best, len(tuning) :], runs.records["samples"]


def table(rows: list[list[Any]], seeds: int) -> Table:
    out = Table(title=f"Gap F(w) − F* at equal samples, {seeds} runs each")
    for word in ("method", "what it does", "rate", "samples", "gap"):
        out.add_column(word, justify="left" if word in ("method", "what it does") else "right")
    for name, about, rate, samples, gap, spread in rows:
        shown = f"{gap:.1e} ± {spread:.0e}" if gap > FLOOR else f"below {FLOOR:.0e}"
        out.add_row(name, about, f"{rate:g}", f"{samples:,}", shown)
    return out


def write_csv(path: Path, rows: list[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "about", "learning_rate", "samples", "gap_mean", "gap_std"])
        writer.writerows(rows)
