"""Adam and AMSGrad, which end at the optimum under constraints and beside terms that are not smooth.

symbol    here             meaning
m         moments[0]       mean of gradients, forgotten at the rate 1 − b1
v         moments[1]       mean of their squares, forgotten at the rate 1 − b2
D         stiff            √v̂ + ε

On free weights they are ``optax.adam`` and ``optax.amsgrad`` to rounding. References: Kingma, Ba, ICLR
2015; Reddi, Kale, Kumar, ICLR 2018.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.errors import POSITIVE, Range
from nestax.parts.scaling import AbstractScaling, Scaled, like, squared, toward
from nestax.parts.settings import Setting, at, setting

FORGOTTEN = Range("at least 0 and less than 1", lambda x: (x >= 0) & (x < 1))


class Adam(AbstractScaling):
    """m/D with D = √v̂ + ε, both means divided by their total weight.

    Args:
        lr: η > 0, a number or a schedule.
        b1, b2: in [0, 1), numbers or schedules.
        eps: ε > 0, a number or a schedule.
    """

    b1: Setting = setting(FORGOTTEN, default=0.9)
    b2: Setting = setting(FORGOTTEN, default=0.999)
    eps: Setting = setting(POSITIVE, default=1e-8)
    keeps_largest: ClassVar[bool] = False

    def first(self, zeros: PyTree):
        one = jnp.ones(())  # the weight that is still on the zeros at the start
        return zeros, zeros, (one, one), zeros if self.keeps_largest else None

    def scaled(self, grad: PyTree, plain: PyTree, moments: PyTree, count: Array) -> Scaled:
        m, v, left, largest = moments
        shares = 1 - at(self.b1, count), 1 - at(self.b2, count)
        eps = at(self.eps, count)
        m = toward(m, shares[0], grad)
        v = toward(v, shares[1], squared(plain))
        left = tuple(x * (1 - share).astype(x.dtype) for x, share in zip(left, shares, strict=True))
        direction, square = (
            jax.tree.map(lambda x, rest=rest: x / (1 - like(rest, x)), mean)
            for mean, rest in zip((m, v), left, strict=True)
        )
        if self.keeps_largest:
            largest = square = jax.tree.map(jnp.maximum, largest, square)
        stiff = jax.tree.map(lambda x: jnp.sqrt(x) + like(eps, x), square)
        return Scaled(direction, stiff, (m, v, left, largest))


class AMSGrad(Adam):
    """Adam with the largest v̂ so far, so that no entry's step ever grows by itself."""

    keeps_largest = True
