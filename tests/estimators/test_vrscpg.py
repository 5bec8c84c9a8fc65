"""VRSC-PG of Huo et al., written out with matrices in NumPy."""

from tests.estimators.transcribe_two import apart, assert_follows, descent
from tests.support.cases import bent_two_levels, without_range
from tests.support.drive import BATCH, drive

import nestax as nx


def vrscpg(case, draws, period, step):
    """ĝ = g̃ + avg[g_j(x) − g_j(x̃)], Ĝ likewise, v = ∇F̃ + avg[Ĝᵀ∇f_i(ĝ) − G̃ᵀ∇f_i(g̃)]."""
    (g, f), x, rows = case.levels, case.w0, []
    for t, (inner, outer) in enumerate(draws):
        A, B = inner["value"], outer["value"]
        if t % period == 0:
            x_s, u_s, G_s = x, g.f(x, A), g.J(x, A)
            u, v_s = u_s, (f.J(u_s, B) @ G_s)[0]
            v = v_s
        else:
            u = g.project(u_s + g.f(x, A) - g.f(x_s, A))
            G = G_s + g.J(x, A) - g.J(x_s, A)
            v = v_s + (f.J(u, B) @ G)[0] - (f.J(u_s, B) @ G_s)[0]
        rows.append((x, v, f.f(u, B)[0]))
        x = step(t, x, v)
    return rows


def test_number():
    case = bent_two_levels()
    run = drive(case.problem, nx.VRSCPG(period=5), 2.0)
    sizes = [len(draws[1]["value"]) for draws in run.draws]
    assert sizes == [40 if t % 5 == 0 else BATCH for t in range(13)]
    here = vrscpg(case, run.draws, 5, descent(2.0))
    assert_follows(run, here)
    assert apart(here, vrscpg(case, run.draws, 4, descent(2.0))) > 1e-3
    assert apart(here, vrscpg(without_range(case), run.draws, 5, descent(2.0))) > 1e-4


def test_published():
    case = bent_two_levels()
    run = drive(case.problem, nx.VRSCPG())
    assert_follows(run, vrscpg(case, run.draws, 14, descent(0.1)))
