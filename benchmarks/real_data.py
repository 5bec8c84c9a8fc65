"""Data sets that nestax does not bring along, and made-up ones of their kind with --small."""

import numpy as np

import nestax as nx
from script import SMALL


def industry(count: int) -> np.ndarray:
    """Daily returns of so many industries."""
    return (
        nx.datasets.synthetic_returns(500, count) if SMALL else np.asarray(nx.datasets.industry(count))
    )


def omniglot(side: int) -> nx.datasets.Omniglot:
    """Handwriting, or noise of 40 characters by 20 drawers."""
    if not SMALL:
        return nx.datasets.omniglot(side=side)
    noise = np.random.default_rng(0).integers(256, size=(40, 20, side, side), dtype=np.uint8)
    return nx.datasets.Omniglot(noise)
