"""The family indexed by ε: written out in NumPy, derivatives, optimum, and what it is made for."""

import jax.numpy as jnp
import numpy as np
import pytest

import nestax as nx

from experiments.sloped_chain import sloped_chain

POINTS = np.linspace(-2, 3, 41)


def h(x, left, right):
    """A parabola between −left and right, and its tangents beyond."""
    if x > right:
        return right * x - right**2 / 2
    return -left * x - left**2 / 2 if x < -left else x**2 / 2


@pytest.mark.parametrize(("bowl", "left"), [("symmetric", 0.4), ("asymmetric", 1.0)])
@pytest.mark.parametrize("levels", [1, 3])
def test_every_level_is_what_the_docstring_says(bowl, left, levels):
    problem = sloped_chain(0.2, levels, bowl=bowl, rows=30)
    for i, level in enumerate(problem.levels):
        e_1, e_2 = (np.asarray(e)[:, 0] for e in level.source.population().draws)
        for x in POINTS[::4]:
            if i < levels - 1:
                rows = x + e_1 * np.sin(x) + e_2
            else:
                rows = h(x, left, 0.4) + e_1 * (1 - np.cos(x)) + e_2 * x
            draws = zip(e_1, e_2, strict=True)
            drawn = [level.fn(jnp.full(1, x), (a, b), *level.args) for a, b in draws]
            np.testing.assert_allclose(np.ravel(drawn), rows, atol=1e-12)
            assert abs(rows.mean() - (x if i < levels - 1 else h(x, left, 0.4))) < 1e-12


@pytest.mark.parametrize("bowl", ["symmetric", "asymmetric"])
def test_closed_form_gradient_and_optimum(bowl):
    problem = sloped_chain(0.1, 3, bowl=bowl, rows=50)
    for x in POINTS:
        w = jnp.full(1, x)
        value, grad = problem.value_and_grad(w)
        np.testing.assert_allclose(value, problem.level_values(w)[-1], atol=1e-12)
        np.testing.assert_allclose(
            grad, np.clip(x, -0.2 if bowl == "symmetric" else -1, 0.2), atol=1e-12
        )
        nearby = [float(problem.exact(w + s)) for s in (1e-4, -1e-4)]
        np.testing.assert_allclose(grad[0], (nearby[0] - nearby[1]) / 2e-4, atol=1e-4)
        assert value >= problem.optimum == 0
    assert problem.exact(jnp.zeros(1)) == 0
    assert nx.check(problem).ok


@pytest.mark.parametrize("eps", [0.2, 0.05])
def test_the_start_is_one_above_the_optimum_and_as_steep_as_twice_the_accuracy(eps):
    value, grad = (lambda p: p.value_and_grad(p.w0))(sloped_chain(eps, 2, rows=10))
    assert 0.9 < value <= 1
    np.testing.assert_allclose(grad, 2 * eps, rtol=1e-12)


def test_noisy_values_hide_the_asymmetric_bowl():
    """Where the mean over draws of h′(x + e) is 0, h′ is 2ε: who plugs draws in stays on the slope."""
    level = sloped_chain(0.05, 2, bowl="asymmetric").levels[0]
    e = np.asarray(level.source.population().draws[1])[:, 0]
    slopes = {x: np.clip(x + e, -1, 0.1).mean() for x in np.linspace(0, 3, 61)}
    still = min(x for x, slope in slopes.items() if slope > 0)
    assert still > 0.1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"eps": 0.0}, r"eps must be in \(0, 0.5\]; got 0.0"),
        ({"eps": 0.7}, r"eps must be in \(0, 0.5\]; got 0.7"),
        ({"eps": 0.1, "bowl": "round"}, "'round'"),
        ({"eps": 0.1, "noise": -1.0}, "noise must be at least 0"),
        ({"eps": 0.1, "levels": 0}, "levels"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings, words):
    with pytest.raises(nx.SettingError, match=words):
        sloped_chain(**settings)
