"""Convex terms that need not be smooth, through their proximal maps."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.errors import check_setting


class Prox(eqx.Module):
    """A convex term r(w) with its proximal map; it may be non-smooth.

    Args:
        value: ``value(w)``, r itself.
        fn: ``fn(w, scale)``, the x that minimises scale·r(x) + ‖x − w‖²/2. If it has an argument
            ``metric``, steps that scale every entry by itself give it a tree D like w, and it minimises
            scale·r(x) + Σ_i D_i (x_i − w_i)²/2.
    """

    value: Callable[[PyTree], Array]
    fn: Callable[..., PyTree]

    @staticmethod
    def l1(strength: float) -> "Prox":
        """r(w) = strength·‖w‖₁, whose proximal map shrinks every entry towards zero."""
        check_setting("strength", strength, "at least 0", lambda s: s >= 0)
        return Prox(SumOfSizes(jnp.asarray(strength)), Shrink(jnp.asarray(strength)))


class SumOfSizes(eqx.Module):
    strength: Array

    def __call__(self, w: PyTree) -> Array:
        return self.strength * sum(jnp.sum(jnp.abs(x)) for x in jax.tree.leaves(w))


class Shrink(eqx.Module):
    strength: Array

    def __call__(self, w: PyTree, scale: Any, metric: PyTree = None) -> PyTree:
        by = scale * self.strength

        def shrunk(x, by):
            return jnp.sign(x) * jnp.maximum(jnp.abs(x) - by, 0)

        if metric is None:
            return jax.tree.map(lambda x: shrunk(x, by), w)
        return jax.tree.map(lambda x, d: shrunk(x, by / d).astype(x.dtype), w, metric)
