"""The adaptive steps of Adaptive SMVR, equations (rule1) and (rule2) of Jiang et al., ICML 2022.

    w_{t+1} = w_t − η_t v_t/(√h_t + δ),   entry by entry, with one of

    AdaGrad-type    h_t = (1/t) Σ_{s≤t} v_s²
    Adam-type       h_t = (1 − β′_t) h_{t−1} + β′_t v_t²
    AMSGrad-type    h′_t = (1 − β′_t) h′_{t−1} + β′_t v_t²,   h_t = max(h_{t−1}, h′_t)
    AdaBound-type   h′_t as before,   h_t = h′_t clipped to [1/c_u², 1/c_l²]

None averages v_t itself: an estimate with memory already is an average. Each is an Optax
transformation, so the feasible set is met by a Euclidean projection afterwards; the theory has none.

The paper gives neither β′, δ nor h_0. Here h_0 = 0, and the averages are divided by their total weight
1 − Π_{s≤t}(1 − β′_s) unless ``bias_correction=False``, which is the printed form: without it the first
step is 1/√β′ times too long. These choices and the defaults are ours (INFERRED).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from nestax.errors import check_setting, is_traced
from nestax.parts.settings import Setting, at


class AdaptiveState(eqx.Module):
    """Steps taken, weight of all squares averaged so far, their average h′, and AMSGrad's h."""

    count: Int[Array, ""]
    weight: Float[Array, ""]
    mean: PyTree
    largest: PyTree | None


def adagrad_mean(lr: Setting, delta: Setting = 1e-8) -> optax.GradientTransformation:
    """AdaGrad-type: h_t = (1/t) Σ_{s≤t} v_s², a mean, where AdaGrad itself has a sum.

    With a sum the steps would shrink like 1/√t on top of the schedule.

    Args:
        lr: η > 0, a number or an Optax schedule.
        delta: δ > 0, a number; the default is INFERRED.
    """
    return _rule(lr, delta, lambda count: 1 / (count + 1.0), False)


def adam_type(
    lr: Setting, beta: Setting = 0.01, delta: Setting = 1e-8, bias_correction: bool = True
) -> optax.GradientTransformation:
    """Adam-type: h_t = (1 − β′) h_{t−1} + β′ v_t²; Adam without the average of v itself.

    Args:
        lr: η > 0, a number or an Optax schedule.
        beta: β′ in (0, 1], a number or a schedule, called with the steps taken; Adam's 1 − b2. The
            default is INFERRED.
        delta: δ > 0, a number, Adam's eps; the default is INFERRED, up to 1e-3 is sensible.
        bias_correction: divide h by its total weight; INFERRED, False is the printed form.
    """
    return _rule(lr, delta, beta, bias_correction)


def amsgrad_type(
    lr: Setting, beta: Setting = 0.01, delta: Setting = 1e-8, bias_correction: bool = True
) -> optax.GradientTransformation:
    """AMSGrad-type: h_t = max(h_{t−1}, h′_t), so that no entry's step ever grows by itself.

    Args:
        lr, beta, delta: as for ``adam_type``.
        bias_correction: take the maximum of corrected averages; INFERRED, False is the printed form.
    """
    return _rule(lr, delta, beta, bias_correction, keep_largest=True)


def adabound_type(
    lr: Setting,
    beta: Setting = 0.01,
    c_l: Setting = 1e-2,
    c_u: Setting = 1e2,
    delta: Setting = 1e-8,
    bias_correction: bool = True,
) -> optax.GradientTransformation:
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

    def bound(h: Array) -> Array:
        return jnp.clip(h, _like(c_u, h) ** -2, _like(c_l, h) ** -2)

    return _rule(lr, delta, beta, bias_correction, bound)


def _rule(
    lr: Setting,
    delta: Setting,
    beta: Setting,
    bias_correction: bool,
    bound: Callable[[Array], Array] = lambda h: h,
    *,
    keep_largest: bool = False,
) -> optax.GradientTransformation:
    """All four: a weighted mean of squares (AdaGrad's weight is β′_t = 1/t), then what becomes of it."""
    check_setting("lr", lr, "positive", lambda x: x > 0)
    check_setting("beta", beta, "in (0, 1]", lambda x: (x > 0) & (x <= 1))
    check_setting("delta", delta, "positive", lambda x: x > 0)

    def init(params: PyTree) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, params)
        count = jnp.zeros((), jnp.int32)
        weight = jnp.zeros(())
        return AdaptiveState(count, weight, zeros, zeros if keep_largest else None)

    def update(updates: PyTree, state: Any, params: PyTree = None) -> Any:
        del params
        rate = at(lr, state.count)
        share = at(beta, state.count)
        mean = jax.tree.map(lambda h, v: h + _like(share, h) * (v * v - h), state.mean, updates)
        # The same average of ones: what it lacks to one is the weight still on h_0 = 0.
        weight = state.weight + _like(share, state.weight) * (1.0 - state.weight)
        h = jax.tree.map(lambda x: x / _like(weight, x), mean) if bias_correction else mean
        h = jax.tree.map(bound, h)
        if keep_largest:
            h = jax.tree.map(jnp.maximum, state.largest, h)
        change = jax.tree.map(
            lambda v, h: -_like(rate, v) * v / (jnp.sqrt(h) + _like(delta, v)), updates, h
        )
        return change, AdaptiveState(state.count + 1, weight, mean, h if keep_largest else None)

    return optax.GradientTransformation(init, update)


def _like(number: Any, leaf: Array) -> Array:
    """In the dtype of the weights, whatever the dtype of the setting."""
    return jnp.asarray(number, leaf.dtype)
