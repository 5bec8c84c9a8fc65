"""How tests compare: trees as one vector, numbers to twelve digits."""

import jax
import numpy as np


def flat(tree) -> np.ndarray:
    """All leaves, raveled in order, as one vector."""
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def assert_same(actual, expected, tolerance=1e-12):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
