"""When two functions are one program: how they are traced, compared, compiled and found again.

A function of Python cannot be compared with another one: it may read globals, attributes, files. Its
jaxpr can. So where it matters whether two functions do the same, they are traced, and everything that
they have closed over becomes an argument.

Tracing takes a fraction of the time of compiling, but it takes some. It is not needed where all code is
the library's own or that of the libraries it is built on: such code does not change while a process
runs, so equal functions with equal numbers in them do the same. Any other is traced again every time.
"""

import functools
import itertools
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun
from jaxtyping import Array, PyTree

from nestax.convolutions import in_order
from nestax.errors import SETTLED
from nestax.trees import Shapes, on_device

#: Primitives of functions with derivatives of their own.
OWN_RULES = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
BY_VALUE = (int, float, complex, str, bytes, bool, type(None), np.dtype, np.generic)
#: How many compiled programs and traces are kept. A run has two programs and, of settled code, a trace;
#: a program takes some hundred memory maps of the process, of which Linux allows 65,530.
KEPT = 128
#: How often each program has been traced for the compiler in this process; tests hold it down.
TRACES: dict[str, int] = {}


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

    def changed(atoms: Sequence[Any]) -> list[Any]:
        return [next(new) if _is_number(atom) else atom for atom in atoms]

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


class Itself:
    """A key by identity, which keeps the thing alive so that its address is not used again."""

    def __init__(self, thing: Any):
        self.thing = thing

    def __hash__(self) -> int:
        return id(self.thing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self.thing is other.thing


# What is kept

_KEPT: dict[Hashable, Any] = {}


def kept(key: Hashable, make: Callable[[], Any]) -> Any:
    """What ``make`` returns, made once a key: the one cache of programs, traces and what they tell."""
    missing = object()
    thing = _KEPT.pop(key, missing)
    thing = make() if thing is missing else thing
    _KEPT[key] = thing  # behind all others
    for first in list(_KEPT)[:-KEPT]:
        _KEPT.pop(first, None)
    return thing


def program(
    fn: Callable[..., PyTree], structure: Any, donate: bool = False, places: Any = None
) -> Callable[..., PyTree]:
    """``fn(tree, *args)``, compiled for all trees of one structure; their leaves are its first argument.

    Args:
        fn: a function of this library; what is not of it stands in the tree, as a ``Traced``.
        donate: whether the buffers of the second argument may be overwritten.
        places: the shardings of what it returns; None leaves them to the compiler.
    """

    def make() -> Callable[..., PyTree]:
        @functools.partial(jax.jit, donate_argnums=1 if donate else (), out_shardings=places)
        def compiled(leaves: list[Any], *args: Any) -> PyTree:
            TRACES[fn.__name__] = TRACES.get(fn.__name__, 0) + 1
            return fn(structure.unflatten(leaves), *args)

        return compiled

    return kept((fn, structure, donate, places), make)


def compiled(fn: Callable[..., PyTree], *args: PyTree) -> Callable[..., PyTree]:
    """``fn``, traced once, for arguments that differ from these in the numbers of their arrays alone.

    ``jax.jit`` would find it again by the function, whatever the globals that it reads have become.
    """
    arrays, static = eqx.partition(args, eqx.is_array)
    traced = trace(lambda arrays: fn(*eqx.combine(arrays, static)), arrays)
    leaves, structure = jax.tree.flatten(traced)
    call = program(_call, structure)
    return lambda *args: call(leaves, eqx.filter(args, eqx.is_array))


def compute(fn: Callable[..., PyTree], *args: PyTree) -> PyTree:
    """``fn(*args)``, compiled; the program is found again by what it computes."""
    return compiled(fn, *args)(*args)


def _call(traced: Traced, arrays: PyTree) -> PyTree:
    return traced(arrays)


# Code that stays as it is


def known(make: Callable[[PyTree, Shapes], Any], static: PyTree, shapes: Shapes) -> Any:
    """``make(static, shapes)``, which reads nothing else; kept if all code in ``static`` is settled."""
    code = settled(static)
    if code is None:
        return make(static, shapes)
    x64 = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    return kept((make, code, shapes, x64), lambda: make(static, shapes))


def is_settled(thing: Any) -> bool:
    """Whether a class or a function is of code that stays as it is."""
    return (getattr(thing, "__module__", None) or "").split(".")[0] in SETTLED


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
