"""T-SCGD and A-TSCGD of Yang, Wang and Fang, written out with matrices in NumPy."""

import numpy as np
import pytest
from tests.estimators.transcribe import descent, follow, jacobians, noiseless, product, sgd
from tests.support.cases import exact_middle, noisy

import nestax as nx

METHODS = {"tscgd": nx.TSCGD, "atscgd": nx.ATSCGD}


def tscgd(case, name, beta, exact_levels=True):
    """beta(i, t) = β_{i,t}; y[0] is x, and A-TSCGD queries level i at an extrapolated z."""
    K = len(case.levels)

    def method(t, x, xi, y_old):
        y = [x]
        for i in range(1, K):
            level, batch = case.levels[i - 1], xi[i - 1]["value"]
            if t == 0 or (exact_levels and noiseless(batch)):
                y_i = level.f(y[i - 1], batch)
            else:
                b, z = beta(i, t), y[i - 1]
                if name == "atscgd":
                    z = (1 - 1 / b) * y_old[i - 1] + (1 / b) * y[i - 1]
                    z = z if i == 1 else case.levels[i - 2].project(z)
                y_i = (1 - b) * y_old[i] + b * level.f(z, batch)
            y.append(level.project(y_i))
        v = product(jacobians(case, y, xi, "grad"))
        return v, case.levels[-1].f(y[-1], xi[-1]["grad"])[0], y

    return method


@pytest.mark.parametrize("name", METHODS)
def test_one_beta_per_level(name):
    case, beta = noisy("three_levels"), [0.7, 0.4, 0.9]
    follow(
        case, METHODS[name](beta=beta), tscgd(case, name, lambda i, t: beta[i - 1]), sgd(case), case.lr
    )


@pytest.mark.parametrize("problem", ["three_levels", "portfolio"])
@pytest.mark.parametrize("name", METHODS)
def test_published_schedules(name, problem):
    case = noisy(problem)
    if name == "tscgd":  # K = 3: 7/8 for the weights, 3/4 and 1/2 for the levels
        beta = lambda i, t: (t + 1) ** -(1 - 0.5 ** (3 - i))
        step = descent(case, lambda c: (c + 1) ** -0.875)
    else:
        beta = lambda i, t: min(1, 2 * t ** -((6 - i) / 10))
        step = descent(case, lambda c: 0.3 * (c + 1) ** -0.6)
    run = follow(case, METHODS[name](), tscgd(case, name, beta), step)
    assert np.linalg.norm(run.weights[-1] - run.weights[0]) > 1e-3


@pytest.mark.parametrize("name", METHODS)
def test_levels_without_noise(name):
    case, runs = exact_middle(), {}
    for exact in (True, False):
        estimator = METHODS[name](beta=0.6, exact_levels=exact)
        method = tscgd(case, name, lambda i, t: 0.6, exact)
        runs[exact] = follow(case, estimator, method, sgd(case), case.lr)
    assert np.abs(runs[True].grads - runs[False].grads).max() > 1e-3


def test_a_number_scales_the_steps():
    case = noisy("two_levels")
    basic = lambda i, t: (t + 1) ** -0.5
    step = descent(case, lambda c: 0.1 * (c + 1) ** -0.75)
    run = follow(case, nx.TSCGD(lr=0.1), tscgd(case, "tscgd", basic), step)
    beta = lambda i, t: min(1, 2 * t ** -((5 - i) / 9))
    step = descent(case, lambda c: 0.1 * (c + 1) ** -(5 / 9))
    other = follow(case, nx.ATSCGD(lr=0.1), tscgd(case, "atscgd", beta), step)
    assert np.abs(run.grads - other.grads).max() > 1e-3
