"""Many lanes of steps in nested loops, made of traced pieces. Pure.

Lanes (settings × seeds) are mapped inside the loop, so that the step counter is one scalar for all and
a restart is a real branch. Draws are made ahead for some steps at once; lanes of equal seed share them.

A carry holds the same array in several places: the weights are also the point its trackers belong
to, a level that hands its input on has it as part of its value, and the tracked value of the last
level is the estimate's. A compiled loop would copy each of them at every step. Which leaves are one
and the same value is plain while tracing, where they are one and the same object.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.tracing import Shapes, Traced
from nestax.devices.spread import LANE_PARTS, Spread
from nestax.loop.plan import Plan

#: How many records one call can hold; the host visits at least that often.
CAPACITY = 128


class Packing(NamedTuple):
    """Where every leaf of one lane's carry is found among the leaves that are carried.

    shape: the structure and shapes of the carry.
    groups: for every leaf, the first leaf that is the same value.
    """

    shape: Shapes
    groups: tuple[int, ...]

    @property
    def firsts(self) -> list[int]:
        return sorted(set(self.groups))

    def pack(self, tree: PyTree) -> list[Any]:
        leaves = jax.tree.leaves(tree)
        return [leaves[k] for k in self.firsts]

    def unpack(self, packed: list[Any]) -> PyTree:
        place = {first: n for n, first in enumerate(self.firsts)}
        return self.shape.treedef.unflatten([packed[place[k]] for k in self.groups])

    def split(self, leaves: Iterable[Hashable]) -> "Packing":
        """The finer packing in which leaves are one value only if they are here, too."""
        return Packing(self.shape, equal_places(zip(self.groups, leaves, strict=True)))


def equal_places(things: Iterable[Hashable]) -> tuple[int, ...]:
    """For every thing, where an equal one was seen first."""
    first: dict[Hashable, int] = {}
    return tuple(first.setdefault(thing, k) for k, thing in enumerate(things))


class Pieces(eqx.Module):
    """A lane as data: the functions of ``Lane``, traced.

    Each takes the arrays of the lane first, and then what it takes there, with carries packed. They
    return whole ones.
    """

    start: Traced
    draw: Traced
    step: Traced | None
    refresh: Traced | None
    observe: Traced
    packing: Packing = eqx.field(static=True)


class Lanes(eqx.Module):
    """What a compiled program is called with: the pieces, and the arrays of all lanes.

    arrays: of ``Lane``, which all lanes share.
    settings: of every lane, with a leading axis in a grid.
    key: one key, or one per seed in a grid; with two axes, seeds of its own for every setting.
    spread: the devices that share the settings of a grid; None means that all compute the same.
    """

    pieces: Pieces
    arrays: PyTree
    settings: PyTree
    key: Array
    plan: Plan = eqx.field(static=True)
    spread: Spread | None = eqx.field(static=True, default=None)

    @property
    def shape(self) -> tuple[int, ...]:
        """Settings and seeds of a grid; nothing for a single lane."""
        if not self.plan.grid:
            return ()
        return (len(jax.tree.leaves(self.settings)[0]), self.key.shape[-1])

    def over(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Lifts ``fn(setting, per_seed, packed)`` to all lanes."""
        if not self.plan.grid:
            return fn
        over_seeds = jax.vmap(fn, in_axes=(None, 0, 0))
        return jax.vmap(over_seeds, in_axes=(0, 0 if self.key.ndim == 2 else None, 0))


def _in_parts(
    lanes: Lanes, spread: Spread, fn: Callable[..., PyTree], packed: list[Any], *rest: Array
) -> PyTree:
    """``fn(lanes, packed, *rest)`` of parts of the lanes, in turns on the device that holds them.

    What is computed together with what changes the last digits, so the parts have one size whatever the
    number of devices. Outcomes have a leading axis, that of the parts.
    """
    parts = spread.parts(lanes.shape[0], LANE_PARTS)
    cut = lambda x: x.reshape(parts, -1, *x.shape[1:])
    own_seeds = lanes.key.ndim == 2
    # Keys as words, for a part of an array of keys has another type than the keys.
    words = jax.random.key_data(lanes.key)
    impl = jax.random.key_impl(lanes.key)

    def one(part: Any, shared: Any) -> PyTree:
        settings, own, packed = part
        pieces, arrays, words, rest = shared
        key = jax.random.wrap_key_data(own if own_seeds else words, impl=impl)
        return fn(Lanes(pieces, arrays, settings, key, lanes.plan), packed, *rest)

    everything = (lanes.settings, words if own_seeds else None, packed)
    return spread.each(one, jax.tree.map(cut, everything), (lanes.pieces, lanes.arrays, words, rest))


def _joined(x: Array, lanes: Lanes, spread: Spread) -> Array:
    """What the parts have made, with the axis of settings in place of the two of parts."""
    return jax.lax.with_sharding_constraint(x.reshape(lanes.shape[0], *x.shape[2:]), spread.split)


def start(lanes: Lanes) -> list[Any]:
    """The first carry of every lane, packed."""
    if lanes.spread is not None:
        parts = _in_parts(lanes, lanes.spread, lambda inside, _: start(inside), [])
        return [_joined(x, lanes, lanes.spread) for x in parts]
    pieces = lanes.pieces
    one = lambda setting, key, _: pieces.packing.pack(pieces.start(lanes.arrays, setting, key))
    return lanes.over(one)(lanes.settings, lanes.key, None)


def observe(lanes: Lanes, packed: list[Any]) -> dict[str, Array]:
    """One record of every lane, and whether everything that the lane carries is finite."""
    one = lambda setting, _, packed: lanes.pieces.observe(lanes.arrays, setting, packed)
    return lanes.over(one)(lanes.settings, None, packed)


def advance(
    lanes: Lanes, packed: list[Any], step: Array, strides: Array, length: Array
) -> tuple[list[Any], Array, dict[str, Array]]:
    """``strides`` times: ``length`` steps, then one record. Both numbers are traced bounds.

    Draws that were made ahead may last beyond a record or end before it, so that their number does not
    depend on the length of a stride: runs of other lengths are the same program.
    """
    spread = lanes.spread
    if spread is not None:
        one = lambda inside, *rest: advance(inside, *rest)[::2]
        parts, columns = _in_parts(lanes, spread, one, packed, step, strides, length)
        after = [_joined(x, lanes, spread) for x in parts]
        # Records are read by the host, and so by every process.
        rows = lambda x: jnp.swapaxes(jax.lax.with_sharding_constraint(x, spread.everywhere), 0, 1)
        join = lambda x: rows(x).reshape(CAPACITY, *lanes.shape, *x.shape[4:])
        return after, step + strides * length, jax.tree.map(join, columns)
    first = step
    end = step + strides * length
    empty = lambda s: jnp.zeros((CAPACITY, *lanes.shape, *s.shape), s.dtype)
    records = jax.tree.map(empty, lanes.pieces.observe.shapes())

    def with_draws_ahead(state: Any) -> Any:
        begin = state[1]
        until = jnp.minimum(begin + lanes.plan.ahead, end)
        draws = _draw(lanes, begin + 1, lanes.plan.ahead)

        def to_record_or_end(state: Any) -> Any:
            packed, step, records, k = state
            due = first + (k + 1) * length
            stop = jnp.minimum(due, until)
            one = lambda i, p: _step(lanes, p, jax.tree.map(lambda d: d[i - begin], draws), i + 1)
            packed = _loop(lanes.plan.unroll, step, stop, one, packed)
            row = lambda: observe(lanes, packed)
            write = lambda all: jax.tree.map(lambda all, new: all.at[k].set(new), all, row())
            records = jax.lax.cond(stop == due, write, lambda all: all, records)
            return packed, stop, records, k + (stop == due)

        return jax.lax.while_loop(
            lambda s: (s[3] < strides) & ((s[1] < until) | (length == 0)), to_record_or_end, state
        )

    state = (packed, step, records, jnp.zeros_like(step))
    packed, step, records, _ = jax.lax.while_loop(lambda s: s[3] < strides, with_draws_ahead, state)
    return packed, step, records


def in_short(lanes: Lanes, step: Array) -> Any:
    """The start, one step and its record: all that a run is, however it is cut into pieces."""
    draws = jax.tree.map(lambda d: d[0], _draw(lanes, step, 1))
    packed = _step(lanes, start(lanes), draws, step)
    return packed, observe(lanes, packed)


def _draw(lanes: Lanes, first: Array, many: int) -> PyTree:
    """The batches of ``many`` steps, the leading axis the step (and then the seed)."""
    settings = lanes.settings
    if lanes.plan.grid:  # what is drawn does not depend on the setting
        settings = jax.tree.map(lambda x: x[0], settings)
    one = lambda key, step: lanes.pieces.draw(lanes.arrays, settings, key, step)
    steps = first + jnp.arange(many, dtype=first.dtype)
    if not lanes.plan.grid:
        return jax.vmap(one, in_axes=(None, 0))(lanes.key, steps)
    # One axis of steps and seeds together: loops inside of loops take longer to compile.
    pairs = jnp.tile(lanes.key.ravel(), many), jnp.repeat(steps, lanes.key.size)
    cut = lambda x: x.reshape(many, *lanes.key.shape, *x.shape[1:])
    return jax.tree.map(cut, jax.vmap(one)(*pairs))


def _step(lanes: Lanes, packed: list[Any], draws: Any, step: Array) -> list[Any]:
    """One step of every lane."""
    pieces = lanes.pieces
    period = lanes.plan.period or 1

    def every(piece: Any) -> Callable[[list[Any]], list[Any]]:
        def one(setting: PyTree, seed: tuple[Array, Any], packed: list[Any]) -> list[Any]:
            return pieces.packing.pack(piece(lanes.arrays, setting, *seed, packed, step))

        return lambda packed: lanes.over(one)(lanes.settings, (lanes.key, draws), packed)

    if pieces.refresh is None:
        return every(pieces.step)(packed)
    if pieces.step is None:
        return every(pieces.refresh)(packed)
    return jax.lax.cond(step % period == 0, every(pieces.refresh), every(pieces.step), packed)


def _loop(unroll: int, first: Array, end: Array, body: Callable[[Array, Any], Any], carry: Any) -> Any:
    """``body(i, carry)`` for i from ``first`` to ``end``, with ``unroll`` in turns of that length."""
    if unroll == 1:
        return jax.lax.fori_loop(first, end, body, carry)

    def turn(k: Array, carry: Any) -> Any:
        begin = first + k * unroll
        return jax.lax.fori_loop(0, unroll, lambda i, c: body(begin + i, c), carry, unroll=8)

    turns = (end - first) // unroll
    carry = jax.lax.fori_loop(0, turns, turn, carry)
    return jax.lax.fori_loop(first + turns * unroll, end, body, carry)
