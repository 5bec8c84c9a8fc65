"""Draws that are used where they were made bias an estimator with memory; independent ones do not.

At frozen w the mean gradient is w for `fresh` and `lagged` draws and (1 + σ²)w for `reuse`, for every
beta. Dense SMVR multiplies a tracked Jacobian by a tracked value made from the same draws, whose
covariance is that of a moving average: the mean is (1 + σ²β/(2 − β))w, which fades with beta.
"""

import functools

import jax
import pytest
from tests.support.frozen import draws, follow, mean_and_error
from tests.support.methods import storm_family

EXPECTED = {
    "SMVR": lambda beta, sigma: 1 + sigma**2 * beta / (2 - beta),
    "AdjointSMVR fresh": lambda beta, sigma: 1.0,
    "AdjointSMVR lagged": lambda beta, sigma: 1.0,
    "AdjointSMVR reuse": lambda beta, sigma: 1 + sigma**2,
    "ProductSMVR fresh": lambda beta, sigma: 1.0,
    "ProductSMVR lagged": lambda beta, sigma: 1.0,
    "ProductSMVR reuse": lambda beta, sigma: 1 + sigma**2,
}


@functools.partial(jax.jit, static_argnames=("estimator", "sigma"))
def gradients(estimator, sigma, beta, first, rest):
    return follow(storm_family(beta)[estimator], sigma, first, rest)[0]


@pytest.mark.parametrize(("sigma", "beta"), [(1.0, 0.02), (0.5, 0.1)])
@pytest.mark.parametrize("estimator", EXPECTED)
def test_mean_gradient_at_frozen_weights(estimator, sigma, beta):
    passes = tuple(storm_family(beta)[estimator].passes)
    mean, error = mean_and_error(gradients(estimator, sigma, beta, *draws(sigma, passes)))
    biased, unbiased = 1 + sigma**2, 1 + sigma**2 * beta / (2 - beta)
    assert 0 < error < (biased - unbiased) / 20
    assert abs(mean - EXPECTED[estimator](beta, sigma)) < 4 * error
