"""The simplex projection without sorting, against Optax's with."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nestax as nx


@pytest.mark.parametrize("size", [1, 2, 30, 128, 129, 400])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
def test_it_is_optax_with_another_algorithm(size, scale):
    points = scale * np.random.default_rng(size).normal(size=(20, size))
    expected = np.stack([optax.projections.projection_simplex(jnp.asarray(x)) for x in points])
    single = np.stack([nx.projections.simplex(jnp.asarray(x)) for x in points])
    lanes = jax.vmap(nx.projections.simplex)(jnp.asarray(points))
    grid = jax.vmap(jax.vmap(nx.projections.simplex))(jnp.asarray(points).reshape(4, 5, size))
    np.testing.assert_allclose(single, expected, atol=1e-12 * max(scale, 1))
    np.testing.assert_allclose(lanes, expected, atol=1e-12 * max(scale, 1))
    np.testing.assert_allclose(np.reshape(grid, points.shape), expected, atol=1e-12 * max(scale, 1))


def test_ties_and_points_already_inside():
    for x in ([0.5, 0.5], [2.0, 2.0, 2.0], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]):
        w = nx.projections.simplex(jnp.asarray(x))
        np.testing.assert_allclose(w, optax.projections.projection_simplex(jnp.asarray(x)), atol=1e-15)


def test_trees_are_one_vector_and_the_total_is_free():
    w = nx.projections.simplex({"a": jnp.asarray([3.0, -1.0]), "b": jnp.asarray(2.5)}, total=2.0)
    np.testing.assert_allclose(w["a"], [1.25, 0.0])
    np.testing.assert_allclose(w["b"], 0.75)


def test_float32_stays_float32():
    assert nx.projections.simplex(jnp.ones(4, "float32")).dtype == jnp.float32
