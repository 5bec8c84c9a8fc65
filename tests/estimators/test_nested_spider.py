"""Nested-SPIDER of Zhang and Xiao, written out with matrices in NumPy."""

import numpy as np
import pytest
from tests.estimators.transcribe import bounded, follow, product, sgd
from tests.support.cases import ROWS, exact_middle, noisy
from tests.support.drive import STEPS

import nestax as nx


def nested_spider(case, period):
    """y[0] is x; values and Jacobians move by differences and start afresh every period."""

    def method(t, x, xi, state):
        y, Z = [x], []
        for i, level in enumerate(case.levels):
            f = lambda x, level=level, batch=xi[i]["value"]: level.f(x, batch)
            J = lambda x, level=level, batch=xi[i]["value"]: level.J(x, batch)
            if t % period == 0:
                y_i, Z_i = f(y[i]), J(y[i])
            else:
                y_old, Z_old = state
                y_i = y_old[i + 1] + f(y[i]) - f(y_old[i])
                Z_i = Z_old[i] + J(y[i]) - J(y_old[i])
            y.append(level.project(y_i)), Z.append(Z_i)
        return product(Z), y[-1][0], (y, Z)

    return method


@pytest.mark.parametrize("problem", ["three_levels", "portfolio"])
def test_restarts_from_a_larger_batch(problem):
    case = noisy(problem)
    estimator = nx.NestedSPIDER(period=5, restart_batch=7, eps=0.1)
    run = follow(case, estimator, nested_spider(case, 5), bounded(case, 0.5, 0.1))
    sizes = [len(xi[0]["value"]) for xi in run.draws]
    assert [t for t, size in enumerate(sizes) if size == 7] == [0, 5, 10]


def test_restarts_from_the_population():
    case = exact_middle()
    estimator = nx.NestedSPIDER(period=5, restart_batch="population")
    run = follow(case, estimator, nested_spider(case, 5), sgd(case), case.lr)
    assert [t for t, xi in enumerate(run.draws) if len(xi[0]["value"]) == ROWS] == [0, 5, 10]
    value, grad = case.problem.value_and_grad(run.w[5])
    np.testing.assert_allclose(run.values[5], value)
    np.testing.assert_allclose(run.grads[5], grad)


def test_published_pair():
    case = noisy("three_levels")
    run = follow(case, nx.NestedSPIDER(), nested_spider(case, 16), bounded(case, 0.5, STEPS**-0.5))
    assert len(run.draws[0][0]["value"]) == 48
    moved = np.linalg.norm(np.diff(run.weights, axis=0), axis=1)
    assert moved.max() <= 0.5 * STEPS**-0.5 * (1 + 1e-12)
