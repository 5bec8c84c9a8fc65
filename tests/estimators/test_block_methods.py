"""Methods with memory of every block against their recursions, written out in NumPy."""

import numpy as np
import optax
import pytest
from tests.estimators.test_scsc import scsc
from tests.support.blocked import LR, B, M, blocked, draws_of, drive_blocks, visited_count
from tests.support.cases import Case
from tests.support.compare import assert_same, flat
from tests.support.drive import BATCH, STEPS

import nestax as nx
from nestax.parts.settings import at


def follow(case, run, step_of_blocks):
    """Drives ``step_of_blocks(t, w, [(block, draws)]) = (grad, value)`` along the run's own draws."""
    w = flat(case.problem.w0)
    for t, (seen, estimate, batches) in enumerate(zip(run[0], run[1], run[3], strict=True)):
        visits = [draws_of(case, batches, place) for place in range(visited_count(batches))]
        grad, value = step_of_blocks(t, w, visits)
        assert_same(flat(seen), w)
        assert_same(flat(estimate.grad), grad)
        assert_same(estimate.value, value)
        w = w - LR * grad


def value_of(case, u, draws, name):
    return case.levels[-1].f(u, draws[-1][name])[0]


def G(case, w, u, draws, name):
    """J_g(w)ᵀ ∇f(u) with the draws of one block."""
    g, f = case.levels
    return g.J(w, draws[0][name]).T @ f.J(u, draws[1][name])[0]


@pytest.mark.parametrize(
    ("outer", "gamma", "beta"),
    [(True, 0.3, 0.2), (False, 0.3, 0.2), (False, lambda t: 0.9 / (2 + t), lambda t: 0.6 / (1 + t))],
    ids=["outer draws", "outer exact", "schedules"],
)
def test_sox(outer, gamma, beta):
    case = blocked("two_levels", outer=outer)
    u, v = {}, [None]

    def step(t, w, visits):
        products, values = [], []
        for i, draws in visits:
            g = case.levels[0].f(w, draws[0]["value"])
            u[i] = g if t == 0 else u[i] + at(gamma, t) * (g - u[i])
            products.append(G(case, w, u[i], draws, "grad"))
            values.append(value_of(case, u[i], draws, "grad"))
        z = np.mean(products, axis=0)
        v[0] = z if t == 0 else v[0] + at(beta, t) * (z - v[0])
        return v[0], np.mean(values)

    run = drive_blocks(case, nx.SOX(gamma, beta))
    follow(case, run, step)
    table = run[2][-1].value[0]
    assert_same(table, np.stack([u[i] for i in range(M)]))


def test_rates_of_sox_that_nobody_sets_follow_the_length_of_the_run():
    problem = blocked("two_levels").problem
    for steps, rate in ((100, 0.5), (400, 0.5), (10_000, 0.1)):
        filled = nx.SOX().defaults(problem, steps, (BATCH, BATCH))
        assert_same([at(filled.gamma, 7), at(filled.beta, 7)], [rate, rate])


def factor_of(visit, rate):
    """γ' of MSVR: what a difference counts for blocks that are visited now and then."""
    return (M - visit) / (visit * (1 - rate)) + (1 - rate)


@pytest.mark.parametrize(
    ("outer", "visit", "gamma", "beta"),
    [
        (True, B, 0.3, 0.2),
        (False, B, 0.3, 0.2),
        (False, M, 0.3, 0.2),
        (False, B, lambda t: 0.4 / (1 + t), lambda t: 0.6 / (1 + t)),
    ],
)
def test_msvr(outer, visit, gamma, beta):
    case = blocked("two_levels", outer=outer, visit=visit)
    tables, ws, v = [], [], [None]

    def step(t, w, visits):
        rate = at(gamma, t)
        factor = factor_of(visit, rate)
        new = dict(tables[-1]) if t else {}
        w_1, w_2 = (ws[-1], ws[-2] if t > 1 else ws[-1]) if t else (w, w)
        old, older = (tables[-1], tables[-2] if t > 1 else tables[-1]) if t else (None, None)
        heads, tails, values = [], [], []
        for i, draws in visits:
            g = lambda w, draws=draws: case.levels[0].f(w, draws[0]["value"])
            if t == 0:
                new[i] = g(w)
                heads.append(G(case, w, new[i], draws, "value"))
            else:
                new[i] = (1 - rate) * old[i] + rate * g(w) + factor * (g(w) - g(w_1))
                heads.append(G(case, w_1, old[i], draws, "value"))
                tails.append(G(case, w_2, older[i], draws, "value"))
            values.append(value_of(case, new[i], draws, "value"))
        head = np.mean(heads, axis=0)
        v[0] = head if t == 0 else head + (1 - at(beta, t)) * (v[0] - np.mean(tails, axis=0))
        tables.append(new)
        ws.append(w)
        return v[0], np.mean(values)

    follow(case, drive_blocks(case, nx.MSVR(gamma, beta)), step)


@pytest.mark.parametrize("setting", [0.3, lambda t: 0.6 / (1 + t)], ids=["number", "schedule"])
def test_block_smvr(setting):
    """Three levels: γ' at the innermost, STORM at the second; adjoints of levels 2 and 3 tracked."""
    case = blocked("three_levels")
    u, p, ws = {}, {}, []

    def step(t, w, visits):
        beta = at(setting, t)
        factor = factor_of(B, beta)
        grads, values = [], []
        for m, xi in visits:
            f = lambda i, x, xi=xi: case.levels[i].f(x, xi[i]["value"])
            J = lambda i, x, xi=xi: case.levels[i].J(x, xi[i]["grad"]).T
            into = lambda i, x: case.levels[i].project(x)
            if t == 0:
                new_1 = into(0, f(0, w))
                new_2 = into(1, f(1, new_1))
                new_p3 = J(2, new_2) @ np.ones(1)
                new_p2 = J(1, new_1) @ new_p3
            else:
                (u_1, u_2), (p_2, p_3) = u[m], p[m]
                w_1 = ws[-1]
                new_1 = into(0, (1 - beta) * u_1 + beta * f(0, w) + factor * (f(0, w) - f(0, w_1)))
                new_2 = into(1, f(1, new_1) + (1 - beta) * (u_2 - f(1, u_1)))
                new_p3 = J(2, new_2) @ np.ones(1) + (1 - beta) * (p_3 - J(2, u_2) @ np.ones(1))
                new_p2 = J(1, new_1) @ new_p3 + (1 - beta) * (p_2 - J(1, u_1) @ p_3)
            u[m], p[m] = (new_1, new_2), (new_p2, new_p3)
            grads.append(J(0, w) @ new_p2)
            values.append(value_of(case, new_2, xi, "grad"))
        ws.append(w)
        return np.mean(grads, axis=0), np.mean(values)

    run = drive_blocks(case, nx.BlockSMVR(setting))
    follow(case, run, step)
    table = run[2][-1].table
    assert_same(table.value[1], np.stack([u[m][1] for m in range(M)]))
    assert_same(table.adjoint[0], np.stack([p[m][0] for m in range(M)]))


def test_scsc_per_block():
    """The transcription of SCSC, once per block, each with the time of its own visits."""
    case = blocked("three_levels")
    method = scsc(Case(case.problem, case.levels, LR), "two-point", lambda t: 0.4)
    times, states = dict.fromkeys(range(M), 0), dict.fromkeys(range(M))

    def step(t, w, visits):
        out = []
        for m, draws in visits:
            grad, value, states[m] = method(times[m], w, draws, states[m])
            times[m] += 1
            out.append((grad, value))
        grads, values = zip(*out, strict=True)
        return np.mean(grads, axis=0), np.mean(values)

    follow(case, drive_blocks(case, nx.PerBlock(nx.SCSC(0.4))), step)


@pytest.mark.parametrize("mode", ["fresh", "lagged"])
def test_adjoint_smvr_per_block(mode):
    """Every block with the weights, values and adjoints of its own last visits."""
    case, keep, K = blocked("three_levels"), 0.7, 3
    state = {}

    def visit(m, w, xi):
        f = lambda i, x: case.levels[i].f(x, xi[i]["value"])
        J = lambda i, x: case.levels[i].J(x, xi[i]["grad" if mode == "fresh" else "value"]).T
        x, x_1, last_1, p_1 = [w], *state.get(m, (None, None, None, None))[:3]
        x_2 = state[m][3] if m in state else None
        for i, level in enumerate(case.levels):
            tracked = None if x_1 is None else [*x_1[1:], last_1][i]
            u = f(i, x[i]) if x_1 is None else f(i, x[i]) + keep * (tracked - f(i, x_1[i]))
            x.append(level.project(u))
        *x, last = x
        head, tail = (x_1, x_2) if mode == "lagged" and m in state else (x, x_1)
        p = [None] * K + [np.ones(1)]
        for i in reversed(range(K)):
            p[i] = J(i, head[i]) @ p[i + 1]
            if m in state:
                p[i] = p[i] + keep * (p_1[i] - J(i, tail[i]) @ p_1[i + 1])
        state[m] = (x, last, p, x if x_1 is None else x_1)
        return p[0], last[0]

    def step(t, w, visits):
        grads, values = zip(*(visit(m, w, xi) for m, xi in visits), strict=True)
        return np.mean(grads, axis=0), np.mean(values)

    follow(case, drive_blocks(case, nx.PerBlock(nx.AdjointSMVR(0.3, mode=mode))), step)


def _row(visit):
    return type(visit)(visit.blocks[0], visit.index[0])


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: nx.MSVR(0.6), "gamma must be in .0, 1/2."),
        (lambda: nx.MSVR(beta=2.0), "beta must be in .0, 1."),
        (lambda: nx.SOX(gamma=0), "gamma must be in .0, 1."),
        (lambda: nx.BlockSMVR(1.0), "beta must be in .0, 1."),
        (lambda: nx.SOX().check(blocked().problem), "two levels and this chain has 3: use BlockSMVR"),
        (lambda: nx.BlockSMVR().check(blocked().problem.block(0)), "made for levels with nx.Blocks"),
        (lambda: nx.SMVR().check(blocked().problem), "knows no blocks: wrap it as nx.PerBlock"),
    ],
)
def test_refusals(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()


def test_runs_by_name():
    """From the first call to records, with the errors of tracked values."""
    problem = blocked("two_levels", outer=False).problem
    result = nx.minimize(
        problem,
        "msvr",
        optax.sgd(0.01),
        steps=STEPS,
        batch_size=BATCH,
        record=["value", "exact_value", "value_error", "grad_error"],
        progress=False,
    )
    assert result.records["value_error"].shape[1] == 2
    assert np.isfinite(result.records["grad_error"]).all()
