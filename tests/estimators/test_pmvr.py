"""PMVR of Jiang et al., 2024: STORM on the product, formed draw by draw, written out in NumPy."""

import numpy as np
import pytest
from tests.estimators.transcribe import (
    follow,
    jacobians,
    mean_of_products,
    product,
    sgd,
    simplex_frank_wolfe,
)
from tests.support.cases import exact_middle, noisy, portfolio_with_oracle
from tests.support.compare import assert_same
from tests.support.drive import STEPS, drive
from tests.support.methods import MODES

import nestax as nx


def pmvr(case, beta, mode, per_draw=True):
    """u[0] is w; the state holds the values of this step and of the one before, and the product."""
    keep, name = 1 - beta, "grad" if mode == "fresh" else "value"

    def P(u, xi):
        return mean_of_products(case, u, xi, name) if per_draw else product(jacobians(case, u, xi, name))

    def method(t, w, xi, state):
        u = [w]
        for i, level in enumerate(case.levels):
            f = lambda x, level=level, batch=xi[i]["value"]: level.f(x, batch)
            u_i = f(u[i])
            if t > 0:
                u_1 = state[0]
                u_i = keep * (u_1[i + 1] - f(u_1[i])) + u_i
            u.append(level.project(u_i))
        if t == 0:
            v = P(u, xi)
            return v, u[-1][0], (u, u, v)
        u_1, u_2, v = state
        new, old = (u_1, u_2) if mode == "lagged" else (u, u_1)
        v = keep * (v - P(old, xi)) + P(new, xi)
        return v, u[-1][0], (u, u_1, v)

    return method


@pytest.mark.parametrize("mode", MODES)
def test_product_of_every_draw(mode):
    case = noisy("three_levels")
    follow(case, nx.PMVR(0.3, mode), pmvr(case, 0.3, mode), sgd(case), case.lr)


def test_middle_level_without_noise():
    case = exact_middle()
    follow(case, nx.PMVR(0.3, "fresh"), pmvr(case, 0.3, "fresh"), sgd(case), case.lr)


def test_product_of_means_is_product_smvr():
    case = noisy("three_levels")
    estimator = nx.PMVR(0.3, "lagged", per_draw=False)
    run = follow(case, estimator, pmvr(case, 0.3, "lagged", per_draw=False), sgd(case), case.lr)
    known = drive(case.problem, nx.ProductSMVR(0.3, "lagged"), case.lr)
    assert_same(run.grads, known.grads)
    other = drive(case.problem, nx.PMVR(0.3, "lagged"), case.lr)
    assert np.abs(run.grads - other.grads).max() > 1e-3


def test_published_pair():
    case = portfolio_with_oracle()
    rate = STEPS ** (-2 / 3)
    run = follow(case, nx.PMVR(), pmvr(case, rate, "lagged"), simplex_frank_wolfe(rate))
    assert_same(run.weights.sum(axis=1), 1)
    assert np.abs(run.weights[-1] - run.weights[0]).max() > 1e-2
