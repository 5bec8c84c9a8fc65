"""Trees of arrays: their shapes, and small functions that Optax does not have."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from nestax.errors import is_traced


def cast(tree: PyTree, dtype: Any) -> PyTree:
    """Every floating-point array as ``dtype``; everything else untouched."""

    def one(x: Any) -> Any:
        if not (hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)):
            return x
        if x.ndim == 0 and not is_traced(x):  # a number: on the host nothing is compiled for it
            x = np.asarray(x, dtype)
        return jnp.asarray(x, dtype)

    return jax.tree.map(one, tree)


def average_dtype(dtype: Any) -> Any:
    """The dtype of an average that moves: in half precision small moves, and squares, would vanish."""
    return jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.floating) else dtype


def as_average(tree: PyTree) -> PyTree:
    """Arrays as the first values of averages."""
    return jax.tree.map(lambda x: x.astype(average_dtype(x.dtype)), tree)


def all_finite(tree: PyTree) -> Array:
    """Whether every floating-point entry is finite."""
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.all(jnp.asarray([_is_finite(x) for x in floats] or [True]))


#: Arrays with more entries than this are looked at row by row.
LARGE = 2**20


def _is_finite(x: Array) -> Array:
    """Whether every entry is finite; one truth value per entry of a large table would be large too."""
    if x.ndim < 2 or x.size <= LARGE:
        return jnp.all(jnp.isfinite(x))

    def look(k: Array, fine: Array) -> Array:
        return fine & jnp.all(jnp.isfinite(jax.lax.dynamic_index_in_dim(x, k)))

    return jax.lax.fori_loop(0, len(x), look, jnp.asarray(True))


def is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray)


def on_host(x: Any) -> Any:
    """An array of NumPy, in the dtype that it will have as one of JAX; an array of JAX as it is."""
    if isinstance(x, jax.Array):
        return x
    host = np.asarray(x)
    with np.errstate(over="ignore"):  # what is too large becomes infinite
        return host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)


def on_device(x: Any) -> Array:
    """An array of JAX. ``jnp.asarray`` would compile a program for every new shape, and keep it."""
    return x if isinstance(x, jax.Array) else jax.device_put(np.asarray(x))


def row_numbers(index: Any) -> Array:
    """Numbers of rows, in 32 bits at least: in fewer, how many rows there are is no number."""
    index = index if is_array(index) or is_traced(index) else np.asarray(index)
    return jnp.asarray(index, jnp.int32 if index.dtype.itemsize < 4 else None)


def first_nonfinite(x: Any) -> tuple[np.ndarray, int] | None:
    """Where the first entry is that is NaN or infinite, and how many there are; None if there is none.

    On the host where the array lies there anyway: a program for it would be one for every shape.
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return None
    local = isinstance(x, np.ndarray) or [device.platform for device in x.devices()] == ["cpu"]
    if not local and bool(jnp.isfinite(x).all()):
        return None
    bad = ~np.isfinite(np.asarray(x))
    return (np.argwhere(bad)[0], int(bad.sum())) if bad.any() else None


def as_host(x: Any) -> tuple[np.ndarray, str]:
    """An array as NumPy knows it, and what it is where that says not all.

    Keys are their raw words, "key threefry2x32"; numbers that NumPy has no name for are their bytes,
    along a last axis of their own, "bits bfloat16".
    """
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(x)), f"key {jax.random.key_impl(x)}"
    x = np.asarray(x)
    if x.dtype.kind in "biuf":
        return x, ""
    size = x.dtype.itemsize
    return np.frombuffer(x.tobytes(), np.uint8).reshape(*x.shape, size), f"bits {x.dtype}"


def from_host(x: np.ndarray, kind: str) -> Any:
    """The array that ``as_host`` was given; keys are JAX's, everything else stays with NumPy."""
    word, _, name = kind.partition(" ")
    if word == "key":
        return jax.random.wrap_key_data(jnp.asarray(x), impl=name)
    if word == "bits":
        return np.frombuffer(x.tobytes(), jnp.dtype(name)).reshape(x.shape[:-1])
    return x


# Shapes


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
    sizes = tuple(math.prod(x.shape) for x in leaves)
    # Typed keys have a dtype that cannot be made from its name.
    kinds = [x.dtype if jnp.issubdtype(x.dtype, jax.dtypes.extended) else str(x.dtype) for x in leaves]
    shapes = tuple((tuple(x.shape), kind) for x, kind in zip(leaves, kinds, strict=True))
    return Shapes(treedef, shapes, sizes, sum(sizes))
