"""The host loop over chunks: compiles once, calls, looks at the clock. No mathematics."""

import dataclasses
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from nestax.chain.problem import Problem
from nestax.errors import SettingError, check_count
from nestax.loop import step as loop
from nestax.loop.columns import with_columns_finite
from nestax.loop.packing import Packing
from nestax.loop.same_program import Static
from nestax.loop.step import CAPACITY, Plan, Run
from nestax.parts.estimator import AbstractEstimator
from nestax.streams.feed import Feed, courses_of, with_room, with_streams

#: Seconds that one call should take, so that progress, callbacks and Ctrl-C feel prompt.
CHUNK_SECONDS = 0.5
#: Bytes of draws that are made ahead of their steps, on a CPU (cache) and elsewhere.
AHEAD_BYTES = {"cpu": 2**20}
AHEAD_BYTES_ELSEWHERE = 2**26
AHEAD_STEPS = 256
#: Bytes of a carry that is worth a thought.
LARGE_BYTES = 2**28


class At(NamedTuple):
    """A carry and how many steps have led to it."""

    carry: Any
    step: int


class Chunk(NamedTuple):
    """Some whole strides of a run: where they began, where they ended, one record each.

    A part of a stride has no record to keep: its ``strides`` is 0, and the one in ``records`` only tells
    whether all is finite.
    """

    before: At
    after: At
    records: dict[str, np.ndarray]
    strides: int
    length: int


class Compiled:
    """A run split into what is compiled and what is passed; equal runs share one compilation.

    A carry that is large, as the tables of many blocks are, is measured before it is made.

    Args:
        run: the run.
        feed: hands over the rows of streams, where a level draws from one.
        copies: 2 keeps the carry that a chunk begins with, so that it can be repeated, unless memory
            is short; 1 lets a chunk overwrite it where it is large.
    """

    def __init__(self, run: Run, feed: Feed | None = None, copies: int = 2):
        self.feed = feed
        if feed is not None:
            run = dataclasses.replace(run, problem=with_room(run.problem, feed.courses))
        arrays, static = eqx.partition(run, eqx.is_array)
        self.run = dataclasses.replace(run, packing=_packing(Static(static), arrays))
        self.arrays, static = eqx.partition(self.run, eqx.is_array)
        self.static = Static(static)
        self.donates = self._measure(copies)

    def _measure(self, copies: int) -> bool:
        """Whether a chunk overwrites its carry. Refuses a carry that does not fit into memory."""
        arrays = [(s, d) for s, d in self.carried().values() if not d.startswith("key")]
        size = sum(math.prod(shape) * jnp.dtype(dtype).itemsize for shape, dtype in arrays)
        if size <= LARGE_BYTES:
            return False
        free, where = free_memory()
        blocks = self.run.problem.blocks
        rows = "" if blocks is None else f" ({blocks.blocks:,} blocks)"
        runs = f" of {math.prod(self.lanes):,} runs" if self.lanes else ""
        words = f"weights and trackers{runs}{rows} take {size / 2**30:,.2f} GiB"
        if size > free:
            raise SettingError(
                f"{words}, and {where} has {free / 2**30:,.2f} GiB free: take fewer blocks or runs, "
                'nx.PerBlock(..., store="bfloat16"), or a method with less memory, such as nx.SCSC or '
                "nx.Plain."
            )
        print(f"nestax: {words} of the {free / 2**30:,.2f} GiB free on {where}.", file=sys.stderr)
        return copies == 1 or 2 * size > free

    def start(self) -> At:
        packed = _program(loop.start, self.static)(self._arrays(0))
        return At(self.run.packing.unpack(jax.block_until_ready(packed)), 0)

    def observe(self, at: At) -> tuple[At, dict[str, np.ndarray]]:
        """A record at ``at``, which is to be replaced by the one returned. The program that advances a
        run makes it, by no steps, so that no other has to be compiled."""
        chunk = self._advance(self.arrays, at, 1, 0)
        return chunk.after, {name: column[0] for name, column in chunk.records.items()}

    def _packed(self, carry: Any) -> list[Any]:
        leaves = jax.tree.leaves(carry)
        return [leaves[k] for k in self.run.packing.firsts]

    def _arrays(self, step: int) -> Any:
        """What is passed to the program, with the rows of ``step`` and of those after it."""
        if self.feed is None:
            return self.arrays
        problem = with_streams(self.arrays.problem, self.feed.sources(step))
        return eqx.tree_at(lambda run: run.problem, self.arrays, problem)

    def advance(self, at: At, strides: int, length: int) -> Chunk:
        """``strides`` times ``length`` steps and a record."""
        return self._advance(self._arrays(at.step + 1), at, strides, length)

    def _advance(self, arrays: Any, at: At, strides: int, length: int) -> Chunk:
        step = jnp.asarray(at.step, jnp.int32)
        advance = _program(loop.advance, self.static, self.donates)
        packed, _, records = advance(arrays, self._packed(at.carry), step, strides, length)
        carry = self.run.packing.unpack(packed)
        rows = {name: np.asarray(column)[:strides] for name, column in records.items()}
        after = At(carry, at.step + strides * length)
        return Chunk(at, after, with_columns_finite(rows), strides, length)

    @property
    def lanes(self) -> tuple[int, ...]:
        """Settings and seeds of a grid; nothing for a single lane."""
        run = self.run
        return (len(jax.tree.leaves(run.settings)[0]), len(run.key)) if run.plan.grid else ()

    def carried(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of every array that is carried, by the name of its place in the carry."""
        packing = self.run.packing
        places = jax.tree_util.tree_flatten_with_path(packing.shape.structs())[0]
        names = [jax.tree_util.keystr(path) for path, _ in places]
        leaves = packing.shape.leaves
        return {
            f"carry{names[k]}": ((*self.lanes, *leaves[k][0]), str(leaves[k][1])) for k in packing.firsts
        }

    def taken(self, carry: Any) -> dict[str, Any]:
        """A carry as arrays by those names."""
        return dict(zip(self.carried(), self._packed(carry), strict=True))

    def given(self, arrays: dict[str, Any]) -> Any:
        """The carry that ``taken`` has taken apart."""
        return self.run.packing.unpack([jnp.asarray(arrays[name]) for name in self.carried()])

    def chunks(self, at: At, steps: int, stride: int, ahead: int = 0) -> Iterator[Chunk]:
        """``steps`` steps from ``at``, a record every ``stride``; a shorter last stride if need be.

        The first stride is shorter if the run is ``ahead`` of its last record. Where rows are fed, no
        chunk is longer than what is at hand, and the chunks end where the rows do.
        """
        if self.feed is not None:
            yield from self._fed_chunks(self.feed, at, steps, stride, ahead)
            return
        if ahead and steps:
            chunk = self.advance(at, 1, min(stride - ahead, steps))
            yield chunk
            at, steps = chunk.after, steps - chunk.length
        whole, rest = divmod(steps, stride)
        strides = 1
        while whole > 0:
            strides = min(strides, whole, CAPACITY)
            begin = time.perf_counter()
            chunk = self.advance(at, strides, stride)
            took = time.perf_counter() - begin
            yield chunk
            at, whole = chunk.after, whole - strides
            strides = max(1, min(4 * strides, int(CHUNK_SECONDS / max(took / strides, 1e-9))))
        if rest:
            yield self.advance(at, 1, rest)

    def _fed_chunks(self, feed: Feed, at: At, steps: int, stride: int, ahead: int) -> Iterator[Chunk]:
        end, strides = at.step + steps, 1
        while at.step < end:
            held = feed.steps_after(at.step)
            if held == 0:
                if ahead:  # a record of what was done
                    yield self.advance(at, 1, 0)
                return
            to_record = min(stride - ahead, end - at.step)
            if held < to_record:
                chunk = self.advance(at, 1, held)._replace(strides=0)
            elif to_record < stride:
                chunk = self.advance(at, 1, to_record)
            else:
                strides = min(strides, held // stride, (end - at.step) // stride, CAPACITY)
                begin = time.perf_counter()
                chunk = self.advance(at, strides, stride)
                took = time.perf_counter() - begin
                strides = max(1, min(4 * strides, int(CHUNK_SECONDS / max(took / strides, 1e-9))))
            yield chunk
            at = chunk.after
            ahead = 0 if chunk.strides else ahead + chunk.length


def free_memory() -> tuple[float, str]:
    """Bytes that the device has left, and its name; infinite where nobody knows."""
    device = jax.devices()[0]
    told = device.memory_stats()
    if told:
        return told["bytes_limit"] - told["bytes_in_use"], str(device)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return math.inf, "this machine"
    return 1024 * int(kilobytes), "this machine"


#: How many compiled programs are kept. A run has two, and each takes some hundred memory maps of the
#: process, of which Linux allows 65,530.
KEPT_PROGRAMS = 100


@functools.lru_cache(maxsize=KEPT_PROGRAMS)
def _program(fn: Callable[..., Any], static: Static, donate: bool = False) -> Callable[..., Any]:
    """``fn(run, ...)``, compiled with the run's arrays as arguments and the rest static."""

    @functools.partial(jax.jit, donate_argnums=1 if donate else ())
    def compiled(arrays: Any, *args: Any) -> Any:
        TRACES[fn.__name__] = TRACES.get(fn.__name__, 0) + 1
        return fn(eqx.combine(static.tree, arrays), *args)

    return compiled


_PACKINGS: dict[Any, Packing] = {}


def _packing(static: Static, arrays: Any) -> Packing:
    """The packing of a run; runs that share a compilation share it."""
    key = (static, tuple((x.shape, x.dtype) for x in jax.tree.leaves(arrays)))
    if key not in _PACKINGS:
        _PACKINGS[key] = loop.find_packing(eqx.combine(static.tree, arrays))
    return _PACKINGS[key]


#: How often each part has been traced in this process; tests hold it down.
TRACES: dict[str, int] = {}


def make_plan(
    problem: Problem,
    estimator: AbstractEstimator,
    *,
    batch_size: Any,
    init_batch_size: Any,
    stride: int,
    columns: tuple[str, ...],
    average: str | None = None,
    seeds: int = 0,
) -> Plan:
    """The static facts of a run; ``seeds`` is 0 for a single lane."""
    sizes = level_sizes(problem, "batch_size", batch_size)
    if init_batch_size is None:
        # The start of a method with a table visits every block, which is many draws already.
        first = tuple((10 if problem.blocks is None else 1) * size for size in sizes)
    else:
        first = level_sizes(problem, "init_batch_size", init_batch_size)
    problem = with_room(problem, courses_of(problem, estimator, sizes, first))
    platform = jax.default_backend()
    one = jax.eval_shape(lambda: loop.draw_batches(problem, estimator, jax.random.key(0), 0, sizes))
    per_step = max(1, seeds) * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(one))
    limit = AHEAD_BYTES.get(platform, AHEAD_BYTES_ELSEWHERE) // max(per_step, 1)
    most = max(1, min(AHEAD_STEPS, limit))
    blocks = -(-stride // most)
    block = -(-stride // blocks)
    return Plan(sizes, first, block, columns, average, seeds > 0, platform)


def level_sizes(problem: Problem, name: str, size: Any) -> tuple[int, ...]:
    """Draws per level from one number or a dictionary by level name; 0 for deterministic levels."""
    stochastic = [level.name for level in problem.levels if not level.deterministic]
    if not isinstance(size, dict):
        size = dict.fromkeys(stochastic, size)
    if set(size) != set(stochastic):
        raise SettingError(
            f"{name} by level needs exactly the levels that draw: {', '.join(stochastic)}; "
            f"got {', '.join(map(str, size))}."
        )
    counts = {level: check_count(f"{name} of level {level!r}", n) for level, n in size.items()}
    return tuple(counts.get(level.name, 0) for level in problem.levels)
