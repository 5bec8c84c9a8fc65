"""What checkpoints cost: their share of the time of a run, and the memory of a million steps and more.

    python benchmarks/checkpoints.py [steps]

Chunks last about a second, and a checkpoint follows every one of them, which is far more often than the
default of one a minute.
"""

import resource
import tempfile
import time

import jax

import nestax as nx
from nestax.checkpoints.keeper import Keeper
from nestax.loop import chunks as drive
from script import parser, size

ROWS = 25_105
ASSETS = 30
BATCH = 4
RECORDS = size(400, small=40)
STEPS = size(3_000_000, small=4_000)
#: Of a chunk.
SECONDS = size(1.0, small=1e-4)


def resident() -> float:
    """Megabytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def main(steps: int) -> None:
    jax.config.update("jax_enable_x64", True)
    drive.CHUNK_SECONDS = SECONDS
    problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(ROWS, ASSETS))
    saves = []
    seen = []
    save = Keeper._save

    def timed(self, *args):
        begin = time.perf_counter()
        out = save(self, *args)
        saves.append(time.perf_counter() - begin)
        return out

    Keeper._save = timed
    look = lambda record: seen.append((int(record["step"]), resident(), time.perf_counter()))
    with tempfile.TemporaryDirectory(dir=".") as folder:
        result = nx.minimize(
            problem,
            nx.SMVR(beta=0.1, lr=0.01),
            steps=steps,
            batch_size=BATCH,
            checkpoint=nx.Checkpoint(folder, every=0),
            record_every=steps // RECORDS,
            callback=look,
        )
    # Chunks grow to a second; the first ones are shorter.
    long = [k for k in range(1, len(seen)) if seen[k][2] - seen[k - 1][2] >= 0.9 * drive.CHUNK_SECONDS]
    took = sum(seen[k][2] - seen[k - 1][2] for k in long)
    spent = sum(saves[k - 1] for k in long)
    early = next(one for one in seen if one[0] >= steps // 10)
    print(f"{result.carry.step:,} steps, {len(seen)} chunks, {len(saves)} checkpoints")
    print(
        f"{len(long)} chunks of about {SECONDS:g} s: {100 * spent / took:.2f} % of the time is saving, ",
        end="",
    )
    print(
        f"{1e3 * spent / len(long):.1f} ms each; one a minute takes {100 * spent / len(long) / 60:.3f} %"
    )
    print(f"memory: {early[1]:.1f} MB after {early[0]:,} steps, {seen[-1][1]:.1f} MB at the end")


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("steps", nargs="?", type=int, default=STEPS)
    main(arguments.parse_args().steps)
