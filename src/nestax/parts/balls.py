"""Balls that hold tracked Jacobians: of a given radius, or of one that follows what is drawn."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

import nestax.trees as trees
from nestax.chain.jacobian import Jacobian
from nestax.chain.level import Level
from nestax.parts.settings import per_level


class RunningRadius(eqx.Module):
    """``factor`` times the running mean of the norm of drawn Jacobians.

    The norm of a mean is at most the mean of the norms, so the ball has room for the true Jacobian, and
    single draws that are far larger than usual are cut. The draw at hand does not count yet.
    """

    factor: float = 10.0
    rate: float = 0.01

    def after(self, size: Array | None, drawn: Jacobian) -> Array:
        """The running size once a Jacobian has been drawn."""
        new = jnp.sqrt(drawn.square())
        return new if size is None else size + self.rate * (new - size)


class Ball(eqx.Module):
    """One ball per level, or none where ``radius`` is None."""

    radius: Any
    kind: str = eqx.field(static=True)
    levels: int = eqx.field(static=True)

    def shape(self, jac: Jacobian) -> Jacobian:
        """A drawn Jacobian with the blocks that a projected one has."""
        if self.radius is None:
            return jac
        return jac.filled(jac.dense()) if self.kind == "spectral" else jac.scalable()

    def size(self, level: Level, before: Array | None, drawn: Jacobian) -> Array | None:
        """The running size of a level's Jacobians, where the radius follows it.

        A deterministic level is exact: what changes there is no outlier, and it needs no such ball.
        """
        if level.deterministic or not isinstance(self.radius, RunningRadius):
            return None
        return self.radius.after(before, drawn)

    def hold(self, i: int, jac: Jacobian, size: Array | None) -> tuple[Jacobian, Array | bool]:
        """The Jacobian of level ``i`` in its ball, and whether it had to move."""
        if isinstance(self.radius, RunningRadius):
            return (jac, False) if size is None else into_ball(jac, self.radius.factor * size, self.kind)
        if self.radius is None:
            return jac, False
        return into_ball(jac, per_level(self.radius, i, self.levels), self.kind)


def into_ball(jac: Jacobian, radius: Array, ball: str) -> tuple[Jacobian, Array]:
    """Projection onto ‖J‖ ≤ radius in Frobenius norm, and whether anything had to move.

    The Frobenius ball rescales, the spectral one clips singular values; both are convex, so both
    are non-expansive in Frobenius norm. Only the spectral ball of radius L_f is certain to hold
    the true Jacobian of an L_f-Lipschitz level; the Frobenius one may need √min(d_i, d_{i-1})·L_f.
    """
    if ball == "frobenius":
        jac = jac.scalable()
        size = jnp.sqrt(jac.square())
        active = size > radius
        return trees.scale(jnp.where(active, radius / size, 1.0), jac), active
    left, singular, right = jnp.linalg.svd(jac.dense(), full_matrices=False)
    clipped = left @ (jnp.minimum(singular, radius)[:, None] * right)
    return jac.filled(clipped), jnp.max(singular) > radius
