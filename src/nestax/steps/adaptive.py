"""The adaptive steps of Adaptive SMVR, equations (rule1) and (rule2) of Jiang et al., ICML 2022.

    w_{t+1} = w_t − η_t v_t/(√h_t + δ),   entry by entry, with one of

    AdaGrad-type    h_t = (1/t) Σ_{s≤t} v_s²
    Adam-type       h_t = (1 − β′_t) h_{t−1} + β′_t v_t²
    AMSGrad-type    h′_t = (1 − β′_t) h′_{t−1} + β′_t v_t²,   h_t = max(h_{t−1}, h′_t)
    AdaBound-type   h′_t as before,   h_t = h′_t clipped to [1/c_u², 1/c_l²]

None averages v_t itself: an estimate with memory already is an average. A feasible set, which the theory
has none of, is met by the projection in the norm of the step.

The paper gives neither β′, δ nor h_0. Here h_0 = 0, and the averages are divided by their total weight
1 − Π_{s≤t}(1 − β′_s) unless ``bias_correction=False``, which is the printed form: without it the first
step is 1/√β′ times too long. These choices and the defaults are ours (INFERRED).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.errors import POSITIVE, UNIT, check_setting, is_traced
from nestax.parts.scaling import AbstractScaling, Scaled, like, squared, toward
from nestax.parts.settings import Setting, as_setting, at, setting


def adagrad_mean(lr: Setting, delta: Setting = 1e-8) -> "Adaptive":
    """AdaGrad-type: h_t = (1/t) Σ_{s≤t} v_s², a mean, where AdaGrad itself has a sum.

    With a sum the steps would shrink like 1/√t on top of the schedule.

    Args:
        lr: η > 0, a number or an Optax schedule.
        delta: δ > 0, a number; the default is INFERRED.
    """
    return Adaptive(lr, delta, one_over, bias_correction=False)


def adam_type(
    lr: Setting, beta: Setting = 0.01, delta: Setting = 1e-8, bias_correction: bool = True
) -> "Adaptive":
    """Adam-type: h_t = (1 − β′) h_{t−1} + β′ v_t²; Adam without the average of v itself.

    Args:
        lr: η > 0, a number or an Optax schedule.
        beta: β′ in (0, 1], a number or a schedule, called with the steps taken; Adam's 1 − b2. The
            default is INFERRED.
        delta: δ > 0, a number, Adam's eps; the default is INFERRED, up to 1e-3 is sensible.
        bias_correction: divide h by its total weight; INFERRED, False is the printed form.
    """
    return Adaptive(lr, delta, beta, bias_correction=bias_correction)


def amsgrad_type(
    lr: Setting, beta: Setting = 0.01, delta: Setting = 1e-8, bias_correction: bool = True
) -> "Adaptive":
    """AMSGrad-type: h_t = max(h_{t−1}, h′_t), so that no entry's step ever grows by itself.

    Args:
        lr, beta, delta: as for ``adam_type``.
        bias_correction: take the maximum of corrected averages; INFERRED, False is the printed form.
    """
    return Adaptive(lr, delta, beta, bias_correction=bias_correction, keep_largest=True)


def adabound_type(
    lr: Setting,
    beta: Setting = 0.01,
    c_l: Setting = 1e-2,
    c_u: Setting = 1e2,
    delta: Setting = 1e-8,
    bias_correction: bool = True,
) -> "Adaptive":
    """AdaBound-type: h_t = h′_t clipped to [1/c_u², 1/c_l²], so that c_l ≤ 1/√h_t ≤ c_u.

    The two bounds of the adaptive theorem hold by construction, up to δ: with it the factor lies
    between c_l/(1 + δ c_l) and c_u/(1 + δ c_u).

    Args:
        lr, beta, delta: as for ``adam_type``.
        c_l, c_u: 0 < c_l ≤ c_u, numbers; the defaults are INFERRED. Equal, they give gradient descent
            at the rate lr·c_l.
        bias_correction: clip the corrected average; INFERRED, False is the printed form.
    """
    check_setting("c_l", c_l, "positive", lambda x: x > 0)
    check_setting("c_u", c_u, f"at least c_l = {c_l}", lambda x: is_traced(c_l) or x >= c_l)
    bounds = as_setting(c_l), as_setting(c_u)
    return Adaptive(lr, delta, beta, bounds, bias_correction=bias_correction)


class Adaptive(AbstractScaling):
    """All four: a weighted mean h of squares (AdaGrad's weight is β′_t = 1/t), then what becomes of it.

    bounds: c_l and c_u of AdaBound; None elsewhere.
    """

    delta: Setting = setting(POSITIVE)
    beta: Setting = setting(UNIT)
    bounds: tuple[Setting, Setting] | None = None
    bias_correction: bool = eqx.field(static=True, default=True)
    keep_largest: bool = eqx.field(static=True, default=False)

    def first(self, zeros: PyTree):
        return jnp.zeros(()), zeros, zeros if self.keep_largest else None

    def scaled(self, grad: PyTree, plain: PyTree, moments: PyTree, count: Array) -> Scaled:
        weight, mean, largest = moments
        share = at(self.beta, count)
        mean = toward(mean, share, squared(plain))
        # The same average of ones: what it lacks to one is the weight still on h_0 = 0.
        weight = toward(weight, share, jnp.ones(()))
        h = jax.tree.map(lambda x: x / like(weight, x), mean) if self.bias_correction else mean
        if self.bounds is not None:
            least, most = self.bounds
            h = jax.tree.map(lambda x: jnp.clip(x, like(most, x) ** -2, like(least, x) ** -2), h)
        if self.keep_largest:
            h = largest = jax.tree.map(jnp.maximum, largest, h)
        stiff = jax.tree.map(lambda x: jnp.sqrt(x) + like(self.delta, x), h)
        return Scaled(grad, stiff, (weight, mean, largest))


def one_over(count: Array) -> Array:
    """1, 1/2, 1/3, …: the mean of all so far."""
    return 1 / (count + 1.0)
