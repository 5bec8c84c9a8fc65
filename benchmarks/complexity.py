"""The first tables of docs/rates.md: samples that methods need for an accuracy, at their best settings.

``python benchmarks/complexity.py`` measures what benchmarks/results/complexity.json does not hold yet,
one method on one family at a time, and writes the page; delete the file to start afresh. It may be
stopped at any time. ``--jobs N`` measures N of them side by side, each in a process and on a core of its
own. ``--only WORDS`` measures those whose name ("symmetric, 3, SMVR") a regular expression finds, and
``--merge FILE ...`` takes over points from other such files.
"""

import dataclasses
import functools
import json
import math
import multiprocessing
import os
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import nestax as nx
from nestax.table import Table
from pages import fill
from script import SMALL, parser, results, size

from experiments.complexity import ACCURACIES, Point, complexity, exponent, ratio
from experiments.sloped_chain import BOWLS, sloped_chain
from experiments.zero_chain import zero_chain

METHODS = size(
    ("SMVR", "SCSC", "NLASG", "Plain", "SelfTuning", "ATSCGD", "NestedSPIDER", "SSD"),
    small=("SMVR", "Plain"),
)
LEVELS = size((6, 3, 2, 1), small=(2,))
LONGEST = size(2**19, small=2**12)
SEEDS = size(48, small=2)
TUNE_SEEDS = size(12, small=2)
ZERO = "zero-chain"
#: ε of the zero-chain: T = 1/(2ε) weights.
LENGTHS = size((2, 3, 4, 6, 8, 11, 16, 23, 32), small=(2, 3))
HARD = tuple(0.5 / length for length in LENGTHS)
#: ε whose N(ε) the page shows.
SHOWN = (0, 2, 4, 6, 8)
CELLS = [(bowl, k, name) for k in LEVELS for name in METHODS for bowl in BOWLS]
#: With one level SCSC is Plain, and SSD is for convex chains.
CELLS += [(ZERO, 1, name) for name in METHODS if name not in ("SCSC", "SSD")]


def key(family: str, levels: int, method: str) -> str:
    return f"{family}, {levels}, {method}"


def measure(family: str, levels: int, method: str, found: list[Point], told: Any) -> None:
    nx.speed_up()
    import jax

    jax.config.update("jax_enable_x64", True)
    sloped = functools.partial(sloped_chain, levels=levels, bowl=family)
    points = list(found)
    for point in complexity(
        method,
        zero_chain if family == ZERO else sloped,
        accuracies=accuracies(family),
        seeds=SEEDS,
        tune_seeds=TUNE_SEEDS,
        longest=LONGEST,
        found=found,
    ):
        points.append(point)
        told.put((key(family, levels, method), points))


def accuracies(family: str) -> tuple[float, ...]:
    return HARD if family == ZERO else ACCURACIES[: 2 if SMALL else None]


def own_core(cores: Any) -> None:
    """Before JAX starts, which otherwise takes a thread for every core in every process."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores.get()})


def compute(jobs: int, only: str, others: list[Path]) -> dict[str, list[Point]]:
    file = results("complexity.json")
    cells = read(file) if file.exists() else {}
    for other in others:
        cells |= {k: points for k, points in read(other).items() if len(points) > len(cells.get(k, []))}
    todo = [cell for cell in CELLS if re.search(only, key(*cell))]
    # Started afresh: a forked process inherits threads of JAX that it cannot use.
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        told = manager.Queue()
        cores = manager.Queue()
        free = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
        for worker in range(jobs):
            cores.put(free[worker % len(free)])
        pool = ProcessPoolExecutor(jobs, context, own_core, (cores,))
        running = [pool.submit(measure, *cell, cells.get(key(*cell), []), told) for cell in todo]
        for one in running:
            one.add_done_callback(lambda _: told.put(None))
        ended = 0
        while ended < len(running):
            news = told.get()
            ended += news is None
            if news is not None:
                cells |= {news[0]: news[1]}
                write(file, cells)
                print(news[0], len(news[1]), flush=True)
        pool.shutdown()
        for one in running:
            one.result()
    write(file, cells)
    return cells


def read(file: Path) -> dict[str, list[Point]]:
    return {name: [Point(**row) for row in rows] for name, rows in json.loads(file.read_text()).items()}


def write(file: Path, cells: dict[str, list[Point]]) -> None:
    rows = {name: [dataclasses.asdict(point) for point in points] for name, points in cells.items()}
    new = file.with_suffix(".new")
    new.write_text(json.dumps(rows, sort_keys=True))
    new.replace(file)


def table(cells: dict[str, list[Point]], family: str) -> str:
    """A row per method and number of levels: exponent with interval, N(ε), the smallest ε."""
    rows = []
    shown = [accuracies(family)[n] for n in SHOWN if n < len(accuracies(family))]
    for k in [1] if family == ZERO else sorted(LEVELS):
        best = {point.eps: point for point in cells.get(key(family, k, "SMVR"), [])}
        for name in METHODS:
            points = cells.get(key(family, k, name))
            if points:
                reached = {point.eps: count(point) for point in points}
                cells_of = [reached.get(eps, "") for eps in shown]
                rows.append([k, name, interval(exponent(points)), *cells_of, beside(points, best)])
                rows[-1].append(stop(points[-1]))
    if family == ZERO:
        rows.append([1, "T/p", "3", *(f"{round(0.5 / eps) ** 3:,}" for eps in shown), "", ""])
    head = [
        "levels",
        "method",
        "exponent",
        *(f"N({eps:.3g})" for eps in shown),
        "N over SMVR's",
        "stops",
    ]
    return Table(head, rows).to_markdown()


def count(point: Point) -> str:
    return "–" if math.isinf(point.samples) else f"{point.samples:,.0f}{'' if point.inside else '*'}"


def stop(point: Point) -> str:
    """What a search came to that ended short of ε; not where the seeds that report fell short alone."""
    return "–" if point.steps else f"{point.least:.2g} at ε = {point.eps:.2g}"


def beside(points: list[Point], best: dict[float, Point]) -> str:
    """How many times the samples of SMVR, at the smallest ε that both have reached."""
    both = [p for p in points if p.eps in best and math.isfinite(p.samples + best[p.eps].samples)]
    if not both or both[-1] is best[both[-1].eps]:
        return "–"
    return f"{interval(ratio(both[-1], best[both[-1].eps]))} at {both[-1].eps:.2g}"


def interval(found: tuple[float, float, float]) -> str:
    value, low, high = found
    short = lambda x: f"{x:,.0f}" if 100 <= x < math.inf else f"{x:.3g}"
    return "–" if math.isnan(value) else f"{short(value)} ({short(low)} to {short(high)})"


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--jobs", type=int, default=1)
    arguments.add_argument("--only", default="", metavar="WORDS")
    arguments.add_argument("--merge", type=Path, nargs="*", default=[], metavar="FILE")
    given = arguments.parse_args()
    measured = compute(given.jobs, given.only, given.merge)
    fill("rates.md", {family: table(measured, family) for family in (*BOWLS, ZERO)})
