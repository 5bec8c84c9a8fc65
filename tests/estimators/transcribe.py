"""What the NumPy transcriptions share: the loop over the steps, products of Jacobians, step rules."""

import numpy as np
from tests.support.compare import assert_same
from tests.support.drive import drive


def transcribe(case, draws, method, step):
    """Weights, gradient estimates and values.

    method(t, w, draws, state) → gradient estimate, value, new state; the state is None at t = 0.
    step(c, w, v) → new weights.
    """
    w, state, rows = case.project(case.w0), None, []
    for t, xi in enumerate(draws):
        v, value, state = method(t, w, xi, state)
        rows.append((w, v, value))
        w = step(t, w, v)
    return [np.stack(column) for column in zip(*rows, strict=True)]


def assert_follows(run, transcript):
    weights, grads, values = transcript
    assert_same(run.weights, weights)
    assert_same(run.grads, grads)
    assert_same(run.values, values)


def follow(case, estimator, method, step, lr=None):
    """Runs the estimator, compares the run with its transcription, and returns it."""
    run = drive(case.problem, estimator, lr)
    assert_follows(run, transcribe(case, run.draws, method, step))
    return run


def noiseless(batch) -> bool:
    """Whether these are the draws of a deterministic level."""
    return batch == [()]


def product(jacs):
    """J_1ᵀ ⋯ J_Kᵀ."""
    v = np.ones(1)
    for J in reversed(jacs):
        v = J.T @ v
    return v


def jacobians(case, x, xi, name):
    """J_1(x^0), …, J_K(x^{K-1}), each the mean over the batch of its level."""
    return [level.J(x[i], xi[i][name]) for i, level in enumerate(case.levels)]


def plain(case, w, xi, name):
    """w, f_1(w), f_2(f_1(w)), …, with one batch a level."""
    x = [w]
    for i, level in enumerate(case.levels):
        x.append(level.project(level.f(x[i], xi[i][name])))
    return x


def mean_of_products(case, x, xi, name):
    """The product formed for draw j of every level, averaged over j."""
    size = max(len(batches[name]) for batches in xi)
    one = lambda batch, j: batch if noiseless(batch) else [batch[j]]
    products = [
        product([level.J(x[i], one(xi[i][name], j)) for i, level in enumerate(case.levels)])
        for j in range(size)
    ]
    return np.mean(products, axis=0)


# Step rules


def sgd(case):
    return descent(case, lambda c: case.lr)


def descent(case, rate):
    return lambda c, w, v: case.project(w - rate(c) * v)


def averaged(case, rate, tau):
    return lambda c, w, z: w + tau(c) * (case.project(w - rate * z) - w)


def bounded(case, rate, eps):
    def step(c, w, v):
        ahead = case.project(w - rate * v)
        return w + min(1 / 2, rate * eps / np.linalg.norm(ahead - w)) * (ahead - w)

    return step


def simplex_frank_wolfe(rate):
    return lambda c, w, v: w + rate * (np.eye(w.size)[np.argmin(v)] - w)
