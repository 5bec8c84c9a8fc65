"""Whether levels make a chain: names, blocks and shapes, and what is said where they do not fit."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nestax.chain.level import Level
from nestax.draws.blocks import AbstractBlocks
from nestax.errors import ProblemError, is_traced, users_part
from nestax.trees import Shapes, shapes_of


def named(levels: Sequence[Level]) -> list[Level]:
    if isinstance(levels, Level) or not levels or not all(isinstance(v, Level) for v in levels):
        raise ProblemError("levels must be a list of at least one nx.Level, innermost first.")
    named = [
        level if level.name else level.replace(name=f"level {k}")
        for k, level in enumerate(levels, start=1)
    ]
    names = [level.name for level in named]
    if len(set(names)) < len(names):
        raise ProblemError(f"level names must differ; got {', '.join(names)}.")
    if all(level.deterministic for level in named):
        raise ProblemError(
            "no level has data, so there is nothing to sample: give at least one level data=..., "
            "or minimise the function with Optax alone."
        )
    return named


def check_blocks(levels: list[Level]) -> None:
    """One block axis for the whole chain."""
    drawing = [level for level in levels if level.data is not None]
    kinds = [
        (s.blocks, s.visit) if isinstance(s := level.data, AbstractBlocks) else None for level in drawing
    ]
    if len(set(kinds)) > 1:
        told = [
            "none" if kind is None else f"{kind[0] or 'endless'}, visiting {kind[1]}" for kind in kinds
        ]
        words = [f"{level.name!r} {kind or 'none'}" for level, kind in zip(drawing, told, strict=True)]
        raise ProblemError(
            "levels with blocks need the same number of blocks and of visits at every level that draws; "
            f"got {', '.join(words)}."
        )
    endless = [level for level, kind in zip(drawing, kinds, strict=True) if kind and kind[0] is None]
    for level in endless[1:]:
        if _draw_apart(endless[0].data, level.data):
            raise ProblemError(
                f"levels {endless[0].name!r} and {level.name!r} are about different outer draws: give "
                "both the same nx.Sampler as outer."
            )


def _draw_apart(one: Any, other: Any) -> bool:
    """Whether outer draws of two levels look alike and differ; some may hold a part of the others."""
    draws = [source.given(jax.random.key(0)) for source in (one, other)]
    leaves = list(map(jnp.asarray, jax.tree.leaves(draws)))
    if any(map(is_traced, leaves)) or shapes_of(draws[0]) != shapes_of(draws[1]):
        return False
    keys = [jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
    pairs = zip(keys, leaves, strict=True)
    words = [np.asarray(jax.random.key_data(x) if key else x) for key, x in pairs]
    half = len(words) // 2
    return any(x.tobytes() != y.tobytes() for x, y in zip(words[:half], words[half:], strict=True))


def fit_together(levels: list[Level], shape: Shapes) -> tuple[Level, ...]:
    """Binds every level to the output of the one before; refuses a chain that does not fit."""
    lines = [line_of("w", None, shape)]
    bound = []
    x = shape
    dtype = shape.leaves[0][1]

    def refuse(level: Level, why: str) -> ProblemError:
        chain = "\n".join([*lines, f"  {level.name:<12} <- does not fit"])
        return ProblemError(f"level {level.name!r} {why}\nThe chain so far:\n{chain}")

    for level in levels:
        try:
            level = level.bind(x.structs())
        except ProblemError:
            raise
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            if x is shape and type(x.structs()) in (tuple, list) and x.size == len(x.leaves):
                reason = f"w is a {type(x.structs()).__name__} of numbers, and jnp.asarray(w0) a vector."
            reason = reason if reason.endswith(".") else f"{reason}."
            why = f"cannot take the value before it, called as {_call_of(level, x)}: {reason}"
            raise refuse(level, why) from users_part(error)
        x = level.shape.outputs
        wrong = sorted({d for _, d in x.leaves} - {dtype})
        if not x.leaves:
            raise refuse(level, f"returns nothing: it must return {dtype}, as w is.")
        if wrong:
            raise refuse(
                level,
                f"returns {', '.join(wrong)} where w is {dtype}: every level must return {dtype}.",
            )
        lines.append(line_of(level.name, level, x))
        bound.append(level)
    if x.treedef != jax.tree.structure(0) or x.leaves[0][0] != ():
        raise ProblemError(
            f"the last level, {bound[-1].name!r}, must return one scalar; it returns {x}.\n"
            "The chain:\n" + "\n".join(lines)
        )
    return tuple(bound)


def _call_of(level: Level, x: Shapes) -> str:
    """How a level is called, and with arrays of which shapes."""
    if level.deterministic:
        return f"fn(x, *args) with x {x.in_short()}"
    call = f"fn(x, draw, *args) with x {x.in_short()}"
    rows = level.source
    if rows is None or rows.size is None or level.batched or isinstance(level.data, AbstractBlocks):
        return call
    return f"{call} and draw {shapes_of(rows.example()).in_short()}"


def refuse_batches(old: Level, new: Level) -> None:
    """Refuses what is fed if its rows have an axis more than those that the level had before."""
    sources = [level.source for level in (old, new) if level.source is not None]
    if len(sources) < 2 or not sources[1].fed:
        return
    ndims = [[x.ndim for x in jax.tree.leaves(source.example())] for source in sources]
    if [n + 1 for n in ndims[0]] == ndims[1]:
        raise ProblemError(
            f"the rows given to level {new.name!r} have one axis more than its rows before: if every "
            "item of the iterator is a batch of rows, say nx.Stream(..., batches=True)."
        )


def line_of(name: str, level: Level | None, shape: Shapes) -> str:
    return f"  {name:<12} {draws_of(level):<14} {shape.in_short()}"


def draws_of(level: Level | None) -> str:
    """What a level draws from, in a word or two; of None, which stands for w."""
    if level is None:
        return "weights"
    if isinstance(blocks := level.data, AbstractBlocks):
        count = "endless" if blocks.blocks is None else f"{blocks.blocks:,}"
        return f"{count} blocks" if blocks.draws else "deterministic"
    if level.source is None:
        return "deterministic"
    if level.source.size is None:
        return type(level.source).__name__.lower()
    return f"{level.source.size:,} rows"
