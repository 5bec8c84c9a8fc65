"""Portfolios that fear the worst periods: mean return minus a multiple of the CVaR, K = 1.

    F(x, a) = −E[r·x] + λ·(a + E[s(−r·x − a)]/p),    s(z) = h·log(1 + exp(z/h)) ≈ max(z, 0)

level 1   f_1((x, a); r) = −r·x + λ·(a + s(−r·x − a)/p)

The conditional value at risk is the mean loss over the worst share p of the periods. R. T. Rockafellar
and S. Uryasev (Journal of Risk, 2000) write it as a minimum over a threshold a, the value at risk, and
that takes the inner expectation away: this problem has one level, and any stochastic gradient of it is
unbiased. It stands beside the others for comparison, and as a test for methods with K = 1.

The smoothing of width h raises F by at most λ·h·log(2)/p.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.errors import ProblemError, check_setting, warn
from nestax.problems.losses import OnPart
from nestax.problems.portfolio.market import FINITE, RISK, read_market

Weights = dict[str, Array]


def utility(w: Weights, r: Array, risk: Array, tail: Array, width: Array) -> Array:
    gain = r @ w["x"]
    # softplus is written so that it overflows on neither side.
    beyond = width * jax.nn.softplus((-gain - w["a"]) / width)
    return -gain + risk * (w["a"] + beyond / tail)


def mean_cvar(
    returns: Any,
    *,
    risk: float = 0.2,
    tail: float = 0.05,
    width: float = 0.1,
    constraint: str = "simplex",
    bounds: Any = None,
    optimum: float | None = None,
) -> Problem:
    """Builds the mean-CVaR portfolio; its weights are ``{"x": holdings, "a": threshold}``.

    It starts from equal holdings and the value at risk that belongs to them.

    Args:
        risk: λ ≥ 0, the price of one unit of CVaR.
        tail: p in (0, 1), the share of periods that counts as the tail; 0.05 for CVaR at 95 %.
        width: h > 0 of the smoothing, in standard deviations of an asset (their mean over assets).
        constraint: "simplex" or "box", for x.
        returns, bounds, optimum: as for ``mean_deviation``.
    """
    check_setting("risk", risk, *RISK)
    check_setting("tail", tail, "in (0, 1)", lambda x: (x > 0) & (x < 1))
    if tail > 0.5:
        warn(f"tail={tail:g} is more than half of the periods: CVaR at 95 % has tail=0.05.")
    check_setting("width", width, *FINITE)
    market = read_market(returns, constraint, bounds)
    deviation = market.rows.std(axis=0).mean()
    if deviation == 0:
        raise ProblemError("returns are the same in every period, so there is no tail to look at.")
    threshold = np.quantile(-market.rows @ np.asarray(market.w0), 1 - tail)
    return market.problem(
        [Level(utility, market.data, args=(risk, tail, float(width * deviation)), name="cvar")],
        w0={"a": jnp.asarray(threshold, market.data.dtype), "x": market.w0},
        project=OnPart("x", market.project),  # pyright: ignore[reportArgumentType]
        linear_oracle=None,
        optimum=optimum,
    )
