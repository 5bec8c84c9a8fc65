"""The exponents of docs/rates.md: every family, every number of levels, every method.

``python benchmarks/rates.py`` measures what benchmarks/results/rates.json does not hold yet and writes
the page and its figures; delete the file to start afresh. Families and numbers of levels are
independent, so ``--jobs N`` runs N of them side by side, each in a process of its own.
"""

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed

import jax

from nestax.table import Table
from pages import fill, page
from script import SMALL, parser, results, size

from experiments.rates import CONTENDERS, Rates, measure_rates

STAGED = ["SMVR", "SMVR in stages"]
#: What is measured: seeds, numbers of levels, methods. Gaps spread more than gradients do.
CELLS = {
    "nonconvex": (32, (6, 5, 4, 3, 2, 1), ["SMVR", "SCSC", "NLASG", "ATSCGD"]),
    "PL": (96, (6, 3, 2, 1), STAGED),
    "strongly convex": (96, (6, 3, 2, 1), STAGED),
    "convex": (32, (6, 3, 2, 1), [*STAGED, "SMVR in stages, regularised"]),
}
if SMALL:
    CELLS = {"nonconvex": (2, (2, 1), ["SMVR"])}
LONGEST = size(2**18, small=2**14)


def measure(family: str, levels: int) -> dict:
    jax.config.update("jax_enable_x64", True)
    seeds, _, methods = CELLS[family]
    result = measure_rates(family, methods, [levels], longest=LONGEST, seeds=seeds)
    return {"exponents": result.table.rows, "points": result.points.rows}


def compute(jobs: int) -> dict:
    file = results("rates.json")
    cells = json.loads(file.read_text()) if file.exists() else {}
    todo = [(f, k) for f, (_, levels, _) in CELLS.items() for k in levels if f"{f}, {k}" not in cells]
    # Started afresh: a forked process inherits threads of JAX that it cannot use.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        running = {
            pool.submit(measure, family, levels): f"{family}, {levels}" for family, levels in todo
        }
        for done in as_completed(running):
            cells[running[done]] = done.result()
            file.write_text(json.dumps(cells, indent=1))
            print(running[done], flush=True)
    return cells


def gather(cells: dict, family: str) -> Rates:
    """One result from those of single numbers of levels, with the claims as they are known now."""
    rows = {
        kind: [row for k in sorted(CELLS[family][1]) for row in cells[f"{family}, {k}"][kind]]
        for kind in ("exponents", "points")
    }
    for row in rows["exponents"]:
        claim = CONTENDERS[row[1]].claim(family, row[0])
        row[5] = "–" if claim is None else claim
    columns = ["levels", "method", "exponent", "low", "high", "claimed", "lr"]
    named = ["levels", "method", "steps", "samples", "error", "standard error"]
    return Rates(family, Table(columns, rows["exponents"]), Table(named, rows["points"]))


def write_page(cells: dict) -> None:
    for family in CELLS:
        result = gather(cells, family)
        name = family.replace(" ", "-")
        result.plot().savefig(page(f"images/rates-{name}.png"), dpi=150)
        result.points.to_csv(results(f"rates-{name}.csv"))
        fill("rates.md", {family: result.table.to_markdown()})


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--jobs", type=int, default=1)
    write_page(compute(arguments.parse_args().jobs))
