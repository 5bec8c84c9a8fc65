"""Accelerated SCGD and ASC-PG, which query g at extrapolated weights, written out in NumPy."""

import pytest
from tests.estimators.transcribe_two import apart, assert_follows, descent, shrunk
from tests.support.cases import bent_two_levels, noisy, without_range
from tests.support.drive import drive

import nestax as nx


def accelerated(case, draws, beta, step, extrapolate=True):
    """z_{k+1} = (1 − 1/β_k)x_k + x_{k+1}/β_k and y_{k+1} = (1 − β_k)y_k + β_k g(z_{k+1}; ω)."""
    (g, f), x, x_old, rows = case.levels, case.w0, None, []
    for t, (omega, nu) in enumerate(draws):
        if t == 0:
            y = g.f(x, omega["value"])
        else:
            z = (1 - 1 / beta(t)) * x_old + x / beta(t) if extrapolate else x
            y = (1 - beta(t)) * y + beta(t) * g.f(z, omega["value"])
        y = g.project(y)
        v = (f.J(y, nu["value"]) @ g.J(x, omega["value"]))[0]
        rows.append((x, v, f.f(y, nu["value"])[0]))
        x_old, x = x, step(t, x, v)
    return rows


@pytest.mark.parametrize("name", ["bent", "two_levels"])
@pytest.mark.parametrize("method", [nx.ASCGD, nx.ASCPG])
def test_number(method, name):
    case = bent_two_levels() if name == "bent" else noisy(name)
    run = drive(case.problem, method(beta=0.3), case.lr)
    follow = lambda case, **more: accelerated(case, run.draws, lambda t: 0.3, descent(case.lr), **more)
    here = follow(case)
    assert_follows(run, here)
    assert apart(here, follow(case, extrapolate=False)) > 1e-3
    if name == "bent":
        assert apart(here, follow(without_range(case))) > 1e-4


@pytest.mark.parametrize("lr", [None, 0.5])
@pytest.mark.parametrize(("method", "parts"), [(nx.ASCGD, 7), (nx.ASCPG, 9)])
def test_published(method, parts, lr):
    case = bent_two_levels()
    run = drive(case.problem, method(lr=lr))
    rate = lambda c: (lr or 1.0) * (c + 1) ** (-5 / parts)
    assert_follows(run, accelerated(case, run.draws, lambda t: t ** (-4 / parts), descent(rate)))


def test_proximal_step():
    case = bent_two_levels(shrink=0.05)
    run = drive(case.problem, nx.ASCPG())
    beta, rate = (lambda t: t ** (-4 / 9)), (lambda c: (c + 1) ** (-5 / 9))
    here = accelerated(case, run.draws, beta, shrunk(rate, 0.05))
    assert_follows(run, here)
    assert apart(here, accelerated(case, run.draws, beta, descent(rate))) > 1e-2
