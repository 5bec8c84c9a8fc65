"""What a level function does with its input, read off its trace.

A level often hands some of its input on unchanged, (r·x, x), and some outputs do not see some
inputs at all. Both are plain in the function's jaxpr. Knowing them lets a Jacobian keep a number
for an identity block and nothing for a zero block, which is most of the cost of a dense method.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import PyTree

from nestax.trees import Shapes, shapes_of


class Structure(NamedTuple):
    """One entry per output leaf of a level.

    repeats: the input leaf that this output is, untouched; None if it is computed.
    depends: for every input leaf, whether this output may depend on it.
    noisy: whether this output may depend on the draw.
    """

    inputs: Shapes
    outputs: Shapes
    repeats: tuple[int | None, ...]
    depends: tuple[tuple[bool, ...], ...]
    noisy: tuple[bool, ...]


class Origin(NamedTuple):
    """Where a value inside a jaxpr comes from."""

    arguments: frozenset[int]
    copy_of: int | None


_NOWHERE = Origin(frozenset(), None)


def analyse(fn: Callable[..., PyTree], x: PyTree, *rest: PyTree) -> Structure:
    """The structure of ``fn(x, *rest)``; the arguments are trees of shapes."""
    jaxpr, out = jax.make_jaxpr(fn, return_shape=True)(x, *rest)
    inputs = shapes_of(x)
    arguments = [Origin(frozenset([k]), k) for k in range(len(jaxpr.in_avals))]
    origins = _trace_origins(jaxpr.jaxpr, arguments)
    width = len(inputs.leaves)
    return Structure(
        inputs=inputs,
        outputs=shapes_of(out),
        repeats=tuple(
            o.copy_of if o.copy_of is not None and o.copy_of < width else None for o in origins
        ),
        depends=tuple(tuple(k in o.arguments for k in range(width)) for o in origins),
        noisy=tuple(any(k >= width for k in o.arguments) for o in origins),
    )


def _trace_origins(jaxpr: Any, arguments: list[Origin]) -> list[Origin]:
    """Follows every output of a jaxpr back to the arguments; unknown primitives mix everything."""
    known: dict[Any, Origin] = dict(zip(jaxpr.invars, arguments, strict=True))

    def origin(atom: Any) -> Origin:
        return _NOWHERE if hasattr(atom, "val") else known.get(atom, _NOWHERE)

    for eqn in jaxpr.eqns:
        sources = [origin(atom) for atom in eqn.invars]
        if eqn.primitive.name in ("jit", "pjit"):
            results = _trace_origins(eqn.params["jaxpr"].jaxpr, sources)
        else:
            mixed = frozenset().union(*(s.arguments for s in sources))
            results = [Origin(mixed, None)] * len(eqn.outvars)
        known.update(zip(eqn.outvars, results, strict=True))
    return [origin(atom) for atom in jaxpr.outvars]
