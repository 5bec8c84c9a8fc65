"""Optimum, gap and step length of a portfolio, against a cone solver and by their definitions."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.problems.portfolio.cone import cone_optimum

import nestax as nx

ROWS = nx.datasets.synthetic_returns(200, 6, seed=1)


@pytest.mark.parametrize(("assets", "seed"), [(3, 0), (10, 1), (40, 2)])
def test_the_optimum_is_that_of_a_cone_solver(assets, seed):
    returns = nx.datasets.synthetic_returns(2_000, assets, seed=seed)
    found = nx.problems.exact_portfolio(returns, delta=1e-12).least()
    assert found.error <= 1e-13
    assert found.w.min() >= 0
    assert abs(found.w.sum() - 1) < 1e-14
    assert -1e-12 < cone_optimum(returns) - found.value < 1e-10


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.05, 0.4), (-0.5, 0.5)])
def test_the_optimum_is_proved_within_bounds(low, high):
    box = {"constraint": "box", "bounds": (low, high)}
    found = nx.problems.exact_portfolio(ROWS, delta=1e-14, **box).least()
    assert found.error <= 1e-13
    assert abs(found.value - cone_optimum(ROWS, 0.2, low, high)) < 1e-9
    assert found.w.min() >= low
    assert found.w.max() <= high
    assert found.w.sum() == pytest.approx(1, abs=1e-14)


def test_assets_are_taken_up_again():
    """From equal weights the first steps let assets go that the optimum holds."""
    exact = nx.problems.exact_portfolio(np.eye(3), delta=1e-12)
    exact.mean = np.asarray([0.1, 0.0, 0.0])
    exact.covariance = np.asarray([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1e-3]])
    found = exact.least()
    others = np.random.default_rng(0).dirichlet(np.full(3, 0.3), 20_000)
    assert found.value <= min(map(exact.value, others))
    assert found.error < 1e-13


def test_without_risk_all_goes_to_the_best_asset():
    exact = nx.problems.exact_portfolio(ROWS, risk=0.0)
    found = exact.least()
    assert found.error == 0
    assert np.argmax(found.w) == np.argmax(ROWS.mean(axis=0))
    assert found.value == pytest.approx(-ROWS.mean(axis=0).max(), abs=1e-15)
    assert np.isfinite(exact.inverse_curvature(found.w, 16))


def test_without_bounds_it_is_the_frontier():
    found = nx.problems.exact_portfolio(ROWS, risk=1.0, constraint="budget").least()
    problem = nx.problems.mean_deviation(ROWS, risk=1.0, constraint="budget")
    assert found.value == pytest.approx(float(problem.optimum), abs=1e-13)
    assert found.error <= 1e-13


@pytest.mark.parametrize("seed", range(5))
def test_assets_that_are_mixtures_of_others_and_fewer_rows_than_assets(seed):
    """No second derivative in many directions: the gap still proves how far it came."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(6, 20))
    rows[:, -1] = rows[:, 0]
    found = nx.problems.exact_portfolio(rows, risk=[0.05, 0.2, 1.0, 5.0, 0.0][seed]).least()
    assert found.error < 1e-9


def test_value_gradient_and_gap_are_those_of_the_problem():
    problem, exact = nx.problems.mean_deviation(ROWS), nx.problems.exact_portfolio(ROWS)
    w = np.random.default_rng(0).dirichlet(np.ones(6))
    value, grad = problem.value_and_grad(jnp.asarray(w))
    assert exact.value(w) == pytest.approx(float(value), abs=1e-14)
    np.testing.assert_allclose(exact.grad(w), grad, atol=1e-14)
    gap = problem.replace(project=None).stationarity(jnp.asarray(w), grad)
    assert exact.gap(w) == pytest.approx(float(gap), abs=1e-14)


def test_no_portfolio_has_less_variance_than_the_least():
    exact = nx.problems.exact_portfolio(ROWS, constraint="budget", risk=1.0)
    some = np.random.default_rng(0).normal(size=(1_000, 6))
    some = some / some.sum(axis=1, keepdims=True)
    assert exact.least_variance > 0
    assert min(w @ exact.covariance @ w for w in some) >= exact.least_variance
    problem = nx.problems.mean_deviation(ROWS, least_variance=None)
    _, kept = problem.levels[1].project((jnp.zeros(()), jnp.asarray(-1.0)))
    assert float(kept) == pytest.approx(exact.least_variance)
    with pytest.raises(nx.SettingError, match="least_variance must be at least 0; got -1"):
        nx.problems.mean_deviation(ROWS, least_variance=-1.0)


def test_a_step_is_as_long_in_any_unit_and_shorter_for_small_batches():
    """Returns in another unit by c change F by c, and so the inverse of its curvature by 1/c."""
    equal = np.full(6, 1 / 6)

    def rate(rows, batch):
        return nx.problems.exact_portfolio(rows, delta=1e-30).inverse_curvature(equal, batch)

    assert rate(100 * ROWS, 16) == pytest.approx(rate(ROWS, 16) / 100, rel=1e-9)
    assert rate(ROWS, 1) < rate(ROWS, 16) < rate(ROWS, 10_000)
