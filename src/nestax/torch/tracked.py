"""A tracker as a module of PyTorch: ``nx.track`` with its memory in buffers."""

import math
import numbers
import warnings
from collections.abc import Callable
from typing import Any

import torch

from nestax.torch.gains import first_belief, follow

HALF = (torch.float16, torch.bfloat16)


class Tracked(torch.nn.Module):
    """A noisy value inside a loss, replaced by its tracked value; the derivative stays the fresh one.

        u_t = (1−β)·u_{t-1} + β·g_t                      a moving average
        u_t = g_t + (1−β)·(u_{t-1} − g⁻_t)               STORM, with previous = g⁻_t
        u_t = u_{t-1} + k₁(g_t − u_{t-1}) + k₂(g_t − g⁻_t)     gain="auto"

    and u_1 = g_1; returned is u_t + (g_t − g_t.detach()). ``nx.track`` says what bias is left.

    The memory is in buffers, so that ``state_dict``, ``.to`` and ``load_state_dict`` take it along; it
    stays in single precision where a model is made half. With ``beta`` a row of a table takes no more
    than its value. In ``eval`` mode nothing is remembered, and g (with gain="auto" the mean of its
    draws) is returned as it is.

    Every forward pass in training mode moves the memory. Where gradients are accumulated over A batches
    that is A times a step, and with ``previous`` all but the first take ``previous=g``, as the weights
    have not moved. Keep the module outside of regions that ``torch.utils.checkpoint`` recomputes.

    Where ``torch.distributed`` is initialised, all processes keep the same memory. One without a table
    moves with the mean of g over the processes (gain="auto": with all of their draws), a table with the
    rows of all of them; where two bring the same row, the last counts. DistributedDataParallel averages
    gradients, which is right then. All processes must call it, with batches of equal size.

    Args:
        n: how many rows a table has, one per example or class; None means one memory, no table.
        shape: of one tracked value.
        beta: β in (0, 1], what is forgotten in a step.
        gain: "auto" instead of ``beta``; g then has an axis of draws, and ``previous`` is needed.
        lagged: whether the value of the step before is returned.
        log: whether g is the logarithm of what is averaged, and the logarithm of the tracked mean is
            returned, so that nothing overflows; with ``beta``, and without ``previous``.
        project: moves one tracked value into its range.
    """

    value: torch.Tensor
    left_out: torch.Tensor
    count: torch.Tensor | None
    belief: torch.Tensor | None

    def __init__(
        self,
        n: int | None = None,
        shape: tuple[int, ...] = (),
        *,
        beta: float | None = None,
        gain: str | None = None,
        lagged: bool = False,
        log: bool = False,
        project: Callable[[torch.Tensor], torch.Tensor] | None = None,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        if (beta is None) == (gain is None) or gain not in (None, "auto"):
            raise ValueError("Tracked needs either beta=, a number in (0, 1], or gain='auto'.")
        if beta is not None and not (isinstance(beta, numbers.Real) and 0 < beta <= 1):
            raise ValueError(f"beta must be a number in (0, 1]; got {beta!r}.")
        if log and gain is not None:
            raise ValueError(
                "log=True is a moving average: give it beta=, and neither gain= nor previous=."
            )
        whole = isinstance(n, numbers.Integral) and not isinstance(n, bool)
        if n is not None and (not whole or n < 1):
            raise ValueError(f"n must be a whole number of at least 1; got {n!r}.")
        n = None if n is None else int(n)
        self.n = n
        self.beta = beta
        self.gain = gain
        self.lagged = lagged
        self.log = log
        self.project = project
        lead = () if n is None else (n,)
        shape = torch.Size(shape)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        dtype = torch.float32 if dtype in HALF else dtype
        # Only finite values are ever kept: inf is what nothing was seen of.
        self.register_buffer("value", torch.full((*lead, *shape), math.inf, dtype=dtype, device=device))
        whole = {"dtype": torch.int32, "device": device}
        self.register_buffer("left_out", torch.zeros((), **whole))
        self.register_buffer("count", torch.zeros(lead, **whole) if gain else None)
        belief = torch.zeros((*lead, 6), dtype=dtype, device=device) if gain else None
        self.register_buffer("belief", belief)

    def forward(
        self, g: torch.Tensor, index: Any = None, previous: torch.Tensor | None = None
    ) -> torch.Tensor:
        """g, with the tracked value.

        Args:
            g: of the shape of one value; with a table one per row along a leading axis, with gain="auto"
                one per draw along the next, at least two. What is not finite is left out of the memory,
                with a warning on a CPU, and returned as it is.
            index: the rows that g belongs to, all different. Checked where it lies on a CPU: pass it as
                the loader made it, the module moves it.
            previous: g of the same draws at the weights that the memory belongs to.
        """
        index = None if index is None else row_numbers(index)
        if not isinstance(g, torch.Tensor):
            raise ValueError(f"g must be a tensor, with the derivative of the loss; got {_kind(g)}.")
        fresh = g if self.gain is None else g.mean(0 if index is None else 1)
        if not self.training:
            return fresh
        self._check(g, index, previous)
        with torch.no_grad():
            shown = self._remember(g.detach(), index, None if previous is None else previous.detach())
        derivative = fresh - fresh.detach()
        return shown + ((fresh.detach() - shown).exp() * derivative if self.log else derivative)

    def _remember(
        self, g: torch.Tensor, index: torch.Tensor | None, previous: torch.Tensor | None
    ) -> torch.Tensor:
        """Moves the memory and returns what is shown of it. Rows come first; one memory is one row."""
        new = self._from_all(g, index)
        old = None if previous is None else self._from_all(previous, index)
        rows = None if index is None else self._rows(index)
        stored = self.value[rows]
        first = stored.reshape(len(stored), -1)[:, :1].isinf().any(1)
        mean = new if self.gain is None else new.mean(1)
        value = _either(first, mean, stored)
        fine = _finite(new) if old is None else _finite(new) & (first | _finite(old))
        if self.beta is not None:
            moved = value + self.beta * (new - value)
            if self.log:
                share = new.new_tensor(self.beta)
                moved = torch.logaddexp(value + torch.log1p(-share), new + share.log())
            elif old is not None:
                moved = new + (1 - self.beta) * (value - old)
        else:
            draws = new.reshape(*new.shape[:2], -1)
            belief = self.belief[rows]  # pyright: ignore[reportOptionalSubscript]
            count = self.count[rows]  # pyright: ignore[reportOptionalSubscript]
            before = old.reshape(draws.shape)  # pyright: ignore[reportOptionalMemberAccess]
            moved, believed = follow(draws, before, value.reshape(len(value), -1), belief, count)
            moved = moved.reshape(value.shape)
            believed = _either(first, first_belief(draws), believed)
            self._write("belief", rows, _either(fine, believed, belief))
            self._write("count", rows, count + fine)
        moved = _either(first, mean, moved)
        if self.project is not None:
            moved = self._projected(moved)
        shown = value if self.lagged else moved
        self._write("value", rows, _either(fine, moved, stored))
        self.left_out += (~fine).sum()
        if fine.device.type == "cpu" and not torch.compiler.is_compiling() and not fine.all():
            warnings.warn(
                f"{(~fine).sum()} of {fine.numel()} values to track are not finite and are left out of "
                "the memory: look for the step that made them.",
                stacklevel=5,  # who calls the module: two functions of PyTorch stand between
            )
        if index is None:
            return shown[0]
        rank = torch.distributed.get_rank() if _processes() > 1 else 0
        return torch.chunk(shown, _processes())[rank]

    def _rows(self, index: torch.Tensor) -> torch.Tensor:
        """Returns the rows of all processes."""
        rows = torch.cat(_everywhere(index.to(self.value.device)))
        # One below 0 would count from the end, and shall end in an error like one that is too large.
        return rows.masked_fill(rows < 0, len(self.value))

    def _projected(self, moved: torch.Tensor) -> torch.Tensor:
        out = torch.func.vmap(self.project)(moved)
        if out.shape != moved.shape or out.dtype != moved.dtype:
            made, of = ((x.dtype, tuple(x.shape[1:])) for x in (out, moved))
            raise ValueError(
                "project must return what it is given, one tracked value: it made "
                f"{made[0]} {made[1]} of {of[0]} {of[1]}."
            )
        return out

    def _from_all(self, g: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
        """What all processes bring: their rows, their draws, or the mean of their values."""
        parts = _everywhere(g.to(self.value.dtype))
        if index is not None:
            return torch.cat(parts)
        if self.gain is not None:
            return torch.cat(parts)[None]
        if self.log:
            return torch.stack(parts).logsumexp(0)[None] - math.log(len(parts))
        return torch.stack(parts).mean(0)[None]

    def _write(self, name: str, rows: torch.Tensor | None, new: torch.Tensor) -> None:
        buffer = getattr(self, name)
        if rows is None:
            # Through a view: PyTorch 2.13 loses what compiled code writes to a buffer without axes.
            buffer[None].copy_(new)
            return
        # One process after the other: where two bring the same row, all agree on who counts.
        for some, values in zip(rows.chunk(_processes()), new.chunk(_processes()), strict=True):
            buffer[some] = values

    def _apply(self, fn: Any, recurse: bool = True):
        super()._apply(fn, recurse)
        # A moving average in half precision would stop to move where β·(g − u) is small.
        if self.value.dtype in HALF:
            self.value = self.value.float()
            self.belief = None if self.belief is None else self.belief.float()
        return self

    def extra_repr(self) -> str:
        how = f"beta={self.beta}" if self.gain is None else "gain='auto'"
        return f"n={self.n}, shape={self._shape()}, {how}, lagged={self.lagged}, log={self.log}"

    def _shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape if self.n is None else self.value.shape[1:])

    def _check(self, g: torch.Tensor, index: torch.Tensor | None, previous: torch.Tensor | None) -> None:
        """Refuses what does not fit the memory, as far as it is known without waiting for a device."""
        if (index is None) != (self.n is None):
            raise ValueError("index goes with a table: make the module with n=, or leave index out.")
        if g.device != self.value.device:
            raise ValueError(
                f"g is on {g.device} and the memory on {self.value.device}: move the module with "
                ".to(g.device)."
            )
        kept = self.value.dtype
        if g.dtype != kept and not (g.dtype in HALF and kept == torch.float32):
            raise ValueError(
                f"g is {g.dtype} and the memory {kept}: cast g, or move the module, .to(g.dtype)."
            )
        if self.gain is not None and previous is None:
            raise ValueError(
                "gain='auto' compares g at two points: pass previous=, g of the same draws at the "
                "weights of the last step, which at the first step is g itself."
            )
        if self.log and previous is not None:
            raise ValueError(
                "log=True is a moving average: give it beta=, and neither gain= nor previous=."
            )
        if previous is not None and not isinstance(previous, torch.Tensor):
            raise ValueError(f"previous must be a tensor, as g is; got {_kind(previous)}.")
        if previous is not None and previous.shape != g.shape:
            raise ValueError(
                f"previous is {tuple(previous.shape)} and g {tuple(g.shape)}: it is g of the same draws "
                "at the last weights."
            )
        if index is not None:
            self.check_index(index)
            if g.ndim and len(g) != len(index):
                raise ValueError(
                    f"g has {len(g)} rows and index {len(index)} numbers: one for every row of g."
                )
        lead = () if index is None else tuple(index.shape)
        draws = g.shape[len(lead) : len(lead) + 1] if self.gain else ()
        if tuple(g.shape) != (*lead, *draws, *self._shape()) or len(draws) != bool(self.gain):
            axes = ["an axis of rows"] * (index is not None) + ["an axis of draws"] * bool(self.gain)
            after = " after " + " and ".join(axes) if axes else ""
            raise ValueError(
                f"g is {tuple(g.shape)} and one tracked value {self._shape()}: give g that "
                f"shape{after}, or make the module with another shape=."
            )
        if draws and draws[0] < 2:
            raise ValueError(
                "gain='auto' follows from the spread of the draws, and one draw has none: use batches "
                "of at least two, or beta=."
            )

    def check_index(self, index: torch.Tensor) -> None:
        """Refuses what is no set of rows, as far as it is known without waiting for a device."""
        if index.ndim != 1 or index.dtype != torch.long:
            raise ValueError(
                "index must be a vector of whole numbers, one per row of g; got "
                f"{index.dtype} {tuple(index.shape)}."
            )
        if not len(index):
            raise ValueError("a batch without rows: index is empty.")
        if index.device.type != "cpu" or torch.compiler.is_compiling():
            return
        n = len(self.value)
        outside = index[(index < 0) | (index >= n)]
        if len(outside):
            raise ValueError(
                f"index {outside[0]} lies outside the {n} rows of the memory, 0 to {n - 1}: make the "
                "module with a larger n, or look where the index comes from."
            )
        rows, times = index.unique(return_counts=True)
        if len(rows) < len(index):
            raise ValueError(
                f"index {rows[times > 1][0]} occurs {times.max()} times in one batch: a row moves once "
                "a step, so average its values, or draw without replacement."
            )


def row_numbers(index: Any) -> torch.Tensor:
    """Numbers of rows, in 64 bits: in few, how many rows there are is no number, and PyTorch takes eight
    bits for a mask."""
    index = torch.as_tensor(index)
    whole = not (index.dtype.is_floating_point or index.dtype.is_complex or index.dtype == torch.bool)
    return index.long() if whole else index


def _either(condition: torch.Tensor, yes: torch.Tensor, no: torch.Tensor) -> torch.Tensor:
    """Row by row."""
    return torch.where(condition.reshape(-1, *[1] * (yes.ndim - 1)), yes, no)


def _kind(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__name__}".removeprefix("builtins.")


def _finite(x: torch.Tensor) -> torch.Tensor:
    return x.isfinite().reshape(len(x), -1).all(1)


def _processes() -> int:
    dist = torch.distributed
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _everywhere(x: torch.Tensor) -> list[torch.Tensor]:
    """Returns the same tensor of every process, in their order."""
    if _processes() == 1:
        return [x]
    parts = [torch.empty_like(x) for _ in range(_processes())]
    torch.distributed.all_gather(parts, x.contiguous())
    return parts
