"""The full gradient over the population at every step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.cases import ROWS, noisy
from tests.support.compare import assert_same
from tests.support.drive import drive

import nestax as nx


def gradient_descent(case, population, steps):
    w, weights, grads, values = case.project(case.w0), [], [], []
    for _ in range(steps + 1):
        x, J = w, []
        for level, rows in zip(case.levels, population, strict=True):
            J.append(level.J(x, rows["value"]))
            x = level.f(x, rows["value"])
        v = np.ones(1)
        for J_i in reversed(J):
            v = J_i.T @ v
        weights.append(w), grads.append(v), values.append(x[0])
        w = case.project(w - case.lr * v)
    return weights, grads, values


@pytest.mark.parametrize("name", ["three_levels", "portfolio", "tree"])
def test_is_gradient_descent_on_the_population_means(name):
    case = noisy(name)
    run = drive(case.problem, nx.Exact(), case.lr)
    population = run.draws[0]
    rows = {"portfolio": 200}.get(name, ROWS)
    assert {len(by_pass["value"]) for by_pass in population} - {1} == {rows}
    weights, grads, values = gradient_descent(case, population, steps=12)
    assert_same(run.weights, weights)
    assert_same(run.grads, grads)
    assert_same(run.values, values)


CENTRE = np.asarray([1.0, 2.0, 3.0])


def closed_form(w):
    return jnp.sum((w - CENTRE) ** 2) ** 2


def simulated(data, exact=closed_form):
    """The noise has mean zero in ``closed_form``."""
    distance = nx.Level(lambda w, x: jnp.sum((w - CENTRE) ** 2) + x, data=data, name="distance")
    return nx.Problem([distance, nx.Level(jnp.square, name="square")], w0=jnp.zeros(3), exact=exact)


NOISES = {
    "sampler": lambda: nx.Sampler(lambda key: jax.random.normal(key)),
    "stream": lambda: nx.Stream(np.random.default_rng(0).normal(size=100)),
    "iterator": lambda: nx.Stream(iter(np.random.default_rng(0).normal(size=1_000))),
}


@pytest.mark.parametrize("kind", NOISES)
def test_without_a_population_the_closed_form_is_differentiated(kind):
    run = {"steps": 20, "record_every": 10}
    rows = nx.minimize(simulated(np.zeros(4), None), nx.Exact(), optax.sgd(0.005), **run)
    columns = ["value", "exact_value", "grad_norm", "grad_error"]
    result = nx.minimize(simulated(NOISES[kind]()), nx.Exact(), optax.sgd(0.005), record=columns, **run)
    np.testing.assert_allclose(result.w, rows.w, rtol=1e-12)
    for name in ("value", "exact_value", "grad_norm"):
        whole = "exact_value" if name == "value" else name
        np.testing.assert_allclose(result.records[name], rows.records[whole], rtol=1e-12)
    assert result.records["grad_error"].max() < 1e-12
    assert result.records["samples"].tolist() == [0, 0, 0]


def test_without_a_population_and_a_closed_form_it_is_refused():
    with pytest.raises(nx.ProblemError, match=r"Exact needs the population .* pass exact= to"):
        nx.minimize(simulated(NOISES["sampler"](), None), nx.Exact(), optax.sgd(0.005), steps=2)


def test_a_budget_of_draws_is_refused_where_there_are_none():
    with pytest.raises(nx.SettingError, match="take no draws, so samples= never ends it: give steps"):
        nx.minimize(simulated(NOISES["sampler"]()), nx.Exact(), optax.sgd(0.005), samples=100)
