"""Reference results on the real returns of ten industries."""

import os
from pathlib import Path

import numpy as np
import optax
import pytest

import nestax as nx

#: The least value of F on the simplex, λ = 0.2, percent returns, from a cone solver.
OPTIMUM = 0.1298972
FOLDER = os.environ.get("NESTAX_DATA")
FILE = Path(FOLDER or ".") / "industry10_daily.csv.gz"

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(
        FOLDER is None or not FILE.exists(),
        reason="REAL DATA NOT CHECKED: set NESTAX_DATA to the folder of industry10_daily.csv.gz",
    ),
]


@pytest.fixture(scope="module")
def returns():
    return np.loadtxt(FILE, delimiter=",", skiprows=1)[:, 1:]


@pytest.fixture(scope="module")
def problem(returns):
    """The variance is kept above 0.01 (it is about 0.5): 1/sqrt of a tracker near 0 is a huge step."""
    return nx.problems.mean_deviation(returns, delta=1e-12, least_variance=0.01)


def test_the_optimum_is_that_of_a_cone_solver(returns):
    cp = pytest.importorskip("cvxpy")
    mean, root = returns.mean(axis=0), np.linalg.cholesky(np.cov(returns.T, bias=True))
    x = cp.Variable(10)
    goal = cp.Minimize(-mean @ x + 0.2 * cp.norm(root.T @ x))
    cp.Problem(goal, [x >= 0, cp.sum(x) == 1]).solve(solver="CLARABEL")
    assert abs(goal.value - OPTIMUM) < 1e-7
    problem = nx.problems.mean_deviation(returns, delta=1e-12)
    found = nx.minimize(problem, nx.Exact(), optax.sgd(2.0), steps=300, record=["exact_value"])
    assert abs(found.records["exact_value"][-1] - goal.value) < 1e-8
    np.testing.assert_allclose(found.w, x.value, atol=2e-4)
    assert abs(problem.value(problem.w0) - OPTIMUM - 3.33e-2) < 1e-4


def test_snapshots_reach_a_gap_of_1e_7_within_3_epochs(returns):
    problem = nx.problems.mean_deviation(returns, delta=1e-12)
    best = nx.minimize(problem, nx.Exact(), optax.sgd(2.0), steps=300, record=["exact_value"])
    epoch = -(-len(returns) // 64)
    runs = nx.sweep(
        problem,
        lambda s: (nx.SnapshotSMVR(beta=0.01), optax.sgd(s.lr)),
        settings=nx.grid(lr=[0.2]),
        seeds=3,
        steps=3 * epoch,
        batch_size=64,
        record_every=epoch,
        record=["exact_value"],
    )
    gap = np.abs(runs.records["exact_value"] - best.records["exact_value"][-1]).mean(axis=(0, 1))
    assert gap[1] < 5e-5
    assert gap[3] < 1e-7


@pytest.mark.slow
def test_memory_pays_and_reused_draws_do_not(problem):
    """Batch 1, 50,000 steps, best of a grid, 5 seeds: mean gap over the last fifth of the run."""
    settings = nx.grid(lr=[5e-4, 1e-3, 2e-3, 5e-3, 1e-2], beta=[1e-3, 1e-2, 0.1, 0.5, 0.9])

    def gap(build):
        runs = nx.sweep(
            problem,
            build,
            settings=settings,
            seeds=5,
            steps=50_000,
            batch_size=1,
            init_batch_size=1,
            record=["exact_value"],
            record_every=100,
        )
        late = runs.records["exact_value"][:, :, -100:].mean(axis=(1, 2)) - OPTIMUM
        return np.nanmin(late)

    plain = gap(lambda s: (nx.Plain(), optax.sgd(s.lr)))
    smvr = gap(lambda s: (nx.SMVR(beta=s.beta), optax.sgd(s.lr)))
    lagged = gap(lambda s: (nx.AdjointSMVR(beta=s.beta), optax.sgd(s.lr)))
    reuse = gap(lambda s: (nx.AdjointSMVR(beta=s.beta, mode="reuse"), optax.sgd(s.lr)))
    print(f"plain {plain:.2e}, SMVR {smvr:.2e}, lagged {lagged:.2e}, reuse {reuse:.2e}")
    assert plain / smvr >= 3
    assert reuse / lagged >= 2
