"""Figure 4 of the SMVR paper, from cells in benchmarks/results/maml into docs/meta-learning.md.

    python -m experiments maml --full --cells benchmarks/results/maml
    python -m experiments maml --full --steps 4000 --only "SMVR, first moment; Adam, episodes" \\
        --tuned benchmarks/results/maml --cells benchmarks/results/maml_long
    python benchmarks/maml.py

The first two compute the cells that are not there, and need a large GPU; the last only shows them.
"""

import json
from pathlib import Path

import numpy as np

from nestax.table import Table
from pages import fill, page
from script import KEPT, parser

from experiments.maml import FULL, RIVALS, Cell, FewShot, SetUp

CELLS = KEPT / "maml"
LONGER = KEPT / "maml_long"
STEPS = (1_000, 2_000, 3_000, 4_000)


def kept(folder: Path) -> list[Cell]:
    cells = [Cell(**json.loads(file.read_text())) for file in folder.glob("*.json")]
    return sorted(cells, key=lambda cell: (cell.shots, list(RIVALS).index(cell.method)))


def longer(cells: list[Cell]) -> Table:
    """Mean accuracy on test tasks by steps; at the last one, that on training tasks too."""
    columns = ["shots", "method", "runs", *(f"{n:,}" for n in STEPS), "deviation", "train"]
    rows = []
    for cell in cells:
        steps = SetUp(*cell.setup).steps
        test = 100 * np.asarray(cell.test)
        at = [round(float(test.mean(axis=0)[n * (test.shape[1] - 1) // steps]), 1) for n in STEPS]
        train = round(100 * float(np.mean(cell.train, axis=0)[-1]), 1)
        deviation = round(float(test[:, -1].std()), 1)
        rows.append([cell.shots, cell.method, len(test), *at, deviation, train])
    return Table(columns, rows)


def write_page(result: FewShot) -> None:
    parts = {
        "accuracies": result.accuracies().to_markdown(),
        "apart": result.apart().to_markdown(),
        "details": result.details().to_markdown(),
        "longer": longer(kept(LONGER)).to_markdown(),
    }
    fill("meta-learning.md", parts)
    result.plot().savefig(page("images/maml.png"), dpi=150)
    result.curves().to_csv(page("images/maml.csv"))


if __name__ == "__main__":
    parser(__doc__).parse_args()
    write_page(FewShot({(cell.method, cell.shots): cell for cell in kept(CELLS)}, FULL))
