"""Markowitz portfolios: mean return minus a multiple of the variance, K = 2.

    F(x) = −E[r·x] + λ/2·Var[r·x]

level 1   f_1(x; r) = (r·x, x)                           mean return
level 2   f_2((y, x); r) = −y + λ/2·(r·x − y)²           utility around the tracked mean

Both levels are noisy, so this is a real problem for the two-level methods. Without bounds on x the
least value is known. Let the efficient frontier have the portfolio of least variance v, with mean b,
and the slope s (v = b = 0 and s² = m'Σ⁻¹m where even Σx is free). Then F* = −b + λv/2 − s²/(2λ).
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.errors import check_setting
from nestax.problems.portfolio.market import BOUNDED, RISK, UNBOUNDED, read_market
from nestax.problems.portfolio.mean_deviation import mean_return


def utility(yx: tuple[Array, Array], r: Array, risk: Array) -> Array:
    y, x = yx
    return -y + risk / 2 * (r @ x - y) ** 2


class MeanVariance(eqx.Module):
    """F in closed form from the first two moments of the rows: O(d²), whatever their number."""

    mean: Float[Array, " d"]
    covariance: Float[Array, "d d"]
    risk: Array

    def __call__(self, x: Array) -> Array:
        return -self.mean @ x + self.risk / 2 * x @ self.covariance @ x


def mean_variance(
    returns: Any,
    *,
    risk: float = 0.05,
    constraint: str = "simplex",
    bounds: Any = None,
    optimum: float | None = None,
) -> Problem:
    """Builds the mean-variance portfolio, from equal weights.

    Args:
        risk: λ ≥ 0, the price of half a unit of variance; positive on "budget" and "free". In
            fractions it is the relative risk aversion, about 1 to 10; in percent a hundredth of that.
        returns, constraint, bounds: as for ``mean_deviation``.
        optimum: the least value of F, where it is known; filled in on "budget" and "free".
    """
    check_setting("risk", risk, *RISK)
    market = read_market(returns, constraint, bounds, allowed=BOUNDED + UNBOUNDED)
    frontier = market.frontier()
    if frontier is not None:
        allowed = f"positive under constraint={constraint!r}, because F has no minimum otherwise"
        check_setting("risk", risk, allowed, lambda x: x > 0)
        if optimum is None:
            gain = frontier.slope**2 / (2 * risk)
            optimum = -frontier.mean + risk * frontier.variance / 2 - gain
    dtype = market.data.dtype
    numbers = (*market.moments(), risk)
    return market.problem(
        [
            Level(mean_return, market.data, name="mean"),
            Level(utility, market.data, args=(risk,), name="utility"),
        ],
        exact=MeanVariance(*(jnp.asarray(x, dtype) for x in numbers)),
        optimum=optimum,
    )
