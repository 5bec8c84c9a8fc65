"""A convex objective made strongly convex, exactly: what the theory solves in its place."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem
from nestax.errors import SettingError, check_setting


class Quadratic(eqx.Module):
    """penalty(w) + μ/2·‖w − centre‖²."""

    penalty: Any
    mu: Array
    centre: PyTree

    def __call__(self, w: PyTree) -> Array:
        added = self.mu / 2 * optax.tree.norm(optax.tree.sub(w, self.centre), squared=True)
        return added if self.penalty is None else added + self.penalty(w)


def regularised(problem: Problem, mu: float) -> Problem:
    """F(w) + μ/2·‖w − w_0‖², exactly: what stages solve in place of a convex F.

    With μ = ε/D², D a bound on the distance of the optimum from w_0, a point within ε/2 of the optimum
    of this is within ε of that of F. Records have F itself as ``objective``.
    """
    check_setting("mu", mu, "positive", lambda x: x > 0)
    if callable(problem.w0):
        raise SettingError("regularised needs starting weights that are given, not drawn.")
    return problem.replace(
        optimum=None,
        metrics=problem.metrics | {"objective": problem.value},
        penalty=Quadratic(problem.penalty, jnp.asarray(mu, problem.dtype), problem.w0),
    )
