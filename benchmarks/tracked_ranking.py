"""Average precision of a small network on mammography, in PyTorch, for docs/tracked-results.md.

    make tracked-ranking   everything, against LibAUC's own loss, optimiser and sampler; ten minutes

260 calcifications among 11,183 candidates, another third of the rows held out for every seed. All have
the same network, rows a step and number of steps. Learning rate and what the memory forgets are
chosen on seeds of their own, by the average precision of the rows held out there.
"""

import functools
import gzip
import importlib.metadata
import json
import os
import time as clock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from nestax.table import Table
from nestax.torch import AveragePrecision
from pages import fill
from script import SMALL, parser, results, size
from tables import with_error

ROWS = 64
#: Positive rows of a batch where a sampler chooses them.
POSITIVE = 8
STEPS = size(1_000, small=5)
TUNING = size(2, small=1)
SEEDS = size(10, small=2)
RATES = size((3e-4, 1e-3, 3e-3, 1e-2), small=(1e-3,))
FORGOTTEN = size((0.1, 0.3, 0.9), small=(0.3,))
WIDTH = 32

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Split(NamedTuple):
    """Rows of one seed; tensors."""

    x: torch.Tensor
    y: torch.Tensor
    held_x: torch.Tensor
    held_y: torch.Tensor


@functools.cache
def mammography() -> tuple[np.ndarray, np.ndarray]:
    """Standardised features and labels, or 300 rows that are made up."""
    if SMALL:
        rng = np.random.default_rng(0)
        X = rng.standard_normal((300, 6))
        return X, (X[:, 0] + rng.standard_normal(300) > 2).astype(float)
    if "NESTAX_DATA" not in os.environ:
        raise SystemExit("mammography.csv.gz is looked for in the folder NESTAX_DATA, which is not set.")
    with gzip.open(Path(os.environ["NESTAX_DATA"]) / "mammography.csv.gz", "rt") as file:
        table = np.asarray([line.replace("'", "").split(",") for line in file], float)
    X = table[:, :-1]
    return (X - X.mean(0)) / X.std(0), (table[:, -1] > 0).astype(float)


@functools.cache
def split(seed: int) -> Split:
    """With the same share of positive rows in both parts."""
    X, y = mammography()
    rng = np.random.default_rng(seed)
    held = np.zeros(len(y), bool)
    for label in (0, 1):
        rows = rng.permutation(np.flatnonzero(y == label))
        held[rows[: len(rows) // 3]] = True
    tensor = lambda x: torch.tensor(x, dtype=torch.float32)
    return Split(tensor(X[~held]), tensor(y[~held]), tensor(X[held]), tensor(y[held]))


# Batches


def as_they_come(y: torch.Tensor, rng: np.random.Generator) -> Iterator[np.ndarray]:
    while True:
        yield rng.choice(len(y), ROWS, replace=False)


def balanced(y: torch.Tensor, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """As many positive rows in every batch, as LibAUC's sampler does it."""
    positive, negative = (np.flatnonzero(y.numpy() == label) for label in (1, 0))
    while True:
        some = rng.choice(positive, POSITIVE, replace=False)
        yield np.concatenate([some, rng.choice(negative, ROWS - POSITIVE, replace=False)])


# Contenders: each makes a loss of (scores, labels, index) and an optimiser


def cross_entropy(n: int, forgotten: float) -> Loss:
    return lambda h, y, index: torch.nn.functional.binary_cross_entropy_with_logits(h, y)


def tracked(n: int, forgotten: float) -> Loss:
    return AveragePrecision(n, beta=forgotten)


def of_libauc(n: int, forgotten: float) -> Loss:
    from libauc.losses import APLoss

    return APLoss(data_len=n, gamma=forgotten, device="cpu")


def adam(weights: Any, rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(weights, lr=rate)


def soap(weights: Any, rate: float) -> torch.optim.Optimizer:
    from libauc.optimizers import SOAP

    return SOAP(weights, lr=rate, mode="adam", verbose=False, device="cpu")


class Contender(NamedTuple):
    """A loss, an optimiser, and how batches are drawn."""

    loss: Callable[[int, float], Loss]
    optimizer: Callable[[Any, float], torch.optim.Optimizer]
    batches: Callable[[torch.Tensor, np.random.Generator], Iterator[np.ndarray]]
    forgotten: tuple[float, ...] = FORGOTTEN


OURS = "`AveragePrecision`, balanced"
CONTENDERS = {
    "cross-entropy": Contender(cross_entropy, adam, as_they_come, (1.0,)),
    "cross-entropy, balanced": Contender(cross_entropy, adam, balanced, (1.0,)),
    "without memory, balanced": Contender(tracked, adam, balanced, (1.0,)),
    "`AveragePrecision`": Contender(tracked, adam, as_they_come),
    OURS: Contender(tracked, adam, balanced),
}
if not SMALL:
    CONTENDERS["LibAUC's `APLoss` and `SOAP`, balanced"] = Contender(of_libauc, soap, balanced)


def run(contender: Contender, rate: float, forgotten: float, seed: int) -> float:
    """Average precision of the rows held out, at the end of one run."""
    data = split(seed)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(data.x.shape[1], WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, 1),
        torch.nn.Flatten(0),
    )
    loss = contender.loss(len(data.y), forgotten)
    optimizer = contender.optimizer(model.parameters(), rate)
    batches = contender.batches(data.y, np.random.default_rng(seed))
    for _ in range(STEPS):
        rows = torch.from_numpy(next(batches))
        optimizer.zero_grad()
        loss(model(data.x[rows]), data.y[rows], rows).backward()
        optimizer.step()
    with torch.no_grad():
        scores = model(data.held_x).numpy()
    return float(average_precision_score(data.held_y.numpy(), scores))


def cell(contender: Contender) -> dict[str, Any]:
    tuning = [1_000_000 + k for k in range(TUNING)]
    grid = [(rate, forgotten) for rate in RATES for forgotten in contender.forgotten]
    tried = [float(np.mean([run(contender, *one, seed) for seed in tuning])) for one in grid]
    rate, forgotten = grid[int(np.argmax(tried))]
    found = [run(contender, rate, forgotten, seed) for seed in range(SEEDS)]
    return {"rate": rate, "forgotten": forgotten, "tuning": tried, "precision": found}


def precision_table(kept: dict[str, Any]) -> Table:
    lines = []
    for name, of in kept.items():
        found = np.asarray(of["precision"])
        less = found - np.asarray(kept[OURS]["precision"])
        memory = of["forgotten"] if len(CONTENDERS[name].forgotten) > 1 else "–"
        apart = "–" if name == OURS else with_error(less, "+", 100)
        lines.append([name, with_error(found, unit=100), apart, of["rate"], memory])
    return Table(["loss", "average precision", f"minus {OURS}", "rate", "forgotten"], lines)


def main() -> None:
    parser(__doc__).parse_args()
    torch.set_num_threads(1)
    path = results("tracked_ranking.json")
    versions = {} if SMALL else {"libauc": importlib.metadata.version("libauc")}
    found: dict[str, Any] = {"versions": versions, "cells": {}}
    for name, contender in CONTENDERS.items():
        began = clock.perf_counter()
        found["cells"][name] = cell(contender)
        shown = with_error(np.asarray(found["cells"][name]["precision"]), unit=100)
        print(f"{name}: {shown} {clock.perf_counter() - began:.0f} s", flush=True)
        path.write_text(json.dumps(found))
    fill("tracked-results.md", {"ranking": precision_table(found["cells"]).to_markdown()})


if __name__ == "__main__":
    main()
