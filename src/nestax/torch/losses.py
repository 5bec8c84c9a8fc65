"""The losses of ``nx.losses`` as modules, which has the formulas and the references.

Each has one ``Tracked``; further keywords are its own: ``lagged``, ``dtype``, ``device``.
"""

import math
from typing import Any

import torch

from nestax.torch.tracked import HALF, Tracked, row_numbers


class LogMeanExp(torch.nn.Module):
    """log E exp(s): of exponents along the last axis; with ``n`` one per row of a table."""

    def __init__(self, n: int | None = None, *, beta: float, **options: Any):
        super().__init__()
        self.tracked = Tracked(n, beta=beta, log=True, **options)

    def forward(self, s: torch.Tensor, index: Any = None) -> torch.Tensor:
        if not s.ndim:
            raise ValueError("s has the exponents of a batch along its last axis; got one number.")
        return self.tracked(s.logsumexp(-1) - math.log(s.shape[-1]), index)


class KLRobust(torch.nn.Module):
    """λ log E exp(ℓ/λ) of one loss per row."""

    def __init__(self, *, temperature: float, beta: float, **options: Any):
        super().__init__()
        self.temperature = _positive("temperature", temperature)
        self.inner = LogMeanExp(None, beta=beta, **options)

    def forward(self, losses: torch.Tensor) -> torch.Tensor:
        _one_per_row("losses", losses)
        return self.temperature * self.inner(losses / self.temperature)


class CVaRRobust(torch.nn.Module):
    """t + E (ℓ − t)₊ / share of one loss per row, with the quantile t remembered.

    With ``n`` t is the quantile of the losses of all rows as last seen, and there is no ``beta``.
    Without, it is the tracked quantile of batches.
    """

    def __init__(self, n: int | None = None, *, share: float, beta: float | None = None, **options: Any):
        super().__init__()
        if not 0 < share <= 1:
            raise ValueError(f"share must be in (0, 1]; got {share}.")
        if n is not None and (beta is not None or options.get("lagged")):
            raise ValueError(
                "CVaRRobust with n= remembers losses as they were: leave beta and lagged out."
            )
        self.share = share
        self.tracked = Tracked(n, beta=beta if n is None else 1.0, **options)

    def forward(self, losses: torch.Tensor, index: Any = None) -> torch.Tensor:
        _one_per_row("losses", losses)
        t = self._quantile(losses.detach(), index)
        above = losses - t
        # A row at the quantile itself counts half, as in JAX; with ``clamp`` it would count in full.
        return t + torch.maximum(above, torch.zeros_like(above)).mean() / self.share

    def _quantile(self, losses: torch.Tensor, index: Any) -> torch.Tensor:
        """In ``eval`` mode that of the batch."""
        if losses.dtype in HALF:  # which PyTorch sorts, and has no quantiles of
            losses = losses.float()
        if self.tracked.n is None:
            return self.tracked(losses.quantile(1 - self.share), index)
        known = self.tracked(losses, index)
        if self.training:
            known = self.tracked.value
        return known.masked_fill(~known.isfinite(), math.nan).nanquantile(1 - self.share)


class DonskerVaradhan(torch.nn.Module):
    """E_p T − log E_q exp(T), to be maximised."""

    def __init__(self, *, beta: float, **options: Any):
        super().__init__()
        self.inner = LogMeanExp(None, beta=beta, **options)

    def forward(self, joint: torch.Tensor, marginal: torch.Tensor) -> torch.Tensor:
        _one_per_row("marginal", marginal)
        return joint.mean() - self.inner(marginal)


class InfoNCE(torch.nn.Module):
    """Mean over anchors i of log E_{j≠i} exp((s_ij − s_ii)/τ), partners on the diagonal of s."""

    def __init__(self, n: int, *, temperature: float, beta: float, **options: Any):
        super().__init__()
        self.temperature = _positive("temperature", temperature)
        self.inner = LogMeanExp(n, beta=beta, **options)

    def forward(self, similarity: torch.Tensor, index: Any) -> torch.Tensor:
        if similarity.ndim != 2 or similarity.shape[0] != similarity.shape[1]:
            raise ValueError(
                "similarity has the anchors of a batch as rows and their candidates as columns, "
                f"partners on the diagonal; got {tuple(similarity.shape)}."
            )
        rows = _batch("InfoNCE", similarity)
        own = torch.eye(rows, dtype=torch.bool, device=similarity.device)
        s = (similarity - similarity.diagonal()[:, None]) / self.temperature
        return self.inner(s.masked_fill(own, -math.inf) + math.log(rows / (rows - 1)), index).mean()


class Cox(torch.nn.Module):
    """Cox's negative log partial likelihood per row, with the risk of every row as it was last seen.

    The times and events of all rows of the data come here, the risks of a batch and the rows that they
    belong to come to ``forward``. The memory is ``tracked.value``, the order of the rows is made again
    by whoever makes the module. In ``eval`` mode nothing is remembered.
    """

    order: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    event: torch.Tensor
    tied: torch.Tensor
    place: torch.Tensor

    def __init__(
        self, time: Any, event: Any, *, ties: str = "efron", device: Any = None, dtype: Any = None
    ):
        super().__init__()
        if ties not in ("efron", "breslow"):
            raise ValueError(f"ties must be 'efron' or 'breslow'; got {ties!r}.")
        time, happened = _follow_up(time, event)
        n = len(time)
        self.tracked = Tracked(n, beta=1.0, device=device, dtype=dtype)
        # The last time first, and at one time events behind the censored rows.
        order = happened.to(torch.uint8).argsort(stable=True)
        order = order[(-time[order]).argsort(stable=True)]
        latest, happened = -time[order], happened[order]
        first = torch.searchsorted(latest, latest)
        last = torch.searchsorted(latest, latest, right=True) - 1
        deaths = torch.cat([torch.zeros(1, dtype=torch.int64), happened.cumsum(0)])
        together = (deaths[last + 1] - deaths[first]).clamp(min=1)
        tied = happened * (torch.arange(n) - last + together - 1).double() / together
        kept = self.tracked.value
        places = {"order": order, "first": first, "last": last, "place": order.argsort()}
        for name, whole in places.items():
            self.register_buffer(name, whole.to(kept.device), persistent=False)
        for name, number in (("event", happened), ("tied", tied * (ties == "efron"))):
            self.register_buffer(name, number.to(kept), persistent=False)

    def forward(self, risk: torch.Tensor, index: Any) -> torch.Tensor:
        index = row_numbers(index)
        _one_per_row("risk", risk)
        if not self.training:  # otherwise the memory checks it
            self.tracked.check_index(index)
        risk = self.tracked(risk, index)
        index = index.to(self.place.device)
        seen = self.tracked.value
        if not self.training:
            seen = seen.index_copy(0, index, risk.detach().to(seen.dtype))
        log_sum, weight = self._sums(seen)
        place = self.place[index]
        event = self.event[place]
        value = (event * (log_sum[place] - risk.detach())).mean()
        return value + ((weight[place] - event) * (risk - risk.detach())).mean()

    @torch.no_grad()
    def _sums(self, risk: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """log S_i, and e^{h_j} Λ(T_j), of all rows in the order of time."""
        known = risk.isfinite()
        most = risk.masked_fill(~known, -math.inf).max()
        most = torch.where(known.any(), most, 0)
        hazard = (risk - most).clamp(min=-80).exp().masked_fill(~known, 0)
        mean = hazard.sum() / known.sum().clamp(min=1)
        hazard = torch.where(known, hazard, torch.where(mean > 0, mean, 1))[self.order]
        total = hazard.cumsum(0)[self.last]

        def at_time(x: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(x).index_add(0, self.last, x)[self.last]

        left = total - self.tied * at_time(self.event * hazard)
        added = self.event / left
        until = added.flip(0).cumsum(0).flip(0)[self.first]
        spared = self.event * at_time(self.tied * added)
        return left.log() + most, hazard * (until - spared)


class AveragePrecision(torch.nn.Module):
    """Minus the smoothed average precision times the share of positives, of a batch of ``n`` rows."""

    def __init__(self, n: int, *, beta: float, margin: float = 1.0, **options: Any):
        super().__init__()
        self.margin = _positive("margin", margin)
        self.own = margin**2 / max(n - 1, 1)
        self.tracked = Tracked(n, (2,), beta=beta, **options)

    def forward(self, scores: torch.Tensor, labels: torch.Tensor, index: Any) -> torch.Tensor:
        labels = torch.as_tensor(labels, device=scores.device)
        if scores.ndim != 1 or labels.shape != scores.shape:
            raise ValueError(
                "scores and labels are vectors with one number per row of the batch; got "
                f"{tuple(scores.shape)} and {tuple(labels.shape)}."
            )
        rows = _batch("AveragePrecision", scores)
        others = 1 - torch.eye(rows, dtype=scores.dtype, device=scores.device)
        loss = others * (self.margin + scores[None, :] - scores[:, None]).clamp(min=0) ** 2
        y = labels.to(scores.dtype).clamp(min=0)  # they may be 1 and -1
        ranks = self.tracked(torch.stack([loss @ y, loss.sum(1)], dim=1) / (rows - 1), index)
        precision = (ranks[:, 0] + self.own) / (ranks[:, 1] + self.own)
        return -(y * precision).mean()


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise ValueError(f"{name} must be positive; got {value}.")
    return value


def _one_per_row(name: str, numbers: torch.Tensor) -> None:
    if numbers.ndim != 1:
        raise ValueError(
            f"{name} is a vector with one number per row of the batch, not their mean; got "
            f"{tuple(numbers.shape)}."
        )


def _follow_up(time: Any, event: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Times, and whether they are those of events, on a CPU; refuses those without a meaning."""
    time, event = (torch.as_tensor(x).detach().cpu() for x in (time, event))
    if not time.dtype.is_signed:  # minus a time is what rows are sorted by
        time = time.long()
    if time.ndim != 1 or time.shape != event.shape:
        raise ValueError(
            "time and event are vectors with one number per row of the data; got "
            f"{tuple(time.shape)} and {tuple(event.shape)}."
        )
    wrong = ~time.isfinite() | (time < 0)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(f"time must be finite and at least 0; row {row} has {time[row]}.")
    wrong = (event != 0) & (event != 1)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(f"event must be 1 or 0, or True or False; row {row} has {event[row]}.")
    if not event.any():
        raise ValueError(
            "no row has an event: Cox's loss compares those that have one with those at risk then."
        )
    return time, event > 0


def _batch(name: str, rows: torch.Tensor) -> int:
    if len(rows) < 2:
        raise ValueError(f"{name} compares the rows of a batch with each other and needs at least two.")
    return len(rows)
