"""What a run was made with: versions, device, precision."""

import datetime
import os
import platform
from typing import Any

import jax

from nestax.version import versions


def environment() -> dict[str, Any]:
    """Versions of what computes, the device and the precision, and the time of the call (UTC)."""
    devices = jax.devices()
    return {
        **versions(),
        "python": platform.python_version(),
        "system": platform.platform(aliased=True, terse=True),
        "device": " ".join(dict.fromkeys((devices[0].platform, devices[0].device_kind))),
        "devices": len(devices),
        "cores": cores(),
        "precision": "float64" if jax.config.read("jax_enable_x64") else "float32",
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def cores() -> int:
    """Returns processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
