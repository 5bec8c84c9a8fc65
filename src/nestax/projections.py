"""Projections onto feasible sets of w: Optax's, and two sets of given sum that need no sorting."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.custom_batching import custom_vmap
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

box = optax.projections.projection_box
halfspace = optax.projections.projection_halfspace
hyperplane = optax.projections.projection_hyperplane
l2_ball = optax.projections.projection_l2_ball
linf_ball = optax.projections.projection_linf_ball
nonnegative = optax.projections.projection_non_negative

#: Above this many entries sorting beats comparing all pairs.
PAIRWISE_LIMIT = 128


def simplex(w: PyTree, total: float | Array = 1.0) -> PyTree:
    """Projects onto {w ≥ 0, Σw = total}, all leaves taken as one vector.

    The answer is max(w − θ, 0), and entry i survives exactly if Σ_j max(w_j − w_i, 0) < total.
    That test needs no order, and comparing 30 entries pairwise is several times faster inside a
    compiled loop than sorting them.
    """
    flat, unravel = ravel_pytree(w)
    if flat.size > PAIRWISE_LIMIT:
        return unravel(optax.projections.projection_simplex(flat, total).astype(flat.dtype))
    return unravel(_simplex(flat, jnp.asarray(total, flat.dtype)))


@custom_vmap
def _simplex(w: Float[Array, " d"], total: Float[Array, ""]) -> Float[Array, " d"]:
    above = jnp.sum(jnp.maximum(w[None, :] - w[:, None], 0), axis=1)
    return _shifted(w, above < total, total)


@_simplex.def_vmap
def _simplex_lanes(axis_size: int, batched: list[bool], w: Array, total: Array) -> Any:
    """Many lanes at once: on a CPU shrinking the support is cheaper than all pairs, on a GPU not."""
    axes = tuple(0 if b else None for b in batched)
    pairwise, shrink = (
        jax.vmap(fn, axes, axis_size=axis_size) for fn in (_simplex.fun, _shrink_support)
    )
    return jax.lax.platform_dependent(w, total, cpu=shrink, default=pairwise), True


def _shrink_support(w: Array, total: Array) -> Array:
    """Michelot's algorithm: drop entries below the current θ until none is left to drop."""

    def theta(on: Array) -> Array:
        return (jnp.sum(jnp.where(on, w, 0)) - total) / jnp.sum(on)

    def shrink(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        on, count, _ = state
        on = on & (w > theta(on))
        return on, jnp.sum(on), count

    on = jnp.ones(w.shape, bool)
    count = jnp.asarray(w.size)
    on, _, _ = jax.lax.while_loop(
        lambda state: (state[1] < state[2]) & (state[1] > 0), shrink, (on, count, count + 1)
    )
    return _shifted(w, on, total)


def _shifted(w: Array, on: Array, total: Array) -> Array:
    theta = (jnp.sum(jnp.where(on, w, 0)) - total) / jnp.sum(on)
    return jnp.maximum(w - theta, 0)


def l1_ball(w: PyTree, scale: float | Array = 1.0) -> PyTree:
    """Projects onto {‖w‖₁ ≤ scale}, all leaves taken as one vector."""

    def onto_sphere(w: PyTree) -> PyTree:
        sphere = optax.projections.projection_l1_sphere(w, scale)
        return jax.tree.map(lambda new, old: new.astype(old.dtype), sphere, w)

    # A branch, for the projection onto the sphere would move what lies inside, and it sorts.
    return jax.lax.cond(optax.tree.norm(w, ord=1) <= scale, lambda w: w, onto_sphere, w)


def budget(w: PyTree, lower: PyTree, upper: PyTree, total: float | Array = 1.0) -> PyTree:
    """Projects onto {lower ≤ w ≤ upper, Σw = total}, all leaves taken as one vector.

    The bounds are finite numbers or trees like w, with Σlower ≤ total ≤ Σupper. The answer clips w − θ
    to the bounds, and its sum falls as θ grows. Halving an interval tells which entries lie strictly
    between their bounds; θ then follows from those without a rounding error of its own.
    """
    flat, unravel = ravel_pytree(w)
    lower = like_entries(lower, flat)
    upper = like_entries(upper, flat)
    total = jnp.asarray(total, flat.dtype)

    def halve(_: int, interval: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = interval
        middle = (low + high) / 2
        too_much = jnp.sum(jnp.clip(flat - middle, lower, upper)) >= total
        return jnp.where(too_much, middle, low), jnp.where(too_much, high, middle)

    ends = jnp.min(flat - upper), jnp.max(flat - lower)
    # One for each bit of the mantissa, and some since the interval may be longer than θ.
    halvings = jnp.finfo(flat.dtype).nmant + 8
    low, high = jax.lax.fori_loop(0, halvings, halve, ends)
    clipped = jnp.clip(flat - (low + high) / 2, lower, upper)
    between = (clipped > lower) & (clipped < upper)
    excess = jnp.sum(jnp.where(between, flat, clipped)) - total
    theta = excess / jnp.maximum(jnp.sum(between), 1)
    return unravel(jnp.where(between, jnp.clip(flat - theta, lower, upper), clipped))


def like_entries(bound: PyTree, flat: Array) -> Array:
    """A bound for every entry of a flat vector, from a tree of as many or from one number for all."""
    return jnp.broadcast_to(ravel_pytree(bound)[0].astype(flat.dtype), flat.shape)
