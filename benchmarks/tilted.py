"""Figure 3 and Table 2 of the SMVR paper in three set-ups, from kept runs into docs/tilted-results.md.

    python -m experiments term --full --batches pooled --cells benchmarks/results/tilted
    python -m experiments term --full --batches both-levels --cells benchmarks/results/tilted
    python -m experiments term --full --batches stratified --cells benchmarks/results/tilted
    python benchmarks/tilted.py

The first three compute the sets that are not there and need NESTAX_DATA, or a network; the last only
shows them. With --small it makes runs for itself, short ones on one set.
"""

import numpy as np

from nestax.table import Table
from pages import fill, page
from script import KEPT, SMALL, parser, results

from experiments import tilted

#: The columns of the settings that the page has room for.
SHORT = [
    "set",
    "method",
    "lr",
    "knob",
    "its value",
    "steps",
    "median F",
    "gradient norm",
    "length of w",
    "error / gradient",
]
#: The paper's own grid of β.
PUBLISHED_BETAS = (0.1, 0.5, 0.9)


def parts_of(batches: str, result: tilted.TiltedRuns) -> dict[str, str]:
    tables = {
        "accuracies": result.accuracies(),
        "losses": result.losses(),
        "apart": result.apart(),
        "settings": pick(result.details(), SHORT),
    }
    words = {f"{batches} {name}": table.to_markdown() for name, table in tables.items()}
    return words | {f"{batches} findings": "\n".join(f"* {line}" for line in result.findings())}


def pick(table: Table, columns: list[str]) -> Table:
    places = [table.columns.index(column) for column in columns]
    return Table(columns, [[row[k] for k in places] for row in table.rows])


def rankings(found: dict[str, tilted.TiltedRuns]) -> Table:
    """Whether SMVR is first, set by set: in F, on the rare class, and overall."""
    columns = [
        "batches",
        "set",
        "β of SMVR",
        "best other F",
        "SMVR less it",
        "lowest on",
        "best other, rare",
        "SMVR less it, points",
        "best other, overall",
        "the same, points",
    ]
    rows = []
    for batches, result in found.items():
        for name, trials in result.trials.items():
            own = trials["SMVR"]
            others = {method: trial.fits for method, trial in trials.items() if method != "SMVR"}
            beta = own.setting["beta"]
            note = "" if beta in PUBLISHED_BETAS else ", not in the paper's grid"
            lowest = np.sum(own.fits.loss < np.min([fits.loss for fits in others.values()], axis=0))
            row = [batches, name, f"{beta:g}{note}"]
            row += [
                *against_best(own.fits, others, "loss", 4, sign=-1),
                f"{lowest} of {len(own.fits.loss)}",
            ]
            row += against_best(own.fits, others, "rare", 1)
            row += against_best(own.fits, others, "overall", 1)
            rows.append(row)
    return Table(columns, rows)


def against_best(
    own: tilted.Fits, others: dict[str, tilted.Fits], what: str, digits: int, sign: int = 1
) -> list[str]:
    """The best of the others, by the largest mean (with -1 the least), and how far SMVR is from it."""
    best = max(others, key=lambda method: sign * getattr(others[method], what).mean())
    return [best, tilted.paired(getattr(own, what) - getattr(others[best], what), digits)]


def short_runs() -> None:
    from sklearn.datasets import load_breast_cancer

    X, benign = load_breast_cancer(return_X_y=True)
    tilted.reproduce_term(
        {"Breast-cancer": (X, 1 - benign)},
        seeds=2,
        tune_seeds=1,
        steps=60,
        batches="pooled",
        cells=results("tilted"),
    )


if __name__ == "__main__":
    parser(__doc__).parse_args()
    cells = KEPT / "tilted"
    if SMALL:
        cells = results("tilted")
        short_runs()
    found = {batches: tilted.kept_runs(cells, batches, list(tilted.PAPER)) for batches in tilted.SETUPS}
    found = {batches: result for batches, result in found.items() if result.trials}
    parts = {"rankings": rankings(found).to_markdown()}
    for batches, result in found.items():
        parts |= parts_of(batches, result)
        parts["rows"] = result.rows().to_markdown()
        result.plot().savefig(page(f"images/tilted-{batches}.png"), dpi=150)
    fill("tilted-results.md", parts)
