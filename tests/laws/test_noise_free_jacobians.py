"""Where only values carry noise, tracking Jacobians, adjoints or products is the same thing."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.cases import ROWS, rng_of
from tests.support.compare import assert_same
from tests.support.drive import drive
from tests.support.methods import storm_family

import nestax as nx

LR = 0.05


@functools.cache
def additive_noise():
    rng = rng_of("additive noise")
    A, B = rng.normal(size=(3, 4)), 0.5 * rng.normal(size=(2, 3))
    rows = lambda *shape: 0.5 * rng.normal(size=(ROWS, *shape))
    return nx.Problem(
        [
            nx.Level(lambda w, b: jnp.tanh(A @ w) + b, rows(3), name="squash"),
            nx.Level(lambda u, c: B @ (u * u) + c, rows(2), name="quadratic"),
            nx.Level(lambda v, e: v @ v / 2 + e * 1.0, rows(), name="bowl"),
        ],
        w0=rng.normal(size=4),
    )


def run_of(estimator):
    """With the draws of both passes, so that all estimators see the same values."""
    return drive(additive_noise(), estimator, LR, passes=("value", "grad"))


@functools.cache
def dense(beta):
    return run_of(nx.SMVR(beta))


@pytest.mark.parametrize("beta", [0.05, 0.3])
@pytest.mark.parametrize(
    "estimator", ["AdjointSMVR fresh", "AdjointSMVR reuse", "ProductSMVR fresh", "ProductSMVR reuse"]
)
def test_same_trajectory_as_dense(estimator, beta):
    run = run_of(storm_family(beta)[estimator])
    assert_same(run.weights, dense(beta).weights)
    assert_same(run.grads, dense(beta).grads)
    assert_same(run.values, dense(beta).values)


def test_the_values_are_noisy():
    problem = additive_noise()
    exact = [problem.value(w) for w in dense(0.3).w]
    assert np.abs(dense(0.3).values - np.asarray(exact)).min() > 1e-3
