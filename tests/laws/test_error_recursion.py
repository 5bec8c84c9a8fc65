"""At frozen weights a STORM value is a moving average: stationary variance βσ²/(2 − β)."""

import functools

import jax
import numpy as np
import pytest
from tests.support.frozen import draws, follow, mean_and_error
from tests.support.methods import storm_family

BETAS, SIGMA = np.asarray([0.02, 0.05, 0.1, 0.2]), 0.5


@functools.partial(jax.jit, static_argnames=("estimator",))
def squared_errors(estimator, betas, first, rest):
    value = lambda beta: follow(storm_family(beta)[estimator], SIGMA, first, rest)[1]
    return (jax.vmap(value)(betas) - 1.0) ** 2


@pytest.mark.parametrize("estimator", ["SMVR", "AdjointSMVR lagged", "ProductSMVR fresh"])
def test_variance_is_proportional_to_beta(estimator):
    passes = tuple(storm_family(0.1)[estimator].passes)
    variance, error = mean_and_error(squared_errors(estimator, BETAS, *draws(SIGMA, passes)))
    predicted = BETAS * SIGMA**2 / (2 - BETAS)
    assert (error < predicted / 10).all()
    np.testing.assert_array_less(np.abs(variance - predicted), 4 * error)
    slope = np.polyfit(np.log(BETAS), np.log(variance), 1)[0]
    assert abs(slope - 1) < 0.15
