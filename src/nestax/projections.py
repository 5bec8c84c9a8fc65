"""Feasible sets of w: the nearest point of each, in the Euclidean norm and in that of a step.

A step that scales every entry by itself, as Adam's does, ends where it should only if it is projected in
its own norm. All functions here take such a norm as ``metric=D``: one positive number for every entry of
w. They return the x of the set with the least Σ_i D_i (x_i − w_i)². A common factor of D does not
matter, and one number for all entries is the Euclidean norm. A projection of your own is told the metric
if it has an argument of that name.

Optimality makes each of them one root: with s = 1/D, the entries of x are those of w − τ s, or of
w/(1 + τ s) in a ball, moved into their bounds, and τ is where the sum, or the length, is right.
"""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.custom_batching import custom_vmap
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

import nestax.trees as trees
from nestax.errors import ProblemError, is_traced

#: Above this many entries sorting beats comparing all pairs.
PAIRWISE_LIMIT = 128


def simplex(w: PyTree, total: float | Array = 1.0, *, metric: PyTree = None) -> PyTree:
    """Projects onto {w ≥ 0, Σw = total}, all leaves taken as one vector.

    The answer is max(w − θ, 0), and entry i survives exactly if Σ_j max(w_j − w_i, 0) < total.
    That test needs no order, and comparing 30 entries pairwise is several times faster inside a
    compiled loop than sorting them.
    """
    _refuse_empty(total, "a simplex", "total must be at least 0")
    if metric is not None:
        least, most = (jnp.asarray(x, jnp.float32) for x in (0.0, jnp.inf))
        return _in_metric(w, metric, lambda y, s: _clipped_to_sum(y, s, least, most, total))
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

    def lanes(fn):
        return lambda w, total: jax.vmap(fn, axes, axis_size=axis_size)(w, total)

    pairwise = lanes(_simplex.fun)
    shrink = lanes(_shrink_support)
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


def budget(
    w: PyTree, lower: PyTree, upper: PyTree, total: float | Array = 1.0, *, metric: PyTree = None
) -> PyTree:
    """Projects onto {lower ≤ w ≤ upper, Σw = total}, all leaves taken as one vector.

    The bounds are finite numbers or trees like w, with Σlower ≤ total ≤ Σupper. The answer clips w − θ
    to the bounds, and its sum falls as θ grows. Halving an interval tells which entries lie strictly
    between their bounds; θ then follows from those without a rounding error of its own.
    """
    flat, unravel = ravel_pytree(w)
    _refuse_unreachable(lower, upper, total, flat)
    lower = like_entries(lower, flat)
    upper = like_entries(upper, flat)
    total = jnp.asarray(total, flat.dtype)
    if metric is not None:
        return _in_metric(w, metric, lambda y, s: _clipped_to_sum(y, s, lower, upper, total))

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


def box(w: PyTree, lower: PyTree, upper: PyTree, *, metric: PyTree = None) -> PyTree:
    """Projects onto {lower ≤ w ≤ upper}, the same in every metric; numbers or trees like w."""
    _check_form(w, metric)
    _refuse_crossed(lower, upper)
    return optax.projections.projection_box(w, lower, upper)


def nonnegative(w: PyTree, *, metric: PyTree = None) -> PyTree:
    """Projects onto {w ≥ 0}, the same in every metric."""
    _check_form(w, metric)
    return optax.projections.projection_non_negative(w)


def linf_ball(w: PyTree, scale: float | Array = 1.0, *, metric: PyTree = None) -> PyTree:
    """Projects onto {|w_i| ≤ scale}, the same in every metric."""
    _check_form(w, metric)
    _refuse_empty(scale, "a ball", "scale must be at least 0")
    return optax.projections.projection_linf_ball(w, scale)


def l1_ball(w: PyTree, scale: float | Array = 1.0, *, metric: PyTree = None) -> PyTree:
    """Projects onto {‖w‖₁ ≤ scale}, all leaves taken as one vector."""
    _refuse_empty(scale, "a ball", "scale must be at least 0")

    def onto_sphere(w: PyTree) -> PyTree:
        if metric is not None:
            return _in_metric(w, metric, shrunk)
        sphere = optax.projections.projection_l1_sphere(w, scale)
        return jax.tree.map(lambda new, old: new.astype(old.dtype), sphere, w)

    def shrunk(y: Array, s: Array) -> Array:
        least, most = jnp.zeros_like(y), jnp.full_like(y, jnp.inf)
        return jnp.sign(y) * _clipped_to_sum(jnp.abs(y), s, least, most, scale)

    # A branch, for the projection onto the sphere would move what lies inside, and it sorts.
    return jax.lax.cond(optax.tree.norm(w, ord=1) <= scale, lambda w: w, onto_sphere, w)


def l2_ball(w: PyTree, scale: float | Array = 1.0, *, metric: PyTree = None) -> PyTree:
    """Projects onto {‖w‖₂ ≤ scale}, all leaves taken as one vector."""
    _refuse_empty(scale, "a ball", "scale must be at least 0")
    if metric is None:
        return optax.projections.projection_l2_ball(w, scale)
    return _in_metric(w, metric, lambda y, s: _shrunk_to_length(y, s, jnp.asarray(scale, y.dtype)))


def halfspace(w: PyTree, a: PyTree, b: float | Array, *, metric: PyTree = None) -> PyTree:
    """Projects onto {⟨a, w⟩ ≤ b}; a is a tree like w."""
    if metric is None:
        return optax.projections.projection_halfspace(w, a, b)
    return _in_metric(w, metric, lambda y, s: _along(y, s, a, b, lambda excess: jnp.maximum(excess, 0)))


def hyperplane(w: PyTree, a: PyTree, b: float | Array, *, metric: PyTree = None) -> PyTree:
    """Projects onto {⟨a, w⟩ = b}; a is a tree like w."""
    if metric is None:
        return optax.projections.projection_hyperplane(w, a, b)
    return _in_metric(w, metric, lambda y, s: _along(y, s, a, b, lambda excess: excess))


class Product(eqx.Module):
    """A set for each part of the weights: ``Product({"x": simplex, "a": None})``.

    parts: the outermost structure of w, or of its first levels, with a projection for each part; None
        leaves a part free.
    """

    parts: PyTree

    @property
    def takes_metric(self) -> bool:
        parts = jax.tree.leaves(self.parts, is_leaf=callable)
        return all(map(takes_metric, parts))

    def __call__(self, w: PyTree, *, metric: PyTree = None) -> PyTree:
        _check_form(w, metric)

        def part(x):
            return x is None or callable(x)

        if metric is None or not jax.tree.structure(metric).num_nodes > 1:
            metric = jax.tree.map(lambda project: None, self.parts, is_leaf=part)

        def onto(project: Any, x: PyTree, d: PyTree) -> PyTree:
            return x if project is None else project(x) if d is None else project(x, metric=d)

        return jax.tree.map(onto, self.parts, w, metric, is_leaf=part)


class Each(eqx.Module):
    """The same set for every row of the weights by itself, along their first axis.

    project: the projection of one row.
    """

    project: Callable[..., PyTree]

    @property
    def takes_metric(self) -> bool:
        return takes_metric(self.project)

    def __call__(self, w: PyTree, *, metric: PyTree = None) -> PyTree:
        _check_form(w, metric)
        if metric is None or jax.tree.structure(metric) != jax.tree.structure(w):
            return jax.vmap(lambda x: self.project(x))(w)
        return jax.vmap(lambda x, d: self.project(x, metric=d))(w, metric)


def takes_metric(project: Callable[..., PyTree]) -> bool:
    """Whether a projection, or a proximal map, can be told the metric of the step."""
    told = getattr(project, "takes_metric", None)
    if told is not None:
        return told
    try:
        return "metric" in inspect.signature(project).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False


# One root each, for a flat vector y and s = 1/D


def _clipped_to_sum(y: Array, s: Array, lower: Array, upper: Array, total: Any) -> Array:
    """y − τ s within the bounds, with the τ for which it adds up to the total.

    The sum falls as τ grows, along pieces that end where an entry meets a bound. Halving the sorted
    ends finds the piece; on it τ follows from the entries between their bounds.
    """
    lower, upper = (jnp.broadcast_to(x, y.shape).astype(y.dtype) for x in (lower, upper))
    total = jnp.asarray(total, y.dtype)
    ends = jnp.sort(jnp.concatenate([(y - upper) / s, (y - lower) / s]))

    def at(tau):
        return jnp.clip(jnp.where(jnp.isinf(tau), -tau, y - tau * s), lower, upper)

    def halve(_: int, range_: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = range_
        middle = (low + high) // 2
        enough = jnp.sum(at(ends[middle])) >= total
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    first = jnp.zeros((), jnp.int32), jnp.asarray(ends.size - 1, jnp.int32)
    low, high = jax.lax.fori_loop(0, int(np.ceil(np.log2(ends.size))), halve, first)
    above = (y - upper) / s >= ends[high]
    below = (y - lower) / s <= ends[low]
    between = ~(above | below)
    fixed = jnp.where(above, upper, lower)
    excess = jnp.sum(jnp.where(between, y, fixed)) - total
    tau = excess / jnp.where(jnp.any(between), jnp.sum(jnp.where(between, s, 0)), 1)
    found = jnp.where(between, jnp.clip(y - tau * s, lower, upper), fixed)
    return jnp.where(jnp.any(jnp.isnan(y)), jnp.nan, found)


def _shrunk_to_length(y: Array, s: Array, radius: Array) -> Array:
    """y/(1 + τ s) with the τ ≥ 0 for which it is as long as the radius; y where it is no longer.

    All s are at most 1, and one is; so τ lies between ‖y‖/radius − 1 and that over the least s. Means
    that are geometric reach the last bit whatever the ends are.
    """
    length = jnp.linalg.norm(y)
    least = length / radius - 1

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = jnp.sqrt(low) * jnp.sqrt(high)
        long = jnp.linalg.norm(y / (1 + middle * s)) > radius
        return jnp.where(long, middle, low), jnp.where(long, high, middle)

    outside = length > radius
    low = jnp.where(outside, least, 1)
    halvings = jnp.finfo(y.dtype).nmant + 8
    _, tau = jax.lax.fori_loop(0, halvings, halve, (low, low / jnp.min(s)))
    return jnp.where(outside, y / (1 + tau * s), y)


def _along(y: Array, s: Array, a: PyTree, b: Any, needed: Callable[[Array], Array]) -> Array:
    a = like_entries(a, y)
    return y - s * a * needed(jnp.vdot(a, y) - b) / jnp.sum(s * a * a)


# What a metric is


def _in_metric(w: PyTree, metric: PyTree, root: Callable[[Array, Array], Array]) -> PyTree:
    """``root(y, s)`` for the flat w and s = 1/D, the largest of which is 1, at least in single.

    Entries 1/ε² times as stiff as the softest do not move in comparison, and are as stiff as that.
    """
    _check_form(w, metric)
    flat, unravel = ravel_pytree(w)
    y = trees.as_average(flat)
    stiff = like_entries(metric, y)
    s = jnp.min(stiff) / stiff
    s = jnp.where(jnp.isfinite(s), jnp.maximum(s, jnp.finfo(y.dtype).eps ** 2), 1)
    return unravel(root(y, s).astype(flat.dtype))


def _check_form(w: PyTree, metric: PyTree) -> None:
    """Refuses a metric that is neither a number nor a tree like w."""
    if metric is None or (jax.tree.structure(metric).num_nodes == 1 and jnp.ndim(metric) == 0):
        return

    def shape(tree):
        return (jax.tree.structure(tree), [jnp.shape(x) for x in jax.tree.leaves(tree)])

    if shape(metric) != shape(w):
        raise ProblemError(
            "metric must be one positive number for every entry of w, as a tree like w, or one for all; "
            f"got {trees.shapes_of(jax.tree.map(jnp.asarray, metric)).in_short()} for weights "
            f"{trees.shapes_of(jax.tree.map(jnp.asarray, w)).in_short()}."
        )


# Sets without a point


def _refuse_empty(size: Any, what: str, rule: str) -> None:
    if not is_traced(size) and np.any(np.asarray(size) < 0):
        raise ProblemError(f"{what} of size {size} has no point: {rule}.")


def _refuse_crossed(lower: PyTree, upper: PyTree) -> None:
    pairs = zip(jax.tree.leaves(lower), jax.tree.leaves(upper), strict=False)
    for low, high in pairs:
        if is_traced(low) or is_traced(high):
            continue
        wrong = np.asarray(low, float) > np.asarray(high, float)
        if np.any(wrong):
            raise ProblemError(f"no weights lie within bounds of which {wrong.sum()} are crossed.")


def _refuse_unreachable(lower: PyTree, upper: PyTree, total: Any, flat: Array) -> None:
    """Refuses bounds, as they were given, between which no sum is the total."""
    if any(map(is_traced, jax.tree.leaves((lower, upper, total)))):
        return
    _refuse_crossed(lower, upper)
    sums = []
    for bound in (lower, upper):
        numbers = [np.asarray(x, float) for x in jax.tree.leaves(bound)]
        copies = flat.size if sum(x.size for x in numbers) == 1 else 1
        sums.append(copies * sum(x.sum() for x in numbers))
    low, high = sums
    wanted = float(total)
    rounding = 4 * flat.size * float(jnp.finfo(flat.dtype).eps) * max(1.0, abs(wanted))
    if low > wanted + rounding or high < wanted - rounding:
        raise ProblemError(
            f"no weights within the bounds add up to {wanted:g}: the lower ones add up to {low:g} and "
            f"the upper ones to {high:g}."
        )
