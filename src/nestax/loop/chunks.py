"""The host's side of the loop: chunk after chunk of a run, by compiled programs. No mathematics."""

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, PyTree

from nestax.chain.problem import is_drawn
from nestax.devices.hosts import Hosts, gathered
from nestax.devices.mesh import at_place, beside_weights, weights_in_pieces
from nestax.devices.rows import Sharded
from nestax.errors import SettingError
from nestax.loop.columns import FINITE_COLUMNS
from nestax.loop.core import CAPACITY, run_of
from nestax.loop.memory import LARGE_BYTES, free_memory
from nestax.loop.shared_lanes import SharedRun
from nestax.loop.step import Lane
from nestax.programs import program
from nestax.streams.feed import Feed, NoFeed

#: Seconds that one call should take, so that progress, callbacks and Ctrl-C feel prompt.
CHUNK_SECONDS = 0.5
#: A stride that would take longer is cut into parts of that length; or into longer ones, if what every
#: part ends with, a record that is thrown away, would take more than this share of it.
PART_SECONDS = 0.5
PART_SHARE = 0.1
#: How much longer than the one before it a chunk may be, for its first steps may be the quick ones.
GROWTH = 16


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


class Pace:
    """How long the chunks of a run should be, from how long the one before took.

    record, step: seconds that a record takes, and a step.
    longest: so many steps at most has the next chunk.
    """

    def __init__(self, record: float):
        self.record = record
        self.step = 0.0
        self.longest = 1

    def note(self, strides: int, length: int, took: float) -> None:
        """A chunk has taken so many seconds."""
        self.step = max(took - strides * self.record, 0.0) / (strides * length)
        self.longest = GROWTH * strides * length

    def part(self) -> int:
        """The most steps until the host looks, or a record is due."""
        seconds = max(PART_SECONDS, self.record / PART_SHARE)
        return max(1, min(self.longest, int(seconds / max(self.step, 1e-9))))

    def strides(self, stride: int) -> int:
        """How many strides make a chunk."""
        one = max(stride * self.step + self.record, 1e-9)
        return max(1, min(self.longest // stride, int(CHUNK_SECONDS / one)))


class Compiled:
    """A run as the host knows it: what is compiled, what is passed, and chunk after chunk of it.

    A carry that is large, as the tables of many blocks are, is measured before it is made.

    Args:
        lane: what a lane does, given its setting.
        settings: of all lanes, with a leading axis in a grid.
        key: one key, or one per seed in a grid, or one per setting and seed.
        feed: hands over the rows of streams, where a level draws from one.
        copies: 2 keeps the carry that a chunk begins with, so that it can be repeated, unless memory
            is short; 1 lets a chunk overwrite it where it is large: weights, trackers and the state of
            the optimiser are then held once.
        sharded: the devices that compute it; they share the settings of a grid where ``in_lanes``, and
            everything but what they share already lies on all of them.
    """

    def __init__(
        self,
        lane: Lane,
        settings: PyTree,
        key: Array,
        feed: Feed | None = None,
        copies: int = 2,
        sharded: Sharded | None = None,
        in_lanes: bool = False,
    ):
        self.sharded = sharded
        self.in_lanes = in_lanes and sharded is not None
        self.hosts = Hosts(sharded and sharded.mesh)
        if sharded is not None:
            lane = at_place(lane, sharded.everywhere)
            settings = at_place(settings, sharded.split if in_lanes else sharded.everywhere)
            key = at_place(key, sharded.split if in_lanes and key.ndim == 2 else sharded.everywhere)
        self.lane = lane
        self.feed = feed or NoFeed()
        self.run = run_of(lane, settings, key)
        self.whole = self.run if sharded is None or not in_lanes else SharedRun(self.run, sharded)
        self.shardings = None
        if sharded is not None:
            self.shardings = tuple(
                self._sharding(name, shape) for name, (shape, _) in self.carried().items()
            )
        size = self._bytes()
        self.donates = size > LARGE_BYTES and self._overwrites(size, copies)

    @property
    def lanes(self) -> tuple[int, ...]:
        """Settings and seeds of a grid; nothing for a single lane."""
        return self.run.shape

    def _bytes(self) -> int:
        """Bytes of the carry on one device."""
        size = 0
        for k, (shape, dtype) in enumerate(self.carried().values()):
            if not dtype.startswith("key"):
                shape = shape if self.shardings is None else self.shardings[k].shard_shape(shape)
                size += math.prod(shape) * jnp.dtype(dtype).itemsize
        return size

    def _overwrites(self, size: int, copies: int) -> bool:
        """Whether a chunk overwrites its carry, which is large. Refuses one that does not fit."""
        free, where = free_memory()
        free = self.hosts.least(free)
        blocks = self.lane.problem.blocks
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
        start = program(type(self.whole).start, jax.tree.structure(self.whole), False, self.shardings)
        return At(self.run.packing.unpack(jax.block_until_ready(start(self._leaves(0)))), 0)

    def observe(self, at: At) -> tuple[At, dict[str, Any]]:
        """A record at ``at``, whose buffers may be donated: go on from the ``At`` that is returned.

        The program that advances a run makes it, by no steps, so that no other has to be compiled.
        """
        chunk = self.advance(at, 1, 0)
        return chunk.after, {name: column[0] for name, column in chunk.records.items()}

    def _leaves(self, step: int | None) -> list[Any]:
        """What is passed to the program, with the rows of ``step`` and of those after it."""
        return jax.tree.leaves(self.feed.filled(self.run, step))

    def advancing(self) -> Callable[..., Any]:
        """The program that advances the run, of ``leaves``, the packed carry and three numbers."""
        shardings = self.shardings and (self.shardings, None)
        structure = jax.tree.structure(self.whole)
        return program(type(self.whole).advance, structure, self.donates, shardings)

    def advance(self, at: At, strides: int, length: int) -> Chunk:
        """``strides`` times ``length`` steps and a record.

        Of a carry that the chunk overwrites, the weights and their average are copied to the host first.
        """
        if self.donates:
            kept = jax.tree.map(np.array, (at.carry.w, at.carry.average))
            before = dataclasses.replace(at.carry, w=kept[0], average=kept[1])
        else:
            before = at.carry
        leaves = self._leaves(at.step + 1 if length else None)
        bounds = map(np.int32, (at.step, strides, length))
        packed, records = self.advancing()(leaves, self.run.packing.pack(at.carry), *bounds)
        rows = {name: np.asarray(x)[:strides] for name, x in gathered(records).items()}
        # What is recorded of F counts too; on the host, so that the program is one whatever is asked.
        told = [np.isfinite(rows[name]) for name in FINITE_COLUMNS if name in rows]
        rows["finite"] = np.logical_and.reduce([rows["finite"], *told])
        after = At(self.run.packing.unpack(packed), at.step + strides * length)
        return Chunk(At(before, at.step), after, rows, strides, length)

    def chunks(
        self,
        at: At,
        pace: Pace,
        steps: int,
        stride: int,
        ahead: int = 0,
        most: Callable[[], int] = lambda: CAPACITY,
    ) -> Iterator[Chunk]:
        """``steps`` steps from ``at``, a record every ``stride``; a shorter last stride if need be.

        The first stride is shorter if the run is ``ahead`` of its last record. A long stride comes in
        parts. Where rows are fed, no chunk is longer than what is at hand, and the chunks end where the
        rows do.
        ``most`` is asked how many records the next chunk may have.
        """
        end = at.step + steps
        while at.step < end:
            held = min(end - at.step, self.feed.steps_after(at.step))
            if not held:
                return
            to_record = min(stride - ahead, end - at.step)
            part = min(held, pace.part())
            if part < to_record:
                chunk = self._timed(pace, at, 1, part)._replace(strides=0)
            elif to_record < stride:
                chunk = self._timed(pace, at, 1, to_record)
            else:
                chunk = self._timed(pace, at, min(pace.strides(stride), held // stride, most()), stride)
            yield chunk
            at = chunk.after
            ahead = 0 if chunk.strides else ahead + chunk.length

    def pace(self, at: At) -> tuple[At, Pace]:
        """The pace to begin with, after timing a record; ``at`` is replaced by the one returned."""
        took = math.inf
        for _ in range(2):  # the first one may compile
            begin = time.perf_counter()
            at = self.advance(at, 1, 0).after
            took = min(took, self._since(begin))
            if took < PART_SECONDS * PART_SHARE:
                break
        return at, Pace(took)

    def _timed(self, pace: Pace, at: At, strides: int, length: int) -> Chunk:
        begin = time.perf_counter()
        chunk = self.advance(at, strides, length)
        pace.note(strides, length, self._since(begin))
        return chunk

    def _since(self, begin: float) -> float:
        """Seconds on the clock of the first process, for all must make chunks of one length."""
        return self.hosts.decide(lambda: time.perf_counter() - begin)

    # The carry as arrays with names

    def carried(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of every array that is carried, by the name of its place in the carry."""
        places = jax.tree_util.tree_flatten_with_path(self.run.packing.shape.structs())[0]
        names = [jax.tree_util.keystr(path) for path, _ in places]
        leaves = self.run.packing.shape.leaves
        return {
            f"carry{names[k]}": ((*self.lanes, *leaves[k][0]), str(leaves[k][1]))
            for k in self.run.packing.firsts
        }

    def taken(self, carry: Any) -> dict[str, Any]:
        """A carry as arrays by those names."""
        return dict(zip(self.carried(), self.run.packing.pack(carry), strict=True))

    def given(self, arrays: dict[str, Any]) -> Any:
        """The carry that ``taken`` has taken apart."""
        packed = tuple(jnp.asarray(arrays[name]) for name in self.carried())
        if self.shardings is not None:
            packed = tuple(map(at_place, packed, self.shardings))
        return self.run.packing.unpack(packed)

    def _sharding(self, name: str, shape: tuple[int, ...]) -> NamedSharding:
        """Chooses the sharding of an array that is carried."""
        sharded = self.sharded
        assert sharded is not None
        problem = self.lane.problem
        if self.in_lanes:
            return sharded.split
        if sharded.what == "blocks" and problem.blocks is not None:
            table = name.startswith("carry.state") and shape[:1] == (problem.blocks.blocks,)
            return sharded.split if table else sharded.everywhere
        if sharded.what == "model":
            weights = problem.shape.structs() if is_drawn(problem.w0) else problem.w0
            known = jax.tree.leaves(weights_in_pieces(weights, sharded))
            shapes = [s for s, _ in problem.shape.leaves]
            return beside_weights(shape, dict(zip(shapes, known, strict=True))) or sharded.everywhere
        return sharded.everywhere
