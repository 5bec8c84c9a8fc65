"""One level with gains that set themselves: what it remembers, and how that moves with a batch."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import Jacobian
from nestax.chain.level import Level, Map
from nestax.parts.estimator import Batches
from nestax.parts.gains import Belief, first_belief, follow, smooth_root

#: Entries of Jacobians that the groups of a batch may hold; beyond it there are two groups.
GROUP_ENTRIES = 2**16
#: A gradient is at most so many times as long as that of plain batches, now or usually.
LONGEST = 2.0
#: How fast the usual length is forgotten.
RATE = 0.05


class Before(NamedTuple):
    """What is remembered of a level: its old input, its trackers, what is believed of them.

    step: 1 at the first one. first: how many draws there were at the start.
    """

    x: PyTree
    tracked: tuple[PyTree, Jacobian | None]
    belief: Belief | None
    step: Array
    first: Array


class Seen(NamedTuple):
    """A level after a step.

    value, pull: what is handed on, p ↦ Jᵀp in place of a Jacobian.
    jac: what is remembered of it.
    mean, plain: value and pullback of the batch by itself.
    """

    value: PyTree
    pull: Map
    jac: Jacobian | None
    belief: Belief | None
    mean: PyTree
    plain: Map


def look(level: Level, x: PyTree, batch: Any, before: Before | None, with_jac: bool) -> Seen:
    """Evaluates one level at a new input, tracked and as the batch has it; perhaps with its Jacobian."""
    if level.deterministic:
        u, pull = level.value_and_pull(x, None)
        return Seen(u, pull, None, None, u, pull)
    structure = level.shape
    unseen = level.source.unseen(batch.size)  # pyright: ignore[reportOptionalMemberAccess]
    if with_jac:
        groups = batch.in_groups(GROUP_ENTRIES // structure.jacobian_entries)
        groups_drawn = level.value_and_jac_in_groups(x, groups)
        (u, V), (y, J), belief = remember(
            *(x, groups_drawn, lambda x: level.value_and_jac_in_groups(x, groups)),
            *(before, structure.noisy, batch.size, unseen),
        )
        return Seen(u, V.pull, V, belief, y, J.pull)
    groups = batch.in_groups()
    groups_drawn, pull = level.value_and_pull_in_groups(x, groups)
    (u, _), (y, _), belief = remember(
        *(x, (groups_drawn, None), lambda x: (level.value_in_groups(x, groups), None)),
        *(before, structure.noisy, batch.size, unseen),
    )
    if structure.outputs.size == 1:
        pull = _in_multiples(pull, y)
    return Seen(u, pull, None, belief, y, pull)


def _in_multiples(pull: Map, value: PyTree) -> Map:
    """Returns the pullback of a single number, whose results are multiples of one gradient.

    It is used twice, for the tracked gradient and for the plain one; a network is passed through once.
    """
    unit = pull(jax.tree.map(jnp.ones_like, value))
    return lambda p: optax.tree.scale(jnp.sum(jax.tree.leaves(p)[0]), unit)


def remember(
    x: PyTree,
    groups_drawn: PyTree,
    at: Any,
    before: Before | None,
    noisy: tuple[bool, ...],
    size: int,
    unseen: float,
) -> tuple[PyTree, PyTree, Belief | None]:
    """Value and Jacobian as tracked and as the mean of the batch, and what is believed of the former.

    Outputs without noise are as they are, and have no axis of groups.
    """
    leaves, treedef = jax.tree.flatten(groups_drawn)
    moving = [k for k in range(len(leaves)) if k >= len(noisy) or noisy[k]]

    def noisy_leaves(tree: PyTree) -> list[Array]:
        return [jax.tree.leaves(tree)[k] for k in moving]

    means = [jnp.mean(y, 0) if k in moving else y for k, y in enumerate(leaves)]
    mean = treedef.unflatten(means)
    if before is None:
        return mean, mean, first_belief(noisy_leaves(groups_drawn), unseen) if moving else None
    if before.belief is None:
        return mean, mean, None
    length = norm(optax.tree.sub(x, before.x))
    estimates, belief = follow(
        noisy_leaves(groups_drawn),
        noisy_leaves(at(before.x)),
        noisy_leaves(before.tracked),
        before.belief,
        before.step,
        length,
        unseen,
        before.step - 1 + before.first.astype(length.dtype) / size,
    )
    tracked = list(means)
    for k, y in zip(moving, estimates, strict=True):
        tracked[k] = y
    return treedef.unflatten(tracked), mean, belief


def direction_and_length(pulls: Sequence[Map], like: Array) -> tuple[PyTree, Array]:
    """J_1ᵀ⋯J_Kᵀ as a tree of length one, and its length.

    A value at the edge of its range beside a Jacobian that is not makes a length beyond single
    precision; what it is cut to is not.
    """
    adjoint = jnp.ones_like(like)
    length = norm(adjoint)
    for pull in reversed(pulls):
        adjoint = pull(adjoint)
        size = norm(adjoint)
        unit = jnp.where(size > 0, size, 1)
        adjoint = jax.tree.map(lambda x, unit=unit: (x / unit).astype(x.dtype), adjoint)
        length = length * size
    return adjoint, length


def gradient(
    tracked: tuple[Sequence[Map], Array],
    plain: tuple[Sequence[Map], Array],
    usual: Array | None,
    count: Array,
) -> tuple[PyTree, Array, PyTree]:
    """The tracked gradient, at most twice as long as plain ones, their usual length, and the plain one.

    Without a usual length, at the start, both are the same gradient.
    """

    def scaled(unit, length):
        return jax.tree.map(lambda g: (g * length).astype(g.dtype), unit)

    grad, length = direction_and_length(*tracked)
    unit, of_plain = grad, length
    if usual is None:
        usual = length
    else:
        unit, of_plain = direction_and_length(*plain)
        rate = jnp.maximum(1 / (count + 1).astype(of_plain.dtype), RATE)
        usual = smooth_root(usual, of_plain, rate)
        length = jnp.minimum(length, LONGEST * jnp.maximum(usual, of_plain))
    return scaled(grad, length), usual, scaled(unit, of_plain)


def draws_of(batches: Batches) -> Array:
    """Returns how many draws every level has in a step, 1 where it draws nothing."""
    sizes = [1 if batch["value"] is None else batch["value"].size for batch in batches]
    return jnp.asarray(sizes, jnp.int32)


def norm(tree: PyTree) -> Array:
    """Returns the length of a tree in at least single precision, also where squares would leave it."""
    leaves = jax.tree.leaves(tree)
    dtype = jnp.promote_types(leaves[0].dtype, jnp.float32)
    unit = functools.reduce(jnp.maximum, [jnp.max(jnp.abs(x)) for x in leaves]).astype(dtype)
    share = 1 / jnp.where(unit > 0, unit, 1)
    return unit * jnp.sqrt(sum(jnp.sum((x * share) ** 2) for x in leaves))
