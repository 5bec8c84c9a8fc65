"""The full gradient over the population at every step."""

import numpy as np
import pytest
from tests.support.cases import ROWS, noisy
from tests.support.compare import assert_same
from tests.support.drive import drive

import nestax as nx


def gradient_descent(case, population, steps):
    w, weights, grads, values = case.project(case.w0), [], [], []
    for _ in range(steps + 1):
        x, J = w, []
        for level, rows in zip(case.levels, population, strict=True):
            J.append(level.J(x, rows["value"]))
            x = level.f(x, rows["value"])
        v = np.ones(1)
        for J_i in reversed(J):
            v = J_i.T @ v
        weights.append(w), grads.append(v), values.append(x[0])
        w = case.project(w - case.lr * v)
    return weights, grads, values


@pytest.mark.parametrize("name", ["three_levels", "portfolio", "tree"])
def test_is_gradient_descent_on_the_population_means(name):
    case = noisy(name)
    run = drive(case.problem, nx.Exact(), case.lr)
    population = run.draws[0]
    rows = {"portfolio": 200}.get(name, ROWS)
    assert {len(by_pass["value"]) for by_pass in population} - {1} == {rows}
    weights, grads, values = gradient_descent(case, population, steps=12)
    assert_same(run.weights, weights)
    assert_same(run.grads, grads)
    assert_same(run.values, values)
