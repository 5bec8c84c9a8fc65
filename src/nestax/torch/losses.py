"""The losses of ``nx.losses`` as modules, which has the formulas and the references.

Each has one ``Tracked``; further keywords are its own: ``lagged``, ``dtype``, ``device``.
"""

import math
from typing import Any

import torch

from nestax.torch.tracked import Tracked


class LogMeanExp(torch.nn.Module):
    """log E exp(s): of exponents along the last axis; with ``n`` one per row of a table."""

    def __init__(self, n: int | None = None, *, beta: float, **options: Any):
        super().__init__()
        self.tracked = Tracked(n, beta=beta, log=True, **options)

    def forward(self, s: torch.Tensor, index: Any = None) -> torch.Tensor:
        return self.tracked(s.logsumexp(-1) - math.log(s.shape[-1]), index)


class KLRobust(torch.nn.Module):
    """λ log E exp(ℓ/λ) of one loss per row."""

    def __init__(self, *, temperature: float, beta: float, **options: Any):
        super().__init__()
        self.temperature = _positive("temperature", temperature)
        self.inner = LogMeanExp(beta=beta, **options)

    def forward(self, losses: torch.Tensor) -> torch.Tensor:
        return self.temperature * self.inner(losses / self.temperature)


class CVaRRobust(torch.nn.Module):
    """t + E (ℓ − t)₊ / share of one loss per row, with the quantile t tracked."""

    def __init__(self, *, share: float, beta: float, **options: Any):
        super().__init__()
        if not 0 < share <= 1:
            raise ValueError(f"share must be in (0, 1]; got {share}.")
        self.share = share
        self.tracked = Tracked(beta=beta, **options)

    def forward(self, losses: torch.Tensor) -> torch.Tensor:
        t = self.tracked(losses.detach().quantile(1 - self.share))
        return t + (losses - t).clamp(min=0).mean() / self.share


class DonskerVaradhan(torch.nn.Module):
    """E_p T − log E_q exp(T), to be maximised."""

    def __init__(self, *, beta: float, **options: Any):
        super().__init__()
        self.inner = LogMeanExp(beta=beta, **options)

    def forward(self, joint: torch.Tensor, marginal: torch.Tensor) -> torch.Tensor:
        return joint.mean() - self.inner(marginal)


class InfoNCE(torch.nn.Module):
    """Mean over anchors i of log E_{j≠i} exp((s_ij − s_ii)/τ), partners on the diagonal of s."""

    def __init__(self, n: int, *, temperature: float, beta: float, **options: Any):
        super().__init__()
        self.temperature = _positive("temperature", temperature)
        self.inner = LogMeanExp(n, beta=beta, **options)

    def forward(self, similarity: torch.Tensor, index: Any) -> torch.Tensor:
        rows = _batch("InfoNCE", similarity)
        own = torch.eye(rows, dtype=torch.bool, device=similarity.device)
        s = (similarity - similarity.diagonal()[:, None]) / self.temperature
        return self.inner(s.masked_fill(own, -math.inf) + math.log(rows / (rows - 1)), index).mean()


class Cox(torch.nn.Module):
    """Cox's negative log partial likelihood per row, of a batch out of ``n`` rows of data.

    ``ties`` of the rows of the batch, from ``nx.losses.efron_ties``, for Efron's method.
    """

    def __init__(self, n: int, *, beta: float, **options: Any):
        super().__init__()
        self.inner = LogMeanExp(n, beta=beta, **options)
        self.n = n

    def forward(
        self,
        risk: torch.Tensor,
        time: torch.Tensor,
        event: torch.Tensor,
        index: Any,
        ties: torch.Tensor | None = None,
    ) -> torch.Tensor:
        rows = _batch("Cox", risk)
        own = torch.eye(rows, dtype=torch.bool, device=risk.device)
        share = torch.full_like(own, (self.n - 1) / (rows - 1), dtype=risk.dtype).masked_fill(own, 1)
        inside = (time[None, :] >= time[:, None]).to(risk.dtype)
        if ties is not None:
            tied = (time[None, :] == time[:, None]) & (event[None, :] > 0)
            inside = inside - ties.to(risk.dtype)[:, None] * tied
        counts = share * inside
        at_risk = counts > 0
        weight = torch.where(at_risk, counts, 1).log()
        s = (risk[None, :] + weight).masked_fill(~at_risk, -math.inf) + math.log(rows)
        return torch.where(event > 0, self.inner(s, index) - risk, 0).mean()


class AveragePrecision(torch.nn.Module):
    """Minus the smoothed average precision times the share of positives, of a batch of ``n`` rows."""

    def __init__(self, n: int, *, beta: float, margin: float = 1.0, **options: Any):
        super().__init__()
        self.margin = _positive("margin", margin)
        self.own = margin**2 / max(n - 1, 1)
        self.tracked = Tracked(n, (2,), beta=beta, **options)

    def forward(self, scores: torch.Tensor, labels: torch.Tensor, index: Any) -> torch.Tensor:
        rows = _batch("AveragePrecision", scores)
        others = 1 - torch.eye(rows, dtype=scores.dtype, device=scores.device)
        loss = others * (self.margin + scores[None, :] - scores[:, None]).clamp(min=0) ** 2
        y = labels.to(scores.dtype)
        ranks = self.tracked(torch.stack([loss @ y, loss.sum(1)], dim=1) / (rows - 1), index)
        precision = (ranks[:, 0] + self.own) / (ranks[:, 1] + self.own)
        return -(y * precision).mean()


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise ValueError(f"{name} must be positive; got {value}.")
    return value


def _batch(name: str, rows: torch.Tensor) -> int:
    if rows.ndim < 1 or len(rows) < 2:
        raise ValueError(f"{name} compares the rows of a batch with each other and needs at least two.")
    return len(rows)
