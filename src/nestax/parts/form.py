"""The form of what an estimator is given, which may come from anybody's own loop."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

import nestax.trees as trees
from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.blocks import Visits
from nestax.draws.rows import Batch, Coupling
from nestax.errors import SettingError, is_traced

#: What may be drawn for one pass of a level.
DRAWN = (Batch, Coupling, Visits)


def in_form(
    problem: Problem, passes: tuple[dict[str, Any], ...], batches: Any
) -> tuple[dict[str, Any], ...]:
    """Returns one dictionary per level, from the names of its passes to batches; refuses anything else.

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
        if not _fits(level, given[name]):
            return (
                f"level {level.name!r} has a Batch of {_shapes(given[name].draws)} for {name!r}: rows "
                f"are one or more draws like {_shapes(_draw(level))}, stacked along a leading axis"
            )
    return None


def _fits(level: Level, batch: Any) -> bool:
    """Whether every array has an axis of draws, equally long, before those of one draw.

    How long the others are is the business of the function, which may take draws of several lengths.
    """
    if type(batch) is not Batch:
        return True
    draw = _draw(level)
    rows = jax.tree.leaves(batch.draws)
    alike = jax.tree.structure(batch.draws) == jax.tree.structure(draw)
    if not alike or not all(map(trees.is_array, rows)):
        return False
    axes = [x.ndim - len(example.shape) for x, example in zip(rows, jax.tree.leaves(draw), strict=True)]
    return set(axes) == {1} and len({len(x) for x in rows}) == 1 and len(rows[0]) > 0


def _draw(level: Level) -> PyTree:
    assert level.source is not None
    return level.source.example()


def _shown(level: Level, names: dict[str, Any]) -> str:
    inside = ", ".join(f"{name!r}: nx.Batch(rows)" for name in names)
    return "{}" if level.deterministic else f"{{{inside}}}"


def _shapes(draws: PyTree) -> str:
    """Of arrays, and the kind of anything else."""
    strange = [x for x in jax.tree.leaves(draws) if not hasattr(x, "shape")]
    if strange:
        return f"{type(strange[0]).__name__}s"
    return eqx.tree_pformat(draws, width=10_000, struct_as_array=True).replace("(numpy)", "")


def _words(thing: Any) -> str:
    array = trees.is_array(thing) or is_traced(thing)
    return "an array" if array else type(thing).__name__
