"""What gains that set themselves cost, against a fixed forgetting rate: last table of docs/memory.md.

Microseconds a step from runs of two lengths (compiling and start drop out), median of five, all methods
in one process; F is not recorded. On a machine that does nothing else.
"""

import time

import numpy as np
import optax
from sklearn.datasets import load_digits

import nestax as nx
from memory_problems import portfolio
from nestax.problems.few_shot.networks import perceptron
from nestax.table import Table
from pages import fill
from script import parser, size

#: Batch sizes, and the two lengths of a run.
PORTFOLIO = size({1: (2_000, 22_000), 16: (2_000, 12_000), 128: (500, 3_500)}, small={1: (20, 40)})
PERCEPTRON = size({32: (10, 60), 128: (10, 60)}, small={32: (1, 2)})
WIDTH = size(512, small=8)


def per_step(problem, estimator, optimiser, batch: int, lengths: tuple[int, int]) -> float:
    def seconds(steps: int) -> float:
        began = time.perf_counter()
        options = {"record": [], "record_every": lengths[0], "progress": False}
        nx.minimize(problem, estimator, optimiser, steps=steps, batch_size=batch, **options)
        return time.perf_counter() - began

    pairs = [[seconds(steps) for steps in lengths] for _ in range(6)][1:]
    return float(np.median([b - a for a, b in pairs]) / (lengths[1] - lengths[0]) * 1e6)


def network() -> nx.Problem:
    """log E e^ℓ of a perceptron 64-512-512-10 on digits, 301,066 weights."""
    model = perceptron(64, WIDTH, WIDTH, 10)
    X, y = load_digits(return_X_y=True)
    return nx.problems.term(
        (X / 16).astype(np.float32), y, "multinomial", 1.0, model=model.apply, w0=model.init
    )


if __name__ == "__main__":
    parser(__doc__).parse_args()
    rows = []
    for batch, lengths in PORTFOLIO.items():
        problem = portfolio(30, batch).problem
        times = {
            name: per_step(problem, estimator, optax.sgd(0.01), batch, lengths)
            for name, estimator in {"SMVR": nx.SMVR(0.1), "SelfTuning": nx.SelfTuning()}.items()
        }
        rows.append([f"Industry-30, batch {batch}", "SMVR", times["SMVR"], times["SelfTuning"]])
    for batch, lengths in PERCEPTRON.items():
        names = {"AdjointSMVR": nx.AdjointSMVR(0.1), "SelfTuning": nx.SelfTuning()}
        problem = network()
        times = {
            name: per_step(problem, estimator, optax.adam(1e-3), batch, lengths)
            for name, estimator in names.items()
        }
        rows.append(
            [f"perceptron, batch {batch}", "AdjointSMVR", times["AdjointSMVR"], times["SelfTuning"]]
        )
    shown = [[a, b, f"{x:.3g}", f"{y:.3g}", f"{y / x:.2f}"] for a, b, x, y in rows]
    table = Table(["problem", "against", "its µs a step", "SelfTuning's", "ratio"], shown)
    print(table)
    fill("memory.md", {"cost": table.to_markdown()})
