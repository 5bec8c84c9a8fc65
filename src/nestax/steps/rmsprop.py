"""RMSprop, which divides by the root of a moving mean of squares: Hinton, Coursera lecture 6e, 2012."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.errors import POSITIVE, UNIT
from nestax.parts.scaling import AbstractScaling, Scaled, like, squared, toward
from nestax.parts.settings import Setting, at, setting


class RMSprop(AbstractScaling):
    """v/D with D = √(h + ε), h the mean of v², projected in its norm; ``optax.rmsprop`` on free weights.

    Args:
        lr: η > 0, a number or a schedule.
        beta: the rate in (0, 1] at which squares are forgotten, 1 − decay of Optax; or a schedule.
        eps: ε > 0, a number or a schedule.
    """

    beta: Setting = setting(UNIT, default=0.1)
    eps: Setting = setting(POSITIVE, default=1e-8)

    def first(self, zeros: PyTree):
        return zeros

    def scaled(self, grad: PyTree, plain: PyTree, moments: PyTree, count: Array) -> Scaled:
        mean = toward(moments, at(self.beta, count), squared(plain))
        stiff = jax.tree.map(lambda x: jnp.sqrt(x + like(at(self.eps, count), x)), mean)
        return Scaled(grad, stiff, mean)
