"""Rows that several devices hold, and sums over all of them whose bits do not depend on their number.

A population or a table is cut into parts, each of which is summed by itself; the sums are added in their
order on every device. Rows are read and written by their owner. All of it is ``jax.shard_map`` over one
axis of a mesh.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from nestax.draws.rows import Holder, holder_of
from nestax.programs import trace

#: A population is summed in so many parts, and lanes run in at most so many, whatever the devices, as
#: long as their number divides it.
PARTS = 64
LANE_PARTS = 16


class Sharded(Holder):
    """One axis of a mesh, along which the leading axis of arrays is sharded.

    what: "lanes", "rows", "blocks" or "model", whose weights keep the shardings they have.
    """

    mesh: Mesh = eqx.field(static=True)
    axis: str = eqx.field(static=True)
    what: str = eqx.field(static=True, default="rows")

    @property
    def size(self) -> int:
        """How many devices there are along the axis."""
        return self.mesh.shape[self.axis]

    @property
    def split(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(self.axis))

    @property
    def everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def parts(self, count: int, most: int = PARTS) -> int:
        """Into how many parts ``count`` things are cut.

        They are the same for every number of devices that divides gcd(count, most).
        """
        return math.lcm(self.size, math.gcd(count, most))

    def each(self, fn: Callable[[PyTree, PyTree], PyTree], parts: PyTree, shared: PyTree) -> PyTree:
        """Maps ``fn(part, shared)`` over the leading axis of ``parts``, in turns on a device.

        Outcomes stay where they are made.
        """

        def here(parts: PyTree, shared: PyTree) -> PyTree:
            return jax.lax.map(lambda part: fn(part, shared), parts)

        return self._map(here, parts, shared, PartitionSpec(self.axis))

    def total_and_rows(
        self, fn: Callable[[PyTree], tuple[PyTree, PyTree]], rows: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Σ of the terms, always added in one order; the new rows stay with their devices."""
        parts = self.parts(_length(rows), PARTS)
        own = parts // self.size

        def here(rows: PyTree, traced: PyTree) -> tuple[PyTree, PyTree]:
            cut = jax.tree.map(lambda x: x.reshape(own, -1, *x.shape[1:]), rows)
            each, new = jax.lax.map(traced, cut)
            return jax.tree.map(in_order, each), jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), new)

        def in_order(each: Array) -> Array:
            each = jax.lax.all_gather(each, self.axis, tiled=True)
            zero = jnp.zeros(each.shape[1:], each.dtype)
            return jax.lax.fori_loop(0, parts, lambda k, sum: sum + each[k], zero)

        traced = trace(fn, _fewer(rows, parts))
        return self._map(here, rows, traced, (PartitionSpec(), PartitionSpec(self.axis)))

    def visit(
        self, fn: Callable[..., Any], rows: PyTree, table: PyTree, index: Array, each: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Visits every row on its device, one after the other; all devices are told the outcomes.

        So what is computed together does not depend on how many devices there are.
        """

        def here(held: tuple[PyTree, PyTree], shared: Any) -> tuple[PyTree, PyTree]:
            rows, table = held
            index, each, traced = shared
            position, mine = self._own(rows, index)
            first = jnp.argsort(~mine, stable=True)  # what this device has to do

            def one(k: Array, table: PyTree) -> tuple[PyTree, PyTree]:
                at = position[k]
                old = jax.tree.map(lambda x: x[at], table)
                outcome, new = traced(rows, at, old, jax.tree.map(lambda x: x[k], each))
                # A row that did not depend on the old one could be written before that is read, and
                # the compiler would copy the table.
                new = jax.tree.map(lambda x, y: x.astype(y.dtype) + 0 * y, new, old)
                return outcome, jax.tree.map(lambda x, y: x.at[at].set(y), table, new)

            shapes = jax.eval_shape(one, first[0], table)[0]
            none = jax.tree.map(lambda s: jnp.zeros((len(index), *s.shape), s.dtype), shapes)

            def turn(n: Array, carry: Any) -> Any:
                outcomes, table = carry
                outcome, table = one(first[n], table)
                return jax.tree.map(lambda x, y: x.at[first[n]].set(y), outcomes, outcome), table

            outcomes, table = jax.lax.fori_loop(0, jnp.sum(mine), turn, (none, table))
            return jax.tree.map(lambda x: self._shown(x, mine), outcomes), table

        number, row, single = (_row(tree) for tree in (index, table, each))
        traced = trace(fn, _fewer(rows, self.size), number, row, single)
        out = (PartitionSpec(), PartitionSpec(self.axis))
        return self._map(here, (rows, table), (index, each, traced), out)

    def take(self, rows: PyTree, index: Array) -> PyTree:
        """``rows[index]``, read by the devices that hold them; all devices are told."""

        def here(rows: PyTree, index: Array) -> PyTree:
            position, mine = self._own(rows, index)
            return jax.tree.map(lambda x: self._shown(x[position], mine), rows)

        return self._map(here, rows, index, PartitionSpec())

    def _map(self, fn: Callable[..., PyTree], rows: PyTree, shared: PyTree, out: Any) -> PyTree:
        """``fn(here, shared)`` with what every device holds of ``rows`` and all of ``shared``.

        Arrays that ``fn`` has closed over would keep their type of outside, so everything it needs is in
        ``shared``; what a caller has closed over is traced, and passed with its trace.
        """
        arrays, static = eqx.partition(shared, eqx.is_array)
        mapped = jax.shard_map(
            lambda here, arrays: fn(here, eqx.combine(arrays, static)),
            mesh=self.mesh,
            in_specs=(PartitionSpec(self.axis), PartitionSpec()),
            out_specs=out,
            check_vma=False,
        )
        return mapped(rows, arrays)

    def _own(self, rows: PyTree, index: Array) -> tuple[Array, Array]:
        """The positions of rows among those of this device, and whether it holds them."""
        count = _length(rows)
        position = index - jax.lax.axis_index(self.axis) * count
        mine = (position >= 0) & (position < count)
        return jnp.where(mine, position, 0), mine

    def _shown(self, x: Array, mine: Array) -> Array:
        """The entries of the devices that own them. As bits, for −0.0 + 0.0 is 0.0."""
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            words = self._shown(jax.random.key_data(x), mine)
            return jax.random.wrap_key_data(words, impl=jax.random.key_impl(x))
        kind = x.dtype
        truth = jnp.issubdtype(kind, jnp.bool_)
        if truth:
            x = x.astype(jnp.uint8)
        elif not jnp.issubdtype(kind, jnp.integer):
            x = jax.lax.bitcast_convert_type(x, f"uint{8 * kind.itemsize}")
        mask = mine.reshape(mine.shape + (1,) * (x.ndim - mine.ndim))
        x = jax.lax.psum(jnp.where(mask, x, jnp.zeros((), x.dtype)), self.axis)
        if truth:
            return x.astype(bool)
        return x if jnp.issubdtype(kind, jnp.integer) else jax.lax.bitcast_convert_type(x, kind)


def _length(rows: PyTree) -> int:
    return jax.tree.leaves(rows)[0].shape[0]


def _row(tree: PyTree) -> PyTree:
    """The shapes of one row."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), tree)


def _fewer(tree: PyTree, parts: int) -> PyTree:
    """The shapes of one of so many parts of some rows."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((x.shape[0] // parts, *x.shape[1:]), x.dtype), tree
    )


@holder_of.register
def _(sharding: NamedSharding, what: str = "rows") -> Holder:
    axes: list[Any] = list(sharding.spec)
    axis = axes[0] if axes else None
    axis = axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis
    mesh: Any = sharding.mesh
    return Sharded(mesh, axis, what) if isinstance(axis, str) else holder_of(None)
