"""``nestax demo``: what memory and snapshots are good for, on made-up returns, in under a minute."""

from nestax.cli.compare import describe
from nestax.cli.portfolio import load, prepare
from nestax.cli.shell import Outcome
from nestax.run.sweep import grid
from nestax.study.compare import Comparison, compare
from nestax.table import Table

SAMPLES = 200_000
BATCH_SIZE = 4
RISK = 0.2
#: Learning rates that ``nestax compare`` chooses for these methods here; searching takes a minute more.
RATES = {"Plain": 0.00066, "NLASG": 0.21, "SMVR": 0.0066, "SnapshotSMVR": 0.066}


def run_demo(seeds: int) -> Outcome:
    """Plain mini-batches, two methods with memory, and one with passes over all rows."""
    table = load("synthetic")
    problem, _, reference = prepare(table, RISK)
    # With one rate and as many seeds for tuning as for the report, all runs share one compilation.
    parts = [
        compare(
            problem,
            [name],
            samples=SAMPLES,
            batch_size=BATCH_SIZE,
            tune=grid(lr=[rate]),
            seeds=seeds,
            tune_seeds=seeds,
        )
        for name, rate in RATES.items()
    ]
    rows = sorted((row for part in parts for row in part.table.rows), key=lambda row: row[-4])
    runs = {name: run for part in parts for name, run in part.runs.items()}
    return describe(
        Comparison(Table(parts[0].table.columns, rows), runs, {}, {}, "gap"),
        title="Four methods on a portfolio of made-up returns",
        setting=(
            f"{len(table):,} made-up rows × {len(table.assets)} assets, F = −mean + "
            f"{RISK:g}·deviation on the simplex, batch size {BATCH_SIZE}"
        ),
        optimum=reference.value,
        found={"samples": SAMPLES, "batch_size": BATCH_SIZE, "risk": RISK, "lr": RATES},
    )
