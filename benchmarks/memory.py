"""What memory is worth where users are: methods with a forgetting rate at its best, and one without.

    python benchmarks/memory.py               everything, into docs/memory.md; about an hour on one core
    python benchmarks/memory.py CASE METHOD   some of it, by name

Equal samples and the same learning rates for all methods on a problem. Settings (learning rate, and six
forgetting rates where a method has one) are chosen on three seeds of their own by the mean of F over the
last fifth of a run, and reported on eight others; all methods see the same draws, so that differences
between them are paired. Cells that are in benchmarks/results/memory are not computed again.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

import nestax as nx
from memory_problems import CASES, Case
from nestax.table import Table
from pages import fill
from script import SMALL, parser, results, size

BETAS = (0.001, 0.01, 0.03, 0.1, 0.3, 0.9)
TUNING = size(3, small=1)
SEEDS = size(8, small=2)
RECORDS = 20
TAIL = 4

PLAIN = "Plain"
OURS = "SelfTuning"
METHODS: dict[str, Any] = {
    PLAIN: lambda beta: nx.Plain(),
    "SCSC": lambda beta: nx.SCSC(beta),
    "SOX": lambda beta: nx.SOX(beta, 1.0),
    "NLASG": lambda beta: nx.NLASG(beta),
    "SMVR": lambda beta: nx.SMVR(beta),
    "AdjointSMVR": lambda beta: nx.AdjointSMVR(beta, "lagged"),
    OURS: lambda beta: nx.SelfTuning(),
}
if SMALL:
    METHODS = {name: METHODS[name] for name in (PLAIN, "SCSC", OURS)}
WITHOUT_BETA = (PLAIN, OURS)
#: Rows and a simulator, without real data.
SMALL_CASES = ["tutorial", "Bellman"]
#: Dense Jacobians are for levels with at most so many outputs.
MOST_OUTPUTS = 200


def sized(case: Case) -> Case:
    return case._replace(steps=RECORDS, rates=case.rates[:2]) if SMALL else case


def applies(case: Case, name: str) -> bool:
    if name == "SOX":
        return case.problem.blocks is not None and len(case.problem.levels) == 2
    if name == "SMVR":
        return max(level.shape.rows for level in case.problem.levels) <= MOST_OUTPUTS
    return True


def built(case: Case, name: str, beta: Any) -> Any:
    """In a chain with blocks with a memory of each of them."""
    method = METHODS[name](beta)
    return method if case.problem.blocks is None or method.blocks else nx.PerBlock(method)


def ends(case: Case, name: str, settings: Any, seeds: list[int], record=("exact_value",)) -> Any:
    runs = nx.sweep(
        case.problem,
        lambda s: (built(case, name, s.beta), case.step(s.lr)),
        settings=settings,
        seeds=seeds,
        samples=case.samples,
        batch_size=case.batch,
        record=list(record),
        record_every=max(1, case.steps // RECORDS),
        progress=False,
    )
    late = runs.records["exact_value"][:, :, -TAIL:].mean(axis=2) - case.floor
    return np.where(runs.finite & np.isfinite(late), late, np.inf), runs


def cell(case: Case, name: str) -> dict[str, Any]:
    betas = (0.5,) if name in WITHOUT_BETA else BETAS
    settings = nx.grid(beta=betas, lr=case.rates)
    tuning, _ = ends(case, name, settings, [1_000_000 + k for k in range(TUNING)])
    mean = tuning.mean(axis=1).reshape(len(betas), -1)
    best = np.unravel_index(np.argmin(mean), mean.shape)
    chosen = nx.grid(beta=[betas[best[0]]], lr=case.rates)
    runs, _ = ends(case, name, chosen, list(range(SEEDS)))
    return {
        "beta": betas[best[0]],
        "lr": case.rates[best[1]],
        "tuning": mean.tolist(),
        "runs": runs.tolist(),
    }


def calibration(case: Case, lr: float) -> dict[str, list[float]]:
    """Mean believed over mean true squared error, a number a level; NaN where nothing is tracked."""
    if not case.problem.finite:
        return {}
    record = ("exact_value", "value_error", "jac_error")
    _, runs = ends(case, OURS, nx.grid(beta=[0.5], lr=[lr]), list(range(SEEDS)), record)
    late = slice(RECORDS // 2, None)
    mean = lambda name: np.mean(runs.records[name][0, :, late] ** 2, axis=(0, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "value": (mean("believed_error") / mean("value_error")).tolist(),
            "jac": (mean("believed_jac_error") / mean("jac_error")).tolist(),
        }


# The page


def at_best(case: Case, found: dict[str, Any]) -> np.ndarray:
    """The runs of every seed at the chosen learning rate."""
    return np.asarray(found["runs"])[case.rates.index(found["lr"])]


def decades(case: Case, found: dict[str, Any]) -> float:
    """How far the learning rates reach around the best one at which F stays within twice the best."""
    mean = np.asarray(found["runs"]).mean(axis=1)
    near = mean <= 2 * mean.min()
    first = last = int(np.argmin(mean))
    while first > 0 and near[first - 1]:
        first -= 1
    while last < len(mean) - 1 and near[last + 1]:
        last += 1
    return float(np.log10(case.rates[last] / case.rates[first]))


def number(x: float) -> str:
    return "diverges" if not np.isfinite(x) else f"{x:.2g}" if x < 1 else f"{x:.3g}"


def with_error(runs: np.ndarray) -> str:
    if not np.isfinite(runs).all():
        return "diverges"
    return f"{number(runs.mean())} ± {runs.std(ddof=1) / len(runs) ** 0.5:.1g}"


def main_table(all_cases: dict[str, Case], kept: dict[str, Any]) -> Table:
    rows = []
    for name, case in all_cases.items():
        means = {m: at_best(case, found).mean() for m, found in kept[name].items()}
        best = min(means, key=means.get)
        row = [name]
        for method in METHODS:
            if method not in kept[name]:
                row.append("–")
                continue
            text = with_error(at_best(case, kept[name][method]))
            row.append(f"**{text}**" if method == best else text)
        rows.append(row)
    return Table(["problem", *METHODS], rows)


def against_others(all_cases: dict[str, Case], kept: dict[str, Any]) -> Table:
    """Ours over Plain and over the best of the others, and paired differences."""
    rows = []
    for name, case in all_cases.items():
        ours = at_best(case, kept[name][OURS])
        others = {m: at_best(case, f) for m, f in kept[name].items() if m != OURS}
        best = min(others, key=lambda m: others[m].mean())
        row = [name]
        for rival in (PLAIN, best):
            difference = ours - others[rival]
            row.append(f"{ours.mean() / others[rival].mean():.2f}")
            row.append(with_error_signed(difference))
        rows.append([*row[:3], best, *row[3:]])
    head = ["problem", "over Plain", "difference", "best of the others", "over it", "difference to it"]
    return Table(head, rows)


def with_error_signed(x: np.ndarray) -> str:
    if not np.isfinite(x).all():
        return "–"
    return f"{x.mean():+.2g} ± {x.std(ddof=1) / len(x) ** 0.5:.1g}"


def range_table(all_cases: dict[str, Case], kept: dict[str, Any]) -> Table:
    rows = []
    for name, case in all_cases.items():
        row = [name]
        for method in METHODS:
            row.append(f"{decades(case, kept[name][method]):.1f}" if method in kept[name] else "–")
        rows.append(row)
    return Table(["problem", *METHODS], rows)


def calibration_table(all_cases: dict[str, Case], kept: dict[str, Any]) -> Table:
    rows = []
    for name, case in all_cases.items():
        found = kept[name][OURS].get("calibration") or {}
        for kind, word in (("value", "value"), ("jac", "derivative")):
            for level, x in zip(case.problem.levels, found.get(kind, []), strict=False):
                if not level.deterministic and np.isfinite(x):
                    rows.append([name, level.name, word, f"{x:.2g}"])
    return Table(["problem", "level", "of its", "believed over true squared error"], rows)


def file_of(name: str) -> Path:
    return results(f"memory/{name.replace(',', '').replace(' ', '-').replace('%', '')}.json")


def compute(name: str, case: Case, methods: list[str]) -> dict[str, Any]:
    path = file_of(name)
    kept = json.loads(path.read_text()) if path.exists() else {}
    for method in methods:
        if method not in kept and applies(case, method):
            kept[method] = cell(case, method)
            jax.clear_caches()
        if method == OURS and "calibration" not in kept[method]:
            kept[method]["calibration"] = calibration(case, kept[method]["lr"])
        if method in kept:
            print(f"{name}: {method}: {with_error(at_best(case, kept[method]))}", flush=True)
        path.write_text(json.dumps(kept))
    return kept


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("words", nargs="*", metavar="NAME", help="of a case or a method")
    words = arguments.parse_args().words
    jax.config.update("jax_enable_x64", True)
    methods = [word for word in words if word in METHODS] or list(METHODS)
    names = [word for word in words if word not in METHODS] or size(list(CASES), small=SMALL_CASES)
    some = {name: sized(CASES[name]()) for name in names}
    found = {name: compute(name, case, methods) for name, case in some.items()}
    if not words:
        fill(
            "memory.md",
            {
                "main table": main_table(some, found).to_markdown(),
                "against others": against_others(some, found).to_markdown(),
                "ranges": range_table(some, found).to_markdown(),
                "calibration": calibration_table(some, found).to_markdown(),
            },
        )
