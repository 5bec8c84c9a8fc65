"""What lies on which device, and sums over all of them whose bits do not depend on their number.

A population or a table is cut into PARTS parts, each of which is summed by itself; the sums are added in
their order on every device. Rows are read and written by their owner. All of it is
``jax.shard_map`` over one axis of a mesh.
"""

import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from nestax.errors import SettingError, check_count

#: A population is summed in so many parts, and lanes run in at most so many, whatever the devices, as
#: long as their number divides it.
PARTS = 64
LANE_PARTS = 16


@dataclasses.dataclass(frozen=True)
class Spread:
    """One axis of a mesh, along which the leading axis of arrays is spread.

    what: "lanes", "rows", "blocks" or "model", whose weights keep the places they have.
    """

    mesh: Mesh
    axis: str
    what: str = "rows"

    @property
    def size(self) -> int:
        """How many devices share what is spread."""
        return self.mesh.shape[self.axis]

    @property
    def split(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(self.axis))

    @property
    def everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def parts(self, count: int, most: int) -> int:
        """Into how many parts ``count`` things are cut.

        They are the same for every number of devices that divides gcd(count, most).
        """
        return math.lcm(self.size, math.gcd(count, most))

    def map(
        self, fn: Callable[..., PyTree], spread: PyTree, shared: PyTree = (), gathered: bool = False
    ) -> PyTree:
        """``fn(here, shared)`` with what every device holds of ``spread`` and all of ``shared``.

        Arrays that ``fn`` has closed over would keep their type of outside, so everything it needs is in
        ``shared``. Outcomes lie where they are made; or everywhere, if they are the same there.
        """
        out = PartitionSpec() if gathered else PartitionSpec(self.axis)
        return self._map(fn, spread, shared, out)

    def _map(self, fn: Callable[..., PyTree], spread: PyTree, shared: PyTree, out: Any) -> PyTree:
        arrays, static = eqx.partition(shared, eqx.is_array)
        mapped = jax.shard_map(
            lambda here, arrays: fn(here, eqx.combine(arrays, static)),
            mesh=self.mesh,
            in_specs=(PartitionSpec(self.axis), PartitionSpec()),
            out_specs=out,
            check_vma=False,
        )
        return mapped(spread, arrays)

    def each(self, fn: Callable[[PyTree, PyTree], PyTree], parts: PyTree, shared: PyTree) -> PyTree:
        """``fn(part, shared)`` of every part, along the leading axis, in turns on a device."""
        here = lambda parts, shared: jax.lax.map(lambda part: fn(part, shared), parts)
        return self.map(here, parts, shared)

    def total(self, fn: Callable[[PyTree, PyTree], PyTree], rows: PyTree, shared: PyTree) -> PyTree:
        """Σ fn(part, shared) over the parts of some rows, always added in one order."""
        return self.total_and_rows(lambda part, shared: (fn(part, shared), ()), rows, shared)[0]

    def total_and_rows(
        self, fn: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]], rows: PyTree, shared: PyTree
    ) -> tuple[PyTree, PyTree]:
        """The same of the first that ``fn`` returns; the second are new rows, which stay there."""
        parts = self.parts(_length(rows), PARTS)
        own = parts // self.size

        def here(rows: PyTree, shared: PyTree) -> tuple[PyTree, PyTree]:
            cut = jax.tree.map(lambda x: x.reshape(own, -1, *x.shape[1:]), rows)
            each, new = jax.lax.map(lambda part: fn(part, shared), cut)
            return jax.tree.map(in_order, each), jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), new)

        def in_order(each: Array) -> Array:
            each = jax.lax.all_gather(each, self.axis, tiled=True)
            zero = jnp.zeros(each.shape[1:], each.dtype)
            return jax.lax.fori_loop(0, parts, lambda k, sum: sum + each[k], zero)

        return self._map(here, rows, shared, (PartitionSpec(), PartitionSpec(self.axis)))

    def visit(
        self,
        fn: Callable[..., tuple[PyTree, PyTree]],
        rows: PyTree,
        table: PyTree,
        index: Array,
        shared: PyTree,
    ) -> tuple[PyTree, PyTree]:
        """``fn(rows, place, k, row, shared) = (outcome, new row)`` for each of some rows, by its owner.

        One after the other, so that what is computed together does not depend on how many devices there
        are. Outcomes are handed to all, in the order of ``index``.

        Args:
            rows: what is read, of which a device has its own; ``place`` says where row k is among them.
            table: of what is read and replaced, with as many rows; it may be empty.
            index: the numbers of the rows, none of them twice.
        """

        def here(held: PyTree, arguments: Any) -> tuple[PyTree, PyTree]:
            rows, table = held
            index, shared = arguments
            place, mine = self._own(rows, index)
            first = jnp.argsort(~mine, stable=True)  # what this device has to do

            def one(k: Array, table: PyTree) -> tuple[PyTree, PyTree]:
                old = jax.tree.map(lambda x: x[place[k]], table)
                outcome, new = fn(rows, place[k], k, old, shared)
                # A row that did not depend on the old one could be written before that is read, and
                # the compiler would copy the table.
                new = jax.tree.map(lambda x, y: x.astype(y.dtype) + 0 * y, new, old)
                return outcome, jax.tree.map(lambda x, y: x.at[place[k]].set(y), table, new)

            shapes = jax.eval_shape(one, first[0], table)[0]
            none = jax.tree.map(lambda s: jnp.zeros((len(index), *s.shape), s.dtype), shapes)

            def turn(n: Array, carry: Any) -> Any:
                outcomes, table = carry
                outcome, table = one(first[n], table)
                return jax.tree.map(lambda x, y: x.at[first[n]].set(y), outcomes, outcome), table

            outcomes, table = jax.lax.fori_loop(0, jnp.sum(mine), turn, (none, table))
            return jax.tree.map(lambda x: self._shown(x, mine), outcomes), table

        out = (PartitionSpec(), PartitionSpec(self.axis))
        return self._map(here, (rows, table), (index, shared), out)

    def first(self, fn: Callable[[PyTree, PyTree], PyTree], rows: PyTree, shared: PyTree) -> PyTree:
        """``fn`` of the first row that a device holds; for what is the same for every row."""
        here = lambda rows, shared: fn(jax.tree.map(lambda x: x[:1], rows), shared)
        return self.map(here, rows, shared, gathered=True)

    def take(self, rows: PyTree, index: Array) -> PyTree:
        """``rows[index]``, read by the devices that hold them, and handed to all."""

        def here(rows: PyTree, index: Array) -> PyTree:
            place, mine = self._own(rows, index)
            return jax.tree.map(lambda x: self._shown(x[place], mine), rows)

        return self.map(here, rows, index, gathered=True)

    def put(self, rows: PyTree, index: Array, new: PyTree) -> PyTree:
        """``rows`` with those of some numbers replaced, written by the devices that hold them."""

        def here(rows: PyTree, shared: Any) -> PyTree:
            index, new = shared
            place, mine = self._own(rows, index)
            place = jnp.where(mine, place, _length(rows))  # outside, where nothing is written
            return jax.tree.map(lambda x, y: x.at[place].set(y, mode="drop"), rows, new)

        return self.map(here, rows, (index, new))

    def _own(self, rows: PyTree, index: Array) -> tuple[Array, Array]:
        """Where rows lie among those of this device, and whether they do."""
        count = _length(rows)
        place = index - jax.lax.axis_index(self.axis) * count
        mine = (place >= 0) & (place < count)
        return jnp.where(mine, place, 0), mine

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


# What the user asks for


def spread_over(mesh: Any, shard: str, known: tuple[str, ...]) -> Spread | None:
    """The axis that ``mesh=`` and ``shard=`` mean; None without a mesh.

    Args:
        mesh: a mesh, or a number of devices.
        shard: what is spread, which is also the name of the axis in a mesh of several.
        known: what may be spread here.
    """
    if shard not in known:
        raise SettingError(f"the devices can share {', '.join(known)} here; got {shard!r}.")
    return None if mesh is None else _axis_of(mesh, shard)


def _axis_of(mesh: Any, shard: str) -> Spread:
    _check_started()
    if isinstance(mesh, int | np.integer):
        mesh = line_of(check_count("devices", mesh), shard)
    if not isinstance(mesh, Mesh):
        raise SettingError(
            "devices must be a number of devices, or a jax.sharding.Mesh such as jax.make_mesh((4,), "
            f"({shard!r},), axis_types=(jax.sharding.AxisType.Auto,)); got {type(mesh).__name__}."
        )
    if any(kind != AxisType.Auto for kind in mesh.axis_types):
        raise SettingError(
            "mesh must have axes of the type Auto, which jax.make_mesh(shape, names, "
            "axis_types=(jax.sharding.AxisType.Auto,) * len(names)) makes."
        )
    names: list[str] = list(mesh.axis_names)
    if shard not in names and len(names) > 1:
        raise SettingError(f"mesh has the axes {', '.join(names)}: call one of them {shard!r}.")
    missing = jax.process_count() - len({device.process_index for device in mesh.devices.flat})
    if missing:
        raise SettingError(
            f"mesh has no device of {missing} of the {jax.process_count()} processes: make it of "
            "jax.devices(), or leave devices out and let every process run by itself."
        )
    return Spread(mesh, shard if shard in names else names[0], shard)


def line_of(count: int, axis: str) -> Mesh:
    """A mesh of one axis with so many devices."""
    devices = jax.devices()
    if count > len(devices):
        hint = ""
        if devices[0].platform == "cpu":
            hint = (
                "; a processor counts as one, unless XLA_FLAGS="
                f"--xla_force_host_platform_device_count={count} is set before Python starts"
            )
        raise SettingError(f"devices={count} asks for more than the {len(devices)} there are{hint}.")
    return Mesh(np.asarray(devices[:count]), (axis,), axis_types=(AxisType.Auto,))


def check_divides(spread: Spread, what: str, count: int) -> None:
    """Refuses what the devices cannot share equally."""
    if count % spread.size:
        fits = count // spread.size * spread.size or spread.size
        raise SettingError(
            f"{count:,} {what} cannot be shared equally by {spread.size} devices: take {fits:,} {what}, "
            f"or a mesh whose size divides {count:,}."
        )


#: What launchers tell every process: how many of them there are.
LAUNCHERS = {"SLURM_STEP_NUM_TASKS": "Slurm", "OMPI_COMM_WORLD_SIZE": "Open MPI"}


def _check_started() -> None:
    """Refuses one of several processes that do not know of each other."""
    if jax.distributed.is_initialized():
        return
    for name, launcher in LAUNCHERS.items():
        tasks = os.environ.get(name, "1")
        if tasks.isdecimal() and int(tasks) > 1:
            raise SettingError(
                f"this is one of {tasks} processes of {launcher}, and they do not know of each other: "
                "call jax.distributed.initialize() before anything is computed, or leave devices out."
            )


# Arrays at their place


def at_place(tree: PyTree, sharding: NamedSharding, placed: dict[int, Any] | None = None) -> PyTree:
    """Arrays where they belong; those that lie on several devices already keep their place.

    What is one array stays one, also in several calls that share ``placed``.
    """
    placed = {} if placed is None else placed
    leaves, treedef = jax.tree.flatten(tree)
    for x in leaves:
        if id(x) not in placed:
            placed[id(x)] = _at_place(x, sharding)
    return treedef.unflatten([placed[id(x)] for x in leaves])


def _at_place(x: Any, sharding: NamedSharding) -> Any:
    if not isinstance(x, jax.Array | np.ndarray):
        return x
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        # Typed keys do not cross to other processes; their words do.
        words = _at_place(jax.random.key_data(x), sharding)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(x))
    if isinstance(x, jax.Array) and (len(x.devices()) > 1 or not x.is_fully_addressable):
        return x
    if jax.process_count() == 1:
        return jax.device_put(x, sharding)
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, sharding, lambda part: host[part])


def found_on(x: Any, what: str = "rows") -> Spread | None:
    """How an array that has arrived is spread along its leading axis; None if it is not."""
    sharding = getattr(x, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return None
    axes: list[Any] = list(sharding.spec)
    axis = axes[0] if axes else None
    axis = axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis
    mesh: Any = sharding.mesh
    return Spread(mesh, axis, what) if isinstance(axis, str) else None


# Weights that no device holds whole


def spread_of_weights(w: PyTree) -> Spread | None:
    """The mesh on which weights have arrived in pieces; None if they have not."""
    for x in jax.tree.leaves(w):
        sharding: Any = getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            return Spread(cast(Mesh, sharding.mesh), sharding.mesh.axis_names[0], "model")
    return None


def weights_in_pieces(w: PyTree, spread: Spread) -> PyTree:
    """The place of every array of weights: where it has arrived in pieces, or cut along its longest axis
    that the devices divide; on all of them whole if there is none."""

    def place(x: Any) -> NamedSharding:
        arrived = getattr(x, "sharding", None)
        if isinstance(arrived, NamedSharding) and arrived.mesh == spread.mesh:
            return arrived
        axes = [k for k, n in enumerate(x.shape) if n % spread.size == 0 and n > 0]
        if not axes:
            return spread.everywhere
        longest = max(axes, key=lambda k: x.shape[k])
        return NamedSharding(spread.mesh, PartitionSpec(*[None] * longest, spread.axis))

    return jax.tree.map(place, w)


def beside_weights(shape: tuple[int, ...], places: dict[tuple[int, ...], NamedSharding]) -> Any:
    """The place of an array that is carried, from those of weights by their shape; None for others.

    An array whose last axes are those of weights, as of gradients and derivatives, lies as they do.
    """
    for last, place in places.items():
        if last and shape[len(shape) - len(last) :] == last:
            before = [None] * (len(shape) - len(last))
            return NamedSharding(place.mesh, PartitionSpec(*before, *place.spec))
    return None
