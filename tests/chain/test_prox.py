"""Terms that need not be smooth: their values by formula, their proximal maps by minimising these."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from tests.support.compare import assert_same, flat

import nestax as nx

STRENGTH = 0.3
W = {"a": np.asarray([[2.0, -0.1], [0.0, -3.0]]), "b": np.asarray([0.25])}
#: Every ready term: what makes it, and its value at w in NumPy.
TERMS = {"l1": (nx.Prox.l1, lambda strength, w: strength * np.abs(flat(w)).sum())}


def weights():
    return {name: jnp.asarray(x) for name, x in W.items()}


@pytest.mark.parametrize("strength", [0.0, STRENGTH, 2.0])
@pytest.mark.parametrize("name", TERMS)
def test_the_value_is_that_of_its_formula(name, strength):
    make, formula = TERMS[name]
    assert_same(make(strength).value(weights()), formula(strength, W))


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("name", TERMS)
def test_the_proximal_map_minimises_the_value(name, scale):
    """Entry by entry, for terms that are sums over entries."""
    term = TERMS[name][0](STRENGTH)

    def least(w):
        cost = lambda x: float(scale * term.value(jnp.asarray([x])) + (x - w) ** 2 / 2)
        bounds = (min(w, 0.0) - 1e-3, max(w, 0.0) + 1e-3)
        return minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-10}).x

    x = flat(term.fn(weights(), scale))
    np.testing.assert_allclose(x, [least(w) for w in flat(W)], atol=1e-6)
    assert np.any(x == 0)
    assert_same(term.fn(weights(), 1e3)["a"], np.zeros((2, 2)))


def test_it_is_a_part_of_the_objective_wherever_that_is_told():
    total = lambda w: jnp.sum(w["a"]) + jnp.sum(w["b"])
    inner = nx.Level(lambda w, x: total(w) * x, data=np.asarray([1.0, 3.0]), name="inner")
    problem = nx.Problem(
        [inner, nx.Level(jnp.square, name="outer")],
        w0=weights(),
        prox=nx.Prox.l1(STRENGTH),
        penalty=lambda w: 0.7 * w["b"][0],
    )
    value = (2 * flat(W).sum()) ** 2 + 0.7 * 0.25 + STRENGTH * np.abs(flat(W)).sum()
    assert_same(problem.value(problem.w0), value)
    assert_same(problem.value_and_grad(problem.w0)[0], value - STRENGTH * np.abs(flat(W)).sum())
    records = nx.minimize(problem, nx.Exact(), nx.steps.Descent(0.01), steps=1).records
    assert_same([records["value"][0], records["exact_value"][0]], [value, value])
    assert_same(nx.evaluate(problem, problem.w0).value, value)


def test_a_strength_below_0_is_refused():
    with pytest.raises(nx.SettingError, match=r"strength must be at least 0; got -1"):
        nx.Prox.l1(-1.0)
