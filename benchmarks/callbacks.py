"""What a callback at every record costs: 1,000 records of a run of about ten seconds.

    python benchmarks/callbacks.py [rounds]

Runs without a callback, with one that looks at the record, and with one that reads the weights take
turns in one process. The smallest of all rounds counts, by the clock and in processor time. The steps
are cheap, a few microseconds each, which is the worst case. Writes a table into docs/running.md.
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
ROUNDS = size(5, small=1)


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

    def run(callback: Callable[[Any], bool] | None) -> tuple[float, float, nx.Result]:
        clock = time.perf_counter()
        spent = time.process_time()
        result = nx.minimize(
            problem,
            nx.SMVR(beta=0.1),
            optax.sgd(0.01),
            steps=STEPS,
            batch_size=8,
            record_every=STEPS // RECORDS,
            record=["value"],
            callback=callback,
        )
        return time.perf_counter() - clock, time.process_time() - spent, result

    run(None)  # compiles
    clocks: dict[str, list[float]] = {name: [] for name in CALLBACKS}
    times: dict[str, list[float]] = {name: [] for name in CALLBACKS}
    weights = []
    for _ in range(rounds):
        for name, callback in CALLBACKS.items():
            clock, spent, result = run(callback)
            clocks[name].append(clock)
            times[name].append(spent)
            weights.append(np.asarray(result.w))
    assert all(np.array_equal(w, weights[0]) for w in weights)  # to the same bits
    more = lambda of, name: f"{100 * (min(of[name]) / min(of['none']) - 1):+.1f} %"
    rows = [
        [name, round(min(clocks[name]), 2), more(clocks, name), more(times, name)] for name in CALLBACKS
    ]
    table = Table(["callback", "seconds", "by the clock", "in processor time"], rows)
    print(f"{STEPS:,} steps, {RECORDS:,} records, the least of {rounds} rounds")
    print(table)
    fill("running.md", {"callbacks": table.to_markdown()})


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("rounds", nargs="?", type=int, default=ROUNDS)
    main(arguments.parse_args().rounds)
