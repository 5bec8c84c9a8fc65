"""PMM of Jiang et al., 2024: moving averages of values and of the product, written out in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.estimators.transcribe import (
    follow,
    jacobians,
    mean_of_products,
    noiseless,
    plain,
    product,
    sgd,
    simplex_frank_wolfe,
)
from tests.support.cases import exact_middle, noisy, portfolio_with_oracle
from tests.support.drive import STEPS

import nestax as nx


def pmm(case, beta, per_draw=True, exact_levels=True):
    """beta(t) = β_t; u[0] is w; the product is taken at the new values, with the same draws."""

    def P(u, xi):
        if per_draw:
            return mean_of_products(case, u, xi, "value")
        return product(jacobians(case, u, xi, "value"))

    def method(t, w, xi, state):
        if t == 0:
            u = plain(case, w, xi, "value")
            return P(u, xi), u[-1][0], (u, P(u, xi))
        (u_old, v_old), b, u = state, beta(t), [w]
        for i, level in enumerate(case.levels):
            u_i = level.f(u[i], xi[i]["value"])
            if not (exact_levels and noiseless(xi[i]["value"])):
                u_i = (1 - b) * u_old[i + 1] + b * u_i
            u.append(level.project(u_i))
        v = (1 - b) * v_old + b * P(u, xi)
        return v, u[-1][0], (u, v)

    return method


@pytest.mark.parametrize("per_draw", [True, False])
def test_both_products(per_draw):
    case = noisy("three_levels")
    estimator = nx.PMM(lambda t: 0.9 / (1 + jnp.asarray(t, float)), per_draw=per_draw)
    beta = lambda t: 0.9 / (1 + t)
    run = follow(case, estimator, pmm(case, beta, per_draw), sgd(case), case.lr)
    xi = run.draws[0]
    u = plain(case, run.weights[0], xi, "value")
    apart = mean_of_products(case, u, xi, "value") - product(jacobians(case, u, xi, "value"))
    assert np.abs(apart).max() > 1e-3


def test_levels_without_noise():
    case, runs = exact_middle(), {}
    for exact in (True, False):
        estimator = nx.PMM(0.3, exact_levels=exact)
        method = pmm(case, lambda t: 0.3, exact_levels=exact)
        runs[exact] = follow(case, estimator, method, sgd(case), case.lr)
    assert np.abs(runs[True].grads - runs[False].grads).max() > 1e-4


@pytest.mark.parametrize(("exact", "lr"), [(True, None), (False, 1.5)])
def test_published_pair(exact, lr):
    case = portfolio_with_oracle()
    method = pmm(case, lambda t: 0.1, exact_levels=exact)
    step = simplex_frank_wolfe((lr or 1) * STEPS ** (-2 / 3))
    run = follow(case, nx.PMM(exact_levels=exact, lr=lr), method, step)
    assert np.abs(run.weights[-1] - run.weights[0]).max() > 1e-2
