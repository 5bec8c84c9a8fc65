"""The convolutional network of few-shot learning, and networks with all weights in one vector.

It is written with matrix products alone, also the convolutions: tasks have weights of their own, and a
product of many small matrices is fast where a convolution with many sets of weights is not.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from nestax.errors import check_count
from nestax.problems.few_shot.networks import Network


def in_one_vector(network: Network) -> Network:
    """The same network with all weights in one vector, in place of a tree.

    A table of weights per task is then one array, and programs are much shorter.
    """
    _, as_tree = ravel_pytree(network.init(jax.random.key(0)))
    return Network(
        init=lambda key: ravel_pytree(network.init(key))[0],
        apply=lambda w, x: network.apply(as_tree(w), x),
    )


def convolutional(classes: int, *, side: int = 28, filters: int = 64, depth: int = 4) -> Network:
    """``depth`` times: a 3 × 3 convolution with stride 2, normalisation, ReLU; then a linear layer.

    For grey images of ``side`` × ``side``; with the defaults and five classes 112,965 weights. Every
    image is normalised by itself (to a root mean square of 1 over positions and channels), so that the
    loss of a batch is the mean of the losses of its images, which normalising over a batch would break.
    """
    for name, count in {"classes": classes, "side": side, "filters": filters, "depth": depth}.items():
        check_count(name, count)
    init = functools.partial(_convolutions, classes=classes, side=side, filters=filters, depth=depth)
    return Network(init, apply_convolutional)


def _convolutions(key: Array, classes: int, side: int, filters: int, depth: int) -> dict[str, Any]:
    *keys, last = jax.random.split(key, depth + 1)
    layers = []
    for number, k in enumerate(keys):
        weight = _weight(k, 9 * (filters if number else 1), filters)
        layers.append({"weight": weight, "scale": jnp.ones(filters), "shift": jnp.zeros(filters)})
        side = -(-side // 2)
    inputs = side * side * filters
    return {
        "layers": layers,
        "last": {"weight": _weight(last, inputs, classes), "bias": jnp.zeros(classes)},
    }


def _weight(key: Array, inputs: int, outputs: int) -> Array:
    return jax.random.normal(key, (inputs, outputs)) * inputs**-0.5


def apply_convolutional(w: dict[str, Any], x: Array) -> Array:
    x = x[:, :, None]
    for layer in w["layers"]:
        x = _patches(x) @ layer["weight"]
        x = x * jax.lax.rsqrt(jnp.mean(x * x) + 1e-5)
        x = jax.nn.relu(x * layer["scale"] + layer["shift"])
    return x.ravel() @ w["last"]["weight"] + w["last"]["bias"]


def _patches(x: Array) -> Array:
    """The 3 × 3 neighbourhoods of every second pixel: (side, side, c) to (⌈side/2⌉, ⌈side/2⌉, 9c).

    Rows and columns are picked by products with zeros and ones: two operations with simple derivatives.
    """
    height, width, channels = x.shape
    picked = jnp.einsum("aih,bjw,hwc->ijabc", _picks(height, x.dtype), _picks(width, x.dtype), x)
    return picked.reshape(*picked.shape[:2], 9 * channels)


def _picks(side: int, dtype: Any) -> np.ndarray:
    """Entry (a, i, h) is 1 where pixel h is neighbour a of pixel 2i; neighbour 0 comes before it."""
    neighbour = np.arange(3)[:, None, None]
    pixel = np.arange(-(-side // 2))[None, :, None]
    return (np.arange(side) == 2 * pixel + neighbour - 1).astype(dtype)
