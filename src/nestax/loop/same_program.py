"""When two runs are one program, so that it is compiled once.

What a run computes is known for certain from its trace: two lanes whose traced pieces are equal are one
program, whatever Python code made them. Tracing takes a fraction of the time of compiling, but it takes
some. It is not needed where all code is the library's own or that of the libraries it is built on: such
code does not change while a process runs, so equal functions with equal numbers in them do the same. Any
other function may read a global, an attribute, a file; it is traced again for every run.
"""

import functools
import types
from collections.abc import Hashable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nestax.chain.tracing import Itself, Shapes, Traced, is_settled, shapes_of, trace
from nestax.loop.lanes import Packing, Pieces, equal_places
from nestax.loop.step import Carry, Lane

BY_VALUE = (int, float, complex, str, bytes, bool, type(None), np.dtype, np.generic)
#: How many lanes of settled code are kept as pieces.
KEPT_PIECES = 64


def pieces_of(lane: Lane, setting: PyTree, key: Any) -> tuple[Pieces, PyTree]:
    """The traced pieces of a lane and the arrays they are called with; equal lanes have equal pieces."""
    arrays, static = eqx.partition(lane, eqx.is_array)
    shapes = shapes_of((arrays, setting, key))
    code = settled(static)
    if code is None:
        return _trace_pieces(static, shapes), arrays
    return _settled_pieces(_Lane(static, code), shapes, jax.config.jax_enable_x64), arrays  # pyright: ignore[reportAttributeAccessIssue]


class _Lane:
    """A lane without arrays, equal to others of equal code."""

    def __init__(self, static: Lane, code: Hashable):
        self.static = static
        self.code = code

    def __hash__(self) -> int:
        return hash(self.code)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Lane) and self.code == other.code


@functools.lru_cache(maxsize=KEPT_PIECES)
def _settled_pieces(lane: _Lane, shapes: Shapes, x64: bool) -> Pieces:
    del x64  # only tells tracings apart
    return _trace_pieces(lane.static, shapes)


def _trace_pieces(static: Lane, shapes: Shapes) -> Pieces:
    """Traces a lane, and finds the largest packing that holds at the start and survives every step.

    A step can only be trusted with leaves that are equal when it begins, so it is traced again if they
    do not stay equal. Groups of leaves only ever split, so this ends.
    """
    arrays, setting, key = shapes.structs()
    now = jax.ShapeDtypeStruct((), jnp.int32)
    shared: dict[Any, Any] = {}
    whole = lambda arrays: eqx.combine(static, arrays)
    seen: list[tuple[int, ...]] = []

    def noted(carry: Carry) -> Carry:
        seen.append(equal_places(map(id, jax.tree.leaves(carry))))
        return carry

    start = trace(
        lambda a, setting, key: noted(whole(a).start(setting, key)), arrays, setting, key, shared=shared
    )
    draw = trace(lambda a, *rest: whole(a).draw(*rest), arrays, setting, key, now, shared=shared)
    carry = start.shapes()
    batches = draw.shapes()
    packing = Packing(shapes_of(carry), seen.pop())
    period = static.plan.period
    kinds = [False] * (period != 1) + [True] * (period is not None)
    steps: dict[bool, Traced] = {}  # by whether they refresh the method
    while len(steps) < len(kinds):
        refresh = kinds[len(steps)]

        def one(a: Any, setting: Any, key: Any, batches: Any, packed: Any, step: Any) -> Carry:
            before = packing.unpack(packed)  # noqa: B023 (called in this turn)
            return noted(whole(a).step(setting, key, batches, before, step, refresh))  # noqa: B023

        packed = packing.pack(carry)
        steps[refresh] = trace(one, arrays, setting, key, batches, packed, now, shared=shared)
        before = packing
        packing = before.split(seen.pop())
        if packing != before:
            steps.clear()
    observe = trace(
        lambda a, setting, packed: whole(a).observe(setting, packing.unpack(packed)),
        arrays,
        setting,
        packing.pack(carry),
        shared=shared,
    )
    return Pieces(start, draw, steps.get(False), steps.get(True), observe, packing)


def settled(static: PyTree) -> Hashable | None:
    """A key of a tree without arrays that holds settled code alone; None if it holds any other."""
    leaves, treedef = jax.tree.flatten(static)
    keys = tuple(map(_key, leaves))
    return (treedef, keys) if None not in keys and _settled_types(treedef) else None


def _settled_types(treedef: Any) -> bool:
    """Whether all classes in a tree, and the functions that are part of its structure, are settled."""
    node = treedef.node_data()
    if node is None:
        return True
    kind, static = node
    fine = is_settled(kind) and (kind is not jax.tree_util.Partial or _key(static) is not None)
    return fine and all(map(_settled_types, treedef.children()))


def _key(thing: Any) -> Hashable | None:
    """Equal keys mean equal behaviour; None means that nobody knows."""
    if isinstance(thing, BY_VALUE):
        return (type(thing), thing)
    if isinstance(thing, tuple | list):
        return _all(type(thing), thing)
    if isinstance(thing, dict):
        return _all(dict, [part for pair in thing.items() for part in pair])
    if isinstance(thing, functools.partial):
        return _all(functools.partial, (thing.func, thing.args, thing.keywords))
    if not is_settled(thing):
        return None
    if isinstance(thing, types.FunctionType):
        cells = [_content(cell) for cell in thing.__closure__ or ()]
        return _all(thing.__code__, (thing.__defaults__, thing.__kwdefaults__, *cells))
    # Jitted functions and functions with derivatives of their own, at the top level of their module.
    return Itself(thing) if callable(thing) else None


def _all(kind: Any, parts: Any) -> Hashable | None:
    keys = tuple(map(_key, parts))
    return None if None in keys else (kind, *keys)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet: a function that refers to itself
        return None
