"""Looks at a problem before it is run: derivatives, ranges, noise, and a batch size to begin with."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.jacobian import pull_through
from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.chain.tracing import compute
from nestax.errors import check_count
from nestax.parts.estimator import draw_batches
from nestax.streams.feed import with_first_rows

#: Draws that are looked at side by side, over all blocks.
MOST_ROWS = 2**16


@dataclasses.dataclass(frozen=True)
class LevelCheck:
    """What was found at one level.

    gradient_error: largest relative distance between the derivative along a random direction and
        central differences.
    range_violation: how far the exact value lies outside the set that ``project`` claims holds it.
    noise: standard deviation of one draw's value, over the size of the exact value.
    jac_noise: the same for the derivative along a random direction.
    """

    name: str
    gradient_error: float
    range_violation: float
    noise: float
    jac_noise: float


@dataclasses.dataclass(frozen=True)
class Report:
    """Result of ``check``; print it.

    exact_error: relative distance of the closed form ``exact=`` from the population, if given.
    batch_size: where the noise of a plain gradient is as large as the gradient itself, to the next
        power of two and at most 1,024. Methods with memory do well with less, plain ones need more.
    problems: sentences about what is wrong; empty if nothing is.
    advice: sentences about levels that noise may carry out of their domain; a run may go well all the
        same.
    """

    levels: tuple[LevelCheck, ...]
    exact_error: float | None
    batch_size: int
    problems: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        words = f"{'level':<14}{'gradient error':>16}{'outside range':>16}"
        head = words + f"{'noise':>12}{'Jacobian noise':>16}"
        rows = [
            f"{c.name:<14}{c.gradient_error:>16.1e}{c.range_violation:>16.1e}"
            f"{c.noise:>12.3g}{c.jac_noise:>16.3g}"
            for c in self.levels
        ]
        lines = [head, *rows, f"suggested batch size: {self.batch_size}"]
        if self.exact_error is not None:
            lines.append(f"closed form against the population: {self.exact_error:.1e}")
        lines += [f"! {sentence}" for sentence in self.problems] or ["no problem found"]
        return "\n".join([*lines, *(f"? {sentence}" for sentence in self.advice)])


def check(problem: Problem, *, w: PyTree = None, draws: int = 512, seed: int = 0) -> Report:
    """Checks every level at ``w`` (by default the start), along the chain of batch means.

    In a chain with blocks all of them are looked at side by side, or the first alone if they are many.

    Args:
        problem: the problem.
        w: weights to check at; a point with no symmetry finds more than the start does.
        draws: how many draws per level to look at; fewer where rows are drawn without replacement and
            there are fewer.
        seed: for draws and directions.
    """
    draws = check_count("draws", draws)
    key = jax.random.key(seed)
    w = problem.start(key) if w is None else w
    whole = problem
    problem, advice = _seen(problem, draws)
    limits = [level.source.most for level in problem.levels if level.source is not None]
    draws = min([draws, *(most for most in limits if most is not None)])
    batches = draw_batches(
        with_first_rows(problem, draws), ("value",), key, 0, (draws,) * len(problem.levels)
    )
    findings = []
    sentences = []
    x = w
    around = None
    before = ""
    epsilon = float(jnp.finfo(problem.dtype).eps)
    for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
        own = jax.random.fold_in(key, i)
        if around is not None and not compute(_defined, level, around, batch["value"]):
            advice.append(
                f"level {level.name!r}: not finite where its input is off by the noise of one draw, as "
                f"a tracked value can be; give level {before!r} a project= into its domain."
            )
            around = None
        found, value, deviation = compute(_look, level, x, batch["value"], own, i == 0)
        around = compute(_around, level, value, deviation, around, batch["value"], own)
        before = level.name
        one = LevelCheck(level.name, **{k: float(v) for k, v in found.items()})
        findings.append(one)
        if not one.gradient_error < 10 * epsilon ** (1 / 3):
            sentences.append(
                f"level {level.name!r}: its derivative differs from finite differences by "
                f"{one.gradient_error:.1e}; is it smooth there, or has it a derivative of its own?"
            )
        if not one.range_violation <= 1e3 * epsilon:
            sentences.append(
                f"level {level.name!r}: its value lies {one.range_violation:.1e} outside the set that "
                "project= names, so the projection would bias it."
            )
        x = level.project(value)
    exact_error = None
    if whole.exact is not None and whole.finite:
        exact_error = float(compute(_exact_error, whole, w))
        if not exact_error < 1e3 * epsilon:
            sentences.append(f"exact= differs from the population by {exact_error:.1e}, relative to it.")
    scale = float(compute(_noise_scale, problem, w, batches))
    batch_size = 2 ** math.ceil(math.log2(min(max(scale, 1.0), 1024.0))) if scale == scale else 1
    return Report(tuple(findings), exact_error, batch_size, tuple(sentences), tuple(advice))


def _seen(problem: Problem, draws: int) -> tuple[Problem, list[str]]:
    """What is looked at of a problem, and a sentence if that is not all of it."""
    blocks = problem.blocks
    if blocks is None:
        return problem, []
    if blocks.counts is None and blocks.blocks * draws <= MOST_ROWS:
        return problem.every_block(), []
    first = f"of {blocks.blocks:,} blocks only the first was looked at, by itself."
    return problem.block(0), [first]


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
    at = lambda t: ravel_pytree(level.value(unravel(flat + t * move), batch))[0]
    small = jnp.finfo(flat.dtype).eps ** (1 / 3)
    slope = jax.jvp(at, (jnp.zeros((), flat.dtype),), (jnp.ones((), flat.dtype),))[1]
    difference = (at(small) - at(-small)) / (2 * small)
    size = jnp.maximum(jnp.linalg.norm(slope), jnp.linalg.norm(ravel_pytree(value)[0]))
    found = {
        "gradient_error": jnp.linalg.norm(slope - difference)
        / jnp.maximum(size, jnp.finfo(flat.dtype).tiny),
        "range_violation": optax.tree.norm(optax.tree.sub(value, level.project(value)))
        / jnp.maximum(optax.tree.norm(value), 1.0),
        "noise": jnp.zeros(()),
        "jac_noise": jnp.zeros(()),
    }
    if batch is not None and not level.batched:
        one = lambda k: ravel_pytree(level.value(x, batch.part(k, 1)))[0]
        push = lambda k: jax.jvp(
            lambda t: ravel_pytree(level.value(unravel(flat + t * direction), batch.part(k, 1)))[0],
            (jnp.zeros((), flat.dtype),),
            (jnp.ones((), flat.dtype),),
        )[1]
        values = jax.vmap(one)(jnp.arange(batch.size))
        found["noise"] = _spread(values)
        deviation = jnp.std(values, axis=0)
        found["jac_noise"] = _spread(jax.vmap(push)(jnp.arange(batch.size)))
    return found, value, deviation


def _reach(flat: Array, weights: bool) -> Array:
    """The length over which each entry of an input may be taken to vary.

    A value varies by parts of itself: what comes next may be a logarithm, and the entries of very
    different sizes. Weights often start near 0 and leave for sizes of about 1.
    """
    size = jnp.linalg.norm(flat)
    if weights:
        return jnp.maximum(size, 1.0)
    own = math.sqrt(flat.size) * jnp.abs(flat)
    return jnp.where(flat != 0, own, jnp.where(size > 0, size, 1.0))


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

    def one(x: PyTree) -> Array:
        value, pull = level.value_and_pull(x, batch)
        return trees.all_finite((value, pull(jax.tree.map(jnp.ones_like, value))))

    return jnp.all(jax.vmap(one)(around))


def _spread(rows: Array) -> Array:
    """Root mean square deviation of the rows, over the size of their mean."""
    mean = rows.mean(axis=0)
    return jnp.sqrt(jnp.sum(jnp.var(rows, axis=0))) / jnp.maximum(jnp.linalg.norm(mean), 1e-30)


def _exact_error(problem: Problem, w: PyTree) -> Array:
    population = problem.chain_value(w)
    closed = problem.exact(w)  # pyright: ignore[reportOptionalCall]
    return jnp.abs(population - closed) / jnp.maximum(jnp.abs(population), 1e-30)


def _noise_scale(problem: Problem, w: PyTree, batches: Any) -> Array:
    """tr Cov(plain gradient of single draws) / ‖gradient‖², along the chain of batch means."""
    inputs = []
    pulls = []
    x = w
    for level, batch in zip(problem.levels, batches, strict=True):
        inputs.append(x)
        x, pull = level.value_and_pull(x, batch["value"])
        x = level.project(x)
        pulls.append(pull)
    count = max(b["value"].size for b in batches if b["value"] is not None)

    def single(k: Array) -> Array:
        """The gradient with level values at their means and one draw in every Jacobian."""
        adjoint = jnp.ones_like(x)
        for level, batch, at in reversed(list(zip(problem.levels, batches, inputs, strict=True))):
            draw = None if batch["value"] is None else batch["value"].part(k, 1)
            adjoint = level.value_and_pull(at, draw)[1](adjoint)
        return ravel_pytree(adjoint)[0]

    gradient = pull_through(pulls, x)
    each = jax.lax.map(single, jnp.arange(min(count, 256)), batch_size=64)
    total = jnp.sum(jnp.var(each, axis=0))
    return total / jnp.maximum(optax.tree.norm(gradient, squared=True), np.finfo(np.float32).tiny)
