"""Looks at a problem before it is run: derivatives, ranges, noise, a batch size, what memory gains."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import pull_through
from nestax.chain.problem import Problem
from nestax.errors import check_count
from nestax.parts.estimator import draw_batches
from nestax.parts.plug_in import plug_in
from nestax.programs import compute
from nestax.streams.feed import with_first_rows
from nestax.study.check.feasible import doubts_about_projection
from nestax.study.check.few import LARGEST_BATCH, levels_with_few
from nestax.study.check.levels import check_levels
from nestax.study.check.memory import REMOVES, REMOVES_ENDLESS, gain_of_memory
from nestax.study.check.report import LevelCheck as LevelCheck
from nestax.study.check.report import Report as Report
from nestax.study.evaluate import evaluate

#: Draws that are looked at side by side, over all blocks.
MOST_ROWS = 2**16


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
    levels, sentences, off = check_levels(problem, w, batches, key)
    sentences += doubts_about_projection(whole, w, key)
    advice += off
    rounding = float(jnp.finfo(problem.dtype).eps)
    exact_error = None
    if whole.exact is not None and whole.finite:
        exact_error = float(compute(_exact_error, whole, w))
        if not exact_error < 1e3 * rounding:
            sentences.append(f"exact= differs from the population by {exact_error:.1e}, relative to it.")
    elif whole.exact is not None and whole.blocks is None:
        sentences += _contradicted(whole, w, draws, seed)
    scale = float(compute(_noise_scale, problem, w, batches))
    few = levels_with_few(problem, w, batches)
    advice += [rows.sentence(name) for name, rows in few.items()]
    # Draws that lack these rows show none of the noise that they make.
    scale = max([scale, *(rows.size / rows.effective for rows in few.values())])
    batch_size = 1
    if scale == scale:  # NaN where a gradient is not finite
        batch_size = 2 ** math.ceil(math.log2(min(max(scale, 1.0), LARGEST_BATCH)))
    size = min(batch_size, max(1, draws // 8))
    plain_bias, memory = gain_of_memory(problem, w, batches, size, draws, tuple(few))
    if whole.endless:
        memory = tuple(sentence.replace(REMOVES, REMOVES_ENDLESS) for sentence in memory[:1])
    return Report(
        levels,
        exact_error,
        batch_size,
        tuple(few),
        tuple(sentences),
        tuple(advice),
        plain_bias,
        memory,
    )


def _seen(problem: Problem, draws: int) -> tuple[Problem, list[str]]:
    """What is looked at of a problem, and a sentence if that is not all of it."""
    blocks = problem.blocks
    if blocks is None:
        return problem, []
    if blocks.blocks is None:
        once = "outer draws never come back, so no method can remember them: only one was looked at."
        return problem.block(jax.random.key(0)), [once]
    if blocks.even and blocks.blocks * draws <= MOST_ROWS:
        return problem.every_block(), []
    first = f"of {blocks.blocks:,} blocks only the first was looked at, by itself."
    return problem.block(0), [first]


def _contradicted(problem: Problem, w: PyTree, draws: int, seed: int) -> list[str]:
    """Returns a sentence if draws contradict ``exact=`` where there is no population to compare it with.

    A mean of draws inside of a function has a bias, which its change with their number stands for.
    """
    some, many = (evaluate(problem, w, draws=n, seed=seed) for n in (max(1, draws // 2), draws))
    closed = float(compute(lambda problem, w: problem.value(w), problem, w))
    unsure = 6 * many.stderr + 10 * abs(many.value - some.value) + 1e-4 * abs(many.value)
    if not math.isfinite(unsure) or abs(closed - many.value) <= unsure:
        return []
    estimate = f"{many.value:.4g} ± {many.stderr:.1g}"
    return [f"exact= makes F(w) {closed:.4g}, and {draws:,} draws make it {estimate}."]


def _exact_error(problem: Problem, w: PyTree) -> Array:
    population = problem.chain_value(w)
    closed = problem.exact(w)  # pyright: ignore[reportOptionalCall]
    return jnp.abs(population - closed) / jnp.maximum(jnp.abs(population), 1e-30)


def _noise_scale(problem: Problem, w: PyTree, batches: Any) -> Array:
    """tr Cov(plain gradient of single draws) / ‖gradient‖², along the chain of batch means."""
    values, pulls = plug_in(problem, w, batches)
    inputs = [w, *values[:-1]]
    x = values[-1]
    count = max(b["value"].size for b in batches if b["value"] is not None)

    def single(k: Array) -> Array:
        """Returns the gradient with level values at their means and one draw in every Jacobian."""
        adjoint = jnp.ones_like(x)
        for level, batch, at in reversed(list(zip(problem.levels, batches, inputs, strict=True))):
            draw = None if batch["value"] is None else batch["value"].part(k, 1)
            adjoint = level.value_and_pull(at, draw)[1](adjoint)
        return ravel_pytree(adjoint)[0]

    gradient = pull_through(pulls, x)
    gradients = jax.lax.map(single, jnp.arange(min(count, 256)), batch_size=64)
    total = jnp.sum(jnp.var(gradients, axis=0))
    return total / jnp.maximum(optax.tree.norm(gradient, squared=True), np.finfo(np.float32).tiny)
