"""What is read off a trace: shapes, what depends on what, and functions as data.

A level often hands some of its input on unchanged, (r·x, x), and some outputs do not see some
inputs at all. Both are plain in the function's jaxpr. Knowing them lets a Jacobian keep a number
for an identity and nothing for a zero, which is most of the cost of a dense method.

A function of Python cannot be compared with another one: it may read globals, attributes, files. Its
jaxpr can. So where it matters whether two functions do the same, they are traced first.
"""

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var, jaxpr_as_fun
from jaxtyping import Array, PyTree

from nestax.chain.convolutions import in_order
from nestax.trees import on_device

#: Primitives that only call what they hold, and those of functions with derivatives of their own.
CALLS = ("jit", "pjit")
OWN_RULES = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
#: Packages whose code stays as it is while a process runs.
SETTLED = ("nestax", "jax", "jaxlib", "optax", "equinox", "numpy", "builtins", "functools", "math")


class Shapes(NamedTuple):
    """The structure, shapes and dtypes of a tree of arrays: hashable, so it can be static.

    sizes, size: how many entries every leaf has, and all together.
    """

    treedef: Any
    leaves: tuple[tuple[tuple[int, ...], Any], ...]
    sizes: tuple[int, ...]
    size: int

    def structs(self) -> PyTree:
        """The tree of ``jax.ShapeDtypeStruct`` that this describes."""
        return self.treedef.unflatten([jax.ShapeDtypeStruct(s, d) for s, d in self.leaves])

    def __str__(self) -> str:
        def one(leaf: tuple[tuple[int, ...], Any]) -> str:
            shape, dtype = leaf
            return f"{dtype}[{','.join(map(str, shape))}]"

        words = [Words(one(leaf)) for leaf in self.leaves]
        return str(self.treedef.unflatten(words)).replace("'", "")

    def in_short(self) -> str:
        """The same, or of a network what it is and how much."""
        words = str(self)
        if len(words) <= LONG_SHAPES:
            return words
        dtypes = ", ".join(sorted({str(dtype) for _, dtype in self.leaves}))
        kind = type(self.structs()).__name__
        return f"{kind} of {len(self.leaves)} arrays, {self.size:,} numbers, {dtypes}"


#: Trees whose shapes take more characters are described by their size.
LONG_SHAPES = 100


class Words(str):
    """A string whose ``repr`` has no quotes, so that trees of shapes print cleanly."""

    def __repr__(self) -> str:
        return str(self)


def shapes_of(tree: PyTree) -> Shapes:
    leaves, treedef = jax.tree.flatten(tree)
    # Typed keys have a dtype that cannot be made from its name.
    name = lambda d: d if jnp.issubdtype(d, jax.dtypes.extended) else str(d)
    sizes = tuple(math.prod(x.shape) for x in leaves)
    return Shapes(treedef, tuple((tuple(x.shape), name(x.dtype)) for x in leaves), sizes, sum(sizes))


# What depends on what


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
        columns = lambda row: sum(n for n, seen in zip(self.inputs.sizes, row, strict=True) if seen)
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


# Functions as data


class Program:
    """A jaxpr, and how its results form a tree: equal to every other that computes the same."""

    def __init__(self, jaxpr: Jaxpr, results: Any):
        self.jaxpr = jaxpr
        self.results = results

    @functools.cached_property
    def key(self) -> Hashable:
        return (self.results, signature(self.jaxpr))

    @functools.cached_property
    def hash(self) -> int:
        return hash(self.key)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Program) and self.hash == other.hash and self.key == other.key
        )


class Traced(eqx.Module):
    """A function as data: its structure is what it computes, its leaves are what it has closed over.

    program: the jaxpr; two functions that do the same have equal ones, whatever made them.
    constants: the arrays that the function has closed over, as they were when it was traced; after them
        the numbers in it, where they were lifted out of it.
    """

    program: Program = eqx.field(static=True)
    constants: list[Array]

    def __call__(self, *args: PyTree, **named: PyTree) -> PyTree:
        run = jaxpr_as_fun(ClosedJaxpr(self.program.jaxpr, self.constants))
        return self.program.results.unflatten(run(*jax.tree.leaves((args, named))))

    def shapes(self) -> PyTree:
        """The shapes of what it returns."""
        kinds: list[Any] = [atom.aval for atom in self.program.jaxpr.outvars]
        return self.program.results.unflatten([jax.ShapeDtypeStruct(k.shape, k.dtype) for k in kinds])


def trace(
    fn: Callable[..., PyTree],
    *args: PyTree,
    lift: bool = False,
    shared: dict[Any, Any] | None = None,
    **named: PyTree,
) -> Traced:
    """``fn`` as data, for arguments of the given shapes.

    Args:
        lift: turn the numbers that stand in ``fn`` into leaves as well, so that functions which differ
            in numbers alone are one program. It is not for what runs billions of times: a compiler
            makes use of numbers that it knows.
        shared: constants that other functions have closed over; an array that is among them is used
            again, others are added.
    """
    closed, out = jax.make_jaxpr(fn, return_shape=True)(*args, **named)
    shared = {} if shared is None else shared
    # The constant itself is kept beside its copy, so that its address is not used again meanwhile.
    constants = [shared.setdefault(_address(c), (on_device(c), c))[0] for c in closed.consts]
    jaxpr = in_order(closed.jaxpr) if jax.default_backend() == "cpu" else closed.jaxpr
    jaxpr, numbers = _lifted(jaxpr) if lift else (jaxpr, [])
    return Traced(Program(jaxpr, jax.tree.structure(out)), constants + numbers)


def opened(fn: Callable[..., PyTree], *args: PyTree) -> tuple[Callable[..., PyTree], list[Any]]:
    """``fn`` as a function of what it has closed over and its arguments, and what that is.

    Args:
        args: shapes of the arguments.
    """
    closed, out = jax.make_jaxpr(fn, return_shape=True)(*args)

    def run(closed_over: list[Any], *args: PyTree) -> PyTree:
        leaves = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, closed_over))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(out), leaves)

    return run, closed.consts


def compute(fn: Callable[..., PyTree], *args: PyTree) -> PyTree:
    """``fn(*args)``, compiled; the program is found again by what it computes.

    ``jax.jit`` would find it by the function, whatever the globals that it reads have become.
    """
    return computing(fn, *args)(*args)


def computing(fn: Callable[..., PyTree], *args: PyTree) -> Callable[..., PyTree]:
    """``fn`` traced once, for arguments that differ from these in the numbers of their arrays alone."""
    arrays, static = eqx.partition(args, eqx.is_array)
    traced = trace(lambda arrays: fn(*eqx.combine(arrays, static)), arrays)
    leaves, structure = jax.tree.flatten(traced)
    return lambda *args: _compiled(structure)(leaves, eqx.filter(args, eqx.is_array))


@functools.lru_cache(maxsize=64)
def _compiled(structure: Any) -> Callable[..., PyTree]:
    return jax.jit(lambda leaves, arrays: structure.unflatten(leaves)(arrays))


def _address(constant: Any) -> Hashable:
    """Where the content of an array lies."""
    if isinstance(constant, jax.Array):
        return id(constant)
    host = np.asarray(constant)
    return (host.__array_interface__["data"][0], host.shape, host.strides, str(host.dtype))


def _lifted(jaxpr: Jaxpr) -> tuple[Jaxpr, list[Array]]:
    """A jaxpr that has constants in place of its numbers, and these numbers."""
    atoms = [*(atom for eqn in jaxpr.eqns for atom in eqn.invars), *jaxpr.outvars]
    literals: list[Any] = [atom for atom in atoms if _is_number(atom)]
    numbers = [jnp.asarray(x.val, x.aval.dtype) for x in literals]
    fresh = jax.make_jaxpr(lambda *numbers: numbers)(*numbers).jaxpr.invars
    new = iter(fresh)
    changed = lambda atoms: [next(new) if _is_number(atom) else atom for atom in atoms]
    eqns = [eqn.replace(invars=changed(eqn.invars)) for eqn in jaxpr.eqns]
    outvars = changed(jaxpr.outvars)
    return jaxpr.replace(constvars=[*jaxpr.constvars, *fresh], eqns=eqns, outvars=outvars), numbers


def _is_number(atom: Any) -> bool:
    kind: Any = atom.aval
    return isinstance(atom, Literal) and kind.shape == () and kind.dtype.kind in "fiu"


def signature(jaxpr: Jaxpr) -> Hashable:
    """A key of what a jaxpr computes, in which variables have no names."""
    places: dict[Any, int] = {}
    counter = itertools.count()

    def bind(variables: Sequence[Any]) -> Hashable:
        places.update(zip(variables, counter))  # noqa: B905 (the counter has no end)
        return tuple((v.aval.shape, v.aval.dtype) for v in variables)

    def read(atom: Any) -> Hashable:
        if isinstance(atom, Literal):
            kind: Any = atom.aval
            return (kind.shape, kind.dtype, kind.weak_type, np.asarray(atom.val).tobytes())
        return places[atom]

    parts: list[Hashable] = [bind(jaxpr.constvars), bind(jaxpr.invars)]
    for eqn in jaxpr.eqns:
        # Rules of derivatives that a function has of its own are made anew by every trace. What is
        # traced here is not differentiated any more, so the function itself is all that counts.
        custom = eqn.primitive.name in OWN_RULES
        params = tuple(
            (key, _parameter(value))
            for key, value in sorted(eqn.params.items())
            if not custom or isinstance(value, ClosedJaxpr | Jaxpr)
        )
        parts.append((eqn.primitive.name, params, *map(read, eqn.invars)))
        parts.append(bind(eqn.outvars))
    parts.append(tuple(map(read, jaxpr.outvars)))
    return tuple(parts)


class Itself:
    """A key by identity, which keeps the thing alive so that its address is not used again."""

    def __init__(self, thing: Any):
        self.thing = thing

    def __hash__(self) -> int:
        return id(self.thing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self.thing is other.thing


def is_settled(thing: Any) -> bool:
    """Whether a class or a function is of code that stays as it is."""
    return (getattr(thing, "__module__", None) or "").split(".")[0] in SETTLED


def users_part(error: Exception) -> Exception | None:
    """The error with its traceback from the first line of the user's code on; None if it has none."""
    part = error.__traceback__
    while part is not None and part.tb_frame.f_globals.get("__name__", "").split(".")[0] in SETTLED:
        part = part.tb_next
    return None if part is None else error.with_traceback(part)


def _parameter(value: Any) -> Hashable:
    """A key of a parameter of an equation."""
    # JAX wraps a function's own rule for many lanes anew at every trace.
    wrapped = getattr(value, "__wrapped__", None)
    if wrapped is not None and is_settled(type(value)) and is_settled(wrapped):
        return Itself(wrapped)
    if isinstance(value, ClosedJaxpr):
        return (signature(value.jaxpr), *map(_parameter, value.consts))
    if isinstance(value, Jaxpr):
        return signature(value)
    if isinstance(value, tuple | list):
        return (type(value), *map(_parameter, value))
    if isinstance(value, dict):
        return tuple((key, _parameter(part)) for key, part in sorted(value.items()))
    if isinstance(value, np.ndarray | jax.Array):
        return (value.shape, str(value.dtype), np.asarray(value).tobytes())
    try:
        hash(value)
    except TypeError:
        return Itself(value)
    return (type(value), value)
