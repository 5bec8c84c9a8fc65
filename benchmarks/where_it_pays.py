"""One page of where memory pays and where not, docs/where-it-pays.md, from numbers that others kept.

    python benchmarks/where_it_pays.py     writes the page; measures nothing

Every row is a problem and a size of batches: what plain batches reach, what nestax reaches, what another
package reaches where one was measured, and the paired difference of the first two.
"""

import json
from typing import Any

import numpy as np

from nestax.table import Table
from pages import fill
from script import KEPT, parser

#: The plain batch, ours, and other packages, of which the better one is shown.
COX = ("the batch alone", "`nx.losses.cox`", "a bank, as torchsurv")
LIBAUC = ("LibAUC's `EntLoss` and `SCENT`", "LibAUC's `EntLoss` and Adam")
ROBUST = ("the batch alone", "`nx.losses.kl_robust`", *LIBAUC)
PRECISION = (
    "without memory, balanced",
    "`average_precision`, balanced",
    "LibAUC's `APLoss` and `SOAP`, balanced",
    "LibAUC's `APLoss` and Adam, balanced",
)
PAIRS = ("without memory", "nestax", "LibAUC", "LibAUC and Adam")
DRO = ("the batch alone", "`nx.problems.dro`")
LACKS = "what it lacks to 100"
#: A difference of so many standard errors is one.
CLEAR = 2.0
#: Files of the page on memory: problem, and rows a step.
MEMORY = {
    "Industry-10-batch-1": ("portfolio of 10, mean and deviation", "1"),
    "Industry-10-batch-16": ("portfolio of 10, mean and deviation", "16"),
    "Industry-10-batch-128": ("portfolio of 10, mean and deviation", "128"),
    "tilted-pooled": ("tilted risk, rare and wrong labels, pooled rows", "16"),
    "tilted-stratified": ("tilted risk, as many rows of every class", "2 × 8"),
    "average-precision": ("average precision, linear, blocks", "16 × 4"),
    "contrastive": ("contrastive, 200 anchors, blocks", "16 × 4"),
    "Bellman": ("Bellman residual", "4"),
    "digits-0-wrong-batch-4": ("log E e^ℓ of a network, right labels", "4"),
    "digits-0-wrong-batch-32": ("log E e^ℓ of a network, right labels", "32"),
    "digits-20-wrong-batch-4": ("log E e^ℓ of a network, a fifth wrong", "4"),
    "digits-20-wrong-batch-32": ("log E e^ℓ of a network, a fifth wrong", "32"),
    "sinusoids-all-tasks": ("few-shot regression, 16 tasks, blocks", "16 × 4"),
}


def verdict(gain: np.ndarray) -> str:
    """In a word, from paired differences of which positive is better."""
    if not np.isfinite(gain).all():
        return "yes: plain batches diverge"
    error = gain.std(ddof=1) / len(gain) ** 0.5
    if abs(gain.mean()) <= CLEAR * error:
        return "level"
    return "yes" if gain.mean() > 0 else "no"


def row(
    problem: str, rows: str, found: dict[str, Any], names: tuple[str, ...], unit: float
) -> list[Any]:
    """A line of the table, of measures that are better the less they are."""
    plain, ours = (np.asarray(found[name], float) for name in names[:2])
    peers = {name: np.asarray(found[name], float) for name in names[2:] if name in found}
    peer = "–"
    if peers:
        name = min(peers, key=lambda name: peers[name].mean())
        peer = f"{short(peers[name], unit)} ({name.removeprefix('a bank, as ').replace('`', '')})"
    gain = plain - ours
    return [problem, rows, short(plain, unit), short(ours, unit), peer, short(gain, unit), verdict(gain)]


def short(x: np.ndarray, unit: float) -> str:
    if not np.isfinite(x).all():
        return "diverged"
    mean, error = unit * x.mean(), unit * x.std(ddof=1) / len(x) ** 0.5
    return f"{mean:.0f} ± {error:.0f}" if error >= 9.5 else f"{mean:.2g} ± {error:.1g}"


def kept(name: str) -> dict[str, Any]:
    return json.loads((KEPT / name).read_text())


def tracked(name: str, problem: str, key: str, names: tuple[str, ...]) -> list[list[Any]]:
    cells = kept(name)["cells"].items()
    return [row(problem, rows, of_each(found, key), names, 100) for rows, found in cells]


def of_each(found: dict[str, Any], key: str) -> dict[str, Any]:
    return {label: one[key] for label, one in found.items()}


def remembered(name: str) -> list[Any]:
    """F minus its least value, at the learning rates that were chosen on other seeds."""

    def chosen(of: dict[str, Any]) -> np.ndarray:
        tuning = np.asarray(of["tuning"], float)
        return np.asarray(of["runs"], float)[np.unravel_index(np.argmin(tuning), tuning.shape)[-1]]

    problem, rows = MEMORY[name]
    found = {label: chosen(of) for label, of in kept(f"memory/{name}.json").items()}
    return row(problem, rows, found, ("Plain", "SelfTuning"), 1)


def other_survival_sets() -> list[list[Any]]:
    """Of the first one there is more in ``tracked_cox``."""
    return [
        row(f"Cox's loss, {name} (percent of the gap left)", rows, of_each(found, "left"), COX, 100)
        for name, by_rows in list(kept("survival_sets.json")["batches"].items())[1:]
        for rows, found in by_rows.items()
    ]


def missed(found: dict[str, Any], key: str) -> dict[str, Any]:
    """What a measure that is at best 1 lacks."""
    return {label: 1 - np.asarray(one[key]) for label, one in found.items()}


def rankings() -> list[list[Any]]:
    mammography = missed(kept("tracked_ranking.json")["cells"], "precision")
    lines = [row(f"average precision, mammography ({LACKS})", "8 + 56", mammography, PRECISION, 100)]
    for case, found in kept("ranking_peers.json")["cells"].items():
        lines.append(row(f"{case} ({LACKS})", "8 + 56", missed(found, "found"), PAIRS, 100))
    return lines


def robust() -> list[list[Any]]:
    """In percent of the gap that is left to a cone solver's optimum; of networks the value itself."""
    found = kept("robust_peers.json")
    lines = []
    for title, by_kind in found["cells"].items():
        for kind, by_rows in by_kind.items():
            for rows, cell in by_rows.items():
                values = {name: np.asarray(of["value"]) for name, of in cell.items()}
                words = "hundredths"
                if title.endswith("linear"):
                    optima = found["checked"]["optima"][title.removesuffix(", linear")]
                    least = np.asarray(optima[kind]["values"])
                    values = {name: (x - least) / (np.log(2) - least) for name, x in values.items()}
                    words = "percent of the gap left"
                lines.append(row(f"{kind}-robust, {title} ({words})", rows, values, DRO, 100))
    return lines


def gains() -> list[list[Any]]:
    names = ("Plain", "Multilevel")
    return [
        row("information gain (percent of the gap left)", f"16 × {rows}", found, names, 100)
        for rows, found in kept("information_gain.json").items()
    ]


def main() -> None:
    parser(__doc__).parse_args()
    lines = [
        *tracked("tracked_cox.json", "Cox's loss, linear (percent of the gap left)", "left", COX),
        *other_survival_sets(),
        *tracked("tracked_robust.json", "KL-robust network, wrong labels (hundredths)", "value", ROBUST),
        *robust(),
        *rankings(),
        *gains(),
        *map(remembered, MEMORY),
    ]
    columns = ["problem", "rows a step", "plain batches", "nestax", "another package"]
    table = Table([*columns, "plain minus nestax", "does memory pay?"], lines)
    fill("where-it-pays.md", {"where it pays": table.to_markdown()})


if __name__ == "__main__":
    main()
