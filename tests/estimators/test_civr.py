"""CIVR of Zhang and Xiao, with a deterministic outer function, written out in NumPy."""

from tests.estimators.transcribe_two import apart, assert_follows, descent, shrunk
from tests.support.cases import bent_two_levels, without_range
from tests.support.drive import BATCH, drive

import nestax as nx


def civr(case, draws, period, step):
    """y and z start from a large batch and move by avg_S[g(x_i) − g(x_{i−1})]; then zᵀ∇f(y)."""
    (g, f), x, x_old, rows = case.levels, case.w0, None, []
    for t, (inner, outer) in enumerate(draws):
        S = inner["value"]
        if t % period == 0:
            y, z = g.f(x, S), g.J(x, S)
        else:
            y = y + g.f(x, S) - g.f(x_old, S)
            z = z + g.J(x, S) - g.J(x_old, S)
        y = g.project(y)
        v = (f.J(y, outer["value"]) @ z)[0]
        rows.append((x, v, f.f(y, outer["value"])[0]))
        x_old, x = x, step(t, x, v)
    return rows


def test_number():
    case = bent_two_levels(outer_noisy=False)
    run = drive(case.problem, nx.CIVR(period=5, restart_batch=7), case.lr)
    here = civr(case, run.draws, 5, descent(case.lr))
    sizes = [len(draws[0]["value"]) for draws in run.draws]
    assert sizes == [7 if t % 5 == 0 else BATCH for t in range(13)]
    assert_follows(run, here)
    assert apart(here, civr(case, run.draws, 4, descent(case.lr))) > 1e-3
    assert apart(here, civr(without_range(case), run.draws, 5, descent(case.lr))) > 1e-4


def test_published():
    case = bent_two_levels(outer_noisy=False)
    run = drive(case.problem, nx.CIVR())
    assert len(run.draws[0][0]["value"]) == 16 * BATCH
    assert_follows(run, civr(case, run.draws, 16, descent(0.1)))


def test_proximal_step():
    case = bent_two_levels(outer_noisy=False, shrink=0.05)
    run = drive(case.problem, nx.CIVR(period=5, restart_batch="population"))
    assert_follows(run, civr(case, run.draws, 5, shrunk(0.1, 0.05)))
