"""Carrying equal leaves once.

A carry holds the same array in several places: the weights are also the point its trackers belong
to, a level that hands its input on has it as part of its value, and the tracked value of the last
level is the estimate's. A compiled loop would copy each of them at every step. Which leaves are one
and the same value is plain while tracing, where they are one and the same object.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, PyTree

from nestax.trees import Shapes, shapes_of


class Packing(NamedTuple):
    """Where every leaf of one lane's carry is found among the leaves that are carried.

    shape: the structure and shapes of the carry.
    groups: for every leaf, the first leaf that is the same value.
    """

    shape: Shapes
    groups: tuple[int, ...]

    @property
    def firsts(self) -> list[int]:
        return sorted(set(self.groups))

    def pack(self, tree: PyTree) -> list[Array]:
        leaves = jax.tree.leaves(tree)
        for leaf, first in zip(leaves, self.groups, strict=True):
            if leaf is not leaves[first]:
                raise RuntimeError("leaves that were one value while planning no longer are")
        return [leaves[k] for k in self.firsts]

    def unpack(self, packed: list[Array]) -> PyTree:
        place = {first: n for n, first in enumerate(self.firsts)}
        return self.shape.treedef.unflatten([packed[place[k]] for k in self.groups])


def lasting_packing(start: Callable[[], PyTree], steps: list[Callable[[PyTree], PyTree]]) -> Packing:
    """The largest packing that holds at the start and survives every kind of step.

    A step can only be trusted with leaves that are equal when it begins, so it is traced again with
    whatever survived. Groups only ever split, so this ends.
    """
    packing = traced_packing(start)
    leaves = jax.tree.leaves(packing.shape.structs())
    while True:
        before = packing
        for step in steps:
            packed = [leaves[k] for k in before.firsts]
            after = traced_packing(lambda p, s=step, b=before: s(b.unpack(p)), packed)
            pairs = zip(packing.groups, after.groups, strict=True)
            packing = Packing(packing.shape, _first_places(pairs))
        if packing == before:
            return packing


def traced_packing(fn: Callable[..., PyTree], *args: Any) -> Packing:
    """Which leaves of ``fn(*args)`` are the same value; nothing is computed."""
    groups: list[tuple[int, ...]] = []

    def noted(*args: Any) -> PyTree:
        out = fn(*args)
        groups.append(_first_places(map(id, jax.tree.leaves(out))))
        return out

    return Packing(shapes_of(jax.eval_shape(noted, *args)), groups[0])


def _first_places(things: Iterable[Hashable]) -> tuple[int, ...]:
    """For every thing, where it was seen first."""
    first: dict[Hashable, int] = {}
    return tuple(first.setdefault(thing, k) for k, thing in enumerate(things))
