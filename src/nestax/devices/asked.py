"""The devices of a run, as they are asked for."""

import dataclasses
from typing import Any

from jax.sharding import Mesh

from nestax.devices.spread import Spread, spread_over


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


def sharing(devices: Any, known: tuple[str, ...]) -> Spread | None:
    """What ``devices=`` means, where devices may share what is ``known``, the first by default."""
    if devices is None:
        return None
    asked = devices if isinstance(devices, Devices) else Devices(devices)
    return spread_over(asked.mesh, asked.share or known[0], known)
