"""A batch plugged into every level of a chain: how methods without memory, and most starts, go."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.level import Map
from nestax.chain.problem import Problem
from nestax.parts.estimator import Batches


def plug_in(
    problem: Problem, w: PyTree, batches: Batches, name: str = "value"
) -> tuple[list[PyTree], list[Map]]:
    """Values f_1(w; ξ), f_2(f_1; ξ), …, each moved into its range, and the pullback of every level."""
    values = []
    pulls = []
    x = w
    for level, batch in zip(problem.levels, batches, strict=True):
        x, pull = level.value_and_pull(x, batch[name])
        x = level.project(x)
        values.append(x)
        pulls.append(pull)
    return values, pulls


def linearise(
    problem: Problem, inputs: Sequence[PyTree], batches: Batches, name: str
) -> tuple[list[PyTree], list[Map]]:
    """Returns value and pullback of every level at a given input of its own."""
    pairs = [
        level.value_and_pull(x, batch[name])
        for level, x, batch in zip(problem.levels, inputs, batches, strict=True)
    ]
    return [value for value, _ in pairs], [pull for _, pull in pairs]


def value_and_gradient(problem: Problem, w: PyTree, batches: Batches) -> tuple[Array, PyTree]:
    """Returns value and gradient of a chain of one level."""
    value, pull = problem.levels[0].value_and_pull(w, batches[0]["value"])
    return value, pull(jnp.ones_like(value))
