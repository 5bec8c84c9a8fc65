"""Names that have moved. Each works for one more release, with a warning that names its new place."""

import importlib
import sys
import types
import warnings
from typing import Any

#: The release without them.
GONE = "0.3"
#: Names of ``nestax`` and its modules, and where they are now.
NAMES = {
    "Stage": "theory.Stage",
    "halving": "theory.halving",
    "regularised": "theory.regularised",
    "estimate_constants": "theory.estimate_constants",
    "rates": "study.rates",
    "Tasks": "problems.Tasks",
    "networks": "problems.networks",
    "problems.global_contrastive": "problems.contrastive",
}
#: Modules that the documentation has named, and where what they held is now.
MODULES = {
    "nestax.estimator": "nestax.parts",
    "nestax.jacobian": "nestax.parts",
    "nestax.tracking": "nestax.parts",
    "nestax.experiments": "nestax.paper",
}


def moved_name(name: str, stacklevel: int = 3) -> Any:
    """What one of ``NAMES`` stands for."""
    _warn(f"nestax.{name}", f"nestax.{NAMES[name]}", stacklevel + 1)
    module, _, attribute = NAMES[name].rpartition(".")
    return getattr(importlib.import_module(f"nestax.{module}"), attribute)


class MovedModule(types.ModuleType):
    """A module whose content is elsewhere."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        new = MODULES[self.__name__]
        _warn(f"{self.__name__}.{name}", f"{new}.{name}", 3)
        return getattr(importlib.import_module(new), name)


def install() -> None:
    """Makes the old modules importable."""
    for name in MODULES:
        sys.modules.setdefault(name, MovedModule(name))


def _warn(old: str, new: str, stacklevel: int) -> None:
    sentence = f"{old} is now {new}; the old name goes with version {GONE}."
    warnings.warn(sentence, DeprecationWarning, stacklevel=stacklevel)
