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


def test_an_interval_tells_its_confidence():
    problem = portfolio(nx.datasets.synthetic_returns(50, 3))
    told = repr(nx.evaluate(problem, problem.w0, confidence=0.9))
    assert told.endswith("], 90 %")


def times(x, r):
    return r * x


def test_rows_shared_by_levels_are_one_sample():
    """F(w) = (E r)·(E r)·w: the two factors move together if the levels share their rows."""
    rows = np.random.default_rng(0).normal(1.0, 0.5, 400)
    chain = lambda first, second: nx.Problem(
        [nx.Level(times, first, name="a"), nx.Level(times, second, name="b")], jnp.asarray(1.0)
    )
    one = rows.mean() * rows.std(ddof=1) / np.sqrt(400)
    shared = jnp.asarray(rows)
    for again in (shared, rows):
        together = nx.evaluate(chain(shared, again), jnp.asarray(1.0))
        np.testing.assert_allclose(together.stderr, 2 * one, rtol=1e-6)
    # Other rows of equal mean and deviation: their order is another one.
    apart = nx.evaluate(chain(shared, rows[::-1]), jnp.asarray(1.0))
    np.testing.assert_allclose(apart.stderr, np.sqrt(2) * one, rtol=1e-6)


def of_groups(rng):
    """F(w) = E a·E b·w, with 200 rows of a and 8 of b."""
    return product([rng.normal(1.0, 0.5, 200), rng.normal(2.0, 0.5, 8)])


def product(groups):
    inner = nx.Level(pair, nx.Groups(groups), name="means")
    return nx.Problem([inner, nx.Level(jnp.prod, name="product")], jnp.asarray(1.0))


def pair(w, members):
    return jnp.stack([w * members[0], members[1]])


def of_weights(rng):
    """F(w) = (E r·w)² for rows that another law drew: the weights correct for it."""
    rows = rng.normal(4.0, 1.0, 200)
    population = nx.Population(rows, weights=np.exp((rows - 4.0) / 2))
    inner = nx.Level(times, population, name="mean")
    return nx.Problem([inner, nx.Level(jnp.square, name="square")], jnp.asarray(1.0))


@pytest.mark.parametrize("make", [pytest.param(of_groups, marks=pytest.mark.slow), of_weights])
def test_the_standard_error_is_the_spread_over_data_sets(make):
    rng = np.random.default_rng(0)
    runs = [nx.evaluate(make(rng), jnp.asarray(1.0)) for _ in range(200)]
    spread = np.std([run.value for run in runs], ddof=1)
    claimed = np.sqrt(np.mean([run.stderr**2 for run in runs]))
    np.testing.assert_allclose(claimed, spread, rtol=0.15)  # three times the error of a spread of 200


def test_every_group_is_a_sample_of_its_own():
    rng = np.random.default_rng(1)
    for sizes in ((200, 8), (8, 8)):
        a, b = (rng.normal(2.0, 1.0, size) for size in sizes)
        parts = [b.mean() ** 2 * a.var(ddof=1) / len(a), a.mean() ** 2 * b.var(ddof=1) / len(b)]
        interval = nx.evaluate(product([a, b]), jnp.asarray(1.0))
        np.testing.assert_allclose(interval.stderr, np.sqrt(sum(parts)), rtol=1e-12)
    same = nx.evaluate(product([a, a]), jnp.asarray(1.0))
    np.testing.assert_allclose(same.stderr, 2 * a.mean() * a.std(ddof=1) / np.sqrt(8), rtol=1e-12)


def test_weighted_rows_without_spread_leave_no_doubt():
    rows = nx.Population(np.full(50, 3.0), weights=np.arange(1.0, 51.0))
    problem = nx.Problem([nx.Level(times, rows)], jnp.asarray(1.0))
    assert nx.evaluate(problem, jnp.asarray(1.0)).stderr < 1e-14


def test_one_row_says_nothing_about_others():
    interval = nx.evaluate(product([np.ones(3), np.ones(1)]), jnp.asarray(1.0))
    assert (interval.value, interval.low, interval.high) == (1.0, -np.inf, np.inf)


def test_the_value_is_that_of_the_problem():
    rows = np.linspace(1.0, 2.0, 5)
    terms = {"penalty": jnp.square, "prox": nx.Prox.l1(0.5)}
    problem = nx.Problem([nx.Level(times, rows)], jnp.asarray(1.0), **terms)
    np.testing.assert_allclose(nx.evaluate(problem, jnp.asarray(-2.0)).value, -3 + 4 + 1)


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
