"""Gains that set themselves: how much to believe a new batch, told by the spread of its draws.

A tracked quantity θ (a level's value, or its Jacobian) moves by Δ in a step. A batch that is evaluated
at the new and at the old point tells where it is, y = θ + Δ + e₁, and how far it went, d = Δ + e₂:

    θ̂ ← θ̂ + k₁(y − θ̂) + k₂ d,    error ← (1−k₁)·error − (1−k₁−k₂)·Δ + k₁e₁ + k₂e₂

k₁ = β, k₂ = 1 − β is STORM; k₂ = 0 a moving average; k₁ = 1, k₂ = 0 no memory; where nothing moves, the
running mean. With R = E‖e₁‖², Q = E‖e₂‖², C = E⟨e₁, e₂⟩ and s² = E‖Δ‖², all seen in the batch, and P
the expected squared error so far, the gains of least expected squared error solve

    [ P + s² + R   s² + C ] [k₁]   [P + s²]
    [ s² + C       s² + Q ] [k₂] = [s²    ]

which is a Kalman filter with one gain for a whole array. Five things make it fit for a run:

* Q and s² belong to a length of the step, C to its root: they are remembered per squared length (per
  length), so that a longer step, or a longer time between two visits of a block, counts at once.
* A movement that d misses is missed again at the next step, as long as the memory lasts, so s² counts
  1/k₁ times. Without it the filter believes itself where the weights follow its errors.
* What tells about movement, Q and s², rises at once and falls slowly: most batches do not hold the rare
  rows that change most.
* n batches cannot know a mean better than R/n, so that P is no less. Without it a filter whose first
  batches happen to be alike, as where a rare row is missing, believes itself for ever. A batch that
  raises R out of all proportion is the exception: one wild draw is no reason to believe it.
* Beliefs are kept as roots, in the unit of what is tracked, and batches are looked at in a unit of their
  own: squares of 10⁻³⁰ or 10³⁰ are beyond single precision, and such values are not.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

#: How fast the spread of a batch is forgotten; before, it is a plain mean over the steps. Slowly: one
#: that followed single draws would make gains small just where a draw is far out, and so bias the mean.
SPREAD_RATE = 0.002
#: The same for what tells about movement.
RATE = 0.02
#: The longest memory, in steps, for which a missed movement is made to count.
LONGEST = 1000
#: How much of the bound on a covariance is believed.
CORRELATED = 0.999
#: How many times its size √R may grow at a batch that is believed like the others.
PROPORTION = 3
#: Arrays of at most so many entries are worked on side by side, which takes fewer operations.
SMALL = 2**12


class Belief(eqx.Module):
    """What is believed of a list of tracked arrays: six numbers for each, in one array of six rows.

    error: √P, the expected error of the tracked array.
    spread: √R, of the mean of a batch: what an estimate without memory would have.
    change: √Q over the length of a step, of the difference of a batch between two points.
    joint: √|C| over the root of the length of a step, of the two together, with the sign of C.
    drift: s over the length of a step.
    gain: k₁ of the last step.
    """

    numbers: Array

    error = property(lambda self: self.numbers[..., 0, :])
    spread = property(lambda self: self.numbers[..., 1, :])
    change = property(lambda self: self.numbers[..., 2, :])
    joint = property(lambda self: self.numbers[..., 3, :])
    drift = property(lambda self: self.numbers[..., 4, :])
    gain = property(lambda self: self.numbers[..., 5, :])


class Facts(NamedTuple):
    """The variances that gains follow from, in the letters of the formulas above."""

    P: Array
    R: Array
    Q: Array
    C: Array
    s2: Array


def gains(facts: Facts) -> tuple[Array, Array]:
    """k₁ and k₂: the solution above in [0, 1]², written so that nothing cancels without noise.

    Outside it noise that is nearly collinear would be magnified: gains of 10⁴ are no better than their
    covariance is known.
    """
    total = _or_one(facts.P + facts.R + facts.Q + facts.s2)
    # Gains have no unit; as they are, products of small variances could underflow.
    P, R, Q, C, s2 = (x / total for x in facts)
    det = s2 * (P + R + Q - 2 * C) + (P + R) * Q - C * C
    solvable = det > jnp.finfo(det.dtype).eps * (P + s2 + R) * (s2 + Q)
    det = jnp.where(solvable, det, 1)
    # Nothing moves, or nothing is uncertain: a running mean, or what was seen.
    known = P + s2 + R
    alone = jnp.where(known > 0, (P + s2) / _or_one(known), 1)
    k1 = jnp.clip(jnp.where(solvable, (P * (s2 + Q) + s2 * (Q - C)) / det, alone), 0, 1)
    # The best k₂ beside that k₁, which is no longer the one above where it was cut.
    moves = s2 + Q
    k2 = ((1 - k1) * s2 - k1 * C) / _or_one(moves)
    return k1, jnp.where(moves > 0, jnp.clip(k2, 0, 1), 0)


def squared_error(k1: Array, k2: Array, facts: Facts) -> Array:
    """E‖θ̂ − θ‖² after a step with any gains."""
    P, R, Q, C, s2 = facts
    kept = (1 - k1) ** 2 * P + (1 - k1 - k2) ** 2 * s2
    return kept + k1 * k1 * R + 2 * k1 * k2 * C + k2 * k2 * Q


def first_belief(arrays: Sequence[Array], unseen: float = 1.0) -> Belief:
    """After a first batch, from its groups along the leading axis of every array."""
    batch = _look(arrays, arrays, [jnp.zeros_like(x[0]) for x in arrays])
    # One draw says nothing about its own error: it may be as large as what was drawn.
    square = batch.spread if arrays[0].shape[0] > 1 else batch.innovation
    spread = batch.unit * jnp.sqrt(unseen * square)
    nothing = jnp.zeros_like(spread)
    return Belief(jnp.stack([spread, spread, nothing, nothing, nothing, jnp.ones_like(spread)]))


def follow(
    new: Sequence[Array],
    old: Sequence[Array],
    tracked: Sequence[Array],
    belief: Belief,
    count: Array,
    length: Array,
    unseen: float = 1.0,
    batches: Array | None = None,
) -> tuple[list[Array], Belief]:
    """Tracked arrays and what is believed of them after a batch.

    Args:
        new: one array of every group of the batch, along a leading axis, at the new point.
        old: the same at the old point.
        tracked: what was known before.
        count: 1 at the first call, 2 at the second, …
        length: how far the new point is from the old one.
        unseen: the share of the population that is not in the batch, where rows are drawn without
            replacement; a batch of everything has no error.
        batches: how many batches of this size were seen before, ``count`` unless the first was larger.
    """
    batch = _look(new, old, tracked)
    if new[0].shape[0] > 1:
        spread, change, joint = (unseen * x for x in (batch.spread, batch.change, batch.joint))
        drift = jnp.maximum(batch.distance - change, 0)
    else:
        # A single draw has no spread: it is told from the prediction, and of what seems to have moved
        # half is taken for noise.
        spread = unseen * batch.innovation
        drift = batch.distance * (1 - unseen / 2)
        change = batch.distance - drift
        joint = batch.along - drift
    dtype = belief.numbers.dtype
    share = 1 / count.astype(dtype)
    length = length.astype(dtype)
    moved = length > 0
    # From here on in the square of one unit, which is at least as large as all that is compared.
    per_step = jnp.stack([jnp.ones_like(length), length, jnp.sqrt(length), length])[:, None]
    before = belief.numbers[1:5] * per_step
    unit = jnp.maximum(jnp.maximum(batch.unit, belief.error), jnp.max(jnp.abs(before), 0))
    unit = _or_one(unit)
    now = jnp.stack([spread, change, joint, drift]) * (batch.unit / unit) ** 2
    rate = jnp.maximum(share, RATE)
    rates = jnp.maximum(share, np.asarray([SPREAD_RATE, RATE, RATE, RATE], dtype))[:, None]
    known = _signed_square(before / unit)
    squares = (1 - rates) * known + rates * now
    # What tells about movement rises at once.
    squares = jnp.where(np.asarray([[0], [1], [0], [1]], bool), jnp.maximum(squares, now), squares)
    R, Q, C, s2 = squares
    # Where nothing has differed so far, nothing is out of proportion.
    expected = jnp.where(known[0] > 0, jnp.minimum(R, PROPORTION**2 * known[0]), R)
    batches = (count if batches is None else batches).astype(dtype)
    # Few draws are always correlated: two of one number perfectly so.
    seen_so_far = max(new[0].shape[0] - 1, 1) / rate
    bound = CORRELATED * (1 - 1 / seen_so_far) * jnp.sqrt(R * Q)
    facts = Facts(
        P=jnp.maximum((belief.error / unit) ** 2, expected / batches),
        R=R,
        Q=Q,
        C=jnp.clip(C, -bound, bound),
        s2=s2 / jnp.maximum(belief.gain, 1 / LONGEST),
    )
    k1, k2 = gains(facts)
    error = jnp.maximum(squared_error(k1, k2, facts), R / (batches + 1))
    roots = unit * _signed_root(jnp.concatenate([error[None], squares]))
    about_movement = jnp.where(moved, roots[2:] / jnp.where(moved, per_step[1:], 1), belief.numbers[2:5])
    estimates = [
        (x + k1[k] * batch.off[k] + k2[k] * batch.moved[k]).astype(x.dtype)
        for k, x in enumerate(tracked)
    ]
    return estimates, Belief(jnp.concatenate([roots[:2], about_movement, k1[None]]))


def smooth_root(before: Array, now: Array, rate: Array) -> Array:
    """Returns the root of the mean of two squares, the second with the weight ``rate``.

    As a sum of two terms: one plus a difference cancels where the first is much the larger.
    """
    unit = _or_one(jnp.maximum(before, now))
    return unit * jnp.sqrt((1 - rate) * (before / unit) ** 2 + rate * (now / unit) ** 2)


def _or_one(x: Array) -> Array:
    """What may be divided by."""
    return jnp.where(x > 0, x, 1)


def _signed_square(x: Array) -> Array:
    return x * jnp.abs(x)


def _signed_root(x: Array) -> Array:
    return jnp.sign(x) * jnp.sqrt(jnp.abs(x))


class _Seen(NamedTuple):
    """Arrays in one batch, a number of each: how the groups spread, and where their means lie.

    unit: the largest deviation; the other numbers are in its square.
    spread, change, joint: R, Q and C, from the spread of the groups.
    innovation: ‖y − θ̂‖². distance: ‖d‖². along: ⟨y − θ̂, d⟩.
    off, moved: y − θ̂ and d of every array, as they are.
    """

    unit: Array
    spread: Array
    change: Array
    joint: Array
    innovation: Array
    distance: Array
    along: Array
    off: list[Array]
    moved: list[Array]


def _look(new: Sequence[Array], old: Sequence[Array], tracked: Sequence[Array]) -> _Seen:
    groups = new[0].shape[0]
    pairs = groups * max(groups - 1, 1)
    # Half precision would hold neither the squares nor the small steps of a long memory.
    dtype = jnp.promote_types(new[0].dtype, jnp.float32)
    off: dict[int, Array] = {}
    moved: dict[int, Array] = {}
    rows: dict[int, Array] = {}
    for part in _parts(tracked):
        sizes = [tracked[k].size for k in part]
        drawn = _beside(new, part, dtype, groups)
        moves = drawn - _beside(old, part, dtype, groups)
        y = jnp.mean(drawn, 0)
        d = jnp.mean(moves, 0)
        innovation = y - _beside(tracked, part, dtype)
        drawn = drawn - y
        moves = moves - d
        largest = jnp.maximum(
            jnp.max(jnp.maximum(jnp.abs(drawn), jnp.abs(moves)), 0),
            jnp.maximum(jnp.abs(innovation), jnp.abs(d)),
        )
        unit = jnp.max(largest)
        share = 1 / _or_one(unit)
        a, b, a_mean, b_mean = drawn * share, moves * share, innovation * share, d * share
        spreads = [jnp.sum(p * q, 0) / pairs for p, q in ((a, a), (b, b), (a, b))]
        lengths = [a_mean * a_mean, b_mean * b_mean, a_mean * b_mean]
        sums = jnp.stack(spreads + lengths) @ _members(sizes, dtype)
        ends = np.cumsum(sizes)[:-1]
        pieces = zip(part, jnp.split(innovation, ends), jnp.split(d, ends), strict=True)
        for j, (k, a, b) in enumerate(pieces):
            off[k] = a.reshape(tracked[k].shape)
            moved[k] = b.reshape(tracked[k].shape)
            rows[k] = jnp.concatenate([unit[None], sums[:, j]])
    arrays = range(len(tracked))
    numbers = jnp.stack([rows[k] for k in arrays], axis=1)
    unit, spread, change, joint, innovation, distance, along = numbers
    return _Seen(
        unit,
        spread,
        change,
        joint,
        innovation,
        distance,
        along,
        [off[k] for k in arrays],
        [moved[k] for k in arrays],
    )


def _parts(arrays: Sequence[Array]) -> list[list[int]]:
    """Which arrays are worked on side by side."""
    small = [k for k, x in enumerate(arrays) if x.size <= SMALL]
    large = [[k] for k, x in enumerate(arrays) if x.size > SMALL]
    return [small, *large] if small else large


def _beside(arrays: Sequence[Array], part: list[int], dtype: Any, *lead: int) -> Array:
    """Returns the entries of some arrays in one row."""
    return jnp.concatenate([arrays[k].astype(dtype).reshape(*lead, -1) for k in part], axis=-1)


def _members(sizes: list[int], dtype: Any) -> Array:
    """Column k is one at the entries of array k: a product with it sums each array by itself."""
    return jnp.asarray(np.repeat(np.eye(len(sizes)), sizes, axis=0), dtype)
