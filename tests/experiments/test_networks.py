"""The convolution against JAX's own, sizes, and all weights in one vector."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.cases import rng_of
from tests.support.compare import assert_same

import nestax as nx
from nestax.problems.few_shot.networks import perceptron

from experiments.networks import _patches, convolutional, in_one_vector


def count(tree):
    return sum(x.size for x in jax.tree.leaves(tree))


def convolved(x, weight):
    """3 × 3, stride 2, a border of one zero: (side, side, c) and (9c, filters)."""
    kernel = weight.reshape(3, 3, x.shape[2], -1)
    return jax.lax.conv_general_dilated(
        x[None], kernel, (2, 2), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )[0]


@pytest.mark.parametrize("side", [6, 7])
def test_patches_are_a_convolution(side):
    """Values, and gradients by image and weight, for an even and an odd side."""
    rng = rng_of("patches")
    x, weight = rng.normal(size=(side, side, 2)), rng.normal(size=(18, 3))
    other = rng.normal(size=(-(-side // 2), -(-side // 2), 3))
    ours = lambda x, weight: jnp.sum(other * (_patches(x) @ weight))
    theirs = lambda x, weight: jnp.sum(other * convolved(x, weight))
    assert_same(_patches(x) @ weight, convolved(x, weight))
    for got, wanted in zip(
        jax.grad(ours, (0, 1))(x, weight), jax.grad(theirs, (0, 1))(x, weight), strict=True
    ):
        assert_same(got, wanted)


def test_the_network_is_convolutions_with_normalised_images():
    side = 7
    network = convolutional(3, side=side, filters=2, depth=2)
    w = network.init(jax.random.key(0))
    w["layers"][1]["shift"] += 0.1
    image = rng_of("image").uniform(size=(side, side))
    x = image[:, :, None]
    for layer in w["layers"]:
        x = convolved(x, layer["weight"])
        x = np.maximum(x / np.sqrt(np.mean(x**2) + 1e-5) * layer["scale"] + layer["shift"], 0)
    expected = np.ravel(x) @ w["last"]["weight"] + w["last"]["bias"]
    assert_same(network.apply(w, image), expected)
    assert_same(network.apply(w, 0 * image).shape, (3,))
    grad = jax.grad(lambda w: jnp.sum(network.apply(w, 0 * image)))(w)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grad))


def test_numbers_of_weights():
    shape = lambda network: jax.eval_shape(network.init, jax.random.key(0))
    assert count(shape(convolutional(5))) == 112_965
    assert count(shape(convolutional(5, side=7, filters=2))) == 22 + 3 * 40 + 15


def test_what_is_refused():
    with pytest.raises(nx.SettingError, match=r"filters must be a whole number of at least 1; got 2\.5"):
        convolutional(5, filters=2.5)


@pytest.mark.parametrize(
    ("network", "shape"), [(perceptron(3, 4, 2), (3,)), (convolutional(3, side=7), (7, 7))]
)
def test_in_one_vector_it_is_the_same_network(network, shape):
    flat, key = in_one_vector(network), jax.random.key(3)
    w, vector, x = network.init(key), flat.init(key), jnp.ones(shape)
    assert vector.shape == (count(w),)
    np.testing.assert_array_equal(flat.apply(vector, x), network.apply(w, x))
