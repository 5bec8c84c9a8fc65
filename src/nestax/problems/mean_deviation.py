"""Risk-averse portfolios: mean return minus a multiple of the standard deviation, K = 3.

    F(x) = −E[r·x] + λ·sqrt(Var[r·x] + δ)

level 1   f_1(x; r) = (r·x, x)                           mean return
level 2   f_2((y, x); r) = (y, (r·x − y)²)               variance around the tracked mean
level 3   f_3((y, z)) = −y + λ·sqrt(z + δ)               utility, deterministic
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nestax import linear_oracles, projections
from nestax.errors import ProblemError, check_setting
from nestax.level import Level
from nestax.problem import Problem


def mean_return(x: Array, r: Array) -> tuple[Array, Array]:
    return r @ x, x


def variance(yx: tuple[Array, Array], r: Array) -> tuple[Array, Array]:
    y, x = yx
    return y, (r @ x - y) ** 2


def utility(yz: tuple[Array, Array], risk: Array, delta: Array) -> Array:
    y, z = yz
    return -y + risk * jnp.sqrt(z + delta)


def nonnegative_variance(yz: tuple[Array, Array]) -> tuple[Array, Array]:
    """A tracked variance may fall below zero, a variance cannot."""
    y, z = yz
    return y, jnp.maximum(z, 0)


class MeanDeviation(eqx.Module):
    """F in closed form from the first two moments of the rows: O(d²), whatever their number."""

    mean: Float[Array, " d"]
    covariance: Float[Array, "d d"]
    risk: Array
    delta: Array

    def __call__(self, x: Array) -> Array:
        spread = x @ self.covariance @ x
        return -self.mean @ x + self.risk * jnp.sqrt(spread + self.delta)


def mean_deviation(
    returns: Any, *, risk: float = 0.2, delta: float = 1e-8, optimum: float | None = None
) -> Problem:
    """The mean-deviation portfolio on the probability simplex, from equal weights.

    Args:
        returns: one row a period, one column an asset; percent or fractions, as you like.
        risk: λ ≥ 0, the price of one unit of standard deviation.
        delta: δ > 0 under the square root, in squared units of the returns; bounds the derivative.
        optimum: the least value of F, where it is known.
    """
    check_setting("risk", risk, "at least 0", lambda x: x >= 0)
    check_setting("delta", delta, "positive", lambda x: x > 0)
    rows = np.asarray(returns)
    if rows.ndim != 2:
        raise ProblemError(
            f"returns must be a table, periods × assets; got an array of {rows.ndim} dimensions."
        )
    dtype = jnp.result_type(float)
    assets = rows.shape[1]
    data = jnp.asarray(rows, dtype)
    mean = rows.mean(axis=0, dtype=np.float64)
    centred = rows - mean
    closed = MeanDeviation(
        jnp.asarray(mean, dtype),
        jnp.asarray(centred.T @ centred / len(rows), dtype),
        jnp.asarray(risk, dtype),
        jnp.asarray(delta, dtype),
    )
    return Problem(
        [
            Level(mean_return, data, name="mean"),
            Level(variance, data, project=nonnegative_variance, name="variance"),
            Level(utility, args=(risk, delta), name="utility"),
        ],
        w0=jnp.full(assets, 1 / assets, dtype),
        project=projections.simplex,
        linear_oracle=linear_oracles.simplex,
        exact=closed,
        optimum=optimum,
    )
