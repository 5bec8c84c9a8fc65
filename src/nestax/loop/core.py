"""A run as one module: draws, steps and records of all its lanes in nested loops. Pure.

Lanes (settings × seeds) are mapped inside the loop, so that the step counter is one scalar for all and
a restart is a real branch. Draws are made ahead for some steps at once; lanes of equal seed share them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.loop.once import Packing, packing_of
from nestax.loop.plan import Plan
from nestax.loop.step import Carry, Lane
from nestax.programs import Traced, known, trace
from nestax.trees import Shapes, shapes_of

#: How many records one call can hold; the host visits at least that often.
CAPACITY = 128


class Functions(NamedTuple):
    """Those of a ``Lane`` as data, which take the arrays of the lane before their other arguments.

    Carries are given to them packed, and returned whole.

    step, refresh: an ordinary step, and one at which the method restarts; None where there is none.
    """

    start: Traced
    draw: Traced
    step: Traced | None
    refresh: Traced | None
    observe: Traced


class Run(eqx.Module):
    """What a compiled program is called with: arrays are leaves, everything else is part of the program.

    functions: what a lane does.
    arrays: of the ``Lane``, which all lanes share.
    settings: of every lane, with a leading axis in a grid.
    key: one key, or one per seed in a grid; with two axes, seeds of its own for every setting.
    packing: of a lane's carry. Carries are packed here; one of all lanes has the axes of ``shape``.
    """

    functions: Functions
    arrays: PyTree
    settings: PyTree
    key: Array
    packing: Packing = eqx.field(static=True)
    plan: Plan = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """Settings and seeds of a grid; nothing for a single lane."""
        if not self.plan.grid:
            return ()
        return (len(jax.tree.leaves(self.settings)[0]), self.key.shape[-1])

    def lanes(self, fn: Callable[..., PyTree], carry: Any = None, draws: Any = None) -> PyTree:
        """``fn(setting, key, carry, draws)`` of every lane; those of a seed share key and draws."""
        if not self.plan.grid:
            return fn(self.settings, self.key, carry, draws)
        seeds = jax.vmap(fn, in_axes=(None, 0, 0, 0))
        apart = 0 if self.key.ndim == 2 else None
        every = jax.vmap(seeds, in_axes=(0, apart, 0, apart))
        return every(self.settings, self.key, carry, draws)

    def start(self) -> tuple[Any, ...]:
        """The first carry of every lane."""

        def start(setting: PyTree, key: Array, *_: None) -> tuple[Any, ...]:
            return self.packing.pack(self.functions.start(self.arrays, setting, key))

        return self.lanes(start)

    def draw(self, first: Array, many: int) -> PyTree:
        """The batches of ``many`` steps, the leading axis the step (and then the seed)."""
        settings = self.settings
        if self.plan.grid:  # what is drawn does not depend on the setting
            settings = jax.tree.map(lambda x: x[0], settings)

        def draw(key: Array, step: Array) -> PyTree:
            return self.functions.draw(self.arrays, settings, key, step)

        steps = first + jnp.arange(many, dtype=first.dtype)
        if not self.plan.grid:
            return jax.vmap(draw, in_axes=(None, 0))(self.key, steps)
        # One axis of steps and seeds together: loops inside of loops take longer to compile.
        pairs = jnp.tile(self.key.ravel(), many), jnp.repeat(steps, self.key.size)
        shape = (many, *self.key.shape)
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), jax.vmap(draw)(*pairs))

    def step(self, carry: tuple[Array, ...], draws: PyTree, t: Array) -> tuple[Array, ...]:
        """Step t of every lane. A restart is a real branch, for t is one number for all of them."""

        def every(function: Any) -> Callable[[tuple[Array, ...]], tuple[Array, ...]]:
            def step(setting: PyTree, key: Array, carry: Any, draws: PyTree) -> tuple[Array, ...]:
                return self.packing.pack(function(self.arrays, setting, key, draws, carry, t))

            return lambda carry: self.lanes(step, carry, draws)

        if self.functions.refresh is None:
            return every(self.functions.step)(carry)
        if self.functions.step is None:
            return every(self.functions.refresh)(carry)
        due = t % (self.plan.period or 1) == 0
        return jax.lax.cond(due, every(self.functions.refresh), every(self.functions.step), carry)

    def observe(self, carry: tuple[Array, ...]) -> dict[str, Array]:
        """One record of every lane, and whether everything that the lane carries is finite."""

        def observe(setting: PyTree, key: Array, carry: Any, _: None) -> dict[str, Array]:
            return self.functions.observe(self.arrays, setting, key, carry)

        return self.lanes(observe, carry)

    def advance(
        self, carry: tuple[Array, ...], t: Array, strides: Array, length: Array
    ) -> tuple[tuple[Array, ...], dict[str, Array]]:
        """``strides`` times: ``length`` steps, then one record. All three numbers are traced.

        Draws that were made ahead may last beyond a record or end before it, so that their number does
        not depend on the length of a stride: runs of other lengths are the same program.
        """
        ahead = self.plan.ahead
        first = t
        end = t + strides * length
        records = jax.tree.map(
            lambda s: jnp.zeros((CAPACITY, *self.shape, *s.shape), s.dtype),
            self.functions.observe.shapes(),
        )

        def with_draws_ahead(state: Any) -> Any:
            begin = state[1]
            until = jnp.minimum(begin + ahead, end)
            drawn = self.draw(begin + 1, ahead)

            def to_record_or_end(state: Any) -> Any:
                carry, t, records, k = state
                due = first + (k + 1) * length
                stop = jnp.minimum(due, until)

                def step(i: Array, carry: Any) -> Any:
                    return self.step(carry, jax.tree.map(lambda d: d[i - begin], drawn), i + 1)

                carry = _loop(self.plan.unroll, t, stop, step, carry)

                def write(records: Any) -> Any:
                    row = self.observe(carry)
                    return jax.tree.map(lambda column, x: column.at[k].set(x), records, row)

                records = jax.lax.cond(stop == due, write, lambda records: records, records)
                return carry, stop, records, k + (stop == due)

            return jax.lax.while_loop(
                lambda s: (s[3] < strides) & ((s[1] < until) | (length == 0)), to_record_or_end, state
            )

        state = (carry, t, records, jnp.zeros_like(t))
        carry, _, records, _ = jax.lax.while_loop(lambda s: s[3] < strides, with_draws_ahead, state)
        return carry, records

    def in_short(self, t: Array) -> tuple[tuple[Array, ...], dict[str, Array]]:
        """The start, one step and its record: all that a run is, however it is cut into chunks."""
        drawn = jax.tree.map(lambda d: d[0], self.draw(t, 1))
        carry = self.step(self.start(), drawn, t)
        return carry, self.observe(carry)


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


def run_of(lane: Lane, settings: PyTree, key: Array) -> Run:
    """The lanes of a run, traced."""
    setting, seed = settings, key
    if lane.plan.grid:  # of one lane, the shapes are enough
        setting = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), settings)
        seed = jax.ShapeDtypeStruct((), key.dtype)
    arrays, static = eqx.partition(lane, eqx.is_array)
    functions, packing = known(_traced, static, shapes_of((arrays, setting, seed)))
    return Run(functions, arrays, settings, key, packing, lane.plan)


def _traced(static: Lane, shapes: Shapes) -> tuple[Functions, Packing]:
    """The functions of a lane as data, with the largest packing that holds at the start and that every
    step keeps.

    A step can only be trusted with leaves that are equal when it begins, so it is traced again if they
    do not stay equal. Groups of leaves only ever split, so this ends.
    """
    arrays, setting, key = shapes.structs()
    t = jax.ShapeDtypeStruct((), jnp.int32)
    shared: dict[Any, Any] = {}

    def traced(fn: Callable[..., PyTree], *args: PyTree) -> Traced:
        def whole(arrays: PyTree, *args: PyTree) -> PyTree:
            return fn(eqx.combine(static, arrays), *args)

        return trace(whole, arrays, *args, shared=shared)

    def step(refresh: bool) -> Traced:
        def step(lane: Lane, setting: PyTree, key: Array, draws: PyTree, carry: Any, t: Array) -> Carry:
            return lane.step(setting, key, draws, packing.unpack(carry), t, refresh)

        return traced(step, setting, key, draw.shapes(), packing.pack(carry), t)

    start = traced(Lane.start, setting, key)
    draw = traced(Lane.draw, setting, key, t)
    carry = start.shapes()
    packing = packing_of(start)
    period = static.plan.period
    kinds = [False] * (period != 1) + [True] * (period is not None)
    steps: dict[bool, Traced] = {}  # by whether they refresh the method
    while len(steps) < len(kinds):
        refresh = kinds[len(steps)]
        steps[refresh] = step(refresh)
        finer = packing.split(steps[refresh])
        if finer != packing:
            packing = finer
            steps.clear()

    def observe(lane: Lane, setting: PyTree, key: Array, carry: Any) -> dict[str, Array]:
        return lane.observe(setting, key, packing.unpack(carry))

    observed = traced(observe, setting, key, packing.pack(carry))
    return Functions(start, draw, steps.get(False), steps.get(True), observed), packing
