"""Portfolios of the fastest growth, with means shrunk towards their average, K = 2.

    F(x) = −c·E log(1 + (r·x + φ·E[(r̄ − r)·x])/c),    r̄ = average of r over the assets

level 1   f_1(x; r) = (φ·(r̄ − r)·x, x)                   what shrinking adds to every return
level 2   f_2((y, x); r) = −c·log(1 + (r·x + y)/c)       growth, negated

With φ = 0 this is the criterion of J. L. Kelly (1956): the long-run growth rate of the portfolio. It
believes the sample mean of every asset, which is what the rows tell least about. With φ > 0 the mean m_i
of asset i is replaced by (1 − φ)·m_i + φ·m̄, m̄ being the average of all, and deviations from the mean are
kept: shrinkage after C. Stein, for portfolios P. Jorion (1986). With φ = 1 all assets have the same
mean. The means are estimated along the run, hence the first level. A return of 100 % is written as c,
and F is in the units of the returns.

Every portfolio in the feasible set must keep a positive wealth in every period; the problem is refused
otherwise. A tracked y may still be wrong, so below half of the least possible wealth the logarithm
goes on as its tangent: it never sees a number that is not positive, and its derivative is bounded.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.errors import ProblemError, check_setting
from nestax.problems.portfolio.market import FINITE, Market, least_returns, read_market


def shrinkage(x: Array, r: Array, shrink: Array) -> tuple[Array, Array]:
    return shrink * ((jnp.mean(r) - r) @ x), x


def growth(yx: tuple[Array, Array], r: Array, unit: Array, floor: Array) -> Array:
    y, x = yx
    wealth = 1 + (r @ x + y) / unit
    # Both pieces are always evaluated, and differentiated: the logarithm must not see what is cut off.
    tangent = jnp.minimum(wealth - floor, 0) / floor
    return -unit * (jnp.log(jnp.maximum(wealth, floor)) + tangent)


def log_utility(
    returns: Any,
    *,
    shrink: float = 0.5,
    unit: float = 100.0,
    constraint: str = "simplex",
    bounds: Any = None,
    optimum: float | None = None,
) -> Problem:
    """Builds the log-optimal portfolio with shrunk means, from equal weights.

    Args:
        returns: one row a period, one column an asset; simple returns, not logarithmic ones.
        shrink: φ in [0, 1], how far means are moved towards their average over the assets.
        unit: c, the value that stands for a return of 100 %: 100 for returns in percent, 1 for
            fractions.
        constraint: "simplex" or "box".
        bounds, optimum: as for ``mean_deviation``.
    """
    check_setting("shrink", shrink, "in [0, 1]", lambda x: (x >= 0) & (x <= 1))
    check_setting("unit", unit, *FINITE)
    market = read_market(returns, constraint, bounds)
    floor = _least_wealth(market, shrink, unit) / 2
    return market.problem(
        [
            Level(shrinkage, market.data, args=(shrink,), name="shrinkage"),
            Level(growth, market.data, args=(unit, floor), name="growth"),
        ],
        optimum=optimum,
    )


def _least_wealth(market: Market, shrink: float, unit: float) -> float:
    """Returns the least share of wealth that any allowed weights are left with after any period."""
    mean = market.rows.mean(axis=0)
    shrunk = jnp.asarray(market.rows + shrink * (mean.mean() - mean), market.data.dtype)
    wealth = 1 + np.asarray(least_returns(shrunk, market.bounds)) / unit  # pyright: ignore[reportArgumentType]
    worst = int(np.argmin(wealth))
    if not wealth[worst] > 0:
        raise ProblemError(
            f"the returns of row {worst} can leave a portfolio with nothing, where the logarithm ends: "
            f"weights may lose {1 - wealth[worst]:.4g} times their wealth there. Check unit={unit:g} "
            "(100 for percent, 1 for fractions) and the returns, or tighten bounds."
        )
    return float(wealth[worst])
