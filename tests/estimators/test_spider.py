"""SARAH, SPIDER and SpiderBoost: one estimator, three restarts and steps, written out in NumPy."""

import pytest
from tests.estimators.transcribe_two import apart, assert_follows, bounded, descent
from tests.support.cases import ROWS, noisy
from tests.support.drive import BATCH, STEPS, drive

import nestax as nx


def spider(case, draws, period, step):
    """v_t = v_{t−1} + ∇f(x_t; ξ_t) − ∇f(x_{t−1}; ξ_t) between restarts; the value likewise."""
    (f,), x, x_old, rows = case.levels, case.w0, None, []
    for t, (xi,) in enumerate(draws):
        S = xi["value"]
        if t % period == 0:
            v, value = f.J(x, S)[0], f.f(x, S)[0]
        else:
            v = v + f.J(x, S)[0] - f.J(x_old, S)[0]
            value = value + f.f(x, S)[0] - f.f(x_old, S)[0]
        rows.append((x, v, value))
        x_old, x = x, step(t, x, v)
    return rows


@pytest.mark.parametrize(
    ("estimator", "first"),
    [
        (nx.SARAH(period=5), ROWS),
        (nx.SPIDER(period=5, restart_batch=7), 7),
        (nx.SpiderBoost(period=5, restart_batch=7), 7),
        (nx.SpiderBoost(period=5, restart_batch="population"), ROWS),
    ],
)
def test_number(estimator, first):
    case = noisy("one_level")
    run = drive(case.problem, estimator, case.lr)
    sizes = [len(draws[0]["value"]) for draws in run.draws]
    assert sizes == [first if t % 5 == 0 else BATCH for t in range(STEPS + 1)]
    here = spider(case, run.draws, 5, descent(case.lr))
    assert_follows(run, here)
    assert apart(here, spider(case, run.draws, 1, descent(case.lr))) > 1e-3


@pytest.mark.parametrize(
    ("estimator", "period", "first", "step"),
    [
        (nx.SARAH(), 14, ROWS, descent(0.1)),
        (nx.SPIDER(), 16, 16 * BATCH, bounded(0.5, STEPS**-0.5)),
        (nx.SPIDER(5, 7, eps=0.1, lr=2.0), 5, 7, bounded(2.0, 0.1)),
        (nx.SpiderBoost(), 16, 16 * BATCH, descent(0.1)),
    ],
)
def test_published(estimator, period, first, step):
    case = noisy("one_level")
    run = drive(case.problem, estimator)
    assert len(run.draws[0][0]["value"]) == first
    assert_follows(run, spider(case, run.draws, period, step))
