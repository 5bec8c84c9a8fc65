"""nestax: stochastic multi-level compositional optimisation in JAX.

Every public name is imported when it is first used, so that ``nestax --help`` needs no JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nestax import datasets as datasets
    from nestax import problems as problems
    from nestax import projections as projections
    from nestax import testing as testing
    from nestax.checking import check as check
    from nestax.errors import ProblemError as ProblemError
    from nestax.errors import SettingError as SettingError
    from nestax.estimator import AbstractEstimator as AbstractEstimator
    from nestax.estimator import Estimate as Estimate
    from nestax.estimator import Method as Method
    from nestax.estimators import SMVR as SMVR
    from nestax.estimators import AdjointSMVR as AdjointSMVR
    from nestax.estimators import Exact as Exact
    from nestax.estimators import Plain as Plain
    from nestax.estimators import ProductSMVR as ProductSMVR
    from nestax.estimators import SnapshotSMVR as SnapshotSMVR
    from nestax.evaluating import evaluate as evaluate
    from nestax.level import Level as Level
    from nestax.loop import draw_batches as draw_batches
    from nestax.minimizing import minimize as minimize
    from nestax.problem import Problem as Problem
    from nestax.record import COLUMNS as COLUMNS
    from nestax.result import Result as Result
    from nestax.result import Status as Status
    from nestax.result import load as load
    from nestax.source import Groups as Groups
    from nestax.source import Population as Population
    from nestax.source import Sampler as Sampler
    from nestax.sweeping import grid as grid
    from nestax.sweeping import sweep as sweep

_MODULES = ("datasets", "problems", "projections", "testing")
# No module may have the name of a function here: importing it would take the name.
_HOMES = {
    "check": "checking", "ProblemError": "errors", "SettingError": "errors",
    "AbstractEstimator": "estimator", "Estimate": "estimator", "Method": "estimator",
    "AdjointSMVR": "estimators", "Exact": "estimators", "Plain": "estimators",
    "ProductSMVR": "estimators", "SMVR": "estimators", "SnapshotSMVR": "estimators",
    "evaluate": "evaluating", "Level": "level", "draw_batches": "loop", "minimize": "minimizing",
    "Problem": "problem", "COLUMNS": "record", "Result": "result", "Status": "result",
    "load": "result", "Groups": "source", "Population": "source", "Sampler": "source",
    "grid": "sweeping", "sweep": "sweeping",
}  # fmt: skip

__all__ = sorted([*_MODULES, *_HOMES])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"nestax.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"nestax.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    import difflib

    near = difflib.get_close_matches(name, __all__, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise AttributeError(f"module 'nestax' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
