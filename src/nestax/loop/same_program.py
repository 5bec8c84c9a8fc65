"""When two functions are the same function, for the purpose of compiling them once.

``optax.sgd(0.1)`` and a lambda written in a loop are new objects each time, and a compilation cache
that goes by identity compiles anew for each. Two Python functions behave alike when traced if they
are one object, as everywhere in JAX; or if they have the same code, defaults and closure, and the
globals they mention are the same objects (or equal numbers and strings). That is what is compared
here; everything unknown goes by identity.
"""

import functools
import types
from typing import Any

import jax
import numpy as np

_BY_VALUE = (int, float, complex, str, bytes, bool, type(None), np.dtype, np.generic)


class Static:
    """A tree without arrays, hashable by behaviour: fit to be a static argument of ``jax.jit``."""

    def __init__(self, tree: Any):
        leaves, self.treedef = jax.tree.flatten(tree)
        self.tree = tree
        self.key = (self.treedef, tuple(behaviour(leaf, ()) for leaf in leaves))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.key == other.key


class Identity:
    """Compares by identity, and keeps the object alive so that its address is not used again."""

    def __init__(self, thing: Any):
        self.thing = thing

    def __hash__(self) -> int:
        return id(self.thing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.thing is other.thing


class Behaviour:
    """A function with what it refers to, as that was when the key was made."""

    def __init__(self, fn: types.FunctionType, parts: tuple[Any, ...]):
        self.fn, self.parts = fn, parts

    def __hash__(self) -> int:
        return hash(self.fn.__code__.co_code)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Behaviour):
            return False
        if self.fn is other.fn:
            return True
        return same_code(self.fn.__code__, other.fn.__code__) and self.parts == other.parts


#: What makes code do what it does; where it was written is not part of it.
_CODE = (
    "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags", "co_argcount",
    "co_posonlyargcount", "co_kwonlyargcount",
)  # fmt: skip


def same_code(a: types.CodeType, b: types.CodeType) -> bool:
    """Whether two pieces of code are the same text, wherever they were written."""
    if a is b:
        return True
    if len(a.co_consts) != len(b.co_consts) or any(getattr(a, x) != getattr(b, x) for x in _CODE):
        return False
    pairs = zip(a.co_consts, b.co_consts, strict=True)
    return all(
        same_code(x, y)
        if isinstance(x, types.CodeType) and isinstance(y, types.CodeType)
        else (type(x), x) == (type(y), y)
        for x, y in pairs
    )


def behaviour(thing: Any, seen: tuple[int, ...]) -> Any:
    """A hashable key; equal keys mean equal behaviour under tracing."""
    if id(thing) in seen:
        return ("again", len(seen) - seen.index(id(thing)))
    seen = (*seen, id(thing))
    inside = functools.partial(behaviour, seen=seen)
    if isinstance(thing, _BY_VALUE):
        return (type(thing), thing)
    if isinstance(thing, tuple | list):
        return (type(thing), *map(inside, thing))
    if isinstance(thing, dict):
        return (dict, *((inside(k), inside(v)) for k, v in thing.items()))
    if isinstance(thing, functools.partial):
        return (functools.partial, *map(inside, (thing.func, thing.args, thing.keywords)))
    if isinstance(thing, types.MethodType):
        return (types.MethodType, inside(thing.__func__), inside(thing.__self__))
    if isinstance(thing, types.FunctionType):
        cells = [_cell(c) for c in thing.__closure__ or ()]
        parts = (
            inside(thing.__defaults__),
            inside(thing.__kwdefaults__),
            *map(inside, cells),
            *(_global(thing.__globals__.get(name)) for name in _names(thing.__code__)),
        )
        return Behaviour(thing, parts)
    return Identity(thing)


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet: a function that refers to itself
        return None


def _names(code: types.CodeType) -> list[str]:
    """Every global name that the code, or code nested in it, may read."""
    nested = [n for c in code.co_consts if isinstance(c, types.CodeType) for n in _names(c)]
    return [*code.co_names, *nested]


def _global(thing: Any) -> Any:
    return (type(thing), thing) if isinstance(thing, _BY_VALUE) else Identity(thing)
