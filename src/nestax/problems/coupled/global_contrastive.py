"""Contrastive learning with a denominator over all negatives: one block per anchor, K = 2.

    F(W) = 1/n Σ_i log( 1/(n−1) Σ_{j≠i} e^{(c_ij − c_ii)/τ} ),   c_ij = cosine of W x_i and W z_j

level 1   f_1^i(W; j) = e^{(c_ij − c_ii)/τ}      how near negative j is, against the anchor's own partner
level 2   f_2(u) = log u                          loss, deterministic

x_i and z_i are two views of the same thing. A batch takes the mean over its own few negatives instead,
and log makes that a bias, unless every anchor has a running value of its own.

Yuan, Wu, Qiu, Du, Zhang, Zhou, Yang: Provable stochastic optimization for global contrastive learning:
small batch does not harm performance, ICML 2022.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.blocks import Blocks
from nestax.errors import ProblemError, check_count, check_setting


def unit(v: Array) -> Array:
    return v / jnp.sqrt(v @ v + jnp.finfo(v.dtype).tiny)


def nearness(W: Array, pair: Any, X: Array, Z: Array, temperature: Array) -> Array:
    i, j = pair
    anchor = unit(W @ X[i])
    partner = unit(W @ Z[i])
    other = unit(W @ Z[j])
    return jnp.exp(anchor @ (other - partner) / temperature)


class Between(eqx.Module):
    """Cosines differ by at most 2, which bounds the means of the exponentials."""

    temperature: Array

    def __call__(self, u: Array) -> Array:
        return jnp.clip(u, jnp.exp(-2 / self.temperature), jnp.exp(2 / self.temperature))


class Contrast(eqx.Module):
    """F in closed form, from all pairs."""

    X: Float[Array, "n d"]
    Z: Float[Array, "n d"]
    temperature: Array

    def __call__(self, W: Array) -> Array:
        x = jax.vmap(lambda v: unit(W @ v))(self.X)
        z = jax.vmap(lambda v: unit(W @ v))(self.Z)
        cosines = x @ z.T
        own = jnp.diagonal(cosines)
        apart = (cosines - own[:, None]) / self.temperature
        others = jnp.where(jnp.eye(len(own), dtype=bool), -jnp.inf, apart)
        return jnp.mean(jax.nn.logsumexp(others, axis=1)) - jnp.log(len(own) - 1)


def global_contrastive(
    X: Any,
    Z: Any,
    *,
    dimension: int = 2,
    visit: int | None = None,
    temperature: float = 0.2,
    w0: Any = None,
    **problem: Any,
) -> Problem:
    """A linear encoder W under which two views of a thing are nearer than views of different things.

    The pairs are held as numbers of rows, n − 1 of them for each anchor; records look at all pairs.

    Args:
        X, Z: two views, row i of one belonging to row i of the other; at least 3 rows.
        dimension: rows of W, where ``w0`` is left to be drawn.
        visit: how many anchors a step visits; all, but at most 16, by default.
        temperature: τ, at least 0.05, so that e^{2/τ} is far from the largest number.
        w0: the first W, dimension × columns of X.
        problem: further arguments of ``nx.Problem``.
    """
    check_setting("temperature", temperature, "at least 0.05", lambda t: t >= 0.05)
    X = jnp.asarray(X, float)
    Z = jnp.asarray(Z, float)
    if X.ndim != 2 or X.shape != Z.shape or len(X) < 3:
        raise ProblemError(
            "X and Z must be two arrays of one shape, at least 3 rows by columns; "
            f"got {X.shape} and {Z.shape}."
        )
    if not bool(jnp.isfinite(X).all() & jnp.isfinite(Z).all()):
        raise ProblemError("X and Z must be finite: remove or fill rows with NaN or infinity.")
    if w0 is None:
        rng = np.random.default_rng(0)
        w0 = rng.standard_normal((check_count("dimension", dimension), X.shape[1])).astype(X.dtype)
    anchors, steps = np.ogrid[: len(X), 1 : len(X)]
    pairs = (np.broadcast_to(anchors, (len(X), len(X) - 1)), (anchors + steps) % len(X))
    blocks = Blocks(pairs, visit=min(16, len(X)) if visit is None else visit)
    by = jnp.asarray(temperature, X.dtype)
    return Problem(
        [
            Level(nearness, blocks, args=(X, Z, by), project=Between(by), name="nearness"),
            Level(jnp.log, name="loss"),
        ],
        w0=w0,
        exact=Contrast(X, Z, by),
        **problem,
    )
