"""Passes over a population of ten million rows: their time, and the memory that they take.

The mean-deviation portfolio of 30 assets in float32. Memory is that of the process before a run, and
what the run has added at most, compiling included, which must not grow with the rows. Needs Linux
and about 2 GiB; takes minutes, and fills docs/speed.md.
"""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import nestax as nx
from nestax.table import Table
from pages import fill
from script import parser, size

ASSETS = 30
ROWS = size((1_000_000, 10_000_000), small=(1_000, 10_000))
METHODS = {"Exact": nx.Exact(), "SnapshotSMVR": nx.SnapshotSMVR(0.01, period=5)}
STEPS = 10


def portfolio(count: int) -> nx.Problem:
    """−mean + 0.2·deviation as a user writes it, without the closed form that nx.problems has."""
    some = np.random.default_rng(0).standard_t(4, size=(1000, ASSETS)).astype(np.float32)
    # Until it is there the rows exist twice, on their way to where JAX has them.
    rows = jax.block_until_ready(nx.Population(np.tile(some, (count // 1000, 1))))
    positive = lambda z: (z[0], jnp.maximum(z[1], 1e-4))
    spread = lambda yx, r: (yx[0], (r @ yx[1] - yx[0]) ** 2)
    levels = [
        nx.Level(lambda x, r: (r @ x, x), rows, name="mean"),
        nx.Level(spread, rows, project=positive, name="variance"),
        nx.Level(lambda z: -z[0] + 0.2 * jnp.sqrt(z[1]), name="utility"),
    ]
    start = jnp.full(ASSETS, 1 / ASSETS, jnp.float32)
    return nx.Problem(levels, start, project=nx.projections.simplex)


def seconds(problem: nx.Problem, estimator: nx.parts.AbstractEstimator, steps: int) -> float:
    """Of a second run of so many steps."""
    options = {"batch_size": 64, "record": ["value"], "record_every": steps}
    for _ in range(2):
        begin = time.perf_counter()
        nx.minimize(problem, estimator, optax.sgd(0.05), steps=steps, **options)
    return time.perf_counter() - begin


def memory(what: str) -> float:
    """MiB that this process has now (VmRSS), or the most since the last reset (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(what))) / 2**10


def reset_highest() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    parser(__doc__).parse_args()
    cells = []
    for count in ROWS:
        problem = portfolio(count)
        for name, estimator in METHODS.items():
            before = memory("VmRSS")
            reset_highest()
            took = [seconds(problem, estimator, steps) for steps in (STEPS, 3 * STEPS)]
            more = memory("VmHWM") - before
            a_step = (took[1] - took[0]) / (2 * STEPS)
            data = 4 * ASSETS * count / 2**20
            cells.append([f"`{name}`", f"{count:,}", *map(round, (data, before, more)), f"{a_step:.2g}"])
    columns = ["method", "rows", "data, MiB", "before, MiB", "added by the run, MiB", "s a step"]
    table = Table(columns, cells)
    print(table)
    fill("speed.md", {"population": table.to_markdown()})


if __name__ == "__main__":
    main()
