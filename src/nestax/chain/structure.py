"""What a level's function does with its arguments, as its trace tells: copies, zeros, bytes.

A level often hands some of its input on unchanged, (r·x, x), and some outputs do not see some
inputs at all. Both are plain in the function's jaxpr. Knowing them lets a Jacobian keep a number
for an identity and nothing for a zero, which is most of the cost of a dense method.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var
from jaxtyping import Array, PyTree

from nestax.trees import Shapes, shapes_of

#: Primitives that only call what they hold.
CALLS = ("jit", "pjit")


class Structure(NamedTuple):
    """One entry per output leaf of a level.

    repeats: the input leaf that this output is, untouched; None if it is computed.
    depends: for every input leaf, whether this output may depend on it.
    noisy: whether this output may depend on the draw.

    made: bytes of all that an evaluation makes of one draw, the draw among it. It is more than is ever
        held at once, and has nothing to do with how many weights there are.
    """

    inputs: Shapes
    outputs: Shapes
    repeats: tuple[int | None, ...]
    depends: tuple[tuple[bool, ...], ...]
    noisy: tuple[bool, ...]
    made: int = 0

    @property
    def rows(self) -> int:
        """Rows of the Jacobian that are computed: those of outputs that are no copy of an input."""
        sizes = zip(self.outputs.sizes, self.repeats, strict=True)
        return sum(size for size, source in sizes if source is None)

    @property
    def jacobian_entries(self) -> int:
        """Entries of the Jacobian's tiles that are computed, at least one."""
        tiles = zip(self.outputs.sizes, self.repeats, self.depends, strict=True)

        def columns(row: tuple[bool, ...]) -> int:
            return sum(n for n, seen in zip(self.inputs.sizes, row, strict=True) if seen)

        return max(1, sum(size * columns(row) for size, source, row in tiles if source is None))


def analyse(fn: Callable[..., PyTree], x: PyTree, *rest: PyTree, draws: int = 1) -> Structure:
    """The structure of ``fn(x, *rest)``, all of them trees of shapes, ``rest`` that of so many draws."""
    jaxpr, out = jax.make_jaxpr(fn, return_shape=True)(x, *rest)
    inputs = shapes_of(x)
    width = len(inputs.leaves)
    origins = origins_of(jaxpr.jaxpr)
    drawn = [k >= width for k in range(len(jaxpr.jaxpr.invars))]
    made = sum(map(bytes_of, jaxpr.jaxpr.invars[width:])) + bytes_made(jaxpr.jaxpr, drawn)[0]
    return Structure(
        inputs=inputs,
        outputs=shapes_of(out),
        repeats=tuple(
            o.copy_of if o.copy_of is not None and o.copy_of < width else None for o in origins
        ),
        depends=tuple(tuple(k in o.arguments for k in range(width)) for o in origins),
        noisy=tuple(any(k >= width for k in o.arguments) for o in origins),
        made=-(-made // draws),
    )


def depends(fn: Callable[[Array], PyTree], x: Array) -> bool:
    """Whether anything that a function returns depends on its argument."""
    return any(0 in origin.arguments for origin in origins_of(jax.make_jaxpr(fn)(x).jaxpr))


class Origin(NamedTuple):
    """Where a value inside a jaxpr comes from: arguments by number, and which one it is untouched."""

    arguments: frozenset[int]
    copy_of: int | None


_NOWHERE = Origin(frozenset(), None)


def origins_of(jaxpr: Jaxpr, arguments: Sequence[Origin] | None = None) -> list[Origin]:
    """Follows every output of a jaxpr back to the arguments; unknown primitives mix everything."""
    if arguments is None:
        arguments = [Origin(frozenset([k]), k) for k in range(len(jaxpr.invars))]
    known: dict[Var, Origin] = dict(zip(jaxpr.invars, arguments, strict=True))

    def origin(atom: Any) -> Origin:
        return _NOWHERE if isinstance(atom, Literal) else known.get(atom, _NOWHERE)

    for eqn in jaxpr.eqns:
        sources = [origin(atom) for atom in eqn.invars]
        if eqn.primitive.name in CALLS:
            results = origins_of(eqn.params["jaxpr"].jaxpr, sources)
        else:
            mixed = frozenset().union(*(s.arguments for s in sources))
            results = [Origin(mixed, None)] * len(eqn.outvars)
        known.update(zip(eqn.outvars, results, strict=True))
    return [origin(atom) for atom in jaxpr.outvars]


def bytes_made(jaxpr: Jaxpr, marked: Sequence[bool]) -> tuple[int, list[bool]]:
    """Bytes of all values that depend on marked arguments, and which of the results do."""
    depends: dict[Var, bool] = dict(zip(jaxpr.invars, marked, strict=True))
    total = 0

    def seen(atom: Any) -> bool:
        return not isinstance(atom, Literal) and depends.get(atom, False)

    for eqn in jaxpr.eqns:
        marks = [seen(atom) for atom in eqn.invars]
        results = [any(marks)] * len(eqn.outvars)
        inner = list(inner_jaxprs(eqn.params.values())) if any(marks) else []
        if eqn.primitive.name in CALLS:
            made, results = bytes_made(eqn.params["jaxpr"].jaxpr, marks)
            total += made
        else:
            turns = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
            total += turns * sum(bytes_made(one, [True] * len(one.invars))[0] for one in inner)
            total += sum(map(bytes_of, eqn.outvars)) if any(marks) else 0
        depends.update(zip(eqn.outvars, results, strict=True))
    return total, [seen(atom) for atom in jaxpr.outvars]


def inner_jaxprs(parameters: Any) -> Iterator[Jaxpr]:
    """The jaxprs among the parameters of an equation."""
    for value in parameters:
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from inner_jaxprs(value)


def bytes_of(x: Any) -> int:
    """Bytes of an array, from anything that tells its shape and dtype."""
    kind = getattr(x, "aval", x)
    return math.prod(kind.shape) * kind.dtype.itemsize
