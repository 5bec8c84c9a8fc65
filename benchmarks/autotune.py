"""What ``minimize(problem, samples=3·S)`` reaches by itself, against the best of 21 settings.

The 21 settings (seven learning rates, three forgetting rates) get S samples each, all of them together
seven times as many as ``minimize``; what that spends on finding its settings is part of its 3·S.
Writes benchmarks/results/autotune.csv and the table of docs/theory.md.
"""

import os

import jax
import numpy as np
import optax
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import nestax as nx
from nestax.table import Table
from pages import fill
from script import few, parser, results, size

from experiments.smooth_chain import smooth_chain

SAMPLES = size(100_000, small=2_000)
BATCH = 16
SEEDS = size(5, small=1)
GRID = nx.grid(beta=[0.1, 0.5, 0.9], lr=[0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
#: The error of a run is the mean gap over this many records at its end.
LAST = 20
#: Of full gradient descent, to find a least value that is not known.
EXACT_STEPS = size(20_000, small=200)


def tilted() -> nx.Problem:
    """A noisy, imbalanced classification; a small penalty gives it a finite optimum."""
    X, y = load_breast_cancer(return_X_y=True)
    X, y, _ = nx.datasets.corrupt(StandardScaler().fit_transform(X), y, imbalance=10, seed=0)
    return nx.problems.hierarchical_term(nx.problems.groups_of(X, y), intercept=True, l2=1e-2)


def problems() -> dict[str, nx.Problem]:
    out = {"portfolio, synthetic": nx.problems.mean_deviation(nx.datasets.synthetic_returns())}
    if "NESTAX_DATA" in os.environ:
        out["portfolio, Industry-10"] = nx.problems.mean_deviation(nx.datasets.industry(10))
    return out | {
        "tilted risk": tilted(),
        "convex chain": nx.problems.convex_chain(3),
        "smooth chain, nonconvex": smooth_chain("nonconvex", 3),
        "smooth chain, PL": smooth_chain("PL", 2),
    }


def least(problem: nx.Problem) -> float:
    """F*, as given or by full gradient descent until nothing moves."""
    if problem.optimum is not None:
        return float(problem.optimum)
    run = nx.minimize(
        problem, nx.Exact(), optax.sgd(0.5), steps=EXACT_STEPS, record=["exact_value"], progress=False
    )
    return float(run.records["exact_value"].min())


def compare(problem: nx.Problem) -> tuple[float, float]:
    """Mean gap of the best of the 21 settings with S samples, and of ``minimize`` with 3·S."""
    optimum = least(problem)
    runs = nx.sweep(
        problem,
        lambda s: (nx.SMVR(beta=s.beta), optax.sgd(s.lr)),
        settings=GRID,
        seeds=SEEDS,
        samples=SAMPLES,
        batch_size=BATCH,
        record=["exact_value"],
        progress=False,
    )
    gaps = runs.records["exact_value"][:, :, -LAST:].mean(axis=2) - optimum
    best = np.where(runs.finite, gaps, np.inf).mean(axis=1).min()
    own = [
        nx.minimize(
            problem,
            samples=3 * SAMPLES,
            batch_size=BATCH,
            seed=seed,
            record=["exact_value"],
            progress=False,
        )
        .records["exact_value"][-LAST:]
        .mean()
        - optimum
        for seed in range(SEEDS)
    ]
    return float(best), float(np.mean(own))


if __name__ == "__main__":
    parser(__doc__).parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = []
    for name, problem in few(problems()).items():
        best, own = compare(problem)
        rows.append([name, best, own, own / best])
        print(*rows[-1], flush=True)
    table = Table(["problem", "best of 21, S samples", "minimize, 3·S samples", "ratio"], rows)
    table.to_csv(results("autotune.csv"))
    fill("theory.md", {"autotune table": table.to_markdown()})
