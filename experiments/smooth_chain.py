"""Families with known constants and known optimum, on which rates of convergence are measured.

inner levels   f_i(x; e) = x + (±bend + e_1)·sin(x) + e_2, entry by entry
outer level    mean over the entries of h(x) + e_1·(1 − cos x) + e_2·x

The e are rows of centred noise, so every mean is known in closed form. Value, Jacobian and curvature of
every level are noisy: differences of two points do not cancel the noise. The bend changes its sign from
level to level, which keeps long chains at the same scale. w = 0 is the optimum, with F* = 0.

kind               bend   h(x)                  F
nonconvex          0.5    x²/(1 + x²)           smooth, not convex; ‖∇F‖ is what is measured
convex             0      √(1 + x⁴) − 1         convex, flat at the optimum
strongly convex    0      x²/2                  strongly convex with μ = 1/d
PL                 0.5    x²/2 (K > 1)          satisfies a PL inequality, not convex
PL, K = 1          –      (x² + 3 sin² x)/2     the same, in one level
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.errors import check_count, check_setting, choose

KINDS = ("nonconvex", "convex", "strongly convex", "PL")
BEND = 0.5
OUTER = {
    "nonconvex": lambda x: x**2 / (1 + x**2),
    "convex": lambda x: jnp.sqrt(1 + x**4) - 1,
    "strongly convex": lambda x: x**2 / 2,
    "PL": lambda x: x**2 / 2,
}


def inner(x: Array, draw: Any, bend: Array) -> Array:
    curve, offset = draw
    return x + (bend + curve) * jnp.sin(x) + offset


def centred(rng: np.random.Generator, noise: float, shape: tuple[int, int]) -> Array:
    """Rows of noise whose mean is 0 and whose deviation is ``noise``, both exactly."""
    e = rng.standard_normal(shape)
    e = (e - e.mean(axis=0)) / e.std(axis=0)
    return jnp.asarray(noise * e, jnp.result_type(float))


class Outer(eqx.Module):
    """The outermost level; with ``single`` the PL function of one level."""

    kind: str = eqx.field(static=True)
    single: bool = eqx.field(static=True)

    def mean(self, x: Array) -> Array:
        if self.kind == "PL" and self.single:
            return jnp.mean(x**2 + 3 * jnp.sin(x) ** 2) / 2
        return jnp.mean(OUTER[self.kind](x))

    def __call__(self, x: Array, draw: Any) -> Array:
        curve, tilt = draw
        return self.mean(x) + jnp.mean(curve * (1 - jnp.cos(x)) + tilt * x)


class Exact(eqx.Module):
    """F in closed form."""

    outer: Outer
    bend: Array
    inner_levels: int = eqx.field(static=True)

    def __call__(self, w: Array) -> Array:
        for k in range(self.inner_levels):
            w = w + (-1) ** k * self.bend * jnp.sin(w)
        return self.outer.mean(w)


def smooth_chain(
    kind: str = "nonconvex",
    levels: int = 3,
    *,
    dimension: int = 8,
    noise: float = 0.5,
    rows: int = 2_000,
    seed: int = 0,
) -> Problem:
    """A chain of K levels of one of four kinds, with F* = 0 at w = 0, started at w = 1.

    Args:
        kind: "nonconvex", "convex", "strongly convex" or "PL".
        levels: K ≥ 1.
        dimension: entries of w and of every inner value.
        noise: standard deviation of every kind of noise.
        rows: rows of noise per level; their mean is 0 exactly.
        seed: of the rows.
    """
    choose("kind", kind, KINDS)
    check_count("levels", levels)
    check_setting("noise", noise, "at least 0", lambda x: x >= 0)
    rng = np.random.default_rng(seed)
    pair = lambda: (centred(rng, noise, (rows, dimension)), centred(rng, noise, (rows, dimension)))
    bend = jnp.asarray(BEND if kind in ("nonconvex", "PL") else 0.0, jnp.result_type(float))
    outer = Outer(kind, levels == 1)
    chain = [
        Level(inner, pair(), args=((-1) ** k * bend,), name=f"inner {k + 1}") for k in range(levels - 1)
    ]
    return Problem(
        [*chain, Level(outer, pair(), name="outer")],
        w0=jnp.ones(dimension, jnp.result_type(float)),
        exact=Exact(outer, bend, levels - 1),
        optimum=0.0,
    )
