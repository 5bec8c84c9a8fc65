"""Gains that set themselves, as in ``nestax.parts.gains``, which has the formulas and the reasons.

Tensors have rows first: one memory each. A belief is the numbers of ``nestax.parts.gains.Belief``, in
their order.
"""

import torch

SPREAD_RATE = 0.002
RATE = 0.02
LONGEST = 1000
CORRELATED = 0.999
PROPORTION = 3


def first_belief(new: torch.Tensor) -> torch.Tensor:
    """Error, spread, change, joint, drift, gain: of every row after its first batch."""
    centred = new - new.mean(1, keepdim=True)
    unit = _or_one(centred.abs().amax((1, 2)))
    spread = unit * _covariance(centred / unit[:, None, None], centred / unit[:, None, None]).sqrt()
    nothing = torch.zeros_like(spread)
    return torch.stack([spread, spread, nothing, nothing, nothing, torch.ones_like(spread)], dim=1)


def follow(
    new: torch.Tensor,
    old: torch.Tensor,
    tracked: torch.Tensor,
    belief: torch.Tensor,
    count: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tracked rows, rows × d, and what is believed of them after a batch seen at two points."""
    error, spread_before, change, joint, drift, gain = belief.unbind(1)
    batches = count.to(new.dtype).clamp(min=1)
    rate = (1 / batches).clamp(min=RATE)
    moves = new - old
    moved = moves.mean(1)
    drawn = new - new.mean(1, keepdim=True)
    moves_off = moves - moved[:, None]
    unit = torch.maximum(torch.maximum(drawn.abs(), moves_off.abs()).amax((1, 2)), moved.abs().amax(1))
    scale = _or_one(unit)[:, None, None]
    drawn, moves_off = drawn / scale, moves_off / scale
    seen_change = _covariance(moves_off, moves_off)
    seen_drift = ((moved / scale[:, 0]).square().sum(1) - seen_change).clamp(min=0).sqrt() * unit
    seen_change = seen_change.sqrt() * unit
    spread_rate = (1 / batches).clamp(min=SPREAD_RATE)
    spread = smooth_root(spread_before, _covariance(drawn, drawn).sqrt() * unit, spread_rate)
    change = torch.maximum(smooth_root(change, seen_change, rate), seen_change)
    drift = torch.maximum(smooth_root(drift, seen_drift, rate), seen_drift)
    joint = smooth_root(joint, _signed_root(_covariance(drawn, moves_off)) * unit, rate)
    # Where nothing has differed so far, nothing is out of proportion.
    expected = torch.minimum(spread, PROPORTION * spread_before)
    expected = torch.where(spread_before > 0, expected, spread)
    error = torch.maximum(error, expected / batches.sqrt())
    roots = torch.stack([error, spread, change, joint, drift / gain.clamp(min=1 / LONGEST).sqrt()])
    unit = _or_one(roots.abs().amax(0))
    P, R, Q, C, s2 = _signed_square(roots / unit)
    bound = CORRELATED * (1 - rate / (new.shape[1] - 1)) * (R * Q).sqrt()
    facts = (P, R, Q, torch.minimum(torch.maximum(C, -bound), bound), s2)
    k1, k2 = gains(*facts)
    square = torch.maximum(squared_error(k1, k2, *facts), R / (batches + 1))
    estimates = tracked + k1[:, None] * (new.mean(1) - tracked) + k2[:, None] * moved
    return estimates, torch.stack([unit * square.sqrt(), spread, change, joint, drift, k1], dim=1)


def gains(
    P: torch.Tensor, R: torch.Tensor, Q: torch.Tensor, C: torch.Tensor, s2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """k₁ and k₂ of least expected squared error in [0, 1]²."""
    total = _or_one(P + R + Q + s2)
    P, R, Q, C, s2 = (x / total for x in (P, R, Q, C, s2))
    det = s2 * (P + R + Q - 2 * C) + (P + R) * Q - C * C
    solvable = det > torch.finfo(det.dtype).eps * (P + s2 + R) * (s2 + Q)
    known = P + s2 + R
    alone = torch.where(known > 0, (P + s2) / _or_one(known), 1)
    solved = (P * (s2 + Q) + s2 * (Q - C)) / torch.where(solvable, det, 1)
    k1 = torch.where(solvable, solved, alone).clamp(0, 1)
    moves = s2 + Q
    k2 = (((1 - k1) * s2 - k1 * C) / _or_one(moves)).clamp(0, 1)
    return k1, torch.where(moves > 0, k2, 0)


def squared_error(k1, k2, P, R, Q, C, s2) -> torch.Tensor:
    """Computes the expected squared error after a step with any gains."""
    kept = (1 - k1) ** 2 * P + (1 - k1 - k2) ** 2 * s2
    return kept + k1 * k1 * R + 2 * k1 * k2 * C + k2 * k2 * Q


def smooth_root(before: torch.Tensor, now: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    """Computes the root of the mean of two squares with a sign, the second with the weight ``rate``."""
    unit = _or_one(torch.maximum(before.abs(), now.abs()))
    # In a unit of their own: the squares of 10⁻³⁰ are 0 in single precision.
    mean = (1 - rate) * _signed_square(before / unit) + rate * _signed_square(now / unit)
    return unit * _signed_root(mean)


def _covariance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Computes the covariance of two means over the draws, summed over entries, of centred draws."""
    draws = a.shape[1]
    return (a * b).sum((1, 2)) / (draws * max(draws - 1, 1))


def _signed_square(x: torch.Tensor) -> torch.Tensor:
    return x * x.abs()


def _signed_root(x: torch.Tensor) -> torch.Tensor:
    return x.sign() * x.abs().sqrt()


def _or_one(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, 1)
