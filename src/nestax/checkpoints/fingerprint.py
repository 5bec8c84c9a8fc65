"""What a run is, in parts with names, so that another run can be told from it and the difference said.

The program is the StableHLO text of the start, one step and one record, which is equal in two processes
and whatever a run is cut into. Every array that goes into it is hashed beside it. Versions of packages
are no part of it. The number of steps counts only where it enters a schedule.
"""

import dataclasses
import hashlib
import re
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from nestax.chain.structure import origins_of
from nestax.devices.asked import sharded_in
from nestax.devices.hosts import gathered
from nestax.devices.rows import LANE_PARTS, Sharded
from nestax.draws.blocks import AbstractBlocks
from nestax.draws.rows import HERE, held_by
from nestax.loop.chunks import Compiled
from nestax.loop.core import run_of
from nestax.loop.step import Lane
from nestax.programs import kept
from nestax.streams.feed import with_room
from nestax.streams.stream import Stream
from nestax.trees import Shapes, as_host, shapes_of

#: Arrays of up to so many entries are written out, larger ones hashed.
SHOWN_ENTRIES = 4
#: So many differences are told, and so many characters of a line of the program.
TOLD = 4
TOLD_CHARACTERS = 100


class Fingerprint(NamedTuple):
    """parts: JSON values by name. program: the text whose hash is one of them."""

    parts: dict[str, Any]
    program: str


def fingerprint(compiled: Compiled, steps: int, facts: dict[str, Any]) -> Fingerprint:
    """Takes a run apart into named parts.

    Args:
        steps: the number of steps, which counts where the horizon enters the program.
        facts: parts that only the caller knows.
    """
    lane = compiled.lane
    plan = compiled.lane.plan
    problem = lane.problem
    shared = _shared(compiled)
    problem = with_room(problem, compiled.feed.courses)  # how many rows are at hand says nothing
    if sharded_in(problem) is not None:  # nor does it how many devices share them
        problem = held_by(problem, HERE)
    run = compiled.run
    if problem is not lane.problem:
        run = run_of(dataclasses.replace(lane, problem=problem), run.settings, run.key)
    run = eqx.tree_at(lambda run: run.arrays.horizon, run, None)
    structure = jax.tree.structure(run)
    shapes = shapes_of((lane.horizon, jax.tree.leaves(run)))
    text, enters = kept((_program, structure, shapes), lambda: _program(structure, shapes))
    parts = dict(facts) | shared
    if enters:
        parts["steps"] = steps
    for level, size, first in zip(lane.problem.levels, plan.sizes, plan.first_sizes, strict=True):
        parts[f"shape of level {level.name!r}"] = str(level.shape.outputs)
        if not level.deterministic:
            parts[f"batch_size of level {level.name!r}"] = size
            parts[f"init_batch_size of level {level.name!r}"] = first
        if isinstance(level.source, Stream):
            parts[f"stream of level {level.name!r}"] = level.source.reader.about
            if level.source.reader.own:
                read_by = jax.process_count() if compiled.hosts.many else 1
                parts[f"number of processes that read level {level.name!r}"] = read_by
    for level, most in zip(lane.problem.levels, lane.micro_batch, strict=True):
        if most is not None:
            parts[f"micro_batch of level {level.name!r}"] = most
    parts["columns"] = list(plan.columns)
    lasting = jax.tree.map(
        lambda x: None if isinstance(x, Stream) else x, run, is_leaf=lambda x: isinstance(x, Stream)
    )
    parts |= _arrays(lasting, lane)
    parts["program"] = hashlib.sha256(text.encode()).hexdigest()
    return Fingerprint(parts, text)


def _shared(compiled: Compiled) -> dict[str, Any]:
    """Into how many parts devices have cut what they share, which is what the last digits depend on."""
    parts = {}
    if compiled.in_lanes and compiled.sharded is not None:
        parts["parts of the settings"] = compiled.sharded.parts(compiled.lanes[0], LANE_PARTS)
    for level in compiled.lane.problem.levels:
        source = level.source
        if source is None or not isinstance(source.holder, Sharded):
            continue
        if isinstance(source, AbstractBlocks):
            parts["parts of the blocks"] = source.holder.parts(source.blocks or 0)
        elif source.size:
            parts[f"parts of the rows of level {level.name!r}"] = source.holder.parts(source.size)
    return parts


def _program(structure: Any, shapes: Shapes) -> tuple[str, bool]:
    """Returns the text of a program, and whether the horizon enters it; equal runs share it."""

    def program(horizon: Any, leaves: Any, step: Any) -> Any:
        run = structure.unflatten(leaves)
        whole = eqx.tree_at(lambda x: x.arrays.horizon, run, horizon, is_leaf=lambda x: x is None)
        return whole.in_short(step)

    traced = jax.jit(program).trace(*shapes.structs(), jnp.asarray(1, jnp.int32))
    # For one platform, so that the text does not depend on where the run began.
    text = traced.lower(lowering_platforms=("cpu",)).as_text()
    return text, any(0 in origin.arguments for origin in origins_of(traced.jaxpr.jaxpr))


def _arrays(run: Any, lane: Lane) -> dict[str, str]:
    """Describes every array once, under the first of its names."""
    out = {}
    seen = set()
    closed_over = 0
    for path, x in jax.tree_util.tree_flatten_with_path(run)[0]:
        if id(x) in seen:
            continue
        seen.add(id(x))
        name = _plainly(jax.tree_util.keystr(path), lane)
        if name.startswith("functions."):
            closed_over += 1
            name = f"array {closed_over} that functions have closed over"
        out[name] = described(x)
    return out


#: Numbers that were lifted out of an optimiser or a schedule, and what they are called.
INSIDE = {
    re.compile(r"^step\.optimizer\.\w+\.constants\[(\d+)\]$"): "number {} of the optimizer",
    re.compile(r"^(?P<of>.*)\.fn\.constants\[(\d+)\]$"): "number {} of the schedule {of}",
}


def _plainly(path: str, lane: Lane) -> str:
    """Names an array as a user would: what it is of a level, of the method, or inside."""
    path = path.removeprefix(".arrays")
    for i, level in enumerate(lane.problem.levels):
        before, here, part = path.rpartition(f".problem.levels[{i}].")
        if here:
            return f"{part.removeprefix('source.')} of level {level.name!r}{before}"
    path = path.removeprefix(".method").removeprefix(".")
    for pattern, words in INSIDE.items():
        match = pattern.match(path)
        if match:
            return words.format(int(match[match.re.groups]) + 1, **match.groupdict())
    return path


def described(x: Any) -> str:
    """Describes an array in a few words that no other array has."""
    host, kind = as_host(gathered(x))
    if host.size <= SHOWN_ENTRIES:
        return f"{kind or host.dtype} {host.tolist()}"
    digest = hashlib.sha256(np.ascontiguousarray(host).data).hexdigest()
    return f"{kind or host.dtype}{list(host.shape)} with SHA-256 {digest[:16]}"


def differences(then: dict[str, Any], now: Fingerprint) -> list[str]:
    """Lists what is not the same, a few words each, the program aside."""
    missing = object()
    out = []
    for name in [*then, *(name for name in now.parts if name not in then)]:
        was = then.get(name, missing)
        new = now.parts.get(name, missing)
        if was == new or name == "program":
            continue
        before, after = ("not there" if x is missing else shortly(x) for x in (was, new))
        out.append(f"{shortly(name)} was {before} and is {after}")
    return [*out[:TOLD], f"and {len(out) - TOLD} more"] if len(out) > TOLD else out


def shortly(x: Any) -> str:
    """Writes anything that a file may hold in a few words on one line."""
    return " ".join(str(x).split())[:TOLD_CHARACTERS]


def program_difference(then: str | None, now: str) -> str:
    """Shows the first line of a program that differs, which often holds the number that changed.

    Args:
        then: the text of then, if it is known.
    """
    if then is None:
        return ""
    pairs = zip(then.splitlines(), now.splitlines(), strict=False)
    was, new = next(((a, b) for a, b in pairs if a != b), ("its end", "its end"))
    was, new = (line.strip()[:TOLD_CHARACTERS] for line in (was, new))
    return f": in the compiled program {was!r} was and {new!r} is"
