"""AdaGrad, which divides by the root of all squares so far: Duchi, Hazan, Singer, JMLR 2011."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.errors import NONNEGATIVE, POSITIVE
from nestax.parts.scaling import AbstractScaling, Scaled, like, squared
from nestax.parts.settings import Setting, at, setting


class AdaGrad(AbstractScaling):
    """v/D with D = √(s_0 + Σ v² + ε), projected in its norm; ``optax.adagrad`` on free weights.

    Args:
        lr: η > 0, a number or a schedule.
        start: s_0 ≥ 0, the sum at the start, a number.
        eps: ε > 0, a number or a schedule.
    """

    start: Setting = setting(NONNEGATIVE, default=0.1)
    eps: Setting = setting(POSITIVE, default=1e-7)

    def first(self, zeros: PyTree):
        return jax.tree.map(lambda x: x + like(self.start, x), zeros)

    def scaled(self, grad: PyTree, plain: PyTree, moments: PyTree, count: Array) -> Scaled:
        total = jax.tree.map(jnp.add, moments, squared(plain))
        stiff = jax.tree.map(lambda x: jnp.sqrt(x + like(at(self.eps, count), x)), total)
        return Scaled(grad, stiff, total)
