"""Derivatives, ranges and noise of every level, along the chain of batch means."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.parts.estimator import Batches
from nestax.programs import compute, trace
from nestax.study.check.report import LevelCheck


def check_levels(
    problem: Problem, w: PyTree, batches: Batches, key: Array
) -> tuple[tuple[LevelCheck, ...], list[str], list[str]]:
    """Looks at every level: what was found, sentences about what is wrong, and advice."""
    findings = []
    sentences: list[str] = []
    advice: list[str] = []
    x = w
    around = None
    before = ""
    epsilon = float(jnp.finfo(problem.dtype).eps)
    for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
        level_key = jax.random.fold_in(key, i)
        if around is not None and not compute(_defined, level, around, batch["value"]):
            advice.append(
                f"level {level.name!r}: not finite where its input is off by the noise of one draw, as "
                f"a tracked value can be; give level {before!r} a project= into its domain."
            )
            around = None
        numbers, value, deviation = compute(_look, level, x, batch["value"], level_key, i == 0)
        around = compute(_around, level, value, deviation, around, batch["value"], level_key)
        before = level.name
        if not _steady(level, x, batch["value"]):
            sentences.append(
                f"level {level.name!r} is another function each time it is traced, as one is that draws "
                "from a generator of its own; a run sees one of them: let the draw bring what is random."
            )
        finding = LevelCheck(level.name, **{k: float(v) for k, v in numbers.items()})
        findings.append(finding)
        if not finding.gradient_error < 10 * epsilon ** (1 / 3):
            sentences.append(
                f"level {level.name!r}: its derivative differs from finite differences by "
                f"{finding.gradient_error:.1e}; is it smooth there, or has it a derivative of its own?"
            )
        if not finding.range_violation <= 1e3 * epsilon:
            sentences.append(
                f"level {level.name!r}: its value lies {finding.range_violation:.1e} outside the set "
                "that project= names, so the projection would bias it."
            )
        x = level.project(value)
    return tuple(findings), sentences, advice


def _steady(level: Level, x: PyTree, batch: Any) -> bool:
    """Whether tracing a level twice gives the same program."""
    known: dict[Any, Any] = {}
    first, second = (
        trace(lambda x, batch: level.value(x, batch), x, batch, shared=known) for _ in range(2)
    )
    pairs = zip(first.constants, second.constants, strict=False)
    return first.program == second.program and all(a is b or np.array_equal(a, b) for a, b in pairs)


def _look(
    level: Level, x: PyTree, batch: Any, key: Array, weights: bool
) -> tuple[dict[str, Array], PyTree, Any]:
    """What is found, the mean value, and the standard deviation of each of its entries, if measured."""
    value = level.value(x, batch)
    deviation = None
    flat, unravel = ravel_pytree(x)
    direction = jax.random.normal(key, flat.shape, flat.dtype)
    direction = direction / jnp.linalg.norm(direction)
    move = _reach(flat, weights) * direction

    def at(t: Any) -> Array:
        return ravel_pytree(level.value(unravel(flat + t * move), batch))[0]

    # Rounding and curvature err alike there: the error of a central difference is of order ε^(2/3).
    small = jnp.finfo(flat.dtype).eps ** (1 / 3)
    slope = jax.jvp(at, (jnp.zeros((), flat.dtype),), (jnp.ones((), flat.dtype),))[1]
    difference = (at(small) - at(-small)) / (2 * small)
    size = jnp.maximum(jnp.linalg.norm(slope), jnp.linalg.norm(ravel_pytree(value)[0]))
    numbers = {
        "gradient_error": jnp.linalg.norm(slope - difference)
        / jnp.maximum(size, jnp.finfo(flat.dtype).tiny),
        "range_violation": optax.tree.norm(optax.tree.sub(value, level.project(value)))
        / jnp.maximum(optax.tree.norm(value), 1.0),
        "noise": jnp.zeros(()),
        "jac_noise": jnp.zeros(()),
    }
    if batch is not None and not level.batched:

        def of_draw(k: Array) -> tuple[Array, Array]:
            """Returns the value of one draw, and its derivative along the direction."""

            def value(flat: Array) -> Array:
                return ravel_pytree(level.value(unravel(flat), batch.part(k, 1)))[0]

            return jax.jvp(value, (flat,), (direction,))

        values, slopes = jax.vmap(of_draw)(jnp.arange(batch.size))
        deviation = jnp.std(values, axis=0)
        numbers |= {"noise": _spread(values), "jac_noise": _spread(slopes)}
    return numbers, value, deviation


def _reach(flat: Array, weights: bool) -> Array:
    """Returns the length over which each entry of an input may be taken to vary.

    A value varies by parts of itself: what comes next may be a logarithm, and the entries of very
    different sizes. Weights often start near 0 and leave for sizes of about 1.
    """
    size = jnp.linalg.norm(flat)
    if weights:
        return jnp.maximum(size, 1.0)
    sizes = math.sqrt(flat.size) * jnp.abs(flat)
    return jnp.where(flat != 0, sizes, jnp.where(size > 0, size, 1.0))


def _around(
    level: Level, value: PyTree, deviation: Array | None, around: PyTree, batch: Any, key: Array
) -> PyTree:
    """Values of the level near its mean: each entry a standard deviation of one draw above or below.

    A level without noise of its own hands on what is around its input, None where that is exact.
    """
    if deviation is None:
        move = jax.vmap(lambda x: level.project(level.value(x, batch)))
        return None if around is None else move(around)
    flat, unravel = ravel_pytree(value)
    ends = jnp.asarray([[-1.0], [1.0]], flat.dtype) * jnp.ones_like(flat)
    signs = jnp.concatenate([ends, jax.random.rademacher(key, (6, flat.size), flat.dtype)])
    return jax.vmap(lambda sign: level.project(unravel(flat + sign * deviation)))(signs)


def _defined(level: Level, around: PyTree, batch: Any) -> Array:
    """Whether the level and its derivative are finite at all these inputs."""

    def is_finite(x: PyTree) -> Array:
        value, pull = level.value_and_pull(x, batch)
        return trees.all_finite((value, pull(jax.tree.map(jnp.ones_like, value))))

    return jnp.all(jax.vmap(is_finite)(around))


def _spread(rows: Array) -> Array:
    """Root mean square deviation of the rows, over the size of their mean."""
    rows = rows / jnp.maximum(jnp.max(jnp.abs(rows)), jnp.finfo(rows.dtype).tiny)
    mean = rows.mean(axis=0)
    return jnp.sqrt(jnp.sum(jnp.var(rows, axis=0))) / jnp.maximum(jnp.linalg.norm(mean), 1e-30)
