"""nestax: stochastic multi-level compositional optimisation in JAX.

Every public name is imported when it is first used, so that ``nestax --help`` needs no JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nestax import datasets as datasets
    from nestax import linear_oracles as linear_oracles
    from nestax import networks as networks
    from nestax import problems as problems
    from nestax import projections as projections
    from nestax import sklearn as sklearn
    from nestax import steps as steps
    from nestax import testing as testing
    from nestax import theory as theory
    from nestax.blocks import Blocks as Blocks
    from nestax.checking import check as check
    from nestax.comparing import Comparison as Comparison
    from nestax.comparing import compare as compare
    from nestax.constants import estimate_constants as estimate_constants
    from nestax.errors import ProblemError as ProblemError
    from nestax.errors import SettingError as SettingError
    from nestax.estimator import AbstractEstimator as AbstractEstimator
    from nestax.estimator import Estimate as Estimate
    from nestax.estimator import Method as Method
    from nestax.estimators import *  # noqa: F403
    from nestax.evaluating import evaluate as evaluate
    from nestax.level import Level as Level
    from nestax.loop import draw_batches as draw_batches
    from nestax.minimizing import minimize as minimize
    from nestax.per_block import PerBlock as PerBlock
    from nestax.problem import Problem as Problem
    from nestax.problem import Prox as Prox
    from nestax.rating import rates as rates
    from nestax.record import COLUMNS as COLUMNS
    from nestax.registry import cite as cite
    from nestax.registry import methods as methods
    from nestax.result import Result as Result
    from nestax.result import Status as Status
    from nestax.result import load as load
    from nestax.source import Groups as Groups
    from nestax.source import Population as Population
    from nestax.source import Sampler as Sampler
    from nestax.staging import regularised as regularised
    from nestax.staging import solve_stages as solve_stages
    from nestax.stream import Stream as Stream
    from nestax.sweeping import grid as grid
    from nestax.sweeping import sweep as sweep
    from nestax.tasks import Tasks as Tasks
    from nestax.theory import Stage as Stage
    from nestax.theory import halving as halving
    from nestax.tuning import autotune as autotune

_MODULES = (
    "datasets", "linear_oracles", "networks", "problems", "projections", "sklearn", "steps", "testing",
    "theory",
)  # fmt: skip
# No module may have the name of a function here: importing it would take the name.
_HOMES = {
    "check": "checking", "compare": "comparing", "Comparison": "comparing", "cite": "registry",
    "methods": "registry", "ProblemError": "errors", "SettingError": "errors",
    "AbstractEstimator": "estimator", "Estimate": "estimator", "Method": "estimator",
    "evaluate": "evaluating", "Level": "level", "draw_batches": "loop", "minimize": "minimizing",
    "Problem": "problem", "Prox": "problem", "COLUMNS": "record", "Result": "result",
    "Status": "result", "load": "result", "Groups": "source", "Population": "source",
    "Sampler": "source", "Stream": "stream", "grid": "sweeping", "sweep": "sweeping",
    "regularised": "staging", "solve_stages": "staging", "Stage": "theory", "halving": "theory",
    "rates": "rating", "Blocks": "blocks", "Tasks": "tasks", "PerBlock": "per_block",
    "autotune": "tuning", "estimate_constants": "constants",
}  # fmt: skip


def _names() -> list[str]:
    """Every public name; the methods are those that ``nestax.estimators`` imports."""
    methods = importlib.import_module("nestax.estimators").__all__
    return sorted([*_MODULES, *_HOMES, *methods])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"nestax.{name}")
    if name == "__all__":
        return _names()
    # A method is any other name with a capital; importing one of our own modules asks here too, in
    # lower case, before anything may be imported.
    home = _HOMES.get(name, "estimators" if name[0].isupper() else None)
    value = None if home is None else getattr(importlib.import_module(f"nestax.{home}"), name, None)
    if value is not None:
        globals()[name] = value
        return value
    import difflib

    known = _names() if name[0].isupper() else [*_MODULES, *_HOMES]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise AttributeError(f"module 'nestax' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return [*_names(), "__version__"]
