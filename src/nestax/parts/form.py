"""The form of what an estimator is given, which may come from anybody's own loop."""

from typing import Any

import nestax.trees as trees
from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.blocks import Visits
from nestax.draws.source import Batch, Coupling
from nestax.errors import SettingError, is_traced

#: What may be drawn for one pass of a level.
DRAWN = (Batch, Coupling, Visits)


def in_form(
    problem: Problem, passes: tuple[dict[str, Any], ...], batches: Any
) -> tuple[dict[str, Any], ...]:
    """One dictionary per level, from the names of its passes to batches; refuses anything else.

    The sentence shows the form. A deterministic level draws nothing, whatever is given for it.
    """
    levels = list(zip(problem.levels, passes, strict=True))
    fault = None
    if not isinstance(batches, list | tuple):
        fault = f"got {_words(batches)}"
    elif len(batches) != len(levels):
        fault = f"got {len(batches)} for {len(levels)} levels"
    else:
        faults = (_fault(*level, given) for level, given in zip(levels, batches, strict=True))
        fault = next(filter(None, faults), None)
    if fault is not None:
        form = ", ".join(_shown(*level) for level in levels)
        raise SettingError(
            f"batches must be one dictionary per level, innermost first, [{form}]; {fault}."
        )
    return tuple(
        dict.fromkeys(names) if level.deterministic else given
        for (level, names), given in zip(levels, batches, strict=True)
    )


def _fault(level: Level, names: dict[str, Any], given: Any) -> str | None:
    """What is wrong with what is given for a level, if anything is."""
    if level.deterministic:
        return None
    if not isinstance(given, dict):
        return f"level {level.name!r} has {_words(given)} instead of a dictionary"
    for name in names:
        if not isinstance(given.get(name), DRAWN):
            what = _words(given[name]) if name in given else "nothing"
            return f"level {level.name!r} has {what} for {name!r}"
    return None


def _shown(level: Level, names: dict[str, Any]) -> str:
    inside = ", ".join(f"{name!r}: nx.Batch(rows)" for name in names)
    return "{}" if level.deterministic else f"{{{inside}}}"


def _words(thing: Any) -> str:
    array = trees.is_array(thing) or is_traced(thing)
    return "an array" if array else type(thing).__name__
