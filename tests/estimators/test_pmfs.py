"""PMFS of Jiang et al.: STORM with an SVRG sample on values and on the product, in NumPy."""

import numpy as np
import pytest
from tests.estimators.transcribe import (
    descent,
    follow,
    jacobians,
    noiseless,
    product,
    sgd,
    simplex_frank_wolfe,
)
from tests.support.cases import RANGE, exact_middle, noisy, portfolio_with_oracle
from tests.support.drive import STEPS

import nestax as nx


def population(case, w, xi):
    u = [w]
    for i, level in enumerate(case.levels):
        u.append(level.f(u[i], xi[i]["value"]))
    return u


def pmfs(case, beta, period):
    """The state holds the values, the product, and both at the last snapshot."""
    P = lambda u, xi: product(jacobians(case, u, xi, "value"))

    def method(t, w, xi, state):
        if t % period == 0:
            u = population(case, w, xi)
            v = P(u, xi)
            return v, u[-1][0], (u, v, u, v)
        u_1, v, u_s, P_s = state
        u = [w]
        for i, level in enumerate(case.levels):
            f = lambda x, level=level, batch=xi[i]["value"]: level.f(x, batch)
            if noiseless(xi[i]["value"]):
                u_i = f(u[i])
            else:
                h = f(u[i]) - f(u_s[i]) + u_s[i + 1]
                u_i = (1 - beta) * u_1[i + 1] + beta * h + (1 - beta) * (f(u[i]) - f(u_1[i]))
            u.append(level.project(u_i))
        h = P(u, xi) - P(u_s, xi) + P_s
        v = (1 - beta) * v + beta * h + (1 - beta) * (P(u, xi) - P(u_1, xi))
        return v, u[-1][0], (u, v, u_s, P_s)

    return method


@pytest.mark.parametrize("name", ["three_levels", "portfolio", "exact_middle"])
def test_follows_the_equations(name):
    case = exact_middle() if name == "exact_middle" else noisy(name)
    run = follow(case, nx.PMFS(0.3, period=5), pmfs(case, 0.3, 5), sgd(case), case.lr)
    grads = [case.problem.value_and_grad(w)[1] for w in run.w]
    off = np.abs(run.grads - np.stack(grads)).max(axis=1)
    assert off[[0, 5, 10]].max() < 1e-12
    assert off[1:5].min() > 1e-6


def test_tracked_values_are_moved_into_the_range_of_their_level():
    case = noisy("three_levels")
    step = descent(case, lambda c: 0.1)
    run = follow(case, nx.PMFS(0.3, period=20), pmfs(case, 0.3, 20), step, 0.1)
    first = np.stack([state.inputs[1] for state in run.state])
    assert 0 < np.isin(first, RANGE).any(axis=1).sum() < len(first)


def test_published_pair():
    case = portfolio_with_oracle()
    run = follow(case, nx.PMFS(period=5), pmfs(case, 0.01, 5), simplex_frank_wolfe(STEPS**-0.5))
    assert np.abs(run.weights[-1] - run.weights[0]).max() > 1e-2
