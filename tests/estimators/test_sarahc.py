"""SARAH-Compositional of Yuan et al., written out with matrices in NumPy."""

import pytest
from tests.estimators.transcribe_two import apart, assert_follows, descent
from tests.support.cases import bent_two_levels, without_range
from tests.support.drive import BATCH, drive

import nestax as nx


def sarahc(case, draws, period, step):
    """g, G and F = Gᵀ∇f(g) each move by the difference between the new and the old point."""
    (g, f), x, x_old, rows = case.levels, case.w0, None, []
    for t, (inner, outer) in enumerate(draws):
        j, i = inner["value"], outer["value"]
        if t % period == 0:
            u, G = g.project(g.f(x, j)), g.J(x, j)
            F = (f.J(u, i) @ G)[0]
        else:
            u_old, G_old = u, G
            u = g.project(u + g.f(x, j) - g.f(x_old, j))
            G = G + g.J(x, j) - g.J(x_old, j)
            F = F + (f.J(u, i) @ G)[0] - (f.J(u_old, i) @ G_old)[0]
        rows.append((x, F, f.f(u, i)[0]))
        x_old, x = x, step(t, x, F)
    return rows


def test_number():
    case = bent_two_levels()
    run = drive(case.problem, nx.SARAHC(period=5, restart_batch=7), case.lr)
    here = sarahc(case, run.draws, 5, descent(case.lr))
    sizes = [len(draws[1]["value"]) for draws in run.draws]
    assert sizes == [7 if t % 5 == 0 else BATCH for t in range(13)]
    assert_follows(run, here)
    assert apart(here, sarahc(case, run.draws, 4, descent(case.lr))) > 1e-3
    assert apart(here, sarahc(without_range(case), run.draws, 5, descent(case.lr))) > 1e-4


@pytest.mark.parametrize("lr", [None, 0.3])
def test_published(lr):
    case = bent_two_levels()
    run = drive(case.problem, nx.SARAHC(lr=lr))
    assert len(run.draws[0][0]["value"]) == 16 * BATCH
    assert_follows(run, sarahc(case, run.draws, 16, descent(lr or 0.1)))


def test_restart_with_the_population():
    case = bent_two_levels()
    run = drive(case.problem, nx.SARAHC(period=5, restart_batch="population"), case.lr)
    assert len(run.draws[5][0]["value"]) == 40
    assert_follows(run, sarahc(case, run.draws, 5, descent(case.lr)))
