"""SCGD of Wang, Fang and Liu, written out with matrices in NumPy."""

import jax.numpy as jnp
import pytest
from tests.estimators.transcribe_two import apart, assert_follows, descent
from tests.support.cases import bent_two_levels, noisy, without_range
from tests.support.drive import drive

import nestax as nx


def scgd(case, draws, beta, step):
    """y_{k+1} = (1 − β_k)y_k + β_k g(x_k; ω_k), then J_g(x_k; ω_k)ᵀ∇f(y_{k+1}; ν_k)."""
    (g, f), x, y, rows = case.levels, case.w0, None, []
    for t, (omega, nu) in enumerate(draws):
        G = g.f(x, omega["value"])
        y = g.project(G if t == 0 else (1 - beta(t)) * y + beta(t) * G)
        v = (f.J(y, nu["value"]) @ g.J(x, omega["value"]))[0]
        rows.append((x, v, f.f(y, nu["value"])[0]))
        x = step(t, x, v)
    return rows


@pytest.mark.parametrize("name", ["bent", "two_levels"])
def test_number(name):
    case = bent_two_levels() if name == "bent" else noisy(name)
    run = drive(case.problem, nx.SCGD(beta=0.3), case.lr)
    here = scgd(case, run.draws, lambda t: 0.3, descent(case.lr))
    assert_follows(run, here)
    assert apart(here, scgd(case, run.draws, lambda t: 1.0, descent(case.lr))) > 1e-2
    if name == "bent":
        there = scgd(without_range(case), run.draws, lambda t: 0.3, descent(case.lr))
        assert apart(here, there) > 1e-4


@pytest.mark.parametrize("lr", [None, 0.5])
def test_published(lr):
    case = bent_two_levels()
    run = drive(case.problem, nx.SCGD(lr=lr))
    rate = lambda c: (lr or 1.0) * (c + 1) ** (-3 / 4)
    assert_follows(run, scgd(case, run.draws, lambda t: (t + 1) ** -0.5, descent(rate)))


def test_schedules():
    case = bent_two_levels()
    beta = lambda t, horizon: 1 / (2 + jnp.asarray(t, float) / horizon)
    lr = lambda c: 0.2 / (2 + jnp.asarray(c, float))
    run = drive(case.problem, nx.SCGD(beta, lr=lr))
    here = scgd(case, run.draws, lambda t: 1 / (2 + t / 12), descent(lambda c: 0.2 / (2 + c)))
    assert_follows(run, here)
