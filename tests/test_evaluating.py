"""F(w) with an interval that covers it as often as it says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nestax as nx


def portfolio(rows):
    base = nx.problems.mean_deviation(rows, delta=1e-6)
    return nx.Problem(base.levels, base.w0)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    truth = float(portfolio(nx.datasets.synthetic_returns(200_000, 3, seed=7)).value(jnp.full(3, 1 / 3)))
    everything = nx.datasets.synthetic_returns(200_000, 3, seed=7)
    covered = []
    for part in range(100):
        interval = nx.evaluate(
            portfolio(everything[part * 2000 : (part + 1) * 2000]), jnp.full(3, 1 / 3)
        )
        covered.append(interval.low <= truth <= interval.high)
    assert 0.87 <= np.mean(covered) <= 1.0


def test_rows_shared_by_levels_are_one_sample():
    """F(w) = (E r)·(E r)·w: the two factors move together if the levels share their rows."""
    rows = np.random.default_rng(0).normal(1.0, 0.5, 400)
    chain = lambda first, second: nx.Problem(
        [
            nx.Level(lambda w, r: r * w, first, name="a"),
            nx.Level(lambda u, r: r * u, second, name="b"),
        ],
        jnp.asarray(1.0),
    )
    shared = jnp.asarray(rows)
    together = nx.evaluate(chain(shared, shared), jnp.asarray(1.0))
    apart = nx.evaluate(chain(shared, jnp.asarray(rows)), jnp.asarray(1.0))
    one = rows.mean() * rows.std() / np.sqrt(400)
    np.testing.assert_allclose(together.stderr, 2 * one, rtol=1e-6)
    np.testing.assert_allclose(apart.stderr, np.sqrt(2) * one, rtol=1e-6)


def test_a_sampler_is_evaluated_by_draws():
    problem = nx.Problem(
        [
            nx.Level(lambda w, z: w + z, nx.Sampler(jax.random.normal), name="noise"),
            nx.Level(lambda u: 3.0 * u, name="scale"),
        ],
        jnp.asarray(2.0),
    )
    interval = nx.evaluate(problem, jnp.asarray(2.0), draws=4000)
    assert interval.low < 6.0 < interval.high
    np.testing.assert_allclose(interval.stderr, 3.0 / np.sqrt(4000), rtol=0.1)
    with pytest.raises(nx.ProblemError, match="draws="):
        nx.evaluate(problem, jnp.asarray(2.0))


def test_a_wider_confidence_is_a_wider_interval():
    problem = portfolio(nx.datasets.synthetic_returns(500, 3))
    width = lambda c: np.subtract(
        *[getattr(nx.evaluate(problem, problem.w0, confidence=c), k) for k in ("high", "low")]
    )
    np.testing.assert_allclose(width(0.99) / width(0.95), 2.5758 / 1.9600, rtol=1e-3)
    with pytest.raises(nx.SettingError, match="confidence must be in"):
        nx.evaluate(problem, problem.w0, confidence=1.0)
