"""Trees of arrays and their shapes."""

import jax.numpy as jnp

from nestax.trees import shapes_of


def test_shapes_print_as_a_tree_and_know_their_sizes():
    shapes = shapes_of({"a": jnp.zeros((2, 3)), "b": (jnp.zeros(4), jnp.zeros((), jnp.int32))})
    assert str(shapes) == "{a: float64[2,3], b: (float64[4], int32[])}"
    assert (shapes.sizes, shapes.size) == ((6, 4, 1), 11)
    assert shapes_of(shapes.structs()) == shapes
