"""A small network as plain functions of a tree of weights, for meta-learning."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.errors import SettingError, check_count


class Network(NamedTuple):
    """A model: ``apply(w, x)`` for one input x, and ``init(key)`` for random weights."""

    init: Callable[[Array], PyTree]
    apply: Callable[[PyTree, Any], Array]


def perceptron(*widths: int) -> Network:
    """Layers of these widths, the first that of the input, with ReLU in between.

    Weights are drawn from N(0, 1/inputs), biases are zero.
    """
    if len(widths) < 2:
        raise SettingError(
            f"perceptron needs the widths of input and output, such as (1, 40, 1); got {widths}."
        )
    for width in widths:
        check_count("width", width)
    return Network(functools.partial(_layers, widths=widths), apply_perceptron)


def _layers(key: Array, widths: tuple[int, ...]) -> list[dict[str, Array]]:
    keys = jax.random.split(key, len(widths) - 1)
    return [
        {"weight": jax.random.normal(k, shape) * shape[0] ** -0.5, "bias": jnp.zeros(shape[1])}
        for k, shape in zip(keys, itertools.pairwise(widths), strict=True)
    ]


def apply_perceptron(w: list[dict[str, Array]], x: Array) -> Array:
    *hidden, last = w
    for layer in hidden:
        x = jax.nn.relu(x @ layer["weight"] + layer["bias"])
    return x @ last["weight"] + last["bias"]
