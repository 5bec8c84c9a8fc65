"""Adjoint SMVR against its recursion, written out with matrices in NumPy."""

from typing import NamedTuple

import numpy as np
import optax
import pytest
from tests.support.cases import noisy
from tests.support.compare import assert_same, flat
from tests.support.drive import BATCH, FIRST_BATCH, STEPS, drive
from tests.support.methods import MODES

import nestax as nx


class Transcript(NamedTuple):
    w: list
    u: list
    p: list
    active: list


def ball(p, radius):
    size = np.sqrt(np.sum(p**2))
    return (p * radius / size, True) if size > radius else (p, False)


def adjoint_smvr(case, draws, beta, mode, radius) -> Transcript:
    """u[0] is w; p[i] estimates J_i(u^{i-1})ᵀ p^{i+1}, with p[K] = 1 beyond the last level."""
    K, keep, out = len(case.levels), 1 - beta, Transcript([], [], [], [])
    w, u, u_1, p = case.project(case.w0), None, None, None
    for t, xi in enumerate(draws):
        u_2, u_1, u, p_1 = u_1, u, [w], p
        for i, level in enumerate(case.levels):
            f = lambda x, level=level, batch=xi[i]["value"]: level.f(x, batch)
            u_i = f(u[i]) if t == 0 else keep * (u_1[i + 1] - f(u_1[i])) + f(u[i])
            u.append(level.project(u_i))
        if t == 0:
            u_1 = u
        new, old = (u_1, u_2) if mode == "lagged" else (u, u_1)
        p, active = [None] * K + [np.ones(1)], [False] * K
        for i in range(K - 1, -1, -1):
            zeta = xi[i]["grad" if mode == "fresh" else "value"]
            G = lambda x, q, level=case.levels[i], zeta=zeta: level.J(x, zeta).T @ q
            if t == 0:
                p_i = G(u[i], p[i + 1])
            else:
                p_i = keep * (p_1[i] - G(old[i], p_1[i + 1])) + G(new[i], p[i + 1])
            p[i], active[i] = ball(p_i, radius[i])
        for column, entry in zip(out, (w, u[1:], p[:K], active), strict=True):
            column.append(entry)
        w = case.project(w - case.lr * p[0])
    return out


def assert_follows(run, transcript):
    assert_same(run.weights, transcript.w)
    assert_same(run.grads, [p[0] for p in transcript.p])
    assert_same(run.values, [u[-1][0] for u in transcript.u])
    for state, u, p in zip(run.state, transcript.u, transcript.p, strict=True):
        for i, adjoint in enumerate(state.adjoint):
            assert_same(flat(adjoint), p[i])
        for value, u_i in zip((*state.inputs[1:], state.last), u, strict=True):
            assert_same(flat(value), u_i)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["three_levels", "portfolio", "tree"])
def test_without_ball(name, mode):
    case = noisy(name)
    run = drive(case.problem, nx.AdjointSMVR(0.3, mode), case.lr)
    none = [np.inf] * len(case.levels)
    assert_follows(run, adjoint_smvr(case, run.draws, 0.3, mode, none))


@pytest.mark.parametrize("mode", MODES)
def test_ball(mode):
    case = noisy("three_levels")
    draws = drive(case.problem, nx.AdjointSMVR(0.3, mode), case.lr).draws
    free = adjoint_smvr(case, draws, 0.3, mode, [np.inf] * 3)
    norms = [[np.linalg.norm(p_i) for p_i in p] for p in free.p]
    radius = np.median(norms, axis=0) * [0.5, 0.8, 1.0]  # outer balls shrink the inner adjoints
    run = drive(case.problem, nx.AdjointSMVR(0.3, mode, radius), case.lr)
    transcript = adjoint_smvr(case, draws, 0.3, mode, radius)
    active = np.asarray(transcript.active)
    assert active.any(axis=0).all()
    assert not active.all(axis=0).any()
    assert_follows(run, transcript)


def test_minimize_takes_the_same_steps():
    case = noisy("one_level")
    run = drive(case.problem, nx.AdjointSMVR(0.3), case.lr)
    result = nx.minimize(
        case.problem,
        nx.AdjointSMVR(0.3),
        optax.sgd(case.lr),
        steps=STEPS,
        batch_size=BATCH,
        init_batch_size=FIRST_BATCH,
        record_every=1,
        record=["value"],
    )
    assert_same(result.records["value"], run.values)
    assert_same(flat(result.w), run.weights[-1])
