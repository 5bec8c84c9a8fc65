"""Figure 4 of the SMVR paper, from cells in benchmarks/results/maml into docs/meta-learning.md.

    nestax reproduce maml --full --cells benchmarks/results/maml
    python benchmarks/maml.py

The first computes the cells that are not there, and needs a large GPU; the second only shows them.
"""

import json
from pathlib import Path

from nestax.experiments.maml import FULL, RIVALS, Cell, FewShot
from pages import DOCS, fill

HERE = Path(__file__).parent
CELLS = HERE / "results" / "maml"
FIGURE = DOCS / "images" / "maml.png"


def kept() -> FewShot:
    cells = [Cell(**json.loads(file.read_text())) for file in CELLS.glob("*.json")]
    cells.sort(key=lambda cell: (cell.shots, list(RIVALS).index(cell.method)))
    return FewShot({(cell.method, cell.shots): cell for cell in cells}, FULL)


def write_page(result: FewShot) -> None:
    parts = {
        "accuracies": result.accuracies().to_markdown(),
        "details": result.details().to_markdown(),
        "findings": "\n".join(f"* {finding}" for finding in result.findings()),
    }
    fill("meta-learning.md", parts)
    result.plot().savefig(FIGURE, dpi=150)


if __name__ == "__main__":
    write_page(kept())
