"""``nestax demo``: what memory and snapshots are good for, on made-up returns, in under a minute."""

import dataclasses
from typing import Any

import numpy as np

from nestax.cli.compare import describe
from nestax.cli.portfolio import load, prepare
from nestax.cli.shell import Outcome
from nestax.cli.surface import Demo, Market
from nestax.datasets import Returns
from nestax.figures import plot_weights
from nestax.run.sweep import Sweep, grid
from nestax.study.compare import Comparison, compare, tabulate
from nestax.table import Table

SAMPLES = 200_000
BATCH_SIZE = 4
RISK = 0.2
#: Learning rates that ``nestax compare`` chooses for these methods here; searching takes a minute more.
RATES = {"Plain": 0.00066, "NLASG": 0.21, "SMVR": 0.0066, "SnapshotSMVR": 0.066}


def run(options: Demo) -> Outcome:
    """Runs plain mini-batches, two methods with memory, and one with passes over all rows."""
    table = load("synthetic", Market())
    problem, _, optimum = prepare(table, RISK)
    # With one rate and as many seeds for tuning as for the report, all runs share one compilation.
    parts = [
        compare(
            problem,
            [name],
            samples=SAMPLES,
            batch_size=BATCH_SIZE,
            tune=grid(lr=[rate]),
            seeds=options.seeds,
            tune_seeds=options.seeds,
        )
        for name, rate in RATES.items()
    ]
    runs = {name: run for part in parts for name, run in part.runs.items()}
    outcome = describe(
        Comparison(tabulate(runs, ["lr"], "gap"), runs, {}, {}, "gap"),
        title="Four methods on a portfolio of made-up returns",
        setting=(
            f"{len(table):,} made-up rows × {len(table.assets)} assets, F = −mean + "
            f"{RISK:g}·deviation on the simplex, batch size {BATCH_SIZE}"
        ),
        optimum=optimum.value,
        found={"samples": SAMPLES, "batch_size": BATCH_SIZE, "risk": RISK, "lr": RATES},
    )
    return _with_weights(outcome, table, optimum.w, runs["SnapshotSMVR"])


def _with_weights(outcome: Outcome, table: Returns, best: np.ndarray, runs: Sweep) -> Outcome:
    """Adds the weights that were found, beside the exact optimum."""
    weights_found = 100 * np.asarray(runs.w)[0]
    mean = weights_found.mean(axis=0)
    std = weights_found.std(axis=0)
    rows = [
        [table.assets[k], f"{mean[k]:.2f}", f"{std[k]:.2f}", f"{100 * best[k]:.2f}"]
        for k in np.argsort(-mean, kind="stable")
    ]
    weights = Table(["asset", "found", "±", "exact"], rows)
    caption = f"Weights in percent that SnapshotSMVR found, mean ± std of {len(weights_found)} runs"

    def draw() -> list[tuple[str, str, Any]]:
        return [*outcome.draw(), ("weights", f"{caption}.", plot_weights(table.assets, mean / 100))]

    return dataclasses.replace(
        outcome,
        tables=[*outcome.tables, (caption, weights)],
        numbers=outcome.numbers
        | {"weights": dict(zip(table.assets, (mean / 100).tolist(), strict=True))},
        records=outcome.records | {"weights": weights},
        draw=draw,
    )
