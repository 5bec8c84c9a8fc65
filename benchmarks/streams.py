"""What streaming costs: the time of a step on rows read from a file, against rows in memory.

    python benchmarks/streams.py [rows]

The same problem on an array in memory, a memory-mapped file, a Parquet file of many row groups, and an
iterator over batches. Every run is made twice, so that nothing is compiled in the one that counts; the
least of three is told. The files are read before, so that they are likely to lie in the cache of the
system: what is measured is the library and not the disk.
"""

import tempfile
import time
from pathlib import Path

import numpy as np

import nestax as nx
from script import parser, size

ASSETS = 30
#: Batch sizes, and steps of a run.
CASES = size({4: 200_000, 64: 20_000, 512: 4_000}, small={4: 200, 64: 20})
ROWS = size(1_000_000, small=1_000)


def batches(rows, size=4_096):
    """Batches of rows without an end."""
    while True:
        for start in range(0, len(rows), size):
            yield rows[start : start + size]


def sources(rows, folder: Path):
    """A maker of data for each way to hold rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    np.save(folder / "rows.npy", rows)
    table = pa.table({f"asset {k}": rows[:, k] for k in range(rows.shape[1])})
    pq.write_table(table, folder / "rows.parquet", row_group_size=65_536)
    return {
        "in memory": lambda: rows,
        "memory-mapped": lambda: nx.Stream(np.load(folder / "rows.npy", mmap_mode="r")),
        "Parquet": lambda: nx.Stream(folder / "rows.parquet"),
        "iterator of batches": lambda: nx.Stream(batches(rows), batches=True),
    }


def seconds(problem, make, batch, steps):
    """The least time of three runs after one that compiles."""
    took = []
    for _ in range(4):
        data = make()
        streamed = problem.with_data(mean=data, variance=data)
        begin = time.perf_counter()
        nx.minimize(
            streamed,
            nx.AdjointSMVR(beta=0.1, lr=0.01),
            steps=steps,
            batch_size=batch,
            record=["value"],
            init_batch_size=batch,
        )
        took.append(time.perf_counter() - begin)
    return min(took[1:])


def main(count: int) -> None:
    rows = np.asarray(nx.datasets.synthetic_returns(count, ASSETS), np.float32)
    problem = nx.problems.mean_deviation(rows[:1_000].astype(np.float64))
    print(f"{count:,} rows of {ASSETS} numbers, {rows.nbytes / 2**20:.0f} MiB; times in memory: ratio")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        made = sources(rows, Path(folder))
        for batch, steps in CASES.items():
            times = {name: seconds(problem, make, batch, steps) for name, make in made.items()}
            base = times["in memory"]
            for name, took in times.items():
                micro = 1e6 * took / steps
                print(f"batch {batch:>4}  {name:<20} {micro:>8.2f} µs a step  {took / base:.2f}")


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("rows", nargs="?", type=int, default=ROWS)
    main(arguments.parse_args().rows)
