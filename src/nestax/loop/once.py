"""What a carry holds several times is carried once. Pure.

A carry holds the same array in several places: the weights are also the point its trackers belong
to, a level that hands its input on has it as part of its value, and the tracked value of the last
level is the estimate's. A compiled loop would copy each of them at every step. Which leaves are one
and the same value is plain in a trace, where they are one and the same variable.
"""

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import jax
from jaxtyping import PyTree

from nestax.programs import Traced
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

    def pack(self, tree: PyTree) -> tuple[Any, ...]:
        leaves = jax.tree.leaves(tree)
        return tuple(leaves[k] for k in self.firsts)

    def unpack(self, packed: tuple[Any, ...]) -> PyTree:
        leaves = dict(zip(self.firsts, packed, strict=True))
        return self.shape.treedef.unflatten([leaves[k] for k in self.groups])

    def split(self, carry: Traced) -> "Packing":
        """The finer packing in which leaves are one value only if the function returns them so, too."""
        both = zip(self.groups, map(id, carry.program.jaxpr.outvars), strict=True)
        return Packing(self.shape, _first_equal(both))


def packing_of(carry: Traced) -> Packing:
    """The largest packing of what a function returns."""
    groups = _first_equal(map(id, carry.program.jaxpr.outvars))
    return Packing(shapes_of(carry.shapes()), groups)


def _first_equal(things: Iterable[Hashable]) -> tuple[int, ...]:
    """For every thing, where an equal one was seen first."""
    first: dict[Hashable, int] = {}
    return tuple(first.setdefault(thing, k) for k, thing in enumerate(things))
