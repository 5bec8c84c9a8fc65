"""What memory per block buys in ranking and in contrasting, into docs/blocks.md. About five minutes.

    python benchmarks/coupled.py

The exact objective at the end (mean over the last quarter of the records and three seeds), best of four
learning rates, after 1,000 steps that visit four blocks each.
"""

import jax
import numpy as np
import optax

import nestax as nx
from nestax.table import Table
from pages import fill
from script import few, parser, results, size

RATES = [0.01, 0.03, 0.1, 0.3]
STEPS = size(1_000, small=20)
RECORDS = 20
DRAWS = few({"1 draw a block": 1, "2 draws": 2, "8 draws": 8}, small=1)
METHODS = {
    "Plain": nx.Plain(),
    "SOX": nx.SOX(0.1, 0.1),
    "MSVR": nx.MSVR(0.1, 0.1),
    "BlockSMVR": nx.BlockSMVR(0.1),
    "PerBlock(SCSC)": nx.PerBlock(nx.SCSC(0.1)),
    "PerBlock(AdjointSMVR)": nx.PerBlock(nx.AdjointSMVR(0.1, mode="fresh")),
}


def problems() -> dict[str, tuple]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((48, 4))
    y = (X @ [1.0, -0.5, 0.2, 0.0] + rng.standard_normal(48) > 0.9).astype(float)
    shared = rng.standard_normal((24, 2))
    view = lambda: np.hstack([shared + 0.2 * rng.standard_normal((24, 2)), rng.standard_normal((24, 3))])
    return {
        "ranking": (nx.problems.average_precision(X, y, margin=0.7, visit=4), optax.sgd),
        "contrasting": (
            nx.problems.contrastive(view(), view(), temperature=0.3, visit=4),
            optax.adam,
        ),
    }


def ends_at(problem, method, optimiser, draws: int) -> float:
    runs = nx.sweep(
        problem,
        lambda s: (method, optimiser(s.lr)),
        settings=nx.grid(lr=RATES),
        seeds=3,
        steps=STEPS,
        batch_size=draws,
        init_batch_size=20,
        record=["exact_value"],
        record_every=STEPS // RECORDS,
        progress=False,
    )
    late = runs.records["exact_value"][:, :, -5:].mean(axis=(1, 2))
    jax.clear_caches()
    return float(np.where(np.isfinite(late), late, np.inf).min())


if __name__ == "__main__":
    parser(__doc__).parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = []
    for name, (problem, optimiser) in problems().items():
        for method, estimator in few(METHODS).items():
            found = [ends_at(problem, estimator, optimiser, draws) for draws in DRAWS.values()]
            rows.append([name, method, *(round(x, 2) for x in found)])
            print(*rows[-1], flush=True)
    table = Table(["problem", "method", *DRAWS], rows)
    table.to_csv(results("coupled.csv"))
    fill("blocks.md", {"coupled table": table.to_markdown()})
