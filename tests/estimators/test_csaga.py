"""C-SAGA of Zhang and Xiao, with a deterministic outer function, written out in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.estimators.transcribe_two import apart, assert_follows, descent
from tests.support.cases import bent_two_levels, without_range
from tests.support.drive import drive

import nestax as nx

N = 5


def csaga(case, draws, step, keep=True):
    """y = mean(table) + avg_S[g_j(x) − g_j(α_j)], z likewise; then the sampled entries are renewed."""
    (g, f), x, rows = case.levels, case.w0, []
    population = draws[0][0]["value"]
    assert len(population) == N
    for t, (inner, outer) in enumerate(draws):
        if t == 0:
            values = np.stack([g.f(x, [row]) for row in population])
            jacs = np.stack([g.J(x, [row]) for row in population])
            y, z = values.mean(axis=0), jacs.mean(axis=0)
        else:
            S = inner["value"]
            j = [next(k for k in range(N) if np.array_equal(population[k][1], row[1])) for row in S]
            new_values = np.stack([g.f(x, [row]) for row in S])
            new_jacs = np.stack([g.J(x, [row]) for row in S])
            y = values.mean(axis=0) + np.mean(new_values - values[j], axis=0)
            z = jacs.mean(axis=0) + np.mean(new_jacs - jacs[j], axis=0)
            if keep:
                values[j], jacs[j] = new_values, new_jacs
        y = g.project(y)
        v = (f.J(y, outer["value"]) @ z)[0]
        rows.append((x, v, f.f(y, outer["value"])[0]))
        x = step(t, x, v)
    return rows


def test_number():
    case = bent_two_levels(outer_noisy=False, rows=N)
    run = drive(case.problem, nx.CSAGA(), 0.4)
    sizes = [len({row[1].tobytes() for row in draws[0]["value"]}) for draws in run.draws[1:]]
    assert min(sizes) < 3  # some row is drawn twice in one batch
    here = csaga(case, run.draws, descent(0.4))
    assert_follows(run, here)
    assert apart(here, csaga(case, run.draws, descent(0.4), keep=False)) > 1e-3


def test_range():
    case = bent_two_levels(outer_noisy=False, rows=N)
    run = drive(case.problem, nx.CSAGA(), 2.0)
    here = csaga(case, run.draws, descent(2.0))
    assert_follows(run, here)
    assert apart(here, csaga(without_range(case), run.draws, descent(2.0))) > 1e-4


def test_published():
    case = bent_two_levels(outer_noisy=False, rows=N)
    run = drive(case.problem, nx.CSAGA())
    assert_follows(run, csaga(case, run.draws, descent(0.1)))


def test_rows_that_do_not_count_equally_are_refused():
    check = lambda level: nx.CSAGA().check(nx.Problem([level, nx.Level(jnp.square)], w0=1.0))
    check(nx.Level(jnp.multiply, np.ones(3)))
    weighted = nx.Level(jnp.multiply, nx.Population(np.ones(3), weights=[1, 2, 3]))
    grouped = nx.Level(lambda w, rows: w * rows[0], nx.Groups([np.ones(3), np.ones(2)]))
    for level in (weighted, grouped):
        with pytest.raises(nx.ProblemError, match="CSAGA needs an inner level whose rows count equally"):
            check(level)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_rows_of_a_loop_of_ones_own_may_be_told_by_narrow_integers(dtype):
    data = jnp.linspace(0.0, 1.0, 200)
    problem = nx.Problem([nx.Level(jnp.multiply, data), nx.Level(jnp.square)], w0=1.0)
    method = nx.CSAGA()
    _, state = method.init(problem, problem.w0, [{"value": nx.Batch(data)}, {}])
    rows = np.asarray([3, 127])
    moved = lambda rows: method.update(
        problem, jnp.asarray(2.0), [{"value": nx.Batch(data[rows.astype(int)], rows)}, {}], state
    )
    same = jax.tree.map(np.array_equal, moved(rows.astype(dtype)), moved(rows))
    assert jax.tree.all(same)
