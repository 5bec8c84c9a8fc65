"""Jacobians made of tiles: nothing where zero, a number where identity, an array elsewhere."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from nestax.chain.structure import Structure
from nestax.trees import Shapes


class Jacobian(eqx.Module):
    """Jacobian of a level, one tile per (output leaf, input leaf).

    A tile is an array of shape ``output.shape + input.shape``, or, where ``identity`` says so, a
    scalar c (c times the identity). None is one or zero: the identity itself, or no dependence. As
    the object is a tree of its tiles, sums and multiples are tree maps, and cost nothing for what
    is None. Methods use it through tree arithmetic and the functions below only.
    """

    tiles: tuple[tuple[Any, ...], ...]
    identity: tuple[tuple[bool, ...], ...] = eqx.field(static=True)
    inputs: Shapes = eqx.field(static=True)
    outputs: Shapes = eqx.field(static=True)

    def pull(self, adjoint: PyTree) -> PyTree:
        """Jᵀp for p in the structure of the output."""
        p = jax.tree.leaves(adjoint)
        columns = []
        for i, (shape, dtype) in enumerate(self.inputs.leaves):
            seen = [o for o, row in enumerate(self.tiles) if row[i] is not None or self.identity[o][i]]
            terms = [_pull(self.tiles[o][i], self.identity[o][i], p[o]) for o in seen]
            columns.append(sum(terms[1:], start=terms[0]) if terms else jnp.zeros(shape, dtype))
        return self.inputs.treedef.unflatten(columns)

    def push(self, tangent: PyTree) -> PyTree:
        """Jt for t in the structure of the input."""
        t = jax.tree.leaves(tangent)
        rows = []
        for o, (shape, dtype) in enumerate(self.outputs.leaves):
            row = self.tiles[o]
            flags = self.identity[o]
            seen = [i for i, tile in enumerate(row) if tile is not None or flags[i]]
            terms = [_push(row[i], flags[i], t[i]) for i in seen]
            rows.append(sum(terms[1:], start=terms[0]) if terms else jnp.zeros(shape, dtype))
        return self.outputs.treedef.unflatten(rows)

    def scalable(self) -> "Jacobian":
        """The same Jacobian with every identity tile as a number, so that it can be rescaled."""
        one = jnp.ones((), self.dtype)
        tiles = tuple(
            tuple(one if f and b is None else b for b, f in zip(row, flags, strict=True))
            for row, flags in zip(self.tiles, self.identity, strict=True)
        )
        return Jacobian(tiles, self.identity, self.inputs, self.outputs)

    def square(self) -> Array:
        """Squared Frobenius norm."""
        total = jnp.zeros((), self.dtype)
        for row, flags in zip(self.scalable().tiles, self.identity, strict=True):
            for tile, flag, size in zip(row, flags, self.inputs.sizes, strict=True):
                if tile is not None:
                    total = total + (tile * tile * size if flag else jnp.vdot(tile, tile))
        return total

    def dense(self) -> Array:
        """The whole matrix, outputs × inputs, leaves raveled in order."""
        rows = []
        for o, n_out in enumerate(self.outputs.sizes):
            row = [
                _dense_tile(self.tiles[o][i], self.identity[o][i], (n_out, n_in), self.dtype)
                for i, n_in in enumerate(self.inputs.sizes)
            ]
            rows.append(jnp.concatenate(row, axis=1))
        return jnp.concatenate(rows, axis=0)

    def filled(self, matrix: Array) -> "Jacobian":
        """The same map structure with every tile dense, taken from ``matrix``."""
        tiles = []
        top = 0
        for (out_shape, _), n_out in zip(self.outputs.leaves, self.outputs.sizes, strict=True):
            row = []
            left = 0
            for (in_shape, _), n_in in zip(self.inputs.leaves, self.inputs.sizes, strict=True):
                part = matrix[top : top + n_out, left : left + n_in]
                row.append(part.reshape(out_shape + in_shape))
                left += n_in
            tiles.append(tuple(row))
            top += n_out
        flags = tuple((False,) * len(self.inputs.leaves) for _ in self.outputs.leaves)
        return Jacobian(tuple(tiles), flags, self.inputs, self.outputs)

    @property
    def dtype(self) -> Any:
        return self.inputs.leaves[0][1]


def _pull(tile: Any, identity: bool, p: Array) -> Array:
    return _multiple(tile, p) if identity else jnp.tensordot(p, tile, p.ndim)


def _push(tile: Any, identity: bool, t: Array) -> Array:
    return _multiple(tile, t) if identity else jnp.tensordot(tile, t, t.ndim)


def _multiple(factor: Any, x: Array) -> Array:
    return x if factor is None else factor * x


def _dense_tile(tile: Any, identity: bool, shape: tuple[int, int], dtype: Any) -> Array:
    if identity:
        return _multiple(tile, jnp.eye(*shape, dtype=dtype))
    return jnp.zeros(shape, dtype) if tile is None else tile.reshape(shape)


def pull_through(pulls: Sequence[Callable[[PyTree], PyTree]], like: Array) -> PyTree:
    """J_1ᵀ⋯J_Kᵀ from the maps p ↦ J_iᵀp, from the outer end: only matrix-vector products occur."""
    adjoint = jnp.ones_like(like)
    for pull in reversed(pulls):
        adjoint = pull(adjoint)
    return adjoint


def jacobian_of(fn: Any, x: PyTree, structure: Structure) -> tuple[PyTree, Jacobian]:
    """Value and Jacobian of ``fn`` at ``x``, differentiating only what the structure asks for.

    Reverse mode where the computed outputs are fewer than the inputs they depend on, forward mode
    otherwise.
    """
    inputs = structure.inputs
    outputs = structure.outputs
    computed = [o for o, source in enumerate(structure.repeats) if source is None]
    active = [i for i in range(len(inputs.leaves)) if any(structure.depends[o][i] for o in computed)]
    leaves = jax.tree.leaves(x)

    def of_active(*parts: Array) -> tuple[list[Array], PyTree]:
        full = list(leaves)
        for i, part in zip(active, parts, strict=True):
            full[i] = part
        value = fn(inputs.treedef.unflatten(full))
        out = jax.tree.leaves(value)
        return [out[o] for o in computed], value

    args = [leaves[i] for i in active]
    rows = sum(outputs.sizes[o] for o in computed)
    columns = sum(inputs.sizes[i] for i in active)
    if not active or not computed:
        dense = [[None] * len(active) for _ in computed]
        value = fn(x)
    elif rows <= columns:
        dense, value = _reverse(of_active, args)
    else:
        try:
            dense, value = _forward(of_active, args)
        except TypeError:  # a function with a reverse rule of its own has no forward one
            dense, value = _reverse(of_active, args)

    tiles: list[list[Any]] = [[None] * len(inputs.leaves) for _ in outputs.leaves]
    for row, o in zip(dense, computed, strict=True):
        for tile, i in zip(row, active, strict=True):
            tiles[o][i] = tile if structure.depends[o][i] else None
    identity = tuple(
        tuple(source == i for i in range(len(inputs.leaves))) for source in structure.repeats
    )
    return value, Jacobian(tuple(map(tuple, tiles)), identity, inputs, outputs)


def _reverse(fn: Any, args: list[Array]) -> tuple[list[list[Array]], PyTree]:
    out, pullback, value = jax.vjp(fn, *args, has_aux=True)
    if len(out) == 1 and out[0].ndim == 0:  # one row: no basis to map over
        return [list(pullback([jnp.ones_like(out[0])]))], value
    flat, unravel = ravel_pytree(out)
    rows = jax.vmap(lambda e: pullback(unravel(e)))(jnp.eye(flat.size, dtype=flat.dtype))
    tiles = []
    top = 0
    for y in out:
        tiles.append([r[top : top + y.size].reshape(y.shape + r.shape[1:]) for r in rows])
        top += y.size
    return tiles, value


def _forward(fn: Any, args: list[Array]) -> tuple[list[list[Array]], PyTree]:
    flat, unravel = ravel_pytree(args)
    out, push, value = jax.linearize(fn, *args, has_aux=True)
    columns = jax.vmap(lambda e: push(*unravel(e)), out_axes=-1)(jnp.eye(flat.size, dtype=flat.dtype))
    tiles = []
    for y, c in zip(out, columns, strict=True):
        row = []
        left = 0
        for a in args:
            row.append(c[..., left : left + a.size].reshape(y.shape + a.shape))
            left += a.size
        tiles.append(row)
    return tiles, value
