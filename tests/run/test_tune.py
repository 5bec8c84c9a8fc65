"""Settings found automatically: within the budget, at the scale of the problem."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nestax as nx
from nestax.programs import TRACES


def scaled_problem(factor):
    """The same chain with the objective multiplied: the learning rate must shrink as much."""
    base = nx.problems.convex_chain(levels=2, outer_exact=True)
    outer = base.levels[-1]
    return nx.Problem(
        [base.levels[0], outer.replace(fn=lambda u, own: factor * outer.fn(u, own))],
        base.w0,
        optimum=factor * float(base.optimum),
    )


def test_a_problem_and_a_budget_are_enough():
    problem = nx.problems.convex_chain(levels=3)
    result = nx.minimize(problem, samples=60_000, batch_size=8, record=["gap"])
    assert result.records["gap"][-20:].mean() < 1e-2 * result.records["gap"][0]
    assert 0.9 * 60_000 < result.records["samples"][-1] <= 60_000
    assert 0.4 * 60_000 < result.records["samples"][0] < 0.51 * 60_000  # the search, and a first batch


def test_weights_in_single_precision_where_jax_computes_in_double():
    rows = np.random.default_rng(0).normal(1.0, 0.3, size=(50, 3)).astype(np.float32)
    square = nx.Level(lambda w, row: (row * w - 1) ** 2, rows)
    problem = nx.Problem([square, nx.Level(jnp.sum)], w0=jnp.zeros(3, jnp.float32))
    result = nx.minimize(problem, samples=4_000, batch_size=4)
    assert result.w.dtype == jnp.float32
    assert result.records["exact_value"][-1] < 0.2 * result.records["exact_value"][0]


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_the_scale_of_the_objective_does_not_matter(factor):
    one = nx.autotune(scaled_problem(1.0), samples=20_000, batch_size=8)
    other = nx.autotune(scaled_problem(factor), samples=20_000, batch_size=8)
    rate = lambda tuned: float(tuned.method.step.lr.scale)
    np.testing.assert_allclose(rate(other), rate(one) / factor, rtol=1e-6)


def test_one_program_for_all_rungs():
    problem = nx.problems.convex_chain(levels=3, dimension=4)
    before = TRACES.get("advance", 0)
    tuned = nx.autotune(problem, samples=50_000, batch_size=2)
    assert TRACES["advance"] == before + 1
    assert 45_000 < tuned.cost.samples <= 50_000
    assert len(tuned.table) == 9


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"samples": 500}, "finding settings needs at least .* samples here; got 500"),
        ({"steps": 10}, "without an estimator and an optimizer minimize finds a learning rate"),
    ],
)
def test_too_little_gets_a_sentence(options, sentence):
    with pytest.raises(nx.SettingError, match=sentence):
        nx.minimize(nx.problems.convex_chain(levels=3), **options)


def test_an_optimizer_alone_runs_with_gains_that_set_themselves():
    problem = nx.problems.convex_chain(levels=2, outer_exact=True)
    options = {"steps": 20, "batch_size": 4, "record": ["value"]}
    alone = nx.minimize(problem, optimizer=optax.sgd(0.01), **options)
    named = nx.minimize(problem, nx.SelfTuning(), optax.sgd(0.01), **options)
    np.testing.assert_array_equal(alone.records["value"], named.records["value"])


def test_an_optimizer_alone_remembers_every_block():
    rows = np.random.default_rng(0).standard_normal((3, 6, 2))
    level = nx.Level(lambda w, x: jnp.exp(x @ w), nx.Blocks(rows, visit=2), name="inner")
    problem = nx.Problem([level, nx.Level(jnp.log, name="log")], w0=jnp.zeros(2))
    options = {"steps": 5, "batch_size": 2, "record": ["value"]}
    alone = nx.minimize(problem, optimizer=optax.sgd(0.01), **options)
    named = nx.minimize(problem, nx.PerBlock(nx.SelfTuning()), optax.sgd(0.01), **options)
    np.testing.assert_array_equal(alone.records["value"], named.records["value"])
    assert alone.records["believed_error"].shape == (6, 2)
