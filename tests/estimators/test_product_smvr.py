"""Product SMVR: STORM on the whole product of Jacobians, written out with matrices in NumPy."""

import numpy as np
import pytest
from tests.support.cases import noisy
from tests.support.compare import assert_same
from tests.support.drive import drive
from tests.support.methods import MODES

import nestax as nx


def product(case, u, batches, name):
    """J_1(u^0)ᵀ ⋯ J_K(u^{K-1})ᵀ."""
    v = np.ones(1)
    for level, x, batch in reversed(list(zip(case.levels, u[:-1], batches, strict=True))):
        v = level.J(x, batch[name]).T @ v
    return v


def product_smvr(case, draws, beta, mode, radius=np.inf):
    """Returns the weights, the gradient estimates, the objectives, and where the ball was active."""
    keep, name = 1 - beta, "grad" if mode == "fresh" else "value"
    weights, grads, objectives, active = [], [], [], []
    w, u, u_1, v = case.project(case.w0), None, None, None
    for t, xi in enumerate(draws):
        u_2, u_1, u = u_1, u, [w]
        for i, level in enumerate(case.levels):
            f = lambda x, level=level, batch=xi[i]["value"]: level.f(x, batch)
            u_i = f(u[i]) if t == 0 else keep * (u_1[i + 1] - f(u_1[i])) + f(u[i])
            u.append(level.project(u_i))
        if t == 0:
            u_1, v = u, product(case, u, xi, name)
        else:
            new, old = (u_1, u_2) if mode == "lagged" else (u, u_1)
            v = keep * (v - product(case, old, xi, name)) + product(case, new, xi, name)
        size = np.linalg.norm(v)
        active.append(size > radius)
        v = v * radius / size if size > radius else v
        weights.append(w), grads.append(v), objectives.append(u[-1][0])
        w = case.project(w - case.lr * v)
    return weights, grads, objectives, active


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["three_levels", "portfolio", "tree"])
def test_without_ball(name, mode):
    case = noisy(name)
    run = drive(case.problem, nx.ProductSMVR(0.3, mode), case.lr)
    weights, grads, objectives, _ = product_smvr(case, run.draws, 0.3, mode)
    assert_same(run.weights, weights)
    assert_same(run.grads, grads)
    assert_same(run.values, objectives)


@pytest.mark.parametrize("mode", MODES)
def test_ball(mode):
    case = noisy("three_levels")
    free = drive(case.problem, nx.ProductSMVR(0.3, mode), case.lr)
    radius = np.median(np.linalg.norm(free.grads, axis=1))
    run = drive(case.problem, nx.ProductSMVR(0.3, mode, radius), case.lr)
    weights, grads, _, active = product_smvr(case, run.draws, 0.3, mode, radius)
    assert 0 < sum(active) < len(active)
    assert_same(run.weights, weights)
    assert_same(run.grads, grads)
