"""Gains that set themselves, as in ``nestax.parts.gains``, which has the formulas and the reasons.

Tensors have rows first: one memory each.
"""

import torch

SPREAD_RATE = 0.002
RATE = 0.02
LONGEST = 1000
CORRELATED = 0.999


def first_belief(new: torch.Tensor) -> torch.Tensor:
    """Error, spread, change, joint, drift, gain: of every row after its first batch."""
    spread = _spread(new, new)
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
    error, spread, change, joint, drift, gain = belief.unbind(1)
    share = 1 / count.to(new.dtype).clamp(min=1)
    rate = share.clamp(min=RATE)
    moved = (new - old).mean(1)
    seen_change = _spread(new - old, new - old)
    seen_drift = (moved.square().sum(1) - seen_change).clamp(min=0)
    spread = spread + share.clamp(min=SPREAD_RATE) * (_spread(new, new) - spread)
    change = torch.maximum(change + rate * (seen_change - change), seen_change)
    drift = torch.maximum(drift + rate * (seen_drift - drift), seen_drift)
    joint = joint + rate * (_spread(new, new - old) - joint)
    bound = CORRELATED * (1 - rate / (new.shape[1] - 1)) * spread.sqrt() * change.sqrt()
    C = torch.minimum(torch.maximum(joint, -bound), bound)
    facts = (error, spread, change, C, drift / gain.clamp(min=1 / LONGEST))
    k1, k2 = gains(*facts)
    error = torch.minimum(squared_error(k1, k2, *facts).clamp(min=0), spread)
    found = tracked + k1[:, None] * (new.mean(1) - tracked) + k2[:, None] * moved
    return found, torch.stack([error, spread, change, joint, drift, k1], dim=1)


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
    """The expected squared error after a step with any gains."""
    kept = (1 - k1) ** 2 * P + (1 - k1 - k2) ** 2 * s2
    return kept + k1 * k1 * R + 2 * k1 * k2 * C + k2 * k2 * Q


def _spread(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The covariance of two means over the draws, summed over entries."""
    draws = a.shape[1]
    centred = (a - a.mean(1, keepdim=True)) * (b - b.mean(1, keepdim=True))
    return centred.sum((1, 2)) / (draws * max(draws - 1, 1))


def _or_one(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, 1)
