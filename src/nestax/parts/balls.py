"""Balls that hold tracked Jacobians: of a given radius, or of one that follows what is drawn."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array

from nestax.chain.jacobian import Jacobian


class RunningRadius(eqx.Module):
    """``factor`` times the running mean of the norm of drawn Jacobians.

    The norm of a mean is at most the mean of the norms, so the ball has room for the true Jacobian, and
    single draws that are far larger than usual are cut. The draw at hand does not count yet.
    """

    factor: float | Array = 10.0
    rate: float | Array = 0.01

    def after(self, size: Array | None, drawn: Jacobian) -> Array:
        """Returns the running size once a Jacobian has been drawn."""
        new = jnp.sqrt(drawn.square())
        return new if size is None else size + self.rate * (new - size)


class Held(eqx.Module):
    """What is remembered of a ball: how often it was active, and the running size of what is drawn."""

    active: Array
    size: Array | None


class Ball(eqx.Module):
    """The ball that holds the tracked Jacobian of one level.

    radius: a number, or ``RunningRadius``.
    kind: "frobenius" or "spectral".
    """

    radius: Any
    kind: str = eqx.field(static=True)

    def shape(self, jac: Jacobian) -> Jacobian:
        """Returns a drawn Jacobian with the tiles that a projected one has."""
        return jac.filled(jac.dense()) if self.kind == "spectral" else jac.scalable()

    def hold(
        self, jac: Jacobian, drawn: Jacobian, before: Held | None, deterministic: bool
    ) -> tuple[Jacobian, Held]:
        """Returns the Jacobian in its ball, and what is remembered.

        A radius that follows what is drawn is that of the step before. A deterministic level is exact:
        what changes there is no outlier, and it needs no such ball.
        """
        count = jnp.zeros((), jnp.int32) if before is None else before.active
        if not isinstance(self.radius, RunningRadius):
            jac, active = into_ball(jac, self.radius, self.kind)
            return jac, Held(count + active, None)
        if deterministic:
            return jac, Held(count, None)
        size = self.radius.after(None if before is None else before.size, drawn)
        within: Any = size if before is None else before.size
        jac, active = into_ball(jac, self.radius.factor * within, self.kind)
        return jac, Held(count + active, size)


def into_ball(jac: Jacobian, radius: Array, ball: str) -> tuple[Jacobian, Array]:
    """Projects onto ‖J‖ ≤ radius in Frobenius norm, and tells whether anything had to move.

    The Frobenius ball rescales, the spectral one clips singular values; both are convex, so both
    are non-expansive in Frobenius norm. Only the spectral ball of radius L_f is certain to hold
    the true Jacobian of an L_f-Lipschitz level; the Frobenius one may need √min(d_i, d_{i-1})·L_f.
    """
    if ball == "frobenius":
        jac = jac.scalable()
        size = jnp.sqrt(jac.square())
        # A quotient by 0 is never selected: a ball of positive radius holds the origin.
        active = size > radius
        return optax.tree.scale(jnp.where(active, radius / size, 1.0), jac), active
    left, singular, right = jnp.linalg.svd(jac.dense(), full_matrices=False)
    clipped = left @ (jnp.minimum(singular, radius)[:, None] * right)
    return jac.filled(clipped), jnp.max(singular) > radius
