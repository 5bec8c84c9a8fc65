"""Carrying equal leaves once.

A carry holds the same array in several places: the weights are also the point its trackers belong
to, a level that hands its input on has it as part of its value, and the tracked value of the last
level is the estimate's. A compiled loop would copy each of them at every step. Which leaves are one
and the same value is plain while tracing, where they are one and the same object.
"""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

import jax
from jaxtyping import Array, PyTree

from nestax.chain.tracing import Shapes


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
        return [leaves[k] for k in self.firsts]

    def unpack(self, packed: list[Array]) -> PyTree:
        place = {first: n for n, first in enumerate(self.firsts)}
        return self.shape.treedef.unflatten([packed[place[k]] for k in self.groups])

    def split(self, leaves: Iterable[Hashable]) -> "Packing":
        """The finer packing in which leaves are one value only if they are here, too."""
        return Packing(self.shape, equal_places(zip(self.groups, leaves, strict=True)))


def equal_places(things: Iterable[Hashable]) -> tuple[int, ...]:
    """For every thing, where an equal one was seen first."""
    first: dict[Hashable, int] = {}
    return tuple(first.setdefault(thing, k) for k, thing in enumerate(things))
