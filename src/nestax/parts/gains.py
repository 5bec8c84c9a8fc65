"""Gains that set themselves: how much to believe a new batch, told by the spread of its draws.

A tracked quantity θ (a level's value, or its Jacobian) moves by Δ in a step. A batch that is evaluated at
the new and at the old point tells where it is, y = θ + Δ + e₁, and how far it went, d = Δ + e₂:

    θ̂ ← θ̂ + k₁(y − θ̂) + k₂ d,    error ← (1−k₁)·error + (1−k₁−k₂)·Δ-part + k₁e₁ + k₂e₂

k₁ = β, k₂ = 1 − β is STORM; k₂ = 0 a moving average; k₁ = 1, k₂ = 0 no memory; where nothing moves, the
running mean. With R = E‖e₁‖², Q = E‖e₂‖², C = E⟨e₁, e₂⟩ and s² = E‖Δ‖², all seen in the batch, and P
the expected squared error so far, the gains of least expected squared error solve

    [ P + s² + R   s² + C ] [k₁]   [P + s²]
    [ s² + C       s² + Q ] [k₂] = [s²    ]

which is a Kalman filter with one gain for a whole array. Two things keep it from believing itself where
the weights follow its errors. A movement that d misses is missed again at the next step, as long as the
memory lasts, so s² counts 1/k₁ times. And what tells about movement, Q and s², rises at once and falls
slowly: most batches do not hold the rare rows that change most.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

#: How fast the spreads of the draws are forgotten; before, they are plain means over the steps.
RATE = 0.02
#: The longest memory, in steps, for which a missed movement is made to count.
LONGEST = 1000
#: How much of the bound on a covariance is believed.
CORRELATED = 0.999


class Belief(eqx.Module):
    """What is believed of a list of tracked arrays, one number for each.

    error: P, the expected squared error of the tracked array; this is its error bar.
    spread: R, of the mean of a batch.
    change: Q, of the difference of a batch between two points.
    joint: C, of the two together.
    drift: the squared movement per step.
    gain: k₁ of the last step.
    """

    error: Array
    spread: Array
    change: Array
    joint: Array
    drift: Array
    gain: Array


class Seen(NamedTuple):
    """One array in one batch: means, and how far the groups of the batch spread around them."""

    mean: Array
    spread: Array
    moved: Array
    change: Array
    joint: Array
    groups: int


def first_belief(arrays: list[Array]) -> Belief:
    """After a first batch, from its groups along the leading axis of every array."""
    spreads = [_seen(array, array).spread for array in arrays]
    # One draw says nothing about its own error: it may be as large as what was drawn.
    alone = [jnp.vdot(array[0], array[0]) for array in arrays]
    spread = jnp.stack(spreads if arrays[0].shape[0] > 1 else alone)
    nothing = jnp.zeros_like(spread)
    return Belief(spread, spread, nothing, nothing, nothing, jnp.ones_like(spread))


def follow(
    new: list[Array], old: list[Array], tracked: list[Array], belief: Belief, count: Array
) -> tuple[list[Array], Belief]:
    """Tracked arrays and what is believed of them after a batch.

    Args:
        new: one array of every group of the batch, along a leading axis, at the new point.
        old: the same at the old point.
        count: 1 at the first call, 2 at the second, …
    """
    out = []
    beliefs = []
    for k, (here, there, before) in enumerate(zip(new, old, tracked, strict=True)):
        own = Belief(*(getattr(belief, name)[k] for name in Belief.__annotations__))
        value, own = _follow_one(_seen(here, there), before, own, count)
        out.append(value)
        beliefs.append(own)
    columns = (jnp.stack([getattr(own, n) for own in beliefs]) for n in Belief.__annotations__)
    return out, Belief(*columns)


def _seen(new: Array, old: Array) -> Seen:
    groups = new.shape[0]
    mean = jnp.mean(new, 0)
    moved = jnp.mean(new - old, 0)
    off = new - mean
    change = new - old - moved
    pairs = groups * max(groups - 1, 1)
    of = lambda a, b: jnp.vdot(a, b) / pairs
    return Seen(mean, of(off, off), moved, of(change, change), of(off, change), groups)


def _follow_one(seen: Seen, tracked: Array, belief: Belief, count: Array) -> tuple[Array, Belief]:
    off = seen.mean - tracked
    squared = jnp.vdot(seen.moved, seen.moved)
    if seen.groups > 1:
        spread = seen.spread
        change = seen.change
        joint = seen.joint
        drift = jnp.maximum(squared - change, 0)
    else:
        # A single draw has no spread: it is told from the prediction, and of what seems to have moved
        # half is taken for noise.
        spread = jnp.vdot(off, off)
        change = drift = squared / 2
        joint = jnp.vdot(off, seen.moved) - drift
    rate = jnp.maximum(1 / count, RATE).astype(off.dtype)
    smooth = lambda before, now: before + rate * (now - before)
    spread = smooth(belief.spread, spread)
    joint = smooth(belief.joint, joint)
    change = jnp.maximum(smooth(belief.change, change), change)
    drift = jnp.maximum(smooth(belief.drift, drift), drift)
    bound = CORRELATED * jnp.sqrt(spread) * jnp.sqrt(change)
    joint_ = jnp.clip(joint, -bound, bound)
    still = drift / jnp.maximum(belief.gain, 1 / LONGEST)
    gain, follow = gains(belief.error, spread, change, joint_, still)
    error = squared_error(gain, follow, belief.error, spread, change, joint_, still)
    error = jnp.clip(error, 0, spread)
    return tracked + gain * off + follow * seen.moved, Belief(error, spread, change, joint, drift, gain)


def gains(P: Array, R: Array, Q: Array, C: Array, s2: Array) -> tuple[Array, Array]:  # noqa: N803
    """k₁ in [0, 1] and k₂: the solution above, written so that nothing cancels where there is no noise."""
    det = s2 * (P + R + Q - 2 * C) + (P + R) * Q - C * C
    solvable = det > jnp.finfo(det.dtype).eps * (P + s2 + R) * (s2 + Q)
    det = jnp.where(solvable, det, 1)
    # Nothing moves, or nothing is uncertain: a running mean, or what was seen.
    total = P + s2 + R
    alone = jnp.where(total > 0, (P + s2) / jnp.where(total > 0, total, 1), 1)
    k1 = jnp.where(solvable, (P * (s2 + Q) + s2 * (Q - C)) / det, alone)
    k2 = jnp.where(solvable, (s2 * (R - C) - P * C) / det, 0)
    return jnp.clip(k1, 0, 1), k2


def squared_error(
    k1: Array,
    k2: Array,
    P: Array,  # noqa: N803
    R: Array,  # noqa: N803
    Q: Array,  # noqa: N803
    C: Array,  # noqa: N803
    s2: Array,
) -> Array:
    """E‖θ̂ − θ‖² after a step with any gains."""
    kept = (1 - k1) ** 2 * P + (1 - k1 - k2) ** 2 * s2
    return kept + k1 * k1 * R + 2 * k1 * k2 * C + k2 * k2 * Q
