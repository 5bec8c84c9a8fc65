"""The first tables of docs/rates.md: samples that methods need for an accuracy, at their best settings.

``python benchmarks/complexity.py`` measures what benchmarks/results/complexity.json does not hold yet,
one method on one chain at a time, and writes the page; delete the file to start afresh. It may be
stopped at any time. ``--jobs N`` measures N of them side by side, each in a process of its own.
"""

import dataclasses
import json
import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed

import jax

from nestax.problems.chains.sloped_chain import BOWLS
from nestax.study.complexity import ACCURACIES, Point, complexity, exponent
from nestax.table import Table
from pages import fill
from script import SMALL, parser, results, size

METHODS = size(("SMVR", "SCSC", "NLASG", "Plain", "SelfTuning", "ATSCGD", "NestedSPIDER"), ("Plain",))
LEVELS = size((3, 1, 2, 6), small=(2,))
LONGEST = size(2**19, small=2**12)
SEEDS = size(24, small=2)
TUNE_SEEDS = size(6, small=2)
#: ε whose N(ε) the page shows.
SHOWN = [ACCURACIES[k] for k in (0, 2, 4, 6, 8)]
CELLS = [(name, k, bowl) for k in LEVELS for name in METHODS for bowl in BOWLS]


def measure(method: str, levels: int, bowl: str) -> list[dict]:
    jax.config.update("jax_enable_x64", True)
    given = ACCURACIES[: 2 if SMALL else None]
    found = complexity(
        method,
        levels,
        bowl,
        accuracies=given,
        seeds=SEEDS,
        tune_seeds=TUNE_SEEDS,
        longest=LONGEST,
    )
    return [dataclasses.asdict(point) for point in found]


def compute(jobs: int) -> dict[str, list[Point]]:
    file = results("complexity.json")
    cells = json.loads(file.read_text()) if file.exists() else {}
    todo = [cell for cell in CELLS if _key(*cell) not in cells]
    # Started afresh: a forked process inherits threads of JAX that it cannot use.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(measure, *cell): _key(*cell) for cell in todo}
        for done in as_completed(running):
            cells[running[done]] = done.result()
            file.write_text(json.dumps(cells, sort_keys=True))
            print(running[done], flush=True)
    return {key: [Point(**row) for row in rows] for key, rows in cells.items()}


def _key(method: str, levels: int, bowl: str) -> str:
    return f"{bowl}, {levels}, {method}"


def table(cells: dict[str, list[Point]], bowl: str) -> str:
    """A row per method and number of levels: exponent with interval, N(ε), the smallest ε."""
    rows = []
    for k in sorted(LEVELS):
        for name in METHODS:
            points = cells.get(_key(name, k, bowl))
            if points is not None:
                last = points[-1]
                reached = {point.eps: _count(point) for point in points}
                end = f"{last.least:.2g} at ε = {last.eps:.2g}" if math.isinf(last.samples) else "–"
                rows.append([k, name, _exponent(points), *(reached.get(e, "") for e in SHOWN), end])
    head = ["levels", "method", "exponent", *(f"N({eps:.3g})" for eps in SHOWN), "stops"]
    return Table(head, rows).to_markdown()


def _count(point: Point) -> str:
    return "–" if math.isinf(point.samples) else f"{point.samples:,.0f}{'' if point.inside else '*'}"


def _exponent(points: list[Point]) -> str:
    p, low, high = exponent(points)
    return "–" if math.isnan(p) else f"{p:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--jobs", type=int, default=1)
    measured = compute(arguments.parse_args().jobs)
    fill("rates.md", {bowl: table(measured, bowl) for bowl in BOWLS})
