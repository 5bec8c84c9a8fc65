"""Ratios of densities, whose means stand inside logarithms."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.problems.tilted.tilting import tilted


def ratio(log: Array) -> Array:
    """e^log, continued along its tangent where it would come near the largest number."""
    return tilted(log, jnp.ones_like(log), jnp.zeros_like(log))


class Positive(eqx.Module):
    """Projection onto what has a logarithm with a finite derivative."""

    dtype: Any = eqx.field(static=True)

    def __call__(self, u: Array) -> Array:
        return jnp.maximum(u, jnp.finfo(self.dtype).tiny ** 0.5)


def dtype_of(w: PyTree) -> Any:
    """Returns the floating-point type of weights."""
    numbers = [jnp.asarray(x) for x in jax.tree.leaves(w) if not callable(x)]
    floats = [x.dtype for x in numbers if jnp.issubdtype(x.dtype, jnp.floating)]
    return str(floats[0] if floats else jnp.result_type(float))
