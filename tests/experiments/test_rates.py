"""Rates: the fit, the families, and a small measurement of every kind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nestax as nx
from nestax.loop import chunks

from experiments.rates import Halving, fit, measure_rates
from experiments.smooth_chain import smooth_chain


def test_the_fit_finds_the_exponent_and_its_interval():
    samples = 2.0 ** np.arange(10, 15)
    noise = np.exp(0.05 * np.random.default_rng(0).standard_normal((5, 16)))
    exponent, low, high = fit(samples, samples[:, None] ** (-1 / 3) * noise)
    assert low < 3.0 < high
    assert abs(exponent - 3) < 0.1
    assert high - low < 0.5
    assert fit(samples, np.ones((5, 16)) * samples[:, None])[0] == np.inf


@pytest.mark.parametrize("kind", ["nonconvex", "convex", "strongly convex", "PL"])
@pytest.mark.parametrize("levels", [1, 4])
def test_families_have_the_optimum_and_the_closed_form_they_claim(kind, levels):
    problem = smooth_chain(kind, levels, rows=50)
    w = jnp.linspace(-2, 2, 8)
    np.testing.assert_allclose(problem.exact(w), problem.level_values(w)[-1], rtol=1e-12)
    value, grad = problem.value_and_grad(jnp.zeros(8))
    assert value == problem.optimum == 0
    np.testing.assert_allclose(grad, 0, atol=1e-12)


def test_families_are_of_the_kind_they_claim():
    curvature = lambda kind, levels, x: jax.hessian(
        lambda s: smooth_chain(kind, levels, rows=10).exact(jnp.full(8, s))
    )(x)
    points = jnp.linspace(-4, 4, 81)
    least = lambda kind, levels: min(float(curvature(kind, levels, x)) for x in points[::4])
    assert least("strongly convex", 3) > 0.9
    assert least("convex", 3) > -1e-9
    assert least("convex", 3) < 1e-3
    assert least("nonconvex", 2) < -0.1
    for levels in (1, 3):
        assert least("PL", levels) < -0.05
        problem = smooth_chain("PL", levels, rows=10)
        grads = [problem.value_and_grad(jnp.full(8, x)) for x in points if abs(x) > 0.05]
        ratios = [float(g @ g / (2 * f)) for f, g in grads]  # ≥ μ is the PL inequality
        assert min(ratios) > 5e-3


def test_stages_of_the_rate_double():
    halving = Halving(1.0, 1)
    factors = [float(halving(jnp.asarray(n))) for n in (1, 100, 101, 300, 301, 700, 701)]
    assert factors == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.125]


@pytest.mark.slow
def test_a_small_measurement(tmp_path, monkeypatch):
    measure = lambda: measure_rates(
        "strongly convex",
        ["SMVR", "SMVR in stages"],
        [2],
        longest=2**14,
        seeds=4,
        tune_seeds=2,
        cells=tmp_path / "cells",
    )
    result = measure()
    monkeypatch.setattr(chunks.Compiled, "advance", lambda *a: pytest.fail("computed again"))
    assert measure().points == result.points  # all sweeps are found again
    exponents = dict(zip(result.table.column("method"), result.table.column("exponent"), strict=True))
    assert 0.4 < exponents["SMVR in stages"] < 3
    assert 0.4 < exponents["SMVR"] < 3
    assert len(result.points) == 10
    figure = result.plot()
    assert figure.axes[0].get_title() == "2 levels"


def test_bad_measurements_get_one_sentence():
    with pytest.raises(nx.SettingError, match="longest must be at least 16384"):
        measure_rates(longest=100)
    with pytest.raises(nx.SettingError, match="methods must be one of SMVR"):
        measure_rates(methods=["Adam"])
