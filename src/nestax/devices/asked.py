"""The devices of a run, as they are asked for, or as arrays have arrived on them."""

import dataclasses
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from nestax.devices.mesh import sharded_over
from nestax.devices.rows import Sharded


@dataclasses.dataclass(frozen=True)
class Devices:
    """Devices that compute one run together.

    Args:
        mesh: how many, or a ``jax.sharding.Mesh``.
        share: "rows" of populations; "blocks", and what methods remember of them; their number must
            divide that of these. "model": the weights, and all that is like them, each array along its
            longest axis that can be cut, or as it has arrived. In a sweep "lanes": whole settings, whose
            number they must divide; the bits are the same for every number of devices that divides
            gcd(settings, 16). By default rows, and lanes in a sweep.
    """

    mesh: int | Mesh
    share: str | None = None


def sharing(devices: Any, known: tuple[str, ...], problem: Any = None) -> Sharded | None:
    """Reads ``devices=``; without it, finds the devices that share arrays of a problem already.

    Args:
        devices: as the user gives it.
        known: what devices may share here, the first by default.
        problem: whose rows, blocks or, where they may be shared, weights may have arrived in pieces.
    """
    if devices is not None:
        asked = devices if isinstance(devices, Devices) else Devices(devices)
        return sharded_over(asked.mesh, asked.share or known[0], known)
    for x in jax.tree.leaves(problem.w0) if "model" in known else ():
        sharding = getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            mesh: Any = sharding.mesh
            return sharded_in(problem) or Sharded(mesh, mesh.axis_names[0], "model")
    return sharded_in(problem)


def sharded_in(problem: Any) -> Sharded | None:
    """Finds the devices that share the rows or the blocks of a problem; None if none do."""
    leaves = jax.tree.leaves(problem, is_leaf=lambda x: isinstance(x, Sharded))
    return next((x for x in leaves if isinstance(x, Sharded)), None)
