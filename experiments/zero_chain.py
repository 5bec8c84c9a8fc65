"""The hard instance of the lower bounds for non-convex stochastic optimisation: every draw reveals at
most one weight, and most draws reveal none.

F_T(x)     −Ψ(1)Φ(x_1) + Σ_{i=2}^T [Ψ(−x_{i−1})Φ(−x_i) − Ψ(x_{i−1})Φ(x_i)]
Ψ(x)       exp(1 − 1/(2x − 1)²) for x > 1/2, else 0
Φ(x)       √e·∫_{−∞}^x exp(−t²/2) dt
F(w)       2ε·F_T(w)
one draw   g_i(w; z) = ∇_iF(w)·(1 + Θ_i(w)(z/p − 1)),  z = 1 with probability p, else 0
Θ_i(w)     Γ(1 − (Σ_{k≥i} Γ(|w_k|)²)^{1/2}), where Γ goes from 0 at 1/4 to 1 at 1/2

Where w_i, …, w_T are all within 1/4 of 0, Θ_i is 1: entries of the gradient behind the first of them are
0, and that of the first is seen when z = 1 only. So from w = 0 a method that moves only weights whose
gradients it has seen needs T draws with z = 1, T/p draws on average, before w_T leaves 0; and ‖∇F‖ > 2ε
until |w_T| ≥ 1.

T = ⌈1/(2ε)⌉ and p = 1/T² leave F(w_0) − F*, the variance of a draw and its mean-squared smoothness of
one order for all ε, so that T/p = T³ is of order ε⁻³: the lower bound under mean-squared smoothness.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.errors import check_setting

ROOT = math.sqrt(2 * math.pi * math.e)


def bump(x: Array) -> Array:
    """Ψ."""
    safe = jnp.where(x > 0.5, 2 * x - 1, 1.0)
    return jnp.where(x > 0.5, jnp.exp(1 - 1 / safe**2), 0.0)


def rise(x: Array) -> Array:
    """Φ."""
    return ROOT * jax.scipy.stats.norm.cdf(x)


def chained(x: Array) -> Array:
    """F_T."""
    before = jnp.concatenate([jnp.ones(1, x.dtype), x[:-1]])
    return jnp.sum(bump(-before) * rise(-x) - bump(before) * rise(x))


def slope(x: Array) -> Array:
    """∇F_T in closed form."""
    rises = lambda x: jnp.exp((1 - x**2) / 2)
    bumps = lambda x: bump(x) * jnp.where(x > 0.5, 4 / jnp.where(x > 0.5, 2 * x - 1, 1.0) ** 3, 0.0)
    before = jnp.concatenate([jnp.ones(1, x.dtype), x[:-1]])
    own = -(bump(-before) + bump(before)) * rises(x)
    next_one = -(bumps(-x[:-1]) * rise(-x[1:]) + bumps(x[:-1]) * rise(x[1:]))
    return own + jnp.concatenate([next_one, jnp.zeros(1, x.dtype)])


def unseen(x: Array) -> Array:
    """Θ_i for every i: 1 where weight i and all behind it are near 0."""
    behind = jnp.cumsum(step(jnp.abs(x))[::-1] ** 2)[::-1]
    return step(1 - jnp.sqrt(behind))


def step(t: Array) -> Array:
    """Γ: a cubic, where the paper has a function with derivatives of all orders."""
    s = jnp.clip(4 * t - 1, 0, 1)
    return s**2 * (3 - 2 * s)


@jax.custom_jvp
def level(x: Array, seen: Array, scale: Array) -> Array:
    """F, whose derivative is drawn: g(x; z) is no gradient of any function of x."""
    del seen
    return scale * chained(x)


@level.defjvp
def _level_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    x, seen, scale = primals
    draw = scale * slope(x) * (1 + unseen(x) * (seen - 1))
    return level(x, seen, scale), draw @ tangents[0]


class Exact(eqx.Module):
    """F in closed form."""

    scale: Array

    def __call__(self, w: Array) -> Array:
        return self.scale * chained(w)


def zero_chain(eps: float) -> Problem:
    """One level and T = ⌈1/(2ε)⌉ weights, the last of which takes T³ draws on average to be seen.

    Arjevani, Carmon, Duchi, Foster, Srebro, Woodworth: Lower bounds for non-convex stochastic
    optimization, Math. Program. 2023. Draws have derivatives of their own, which belong to no drawn
    function; ``nx.check`` notices.

    Args:
        eps: ε in (0, 0.25], the accuracy that the problem is made for.
    """
    check_setting("eps", eps, "in (0, 0.25]", lambda x: (x > 0) & (x <= 0.25))
    length = math.ceil(0.5 / eps - 1e-9)  # ε = 1/(2T) may be rounded
    seen = jnp.zeros(length**2, jnp.result_type(float)).at[0].set(length**2)  # z/p
    scale = jnp.asarray(2 * eps, jnp.result_type(float))
    return Problem(
        [Level(level, seen, args=(scale,), name="chain")],
        w0=jnp.zeros(length, jnp.result_type(float)),
        exact=Exact(scale),
    )
