"""The update rules, as pure functions on trees. Values and Jacobians are tracked by the same line."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.errors import SettingError

Setting = Array | float | Callable[..., Any]


def storm(new: PyTree, keep: Array | float, tracked: PyTree, old: PyTree) -> PyTree:
    """STORM: ``g(x_t;ξ) + keep·(tracked − g(x_{t−1};ξ))``, the same draw ξ at both points.

    Exact for ever, for every ``keep``, if g carries no noise and the start was exact. Where tracked
    and old are one array, as for a component that a level hands on, nothing needs to be computed.
    Reference: Cutkosky and Orabona, NeurIPS 2019.
    """
    return jax.tree.map(lambda n, t, o: n if t is o else n + keep * (t - o), new, tracked, old)


def average(tracked: PyTree, weight: Array | float, new: PyTree) -> PyTree:
    """Moving average: ``(1 − weight)·tracked + weight·new``. Stays in the hull of what it has seen."""
    return jax.tree.map(lambda t, n: t + weight * (n - t), tracked, new)


def storm_of_blocks(
    new: PyTree, keep: Array | float, tracked: PyTree, old: PyTree, blocks: int, visit: int
) -> PyTree:
    """MSVR: STORM where g moves in all of M blocks at every step and only B of them are visited.

    ``(1 − γ)·tracked + γ·g(x_t;ξ) + γ'·(g(x_t;ξ) − g(x_{t−1};ξ))`` with γ = 1 − keep and γ' =
    (M − B)/(B(1 − γ)) + 1 − γ: the difference of one step stands for the steps since the last visit.
    Reference: Jiang, Li, Wang, Zhang and Yang, NeurIPS 2022.
    """
    more = (blocks - visit) / (visit * keep)
    reach = lambda u, n, o: u + more * (n - o)
    return jax.tree.map(reach, storm(new, keep, tracked, old), new, old)


class Schedule(eqx.Module):
    """A schedule ``scale·fn(count)`` or ``scale·fn(count, horizon)``, in the dtype of the run.

    Scale and horizon are leaves, so that runs of other lengths or rates share a compilation.
    """

    fn: Callable[..., Any]
    horizon: Array | None = None
    dtype: str | None = eqx.field(default=None, static=True)
    scale: Any = eqx.field(default=None, converter=lambda x: None if x is None else jnp.asarray(x))

    def __call__(self, count: Array) -> Array:
        # Quotients of 32-bit integers are computed in single precision.
        wide = lambda n: n.astype(jnp.int64) if self.dtype == "float64" else n
        horizon = () if self.horizon is None else (wide(self.horizon),)
        value = jnp.asarray(self.fn(wide(jnp.asarray(count)), *horizon), self.dtype)
        return value if self.scale is None else self.scale * value


class Decay(eqx.Module):
    """(1 + count/offset)^(−exponent): the shape of the theory's schedules, 1 at the start."""

    exponent: float = eqx.field(static=True)
    offset: float = eqx.field(default=100.0, static=True)

    def __call__(self, count: Array) -> Array:
        return (1 + count / self.offset) ** -self.exponent


def scaled(setting: Any, default: float, shape: Callable[..., Any]) -> Any:
    """A number times a published schedule; a schedule of the user's own replaces it."""
    if callable(setting):
        return setting
    return Schedule(shape, scale=default if setting is None else setting)


def as_setting(value: Any) -> Any:
    """A number as an array leaf, so that changing it never compiles again; a schedule as it is."""
    if value is None or callable(value) or isinstance(value, eqx.Module):
        return value
    try:
        return jnp.asarray(value)
    except TypeError:
        raise SettingError(f"a setting must be a number or a schedule; got {value!r}.") from None


def at(setting: Any, count: Array) -> Any:
    """The value of a setting at the estimator's own count: settings are numbers or schedules."""
    if setting is None:
        raise SettingError(
            "a setting of this method depends on the run: use estimator.defaults(problem, steps, "
            "batch_sizes), which fills it in."
        )
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
