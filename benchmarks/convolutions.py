"""A small convolutional network on a CPU: by hand outside of loops and in one, and through nestax.

The loss is λ log E exp(ℓ/λ) without memory, with Adam, in both orders of axes that people write. Times
are of all cores together. It fills a table of docs/networks.md.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import nestax as nx
from measure import Timed, compare
from nestax.run.prepare import Budget, as_method, prepare
from nestax.table import Table
from network_loops import LOOPS, SOFTNESS, objective
from pages import fill
from script import parser, size

SIDE = 16
CHANNELS = [3, 32, 32]
CLASSES = 10
ROWS = 256
BATCH = size(32, small=4)
SHORT, LONG = size((2, 12), small=(1, 2))
ROUNDS = size(5, small=1)
ORDERS = {"NHWC": "HWIO", "NCHW": "OIHW"}
OPTIMIZER = optax.adam(1e-3)


def losses(w: Any, draw: Any, order: str) -> jax.Array:
    """The loss of one image, with two convolutions and a mean over the image."""
    image, label = draw
    x = image if order == "NHWC" else jnp.moveaxis(image, -1, 0)
    for kernel in w["kernels"]:
        axes = (order, ORDERS[order], order)
        x = jax.nn.relu(
            jax.lax.conv_general_dilated(x[None], kernel, (1, 1), "SAME", dimension_numbers=axes)[0]
        )
    features = jnp.mean(x, axis=(0, 1) if order == "NHWC" else (1, 2))
    return optax.softmax_cross_entropy_with_integer_labels(features @ w["last"], label)


def weights(key: jax.Array, order: str) -> Any:
    shapes = [(3, 3, before, after) for before, after in itertools.pairwise(CHANNELS)]
    keys = jax.random.split(key, len(shapes) + 1)
    draw = jax.nn.initializers.he_normal()
    kernels = [draw(key, shape) for key, shape in zip(keys, shapes, strict=False)]
    if order == "NCHW":
        kernels = [jnp.transpose(kernel, (3, 2, 0, 1)) for kernel in kernels]
    return {"kernels": kernels, "last": draw(keys[-1], (CHANNELS[-1], CLASSES))}


def by_hand(each: Any, data: Any, w: Any, in_a_loop: bool) -> Callable[[int], Any]:
    loop = LOOPS["Plain"](jax.vmap(each, (None, 0)), OPTIMIZER)
    rows = lambda k: jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, k, BATCH), data)
    start = jax.jit(loop.start)(w, rows(0))
    one = jax.jit(lambda k, state: loop.step(state, rows(k % (ROWS - BATCH))))

    @jax.jit
    def looped(steps: int, state: Any) -> Any:
        return jax.lax.fori_loop(0, steps, one, state)

    def run(steps: int) -> Any:
        state = start
        if in_a_loop:
            state = looped(steps, state)
        else:
            for k in range(steps):
                state = one(k, state)
        return jax.block_until_ready(state)

    return run


def by_nestax(each: Any, data: Any, w: Any) -> Callable[[int], Any]:
    problem = nx.Problem([nx.Level(each, data, name="exp"), nx.Level(objective, name="log")], w)
    method = as_method(problem, nx.Plain(), OPTIMIZER)
    key = jax.random.key(0)
    budget = Budget(steps=10**6, batch_size=BATCH, record=["value"])
    run = prepare(problem, method, budget, key).compiled
    at = run.start()
    return lambda steps: run.advance(at, 1, steps)


def main() -> None:
    parser(__doc__).parse_args()
    keys = jax.random.split(jax.random.key(0), 3)
    images = jax.random.normal(keys[0], (ROWS, SIDE, SIDE, CHANNELS[0]))
    data = (images, jax.random.randint(keys[1], (ROWS,), 0, CLASSES))
    lines = []
    for order in ORDERS:
        each = functools.partial(
            lambda w, draw, order: jnp.exp(losses(w, draw, order) / SOFTNESS), order=order
        )
        w = weights(keys[2], order)
        runs = {
            "by hand": by_hand(each, data, w, in_a_loop=False),
            "in a loop": by_hand(each, data, w, in_a_loop=True),
            "nestax": by_nestax(each, data, w),
        }
        costs = compare({name: Timed(run, SHORT, LONG) for name, run in runs.items()}, ROUNDS)
        lines.append([order, *(f"{cost.cpu / 1e3:.3g}" for cost in costs.values())])
    heads = [
        "order of axes",
        "by hand, one step a call: ms",
        "by hand, in a loop: ms",
        "nestax, in a loop: ms",
    ]
    table = Table(heads, lines)
    print(table)
    fill("networks.md", {"convolutions": table.to_markdown()})


if __name__ == "__main__":
    main()
