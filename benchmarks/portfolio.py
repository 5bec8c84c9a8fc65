"""What every implementation of the portfolio benchmark shares: its numbers, and nothing else.

The problem is F(x) = −E[r·x] + λ·sqrt(Var[r·x] + δ) on the simplex, from equal weights; the method
is dense SMVR with plain gradient steps and one row per level and step. All implementations take the
rows that they visit from an array ``indices`` of shape (steps + 1, 2): entry (t, i) is the row of
level i + 1 at step t, and step 0 is the start.
"""

from typing import NamedTuple

import numpy as np

PERIODS = 25_105
ASSETS = 30


class Settings(NamedTuple):
    """β, the learning rate, λ, and δ in squared percent."""

    beta: float = 0.1
    lr: float = 0.05
    risk: float = 0.2
    delta: float = 1e-2


def random_indices(steps: int, rows: int = PERIODS, seed: int = 0) -> np.ndarray:
    """Rows to visit, drawn uniformly."""
    return np.random.default_rng(seed).integers(rows, size=(steps + 1, 2))
