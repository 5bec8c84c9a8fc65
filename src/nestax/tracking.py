"""The update rules, as pure functions on trees. Values and Jacobians are tracked by the same line."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.errors import SettingError

Setting = Array | float | Callable[..., Any]


def storm(new: PyTree, keep: Array, tracked: PyTree, old: PyTree) -> PyTree:
    """STORM: ``g(x_t;ξ) + keep·(tracked − g(x_{t−1};ξ))``, the same draw ξ at both points.

    Exact for ever, for every ``keep``, if g carries no noise and the start was exact. Where tracked
    and old are one array, as for a component that a level hands on, nothing needs to be computed.
    Reference: Cutkosky and Orabona, NeurIPS 2019.
    """
    return jax.tree.map(lambda n, t, o: n if t is o else n + keep * (t - o), new, tracked, old)


class Schedule(eqx.Module):
    """A schedule ``fn(count)`` or ``fn(count, horizon)``, its value in the dtype of the run.

    The horizon is a leaf, so that runs of other lengths share a compilation.
    """

    fn: Callable[..., Any]
    horizon: Array | None
    dtype: str = eqx.field(static=True)

    def __call__(self, count: Array) -> Array:
        value = self.fn(count) if self.horizon is None else self.fn(count, self.horizon)
        return jnp.asarray(value, self.dtype)


def as_setting(value: Any) -> Any:
    """A number as an array leaf, so that changing it never compiles again; a schedule as it is."""
    if value is None or callable(value):
        return value
    try:
        return jnp.asarray(value)
    except TypeError:
        raise SettingError(f"a setting must be a number or a schedule; got {value!r}.") from None


def at(setting: Any, count: Array) -> Any:
    """The value of a setting at the estimator's own count: settings are numbers or schedules."""
    return setting(count) if callable(setting) else setting


def per_level(setting: Any, i: int, levels: int) -> Array:
    """The entry of level ``i`` of a setting that is one number for all levels or one per level."""
    setting = jnp.asarray(setting)
    if setting.ndim == 0:
        return setting
    if setting.shape != (levels,):
        raise SettingError(
            "a setting per level needs one number per level; "
            f"got {setting.shape[0]} for {levels} levels."
        )
    return setting[i]
