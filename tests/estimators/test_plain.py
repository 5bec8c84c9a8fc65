"""The biased baseline: the chain rule with a mini-batch plugged into every level."""

import numpy as np
import pytest
from tests.support.cases import noisy
from tests.support.compare import assert_same, flat
from tests.support.drive import drive

import nestax as nx


def plain(case, draws):
    w, weights, grads, values = case.project(case.w0), [], [], []
    for xi in draws:
        u, J = [w], []
        for level, batch in zip(case.levels, xi, strict=True):
            J.append(level.J(u[-1], batch["value"]))
            u.append(level.project(level.f(u[-1], batch["value"])))
        v = np.ones(1)
        for J_i in reversed(J):
            v = J_i.T @ v
        weights.append(w), grads.append(v), values.append(u[1:])
        w = case.project(w - case.lr * v)
    return weights, grads, values


@pytest.mark.parametrize("name", ["three_levels", "portfolio", "tree"])
def test_follows_the_equations(name):
    case = noisy(name)
    run = drive(case.problem, nx.Plain(), case.lr)
    weights, grads, values = plain(case, run.draws)
    assert_same(run.weights, weights)
    assert_same(run.grads, grads)
    assert_same(run.values, [u[-1][0] for u in values])
    for state, u in zip(run.state, values, strict=True):
        for value, u_i in zip(state.value, u, strict=True):
            assert_same(flat(value), u_i)
