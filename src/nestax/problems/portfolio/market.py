"""What the portfolio problems share: a table of returns, the weights allowed, the efficient frontier.

constraint   weights x
"simplex"    x ≥ 0, Σx = 1               long only
"box"        low ≤ x ≤ high, Σx = 1      limits on every holding; short sales where low < 0
"budget"     Σx = 1                      short sales without limit
"free"       all of R^d                  the size of the portfolio is open, too

The first two are bounded, so that every problem has a minimum on them. On the other two a problem is
offered where its minimum is known in closed form, and refused where there is none.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array

import nestax.linear_oracles as linear_oracles
import nestax.projections as projections
from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.source import AbstractSource
from nestax.errors import ProblemError, Range, SettingError, choose

#: Ranges of λ, and of δ and widths.
RISK = Range("at least 0 and finite", lambda x: (x >= 0) & (x < np.inf))
FINITE = Range("positive and finite", lambda x: (x > 0) & (x < np.inf))
BOUNDED = ("simplex", "box")
UNBOUNDED = ("budget", "free")


class Frontier(NamedTuple):
    """Among weights of mean return μ the least variance is variance + (μ − mean)²/slope².

    The hyperbola of R. C. Merton (1972): ``mean`` and ``variance`` belong to the portfolio of least
    variance, which is x = 0 where weights are free; ``slope`` is then the largest Sharpe ratio.
    """

    mean: float
    variance: float
    slope: float


class Market(NamedTuple):
    """A table of returns with the weights that may be held.

    rows: periods × assets, in float64.
    data: the same in JAX's floating-point dtype, for the levels to draw from.
    bounds: lower and upper bound of every weight; None on the unbounded sets.
    """

    constraint: str
    rows: np.ndarray
    data: Array
    bounds: tuple[Array, Array] | None
    project: Callable[[Array], Array] | None
    linear_oracle: Callable[[Array], Array] | None
    w0: Array

    def problem(self, levels: Sequence[Level], **rest: Any) -> Problem:
        """The problem of these levels over the market's weights, from equal weights or next to them."""
        same = {"w0": self.w0, "project": self.project, "linear_oracle": self.linear_oracle}
        return Problem(levels, **(same | rest))

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns mean and covariance of the rows, the latter with divisor n, in float64."""
        mean = self.rows.mean(axis=0)
        centred = self.rows - mean
        return mean, centred.T @ centred / len(self.rows)

    def frontier(self) -> Frontier | None:
        """Returns the efficient frontier of an unbounded set; None on the bounded ones."""
        if self.bounds is not None:
            return None
        mean, covariance = self.moments()
        rank = np.linalg.matrix_rank(covariance, hermitian=True)
        if rank < mean.size:
            raise ProblemError(
                f"constraint={self.constraint!r} needs assets of which none is a combination of others, "
                f"but the covariance of these {mean.size} has rank {rank}: drop assets or add periods, "
                'or use constraint="simplex".'
            )
        low = 0.0
        variance = 0.0
        if self.constraint == "budget":
            x = np.linalg.solve(covariance, np.ones_like(mean))
            variance = 1 / x.sum()
            low = float(mean @ x * variance)
        slope = np.linalg.norm(np.linalg.solve(np.linalg.cholesky(covariance), mean - low))
        return Frontier(low, float(variance), float(slope))


@jax.jit
def least_returns(rows: Array, bounds: tuple[Array, Array]) -> Array:
    """For every row the least return that any weights within the bounds can have."""
    return jax.vmap(lambda r: r @ linear_oracles.budget(r, *bounds))(rows)


def read_market(
    returns: Any, constraint: str, bounds: Any, allowed: tuple[str, ...] = BOUNDED
) -> Market:
    """Checks returns, constraint and bounds, and puts them together.

    Args:
        returns: periods × assets; anything that NumPy can make an array of.
        constraint: one of ``allowed``.
        bounds: (low, high) of "box", each a number or one number per asset; None otherwise.
        allowed: the sets on which the problem has a minimum.
    """
    choose("constraint", constraint, allowed)
    rows = table_of(returns)
    dtype = jnp.result_type(float)
    assets = rows.shape[1]
    w0 = jnp.full(assets, 1 / assets, dtype)
    data = jax.device_put(rows.astype(dtype))
    if constraint != "box" and bounds is not None:
        raise SettingError(f'bounds belong to constraint="box"; got constraint={constraint!r}.')
    if constraint == "box":
        limits = read_bounds(bounds, assets)
        lower, upper = (jnp.asarray(limit, dtype) for limit in limits)
        project = Partial(projections.budget, lower=lower, upper=upper)
        oracle = Partial(linear_oracles.budget, lower=lower, upper=upper)
        return Market(constraint, rows, data, (lower, upper), project, oracle, project(w0))
    if constraint == "simplex":
        limits = (jnp.zeros(assets, dtype), jnp.ones(assets, dtype))
        return Market(constraint, rows, data, limits, projections.simplex, linear_oracles.simplex, w0)
    plane = Partial(projections.hyperplane, a=jnp.ones(assets, dtype), b=jnp.ones((), dtype))
    return Market(constraint, rows, data, None, plane if constraint == "budget" else None, None, w0)


def table_of(returns: Any) -> np.ndarray:
    """Returns a table of finite numbers in float64, one row a period, one column an asset."""
    if isinstance(returns, AbstractSource):
        raise ProblemError(
            f"returns must be a table, not nx.{type(returns).__name__}: make the problem of some rows, "
            "print it for the names of its levels, and give those the others: "
            "problem.with_data(mean=stream, ...)."
        )
    try:
        rows = np.asarray(returns, np.float64)
    except (TypeError, ValueError) as error:
        raise ProblemError(
            f"returns must be a table of numbers, periods × assets, without dates or names: {error}."
        ) from None
    if rows.ndim != 2:
        raise ProblemError(
            f"returns must be a table, periods × assets; got an array of {rows.ndim} dimensions."
        )
    if rows.shape[0] < 2 or rows.shape[1] < 1:
        raise ProblemError(
            "returns must have at least two periods (rows) and one asset (column); "
            f"got {rows.shape[0]} × {rows.shape[1]}."
        )
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        raise ProblemError(
            f"returns has {len(bad)} entries that are NaN or infinite, the first at row {bad[0][0]}, "
            f"column {bad[0][1]}: remove or fill them."
        )
    return rows


def read_bounds(bounds: Any, assets: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads the limits of the weights in float64, one number per asset."""
    try:
        low, high = bounds
        lower, upper = (np.broadcast_to(np.asarray(b, np.float64), assets) for b in (low, high))
    except (TypeError, ValueError):
        raise SettingError(
            "bounds must be (low, high), such as (0, 0.1), each a number or one number for each of the "
            f"{assets} assets; got {bounds!r}."
        ) from None
    if not (np.isfinite(lower).all() and np.isfinite(upper).all() and (lower <= upper).all()):
        raise SettingError(f"bounds must be finite, low ≤ high; got {bounds!r}.")
    rounding = 1e-12  # six times 1/6 adds up to a little less than 1
    if not lower.sum() - rounding <= 1 <= upper.sum() + rounding:
        raise SettingError(
            "bounds must leave room for weights that add up to 1; the lower ones add up to "
            f"{lower.sum():g} and the upper ones to {upper.sum():g}."
        )
    return lower, upper
