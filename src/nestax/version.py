"""The version of nestax, and of what it computes with."""

import functools
import importlib.metadata

__version__ = "0.2.0"
#: Packages whose version may change a last digit.
PACKAGES = ("jax", "jaxlib", "numpy", "optax", "equinox")


@functools.cache
def versions() -> dict[str, str]:
    """By the name of the package; nestax itself need not be installed."""
    return {"nestax": __version__} | {name: importlib.metadata.version(name) for name in PACKAGES}
