"""Linear minimisation over feasible sets, v ↦ argmin <v, x>: what Frank-Wolfe steps need."""

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from nestax.projections import like_entries


def simplex(v: PyTree, total: float | Array = 1.0) -> PyTree:
    """{x ≥ 0, Σx = total}: everything on the smallest entry of v, all leaves taken as one vector."""
    flat, unravel = ravel_pytree(v)
    return unravel(jnp.zeros_like(flat).at[jnp.argmin(flat)].set(jnp.asarray(total, flat.dtype)))


def l1_ball(v: PyTree, radius: float | Array = 1.0) -> PyTree:
    """{‖x‖₁ ≤ radius}: everything against the largest entry of v."""
    flat, unravel = ravel_pytree(v)
    k = jnp.argmax(jnp.abs(flat))
    radius = jnp.asarray(radius, flat.dtype)
    return unravel(jnp.zeros_like(flat).at[k].set(-radius * jnp.sign(flat[k])))


def l2_ball(v: PyTree, radius: float | Array = 1.0) -> PyTree:
    """{‖x‖₂ ≤ radius}: straight against v; the centre where v = 0."""
    size = optax.tree.norm(v)
    radius = jnp.asarray(radius, jnp.result_type(size))
    return optax.tree.scale(-radius / jnp.where(size > 0, size, 1), v)


def box(v: PyTree, lower: PyTree, upper: PyTree) -> PyTree:
    """{lower ≤ x ≤ upper} entry by entry; the bounds are numbers or trees like v."""
    tree = jax.tree.structure(v)
    lower, upper = (
        bound if jax.tree.structure(bound) == tree else tree.unflatten([bound] * tree.num_leaves)
        for bound in (lower, upper)
    )
    return jax.tree.map(lambda x, a, b: jnp.where(x > 0, a, b).astype(x.dtype), v, lower, upper)


def budget(v: PyTree, lower: PyTree, upper: PyTree, total: float | Array = 1.0) -> PyTree:
    """{lower ≤ x ≤ upper, Σx = total}: what the lower bounds leave goes to the smallest entries of v,
    each filled up to its upper bound; the bounds are numbers or trees like v."""
    flat, unravel = ravel_pytree(v)
    lower = like_entries(lower, flat)
    room = like_entries(upper, flat) - lower
    order = jnp.argsort(flat)
    taken = jnp.cumsum(room[order]) - room[order]
    rest = jnp.asarray(total, flat.dtype) - jnp.sum(lower)
    return unravel(lower.at[order].add(jnp.clip(rest - taken, 0, room[order])))
