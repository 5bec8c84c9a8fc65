"""nestax: stochastic multi-level compositional optimisation in JAX.

``import nestax`` is quick: the first public name that is asked for imports the library, so that
``nestax --help`` needs no JAX. The names themselves stand in ``nestax/names.py``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from nestax.version import __version__ as __version__

if TYPE_CHECKING:
    from nestax import nnx as nnx
    from nestax import sklearn as sklearn
    from nestax import torch as torch
    from nestax.names import *  # noqa: F403

#: Modules that need a package which is optional.
_OPTIONAL = ("sklearn", "torch", "nnx")


def _public() -> dict[str, Any]:
    """Every public name with what it stands for."""
    names = vars(importlib.import_module("nestax.names"))
    return {name: value for name, value in names.items() if not name.startswith("_")}


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module 'nestax' has no attribute {name!r}")
    if name in _OPTIONAL:
        return importlib.import_module(f"nestax.{name}")
    public = _public()
    globals().update(public)
    if name == "__all__":
        # Names for ``from nestax import *``, which would fail where PyTorch or Flax is missing.
        return sorted([*public, "sklearn"])
    if name in globals():
        return globals()[name]
    import difflib

    near = difflib.get_close_matches(name, public, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise AttributeError(f"module 'nestax' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return [*__getattr__("__all__"), "__version__"]
