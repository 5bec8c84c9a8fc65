"""What the user asks for: devices that share something, and where arrays lie then."""

import os
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from nestax.chain.problem import Problem
from nestax.devices.rows import Sharded
from nestax.draws.blocks import AbstractBlocks
from nestax.draws.rows import held_by
from nestax.draws.source import AbstractSource
from nestax.errors import ProblemError, SettingError, check_count


def sharded_over(mesh: Any, shard: str, known: tuple[str, ...]) -> Sharded:
    """Finds the axis of a mesh along which something is shared.

    Args:
        mesh: a mesh, or a number of devices.
        shard: what the devices share, which is also the name of the axis in a mesh of several.
        known: what they may share here.
    """
    if shard not in known:
        raise SettingError(f"the devices can share {', '.join(known)} here; got {shard!r}.")
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
    return Sharded(mesh, shard if shard in names else names[0], shard)


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


def check_divides(sharded: Sharded, what: str, count: int) -> None:
    """Refuses what the devices cannot share equally."""
    if count % sharded.size:
        fits = count // sharded.size * sharded.size or sharded.size
        raise SettingError(
            f"{count:,} {what} cannot be shared equally by {sharded.size} devices: take {fits:,} "
            f"{what}, or a mesh whose size divides {count:,}."
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


# Arrays where they belong


def at_place(tree: PyTree, sharding: NamedSharding, placed: dict[int, Any] | None = None) -> PyTree:
    """Puts arrays on devices; those that lie on several already keep their sharding.

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


def shard(problem: Problem, sharded: Sharded) -> Problem:
    """Hands the rows, or the blocks, of all sources of a problem to the devices that share them."""
    placed: dict[int, Any] = {}
    return problem.with_sources(lambda source: shard_source(source, sharded, placed))


def shard_source(source: AbstractSource, sharded: Sharded, placed: dict[int, Any]) -> AbstractSource:
    """Hands the rows of one source to devices; as it is where there are none, or others hold them."""
    if isinstance(source.holder, Sharded):
        return source
    blocks = isinstance(source, AbstractBlocks)
    arrays = jax.tree.leaves(source.held)
    if not arrays and blocks:
        raise ProblemError(
            "blocks that are simulators have no rows that devices could share: leave devices out."
        )
    if not arrays:
        return source
    check_divides(sharded, "blocks" if blocks else "rows", len(arrays[0]))

    def put(x: Any) -> Any:
        # A number for a block is known to all.
        known = blocks and x.ndim == 1
        return at_place(x, sharded.everywhere if known else sharded.split, placed)

    there = eqx.tree_at(lambda source: jax.tree.leaves(source.held), source, list(map(put, arrays)))
    return held_by(there, sharded)


# Weights that no device holds whole


def weights_in_pieces(w: PyTree, sharded: Sharded) -> PyTree:
    """Chooses the sharding of every array of weights.

    It is the one with which it has arrived, or cut along its longest axis that the devices divide; it is
    replicated if there is none.
    """

    def sharding(x: Any) -> NamedSharding:
        arrived = getattr(x, "sharding", None)
        if isinstance(arrived, NamedSharding) and arrived.mesh == sharded.mesh:
            return arrived
        axes = [k for k, n in enumerate(x.shape) if n % sharded.size == 0 and n > 0]
        if not axes:
            return sharded.everywhere
        longest = max(axes, key=lambda k: x.shape[k])
        return NamedSharding(sharded.mesh, PartitionSpec(*[None] * longest, sharded.axis))

    return jax.tree.map(sharding, w)


def beside_weights(shape: tuple[int, ...], known: dict[tuple[int, ...], NamedSharding]) -> Any:
    """Finds the sharding of a carried array from those of weights, by its shape; None for others.

    An array whose last axes are those of weights, as of gradients and derivatives, lies as they do.
    """
    for last, sharding in known.items():
        if last and shape[len(shape) - len(last) :] == last:
            before = [None] * (len(shape) - len(last))
            return NamedSharding(sharding.mesh, PartitionSpec(*before, *sharding.spec))
    return None
