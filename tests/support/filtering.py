"""Gains that set themselves, written out in plain NumPy, and the sequences that all copies must follow.

Variances are squares here, in double precision; the library keeps their roots.
"""

from typing import Any, NamedTuple

import numpy as np

#: As ``nestax.parts.gains`` says.
FORGET = 0.02
FORGET_SPREAD = 0.002
LONGEST = 1000
CORRELATED = 0.999
PROPORTION = 3


class Known(NamedTuple):
    """A tracked array and what is believed of it; Q, s² per squared length of a step, C per length."""

    theta: Any
    P: float
    R: float
    Q: float
    C: float
    s2: float
    k1: float


def spread_of(a, b):
    """Covariance of the means of two lists of arrays over groups, summed over entries."""
    count = len(a)
    a_mean = sum(a) / count
    b_mean = sum(b) / count
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += np.sum((x - a_mean) * (y - b_mean))
    return total / (count * (count - 1))


def first_known(new, unseen=1.0):
    y = sum(new) / len(new)
    R = unseen * (spread_of(new, new) if len(new) > 1 else np.sum(y**2))
    return Known(y, R, R, 0.0, 0.0, 0.0, 1.0)


def gains(P, R, Q, C, s2):
    """From the two equations, where they say something."""
    if s2 + Q == 0 or R == 0:  # nothing moves, or nothing is uncertain
        return (P + s2) / (P + s2 + R) if P + s2 + R > 0 else 1.0, 0.0
    matrix = np.array([[P + s2 + R, s2 + C], [s2 + C, s2 + Q]])
    k1 = np.linalg.solve(matrix, [P + s2, s2])[0]
    k1 = min(max(k1, 0.0), 1.0)
    k2 = ((1 - k1) * s2 - k1 * C) / (s2 + Q)  # the second equation, for the k₁ that is taken
    return k1, min(max(k2, 0.0), 1.0)


def filtered(known, new, old, t, length=1.0, unseen=1.0, clipped=None, batches=None):
    """What is known of an array after step t, from that array in every group, at both points.

    batches: how many of this size there were before; clipped: a list of whether C was cut.
    """
    batches = t if batches is None else batches
    went = [a - b for a, b in zip(new, old, strict=True)]
    y = sum(new) / len(new)
    d = sum(went) / len(went)
    off = y - known.theta
    if len(new) > 1:
        R_now = unseen * spread_of(new, new)
        Q_now = unseen * spread_of(went, went)
        C_now = unseen * spread_of(new, went)
        s2_now = max(np.sum(d**2) - Q_now, 0.0)
    else:
        R_now = unseen * np.sum(off**2)
        s2_now = np.sum(d**2) * (1 - unseen / 2)
        Q_now = np.sum(d**2) - s2_now
        C_now = np.sum(off * d) - s2_now
    rate = max(1 / t, FORGET)
    spread_rate = max(1 / t, FORGET_SPREAD)
    R = (1 - spread_rate) * known.R + spread_rate * R_now
    Q_rate = known.Q
    C_rate = known.C
    s2_rate = known.s2
    if length > 0:
        Q_rate = max((1 - rate) * known.Q + rate * Q_now / length**2, Q_now / length**2)
        s2_rate = max((1 - rate) * known.s2 + rate * s2_now / length**2, s2_now / length**2)
        C_rate = (1 - rate) * known.C + rate * C_now / length
    in_proportion = min(R, PROPORTION**2 * known.R) if known.R > 0 else R
    P = max(known.P, in_proportion / batches)
    Q = Q_rate * length**2
    freedom = max(len(new) - 1, 1) / rate
    bound = CORRELATED * (1 - 1 / freedom) * np.sqrt(R * Q)
    C = min(max(C_rate * length, -bound), bound)
    if clipped is not None:
        clipped.append(abs(C_rate * length) > bound)
    s2 = s2_rate * length**2 / max(known.k1, 1 / LONGEST)
    k1, k2 = gains(P, R, Q, C, s2)
    error = (1 - k1) ** 2 * P + (1 - k1 - k2) ** 2 * s2 + k1**2 * R + 2 * k1 * k2 * C + k2**2 * Q
    error = max(error, R / (batches + 1))
    theta = known.theta + k1 * off + k2 * d
    return Known(theta, error, R, Q_rate, C_rate, s2_rate, k1)


def roots(known):
    """The six numbers of a belief, as the library keeps them."""
    squares = np.asarray(known[1:6], float)
    return np.append(np.sign(squares) * np.sqrt(np.abs(squares)), known.k1)


# The laws as data: what every copy of the gains is given, and must make of it


def _noise(seed, steps=40, draws=4, entries=2):
    rng = np.random.default_rng(seed)
    new = rng.normal(size=(steps, draws, entries))
    return new, new - 0.1 - 0.05 * rng.normal(size=new.shape)


def _rare(at, size=300.0, moves=1.0):
    """Zeros but for single draws at the given steps, which are smaller at the point before."""
    new = np.zeros((40, 4, 1))
    for step in at:
        new[step, step % 4] = size
    return new, new * moves


def _with_entry(step, size):
    new, old = (x.copy() for x in _noise(3))
    new[step, 1, 0] = old[step, 1, 0] = size
    return new, old


def _first_times(factor):
    new, old = (x.copy() for x in _noise(4))
    new[0] *= factor
    old[0] *= factor
    return new, old


def _scaled(factor):
    return tuple(factor * x for x in _noise(5))


#: By name, draws at the new and at the old point: steps × draws × entries.
SEQUENCES = {
    "noise that moves": _noise(0),
    "two draws of one number": _noise(1, draws=2, entries=1),
    "noise that rests": (_noise(2)[0],) * 2,
    "all alike": (np.full((40, 4, 2), 3.0),) * 2,
    "a rare event that rests": _rare([9, 15, 16, 28]),
    "a rare event that moves": _rare([9, 15, 16, 28], moves=0.9),
    "a rare event in the first batch": _rare([0, 21]),
    "only one event": _rare([30]),
    "a first spread 10⁷ times the others": _first_times(10**3.5),
    "one entry of 10⁶ in the first batch": _with_entry(0, 1e6),
    "one entry of 10⁶ later": _with_entry(20, 1e6),
    "one entry of 10¹⁵ later": _with_entry(20, 1e15),
    "in units of 10⁻²⁵": _scaled(1e-25),
    "in units of 10²⁵": _scaled(1e25),
}


def followed(name):
    """The tracked array and the belief after every step of a sequence."""
    new, old = SEQUENCES[name]
    known = first_known(list(new[0]))
    out = [known]
    for t in range(1, len(new)):
        known = filtered(known, list(new[t]), list(old[t]), t)
        out.append(known)
    return out


def assert_follows(name, found, single):
    """That a copy's tracked arrays and beliefs, a pair a step, are those written out.

    Numbers are compared with the largest of their kind: a small one may be a difference of large ones.
    """
    tolerance = 2e-3 if single else 1e-8
    rounding = (1e-6 if single else 1e-14) * np.abs(SEQUENCES[name][0]).max()
    for known, (theta, belief) in zip(followed(name), found, strict=True):
        size = np.abs(known.theta).max() + np.sqrt(known.R)
        np.testing.assert_allclose(theta, known.theta, rtol=tolerance, atol=tolerance * size + rounding)
        told = roots(known)
        largest = np.abs([told[0], told[1], *[np.abs(told[2:5]).max()] * 3, tolerance])
        np.testing.assert_array_less(
            np.abs(belief - told), tolerance * (largest + np.abs(told)) + 1e-300
        )
