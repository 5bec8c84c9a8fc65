"""Snapshot SMVR: STORM with an SVRG sample on every value and Jacobian, written out in NumPy."""

import jax
import numpy as np
import optax
import pytest
from tests.support.cases import noisy
from tests.support.compare import assert_same, flat
from tests.support.drive import BATCH, drive

import nestax as nx


def chain_product(V):
    v = np.ones(1)
    for V_i in reversed(V):
        v = V_i.T @ v
    return v


def everything(case, w, draws):
    """Exact trackers over the population: inputs, values and Jacobians of every level."""
    x, V = [w], []
    for level, rows in zip(case.levels, draws, strict=True):
        V.append(level.J(x[-1], rows["value"]))
        x.append(level.f(x[-1], rows["value"]))
    return x, V


def snapshot_smvr(case, draws, beta, period):
    w, out = case.project(case.w0), []
    for t, xi in enumerate(draws):
        if t % period == 0:
            u, V = u_s, V_s = everything(case, w, xi)
        else:
            u_1, V_1, u, V = u, V, [w], []
            for i, level in enumerate(case.levels):
                batch = xi[i]["value"]
                new, old, snapshot = u[i], u_1[i], u_s[i]

                def track(g, full, tracked, new=new, old=old, snapshot=snapshot, batch=batch):
                    h = g(new, batch) - g(snapshot, batch) + full
                    drift = g(new, batch) - g(old, batch)
                    return (1 - beta) * tracked + beta * h + (1 - beta) * drift

                V.append(track(level.J, V_s[i], V_1[i]))
                u.append(level.project(track(level.f, u_s[i + 1], u_1[i + 1])))
        v = chain_product(V)
        out.append((w, v, u[1:], V))
        w = case.project(w - case.lr * v)
    return [list(column) for column in zip(*out, strict=True)]


@pytest.mark.parametrize("name", ["three_levels", "portfolio", "tree"])
def test_follows_the_equations(name):
    case = noisy(name)
    run = drive(case.problem, nx.SnapshotSMVR(0.3, period=5), case.lr)
    weights, grads, u, V = snapshot_smvr(case, run.draws, 0.3, period=5)
    assert_same(run.weights, weights)
    assert_same(run.grads, grads)
    assert_same(run.values, [u_t[-1][0] for u_t in u])
    for state, u_t, V_t in zip(run.state, u, V, strict=True):
        for i, level in enumerate(case.problem.levels):
            assert_same(flat(state.value[i]), u_t[i])
            if not level.deterministic:
                assert_same(state.jac[i].dense(), V_t[i])


def test_period_is_one_pass_over_the_population_by_default():
    case = noisy("three_levels")
    filled = nx.SnapshotSMVR().defaults(case.problem, 100, (BATCH, 10, 20))
    assert filled.period == 14


def test_minimize_refreshes_where_the_hand_driven_run_does():
    case = noisy("one_level")
    estimator = nx.SnapshotSMVR(0.3, period=5)
    run = drive(case.problem, estimator, case.lr)
    result = nx.minimize(
        case.problem, estimator, optax.sgd(case.lr), steps=12, batch_size=BATCH, record=["value"]
    )
    assert_same(flat(jax.device_get(result.w)), run.weights[-1])
