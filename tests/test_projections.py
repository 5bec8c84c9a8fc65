"""The simplex projection without sorting, against Optax's with; and the dtypes of all."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.compiled import quick_jit

import nestax as nx

by_optax = quick_jit(jax.vmap(optax.projections.projection_simplex))
in_lanes = quick_jit(jax.vmap(nx.projections.simplex))
in_a_grid = quick_jit(jax.vmap(jax.vmap(nx.projections.simplex)))


@pytest.mark.parametrize("size", [1, 2, 30, 128, 129, 400])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
def test_it_is_optax_with_another_algorithm(size, scale):
    points = scale * np.random.default_rng(size).normal(size=(20, size))
    expected = by_optax(points)
    single = np.stack([compiled["simplex"](x) for x in points])
    lanes = in_lanes(points)
    grid = in_a_grid(points.reshape(4, 5, size))
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


SETS = {
    "simplex": nx.projections.simplex,
    "simplex of numpy": lambda w: nx.projections.simplex(w, np.float64(1)),
    "budget": lambda w: nx.projections.budget(w, np.zeros(w.shape), 0.5, np.float64(1)),
    "box": lambda w: nx.projections.box(w, 0.0, 0.5),
    "halfspace": lambda w: nx.projections.halfspace(w, jnp.ones_like(w), 1.0),
    "hyperplane": lambda w: nx.projections.hyperplane(w, jnp.ones_like(w), 1.0),
    "l1 ball": nx.projections.l1_ball,
    "l1 ball of numpy": lambda w: nx.projections.l1_ball(w, np.float64(1)),
    "l2 ball": nx.projections.l2_ball,
    "linf ball": nx.projections.linf_ball,
    "nonnegative": nx.projections.nonnegative,
    "corner of a simplex": lambda v: nx.linear_oracles.simplex(v, np.float64(2)),
    "corner of an l1 ball": lambda v: nx.linear_oracles.l1_ball(v, np.float64(2)),
    "point of an l2 ball": lambda v: nx.linear_oracles.l2_ball(v, np.float64(2)),
    "corner of a box": lambda v: nx.linear_oracles.box(v, 0.0, 0.5),
    "corner of a box of arrays": lambda v: nx.linear_oracles.box(v, np.zeros(v.shape), 0.5),
    "corner of a budget": lambda v: nx.linear_oracles.budget(
        v, 0.0, np.full(v.shape, 0.5), np.float64(1)
    ),
}
compiled = {name: quick_jit(fn) for name, fn in SETS.items()}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("size", [6, 200])
@pytest.mark.parametrize("name", SETS)
def test_weights_stay_in_their_dtype(name, size, dtype):
    w = jnp.asarray(np.random.default_rng(size).normal(size=size), dtype)
    narrow, wide = compiled[name](w), compiled[name](np.asarray(w, float))
    assert narrow.dtype == dtype
    np.testing.assert_allclose(narrow.astype(float), wide, atol=4 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("scale", [0.5, 2.0, 100.0])
def test_the_l1_ball_is_that_of_optax(scale):
    w = {"a": jnp.asarray([2.5, -3.2]), "b": jnp.asarray(0.5)}
    here, there = nx.projections.l1_ball(w, scale), optax.projections.projection_l1_ball(w, scale)
    assert jax.tree.all(jax.tree.map(np.array_equal, here, there))
