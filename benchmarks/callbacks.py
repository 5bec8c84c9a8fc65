"""What a callback at every record costs: 1,000 records of a run of about ten seconds.

    python benchmarks/callbacks.py [rounds]

Runs without a callback, with one that looks at the record, and with one that reads the weights take
turns in one process; the smallest of all rounds counts. The steps are cheap, a few microseconds each,
which is the worst case. Two runs of ten seconds differ by more than what is measured, so the cost of a
record is that of runs with the same records and few steps, in processor time: many rounds of those fit
into the time of a long one. The last column is what 1,000 records then are of ten seconds. Writes a
table into docs/running.md.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import optax

import nestax as nx
from nestax.table import Table
from pages import fill
from script import parser, size

RECORDS = size(1_000, small=10)
STEPS = size(2_000_000, small=2_000)
ROUNDS = size(2, small=1)
#: The runs that tell what a record costs: steps between records, as many as are drawn for at once so
#: that nothing is drawn in vain, and how many rounds.
FEW = 256
SHORT_ROUNDS = size(12, small=1)
LONG_SECONDS = 10


def look(record: nx.Record) -> bool:
    """As a logger does."""
    return not np.isfinite(record["value"])


def read(record: nx.Record) -> bool:
    """As one does who keeps the weights."""
    return not np.isfinite(np.asarray(record.w)).all()


CALLBACKS: dict[str, Callable[[Any], bool] | None] = {
    "none": None,
    "looks at the record": look,
    "reads the weights": read,
}


def main(rounds: int) -> None:
    problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(2_000, 30))

    def run(callback: Callable[[Any], bool] | None, steps: int = STEPS) -> tuple[float, nx.Result]:
        spent = time.process_time()
        result = nx.minimize(
            problem,
            nx.SMVR(beta=0.1),
            optax.sgd(0.01),
            steps=steps,
            batch_size=8,
            record_every=steps // RECORDS,
            record=["value"],
            callback=callback,
        )
        return time.process_time() - spent, result

    run(None)  # compiles
    times: dict[str, list[float]] = {name: [] for name in CALLBACKS}
    weights = []
    for _ in range(rounds):
        for name, callback in CALLBACKS.items():
            spent, result = run(callback)
            times[name].append(spent)
            weights.append(np.asarray(result.w))
    assert all(np.array_equal(w, weights[0]) for w in weights)  # to the same bits
    short: dict[str, list[float]] = {name: [] for name in CALLBACKS}
    for _ in range(SHORT_ROUNDS):
        for name, callback in CALLBACKS.items():
            short[name].append(run(callback, FEW * RECORDS)[0])
    each = lambda name: (min(short[name]) - min(short["none"])) / RECORDS
    rows = [
        [
            name,
            round(min(times[name]), 1),
            f"{1e6 * each(name):.0f}",
            f"{100 * each(name) * 1_000 / LONG_SECONDS:.2f} %",
        ]
        for name in CALLBACKS
    ]
    columns = ["callback", "seconds of a processor", "µs a record", "1,000 records in 10 s"]
    table = Table(columns, rows)
    print(f"{STEPS:,} steps, {RECORDS:,} records, the least of {rounds} rounds")
    print(table)
    fill("running.md", {"callbacks": table.to_markdown()})


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("rounds", nargs="?", type=int, default=ROUNDS)
    main(arguments.parse_args().rounds)
