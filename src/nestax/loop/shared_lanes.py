"""A run whose settings are shared by devices, in parts of one size whatever their number. Pure."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.devices.rows import LANE_PARTS, Sharded
from nestax.loop.core import CAPACITY, Run


class SharedRun(eqx.Module):
    """Starts and advances as a ``Run`` does, whose settings lie on the devices of ``sharded``."""

    run: Run
    sharded: Sharded

    def start(self) -> tuple[Array, ...]:
        """The first carry of every lane."""
        parts = self._in_parts(lambda run, _: run.start(), ())
        return tuple(map(self._joined, parts))

    def advance(
        self, carry: tuple[Array, ...], t: Array, strides: Array, length: Array
    ) -> tuple[tuple[Array, ...], dict[str, Array]]:
        """``strides`` times: ``length`` steps, then one record."""
        parts, columns = self._in_parts(Run.advance, carry, t, strides, length)
        # Records are read by the host, and so by every process.
        everywhere = self.sharded.everywhere

        def join(x: Array) -> Array:
            rows = jnp.swapaxes(jax.lax.with_sharding_constraint(x, everywhere), 0, 1)
            return rows.reshape(CAPACITY, *self.run.shape, *x.shape[4:])

        return tuple(map(self._joined, parts)), jax.tree.map(join, columns)

    def _in_parts(self, fn: Callable[..., PyTree], carry: tuple[Array, ...], *rest: Array) -> PyTree:
        """``fn(run, carry, *rest)`` of parts of the lanes, in turns on the device that holds them.

        What is computed together with what changes the last digits, so the parts have one size whatever
        the number of devices. Outcomes have a leading axis, that of the parts.
        """
        run = self.run
        parts = self.sharded.parts(run.shape[0], LANE_PARTS)
        own_seeds = run.key.ndim == 2
        # Keys as words, for a part of an array of keys has another type than the keys.
        words = jax.random.key_data(run.key)
        impl = jax.random.key_impl(run.key)

        def of_part(part: Any, shared: Any) -> PyTree:
            settings, own, carry = part
            functions, arrays, words, rest = shared
            key = jax.random.wrap_key_data(own if own_seeds else words, impl=impl)
            inside = dataclasses.replace(
                run, functions=functions, arrays=arrays, settings=settings, key=key
            )
            return fn(inside, carry, *rest)

        everything = (run.settings, words if own_seeds else None, carry)
        cut = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), everything)
        shared = (run.functions, run.arrays, words, rest)
        return self.sharded.each(of_part, cut, shared)

    def _joined(self, x: Array) -> Array:
        """What the parts have made, with the axis of settings in place of the two of parts."""
        joined = x.reshape(self.run.shape[0], *x.shape[2:])
        return jax.lax.with_sharding_constraint(joined, self.sharded.split)
