"""Risk-averse portfolios: mean return minus a multiple of the standard deviation, K = 3.

    F(x) = −E[r·x] + λ·sqrt(Var[r·x] + δ)

level 1   f_1(x; r) = (r·x, x)                           mean return
level 2   f_2((y, x); r) = (y, (r·x − y)²)               variance around the tracked mean
level 3   f_3((y, z)) = −y + λ·sqrt(z + δ)               utility, deterministic

Without bounds on x the least value is known. Let the efficient frontier have the portfolio of least
variance v, with mean b, and the slope s (v = b = 0 and s² = m'Σ⁻¹m where even Σx is free). Then

    F* = −b + sqrt((v + δ)(λ² − s²))    if s < λ; otherwise F has no minimum.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.errors import check_setting
from nestax.problems.portfolio.exact import ExactPortfolio
from nestax.problems.portfolio.market import (
    BOUNDED,
    FINITE,
    RISK,
    UNBOUNDED,
    Market,
    read_market,
)


def mean_return(x: Array, r: Array) -> tuple[Array, Array]:
    """First level of most of these problems: E[r·x], with the weights for the level after it."""
    return r @ x, x


def variance(yx: tuple[Array, Array], r: Array) -> tuple[Array, Array]:
    y, x = yx
    return y, (r @ x - y) ** 2


def mean_and_root(yz: tuple[Array, Array], risk: Array, delta: Array) -> Array:
    """−y + λ·sqrt(z + δ), the utility of a mean and a squared deviation."""
    y, z = yz
    return -y + risk * jnp.sqrt(z + delta)


class SquareAtLeast(eqx.Module):
    """A tracked squared deviation may fall below any number, the deviation itself cannot.

    Next to zero the square root has a derivative that throws the weights into a corner.
    """

    least: Array

    def __call__(self, yz: tuple[Array, Array]) -> tuple[Array, Array]:
        y, z = yz
        return y, jnp.maximum(z, self.least)


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
    returns: Any,
    *,
    risk: float = 0.2,
    delta: float = 1e-8,
    constraint: str = "simplex",
    bounds: Any = None,
    least_variance: float | None = 0.0,
    optimum: float | None = None,
) -> Problem:
    """Builds the mean-deviation portfolio, from equal weights.

    Args:
        returns: one row a period, one column an asset; percent or fractions, as you like.
        risk: λ ≥ 0, the price of one unit of standard deviation. On "budget" and "free" it must
            exceed the slope s of the efficient frontier.
        delta: δ > 0 under the square root, in squared units of the returns; bounds the derivative.
        constraint: "simplex" (x ≥ 0, Σx = 1), "box" (Σx = 1 within ``bounds``), "budget" (Σx = 1
            alone) or "free" (no constraint; x* shrinks with δ, so choose δ near the variance).
        bounds: (low, high) of "box", numbers or one per asset: (0, 0.1) caps every weight, (-0.3, 0.5)
            allows short sales.
        least_variance: a tracked variance is kept at or above this, which no portfolio may have less
            of; None takes what the least eigenvalue of the covariance proves where Σx = 1.
        optimum: the least value of F, where it is known; filled in on "budget" and "free". On the other
            sets ``nx.problems.exact_portfolio(...).least()`` finds it.
    """
    check_setting("risk", risk, *RISK)
    check_setting("delta", delta, *FINITE)
    market = read_market(returns, constraint, bounds, allowed=BOUNDED + UNBOUNDED)
    frontier = market.frontier()
    if frontier is not None:
        allowed = (
            f"above {frontier.slope:.6g}, the slope of the efficient frontier of these returns under "
            f"constraint={constraint!r}, because F has no minimum otherwise"
        )
        check_setting("risk", risk, allowed, lambda x: x > frontier.slope)
        if optimum is None:
            least = (frontier.variance + delta) * (risk**2 - frontier.slope**2)
            optimum = -frontier.mean + np.sqrt(least)
    if least_variance is None:
        least_variance = _exact(market, risk, delta).least_variance
    check_setting("least_variance", least_variance, "at least 0", lambda x: x >= 0)
    dtype = market.data.dtype
    floor = SquareAtLeast(jnp.asarray(least_variance, dtype))
    numbers = (*market.moments(), risk, delta)
    return market.problem(
        [
            Level(mean_return, market.data, name="mean"),
            Level(variance, market.data, project=floor, name="variance"),
            Level(mean_and_root, args=(risk, delta), name="utility"),
        ],
        exact=MeanDeviation(*(jnp.asarray(x, dtype) for x in numbers)),
        optimum=optimum,
    )


def exact_portfolio(
    returns: Any,
    *,
    risk: float = 0.2,
    delta: float = 1e-8,
    constraint: str = "simplex",
    bounds: Any = None,
) -> ExactPortfolio:
    """What is exact about the mean-deviation portfolio: optimum, gap, and how long a step may be.

    Args:
        returns, risk, delta, bounds: as for ``mean_deviation``.
        constraint: "simplex", "box" or "budget".
    """
    check_setting("risk", risk, *RISK)
    check_setting("delta", delta, *FINITE)
    market = read_market(returns, constraint, bounds, allowed=(*BOUNDED, "budget"))
    return _exact(market, risk, delta)


def _exact(market: Market, risk: float, delta: float) -> ExactPortfolio:
    everything = np.full(market.rows.shape[1], np.inf)
    low, high = (-everything, everything) if market.bounds is None else market.bounds
    return ExactPortfolio(
        market.rows, risk=risk, delta=delta, low=np.asarray(low), high=np.asarray(high)
    )
