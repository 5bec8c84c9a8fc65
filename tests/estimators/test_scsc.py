"""SCSC of Chen, Sun and Yin, in both forms, written out with matrices in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.estimators.transcribe import descent, follow, jacobians, noiseless, product, sgd
from tests.support.cases import exact_middle, noisy
from tests.support.drive import STEPS

import nestax as nx

FORMS = ("two-point", "single-point")


def scsc(case, mode, beta):
    """beta(t) = β_t; y[0] is θ; the derivative is raw, at the new inputs."""

    def method(t, theta, xi, y_old):
        y = [theta]
        for i, level in enumerate(case.levels[:-1]):
            batch, b = xi[i]["value"], beta(t)
            y_i = level.f(y[i], batch)
            if t > 0 and not noiseless(batch):
                if mode == "two-point":
                    y_i = (1 - b) * (y_old[i + 1] - level.f(y_old[i], batch)) + y_i
                else:
                    drift = level.J(y[i], batch) @ (y[i] - y_old[i])
                    y_i = (1 - b) * y_old[i + 1] + b * y_i + (1 - b) * drift
            y.append(level.project(y_i))
        v = product(jacobians(case, y, xi, "value"))
        return v, case.levels[-1].f(y[-1], xi[-1]["value"])[0], y

    return method


@pytest.mark.parametrize("problem", ["three_levels", "portfolio"])
@pytest.mark.parametrize("mode", FORMS)
def test_published_pair(mode, problem):
    case = noisy(problem)
    step = descent(case, lambda c: 1 / np.sqrt(STEPS))
    follow(case, nx.SCSC(mode=mode), scsc(case, mode, lambda t: 1 / 2), step)


@pytest.mark.parametrize("mode", FORMS)
def test_middle_level_without_noise(mode):
    """A schedule of step sizes replaces the published one."""
    case = exact_middle()
    estimator = nx.SCSC(0.3, mode, lr=lambda c: 0.1 / (1 + jnp.asarray(c, float)))
    step = descent(case, lambda c: 0.1 / (1 + c))
    follow(case, estimator, scsc(case, mode, lambda t: 0.3), step)


def test_schedule_is_asked_with_the_number_of_the_update():
    case, runs = noisy("three_levels"), {}
    beta = lambda t: 0.9 / (1 + t)
    for mode in FORMS:
        estimator = nx.SCSC(lambda t: 0.9 / (1 + jnp.asarray(t, float)), mode)
        runs[mode] = follow(case, estimator, scsc(case, mode, beta), sgd(case), case.lr)
    assert np.abs(runs["two-point"].grads - runs["single-point"].grads).max() > 1e-4
