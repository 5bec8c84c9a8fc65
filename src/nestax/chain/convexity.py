"""Whether the levels of a chain are convex and monotone, as far as samples can tell."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.errors import ProblemError, is_traced

#: Points at which every level is looked at, and draws where there is no population to average over.
POINTS = 8
DRAWS = 256
#: Chains with larger Jacobians are taken on trust.
MOST_ENTRIES = 2**22


def refuse_unless_convex_and_monotone(problem: Problem, name: str, instead: str) -> None:
    """Refuses a chain with a level that is not convex, or not monotone where it must be.

    A chain f_K ∘ … ∘ f_1 is convex if every level is, and every level but the first is non-decreasing
    in each input that is not affine in w. Both are looked at in ``POINTS`` random points around the
    starting weights: what is refused is certainly not convex or monotone, what passes may still not be.
    """
    levels = problem.levels
    if any(is_traced(leaf) for leaf in jax.tree.leaves(problem)):
        return
    if max(level.shape.inputs.size * level.shape.outputs.size for level in levels) > MOST_ENTRIES:
        return
    inputs = [ravel_pytree(w)[0] for w in _points(problem)]
    slopes = [np.eye(len(inputs[0]))] * POINTS  # of the input of this level as a function of w
    for number, level in enumerate(levels):
        value, jac = _at_points(level, inputs)
        affine = np.ptp(slopes, axis=0).max(axis=1) <= _slack(np.asarray(slopes))

        def refuse(what: str, level: Level = level) -> ProblemError:
            return ProblemError(
                f"{name} needs convex levels that do not decrease in what is not affine in w, and level "
                f"{level.name!r} is not {what}: use {instead} instead."
            )

        if number > 0 and (jac[:, :, ~affine] < -_slack(jac)).any():
            raise refuse("non-decreasing")
        for k in range(POINTS):
            tangent = value[k] + np.einsum("oi,pi->po", jac[k], np.asarray(inputs) - inputs[k])
            if (np.asarray(value) < tangent - _slack(np.asarray(value))).any():
                raise refuse("convex")
        slopes = [J @ S for J, S in zip(jac, slopes, strict=True)]
        inputs = list(value)


def _points(problem: Problem) -> list[Any]:
    keys = jax.random.split(jax.random.key(0), POINTS)
    start = problem.start(keys[0])
    flat, unravel = ravel_pytree(start)
    reach = max(0.5, float(jnp.abs(flat).max()))
    noise = [jax.random.normal(key, flat.shape, flat.dtype) for key in keys]
    return [problem.project(unravel(flat + reach * e)) for e in noise]


def _at_points(level: Any, inputs: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    batch = level.source and level.source.some(DRAWS)
    structs = level.shape.inputs.structs()
    _, unravel = ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), structs))

    def one(flat: Any) -> Any:
        value, jac = level.value_and_jac(unravel(flat), batch)
        return ravel_pytree(value)[0], jac.dense()

    value, jac = jax.lax.map(
        one, jnp.stack([jnp.asarray(x, level.shape.inputs.leaves[0][1]) for x in inputs])
    )
    return np.asarray(value, np.float64), np.asarray(jac, np.float64)


def _slack(x: np.ndarray) -> float:
    """What rounding in single precision can do to numbers of this size."""
    return 1e-4 * max(1e-3, float(np.abs(x).max()))
