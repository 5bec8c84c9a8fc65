"""Networks of the benchmarks: a perceptron, a residual network and a transformer, in plain JAX.

Weights are nested dictionaries and lists of float32 arrays. ``dtype`` is what a network computes in; its
outputs are float32 again. Normalisation is over the channels of one input, so that there is no state.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

CLASSES = 10
#: Channels that are normalised together.
GROUPS = 8
EPSILON = 1e-5


class Network(NamedTuple):
    """A classifier.

    init: random weights from a key.
    apply: ``apply(w, inputs, dtype)``, scores of the classes, for one input or for a stack of them.
    inputs: ``inputs(key, rows)``, made-up inputs.
    """

    init: Callable[[Array], PyTree]
    apply: Callable[[PyTree, Array, Any], Array]
    inputs: Callable[[Array, int], Array]

    def losses(self, w: PyTree, draws: tuple[Array, Array], dtype: Any) -> Array:
        """Cross-entropy of a draw, which is an input with its class, or of every draw in a stack."""
        inputs, classes = draws
        scores = self.apply(w, inputs, dtype)
        return optax.softmax_cross_entropy_with_integer_labels(scores, classes)

    def data(self, key: Array, rows: int) -> tuple[Array, Array]:
        """Made-up rows: inputs with classes at random."""
        inputs = self.inputs(jax.random.fold_in(key, 0), rows)
        return inputs, jax.random.randint(jax.random.fold_in(key, 1), (rows,), 0, CLASSES)


class Keys:
    """Hands out keys, each once."""

    def __init__(self, key: Array):
        self.key = key
        self.count = 0

    def __call__(self) -> Array:
        self.count += 1
        return jax.random.fold_in(self.key, self.count)


def dense(keys: Keys, fan_in: int, fan_out: int) -> dict[str, Array]:
    scale = (2 / fan_in) ** 0.5
    return {"w": scale * jax.random.normal(keys(), (fan_in, fan_out)), "b": jnp.zeros(fan_out)}


def affine(layer: dict[str, Array], x: Array) -> Array:
    return x @ layer["w"].astype(x.dtype) + layer["b"].astype(x.dtype)


def perceptron(*widths: int) -> Network:
    """Dense layers with rectifiers; widths from the inputs to the classes."""

    def init(key: Array) -> list[dict[str, Array]]:
        keys = Keys(key)
        return [dense(keys, a, b) for a, b in itertools.pairwise(widths)]

    def apply(w: list[dict[str, Array]], inputs: Array, dtype: Any) -> Array:
        x = inputs.astype(dtype)
        for layer in w[:-1]:
            x = jax.nn.relu(affine(layer, x))
        return affine(w[-1], x).astype(jnp.float32)

    return Network(init, apply, lambda key, rows: jax.random.normal(key, (rows, widths[0])))


def residual(widths: tuple[int, ...], blocks: int, side: int) -> Network:
    """ResNet for images of ``side`` × ``side`` × 3, group norm in place of batch norm.

    Stages of ``blocks`` blocks of two 3 × 3 convolutions; every stage but the first halves the image.
    With widths 64, 128, 256, 512 and two blocks it is ResNet-18 as it is used on small images.
    Reference: He, Zhang, Ren and Sun, CVPR 2016; Wu and He, ECCV 2018.
    """

    def kernel(keys: Keys, size: int, fan_in: int, fan_out: int) -> Array:
        scale = (2 / (size * size * fan_in)) ** 0.5
        return scale * jax.random.normal(keys(), (size, size, fan_in, fan_out))

    def norm(channels: int) -> dict[str, Array]:
        return {"scale": jnp.ones(channels), "shift": jnp.zeros(channels)}

    def init(key: Array) -> dict[str, Any]:
        keys = Keys(key)
        stages = []
        fan_in = widths[0]
        for width in widths:
            stage = []
            for _ in range(blocks):
                block = {
                    "first": kernel(keys, 3, fan_in, width),
                    "first norm": norm(width),
                    "second": kernel(keys, 3, width, width),
                    "second norm": norm(width),
                }
                if fan_in != width:
                    block["shortcut"] = kernel(keys, 1, fan_in, width)
                stage.append(block)
                fan_in = width
            stages.append(stage)
        stem = {"kernel": kernel(keys, 3, 3, widths[0]), "norm": norm(widths[0])}
        return {"stem": stem, "stages": stages, "head": dense(keys, widths[-1], CLASSES)}

    def normalise(w: dict[str, Array], x: Array) -> Array:
        grouped = x.reshape(*x.shape[:-1], GROUPS, -1).astype(jnp.float32)
        mean = grouped.mean((1, 2, 4), keepdims=True)
        variance = grouped.var((1, 2, 4), keepdims=True)
        grouped = (grouped - mean) * jax.lax.rsqrt(variance + EPSILON)
        return (grouped.reshape(x.shape) * w["scale"] + w["shift"]).astype(x.dtype)

    def convolve(weights: Array, x: Array, stride: int = 1) -> Array:
        layout = ("NHWC", "HWIO", "NHWC")
        strides = (stride, stride)
        return jax.lax.conv_general_dilated(
            x, weights.astype(x.dtype), strides, "SAME", dimension_numbers=layout
        )

    def through(block: dict[str, Any], x: Array, stride: int) -> Array:
        y = jax.nn.relu(normalise(block["first norm"], convolve(block["first"], x, stride)))
        y = normalise(block["second norm"], convolve(block["second"], y))
        shortcut = convolve(block["shortcut"], x, stride) if "shortcut" in block else x
        return jax.nn.relu(shortcut + y)

    def apply(w: dict[str, Any], inputs: Array, dtype: Any) -> Array:
        if inputs.ndim == 3:  # convolutions want a stack
            return apply(w, inputs[None], dtype)[0]
        x = convolve(w["stem"]["kernel"], inputs.astype(dtype))
        x = jax.nn.relu(normalise(w["stem"]["norm"], x))
        for number, stage in enumerate(w["stages"]):
            for place, block in enumerate(stage):
                x = through(block, x, 2 if number and not place else 1)
        return affine(w["head"], x.mean((1, 2))).astype(jnp.float32)

    return Network(init, apply, lambda key, rows: jax.random.normal(key, (rows, side, side, 3)))


def transformer(width: int, layers: int, heads: int, length: int, vocabulary: int) -> Network:
    """Encoder of token sequences, layer norm before attention and before the perceptron of 4 × width.

    The mean over the sequence is classified. Reference: Vaswani et al., NeurIPS 2017; Xiong et al., ICML
    2020.
    """

    def init(key: Array) -> dict[str, Any]:
        keys = Keys(key)
        blocks = [
            {
                "attention norm": jnp.ones(width),
                # Without a constant: attention does not depend on that of the keys, and Adam would
                # turn the rounding errors of a derivative that is zero into whole steps.
                "inputs": dense(keys, width, 3 * width)["w"],
                "output": dense(keys, width, width),
                "perceptron norm": jnp.ones(width),
                "wide": dense(keys, width, 4 * width),
                "narrow": dense(keys, 4 * width, width),
            }
            for _ in range(layers)
        ]
        return {
            "tokens": 0.1 * jax.random.normal(keys(), (vocabulary, width)),
            "places": 0.1 * jax.random.normal(keys(), (length, width)),
            "layers": blocks,
            "norm": jnp.ones(width),
            "head": dense(keys, width, CLASSES),
        }

    def normalise(scale: Array, x: Array) -> Array:
        standard = jax.nn.standardize(x.astype(jnp.float32), epsilon=EPSILON)
        return (standard * scale).astype(x.dtype)

    def attend(block: dict[str, Any], x: Array) -> Array:
        parts = (x @ block["inputs"].astype(x.dtype)).reshape(*x.shape[:-1], 3, heads, width // heads)
        query, key, value = (parts[..., k, :, :] for k in range(3))
        mixed = jax.nn.dot_product_attention(query, key, value)
        return affine(block["output"], mixed.reshape(x.shape))

    def apply(w: dict[str, Any], inputs: Array, dtype: Any) -> Array:
        x = (w["tokens"][inputs] + w["places"]).astype(dtype)
        for block in w["layers"]:
            x = x + attend(block, normalise(block["attention norm"], x))
            y = affine(block["wide"], normalise(block["perceptron norm"], x))
            x = x + affine(block["narrow"], jax.nn.gelu(y))
        return affine(w["head"], normalise(w["norm"], x).mean(-2)).astype(jnp.float32)

    def inputs(key: Array, rows: int) -> Array:
        return jax.random.randint(key, (rows, length), 0, vocabulary)

    return Network(init, apply, inputs)


#: By name, and the same in small, to see that everything runs. Small ones have more than 1,000 weights,
#: beyond which ``SelfTuning`` does not remember gradients.
NETWORKS = {
    "perceptron": perceptron(784, 1024, 512, CLASSES),
    "residual": residual((64, 128, 256, 512), blocks=2, side=32),
    "transformer": transformer(width=512, layers=8, heads=8, length=64, vocabulary=256),
}
SMALL_NETWORKS = {
    "perceptron": perceptron(20, 32, 24, CLASSES),
    "residual": residual((8, 16), blocks=1, side=4),
    "transformer": transformer(width=16, layers=1, heads=2, length=6, vocabulary=11),
}
