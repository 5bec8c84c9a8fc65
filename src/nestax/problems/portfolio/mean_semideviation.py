"""Portfolios that fear losses only: mean return minus a multiple of the downside deviation, K = 3.

    F(x) = −E[r·x] + λ·sqrt(E[max(E[r·x] − r·x, 0)²] + δ)

level 1   f_1(x; r) = (r·x, x)                           mean return
level 2   f_2((y, x); r) = (y, max(y − r·x, 0)²)         semivariance below the tracked mean
level 3   f_3((y, z)) = −y + λ·sqrt(z + δ)               utility, deterministic

F is convex, and its derivative is Lipschitz continuous. No moments of the rows give it in closed form.
With λ ≤ 1 it never prefers a portfolio that returns less in every period (W. Ogryczak and
A. Ruszczyński, European Journal of Operational Research, 1999).
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.errors import check_setting
from nestax.problems.portfolio.market import FINITE, RISK, read_market
from nestax.problems.portfolio.mean_deviation import SquareAtLeast, mean_and_root, mean_return


def semivariance(yx: tuple[Array, Array], r: Array) -> tuple[Array, Array]:
    y, x = yx
    return y, jnp.maximum(y - r @ x, 0) ** 2


def mean_semideviation(
    returns: Any,
    *,
    risk: float = 0.2,
    delta: float = 1e-8,
    constraint: str = "simplex",
    bounds: Any = None,
    optimum: float | None = None,
) -> Problem:
    """Builds the mean-semideviation portfolio, from equal weights.

    Args:
        risk: λ ≥ 0, the price of one unit of downside deviation.
        constraint: "simplex" or "box".
        returns, delta, bounds, optimum: as for ``mean_deviation``.
    """
    check_setting("risk", risk, *RISK)
    check_setting("delta", delta, *FINITE)
    market = read_market(returns, constraint, bounds)
    floor = SquareAtLeast(jnp.zeros((), market.data.dtype))
    return market.problem(
        [
            Level(mean_return, market.data, name="mean"),
            Level(semivariance, market.data, project=floor, name="semivariance"),
            Level(mean_and_root, args=(risk, delta), name="utility"),
        ],
        optimum=optimum,
    )
