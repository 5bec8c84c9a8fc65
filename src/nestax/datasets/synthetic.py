"""Made-up returns that behave like daily returns: common factors, heavy tails, seeded."""

import numpy as np


def synthetic_returns(
    periods: int = 5_000, assets: int = 10, *, factors: int = 3, seed: int = 0
) -> np.ndarray:
    """Makes up daily returns in percent, ``periods`` × ``assets``, from a heavy-tailed factor model.

    Every asset has a small drift, loads on a market factor and on weaker ones, and has noise of its
    own; all shocks follow Student's t distribution with five degrees of freedom.
    """
    rng = np.random.default_rng(seed)

    def shocks(*shape: int) -> np.ndarray:
        return rng.standard_t(5, shape) * np.sqrt(3 / 5)

    strength = 0.9 / (1 + np.arange(factors))
    loadings = rng.uniform(0.5, 1.3, (factors, assets)) * rng.choice([1, 1, -1], (factors, assets))
    loadings[0] = np.abs(loadings[0])
    noise = rng.uniform(0.4, 1.0, assets)
    drift = rng.uniform(0.02, 0.06, assets)
    return drift + (shocks(periods, factors) * strength) @ loadings + noise * shocks(periods, assets)
