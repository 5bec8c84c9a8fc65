"""Checks for levels and methods of your own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nestax.level import Level


def check_batched(level: Level, single: Level, x: PyTree, *, draws: int = 8, seed: int = 0) -> None:
    """Raises unless a ``batched=True`` level agrees with its one-draw form on a batch at ``x``.

    Compares the mean value, and the mean Jacobian through pullbacks of random directions.
    """
    source: Any = single.source
    shapes = jax.eval_shape(lambda: x)
    many, one = level.bind(shapes), single.bind(shapes)
    batch = source.draw(jax.random.key(seed), jnp.asarray(0), draws)
    value, pull = many.value_and_pull(x, batch)
    expected, expected_pull = one.value_and_pull(x, batch)
    leaves, treedef = jax.tree.flatten(expected)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    direction = treedef.unflatten(
        [jax.random.normal(k, y.shape, y.dtype) for k, y in zip(keys, leaves, strict=True)]
    )
    for what, a, b in (
        ("value", value, expected),
        ("Jacobian", pull(direction), expected_pull(direction)),
    ):
        for got, want in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            close = float(np.finfo(want.dtype).eps) ** 0.5
            np.testing.assert_allclose(
                got, want, rtol=close, atol=close,
                err_msg=f"the batched form of level {level.name!r} has another {what}",
            )  # fmt: skip
