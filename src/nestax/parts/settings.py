"""Settings of methods and step rules: numbers or schedules, with the range that each must lie in.

A number is an array leaf, so that changing it never compiles again; a schedule is a function of the
number of updates, and of the length of the run if it asks for that.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.errors import Range, SettingError, check_count, check_setting, choose, is_traced
from nestax.programs import Traced, trace
from nestax.table import number

#: A number, or one number per level.
Number = Array | float
#: The same, or a schedule: ``fn(count)`` or ``fn(count, horizon)``.
Setting = Number | Callable[..., Any]


def setting(within: Range, *, missing: Setting | None = None, **options: Any) -> Any:
    """Returns a field that holds a setting, which must lie within a range.

    Args:
        missing: what None stands for; by default it is filled in later.
        options: as for ``eqx.field``, for example ``default``.
    """
    options.setdefault("converter", lambda x: missing if x is None else as_setting(x))
    return eqx.field(metadata=checked(within), **options)


def checked(within: Range) -> dict[str, Any]:
    """Returns the metadata of a field whose value must lie within a range."""
    return {"check": lambda name, value: check_setting(name, value, *within)}


def choice(*words: str, default: str) -> Any:
    """Returns a field that holds one of a few words, and that is part of the program."""
    metadata = {"check": lambda name, value: choose(name, value, words)}
    return eqx.field(metadata=metadata, static=True, default=default)


def count(**options: Any) -> Any:
    """Returns a field that holds a whole number of at least one, and that is part of the program."""
    return eqx.field(metadata={"check": check_count}, static=True, **options)


class Settings(eqx.Module):
    """An immutable tree of settings; refuses one that is out of its range."""

    def __check_init__(self):
        for field in dataclasses.fields(self):
            check = field.metadata.get("check")
            value = getattr(self, field.name)
            if check is not None and value is not None and not isinstance(value, eqx.Module):
                check(field.name, value)

    def __repr__(self) -> str:
        """As it would be typed, without what is as it is by default."""
        fields = [field for field in dataclasses.fields(self) if field.init and field.repr]
        texts = {field.name: _told(getattr(self, field.name)) for field in fields}
        usual = {field.name: _told(field.default) for field in fields}
        arguments = [f"{name}={word}" for name, word in texts.items() if word != usual[name]]
        return f"{type(self).__name__}({', '.join(arguments)})"


def _told(value: Any) -> str:
    """Writes numbers that are known as people write them; anything else as Equinox writes it."""
    if isinstance(value, Settings):
        return repr(value)
    known = isinstance(value, float | np.ndarray | jax.Array) and not is_traced(value)
    if not (known and np.ndim(value) < 2 and jnp.issubdtype(jnp.result_type(value), jnp.number)):
        return eqx.tree_pformat(value)
    numbers = [number(float(x)) for x in np.atleast_1d(value)]
    return f"[{', '.join(numbers)}]" if np.ndim(value) else numbers[0]


def as_setting(value: Any) -> Any:
    """Returns a number as an array leaf; a schedule, or None for what is filled in later, as it is."""
    if value is None or callable(value) or isinstance(value, eqx.Module):
        return value
    try:
        return jnp.asarray(value)
    except TypeError:  # refused by the check of its field, which knows its name
        return value


def at(setting: Any, count: Array | int) -> Any:
    """Returns the value of a setting at the estimator's own count: settings are numbers or schedules."""
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


class Schedule(eqx.Module):
    """A schedule ``scale·fn(count)`` or ``scale·fn(count, horizon)``, in the dtype of the run.

    Scale and horizon are leaves, so that runs of other lengths or rates share a compilation.

    asks: whether ``fn`` is given the horizon; None means that its signature says so.
    """

    fn: Callable[..., Any]
    horizon: Array | None = None
    dtype: str | None = eqx.field(default=None, static=True)
    scale: Any = eqx.field(default=None, converter=lambda x: None if x is None else jnp.asarray(x))
    asks: bool | None = eqx.field(default=None, static=True)

    def __call__(self, count: Array | int) -> Array:
        numbers = [count] if self.horizon is None else [count, self.horizon]
        value = self.fn(*(jnp.asarray(n, count_dtype(self.dtype)) for n in numbers))
        value = jnp.asarray(value, self.dtype)
        return value if self.scale is None else self.scale * value


def count_dtype(dtype: str | None) -> Any:
    """Returns the integers that schedules see: quotients of 32-bit ones would be in single precision."""
    return jnp.int64 if dtype == "float64" else jnp.int32


class Decay(eqx.Module):
    """(1 + count/offset)^(−exponent): the shape of the theory's schedules, 1 at the start."""

    exponent: float = eqx.field(static=True)
    offset: float = eqx.field(default=100.0, static=True)

    def __call__(self, count: Array | int) -> Array:
        return (1 + count / self.offset) ** -self.exponent


def scaled(setting: Any, default: float, shape: Callable[..., Any]) -> Any:
    """Returns a number times a published schedule; a schedule of the user's own replaces it."""
    if callable(setting):
        return setting
    return Schedule(shape, scale=default if setting is None else setting)


def with_schedules(tree: PyTree, horizon: Array | int, dtype: str) -> PyTree:
    """Every number among the settings in that dtype, and every function a ``Schedule`` with its horizon.

    What a schedule computes is rounded at its end: the numbers inside belong to its program.
    """

    def fill_in(leaf: Schedule) -> Schedule:
        if leaf.dtype is not None:
            return leaf
        given = jnp.asarray(horizon) if leaf.asks else None
        return Schedule(leaf.fn, given, dtype, trees.cast(leaf.scale, dtype), leaf.asks)

    return _over_schedules(fill_in, tree, lambda number: trees.cast(number, dtype))


def with_lifted_schedules(tree: PyTree, dtype: str) -> PyTree:
    """The same schedules with every number in them as a leaf, so that others never compile again."""

    def lift(leaf: Schedule) -> Schedule:
        if isinstance(leaf.fn, Traced):
            return leaf
        count = jax.ShapeDtypeStruct((), count_dtype(dtype))
        fn = trace(leaf.fn, *[count] * (2 if leaf.asks else 1), lift=True)
        return dataclasses.replace(leaf, fn=fn)

    return _over_schedules(lift, tree)


def _over_schedules(
    change: Callable[[Schedule], Schedule], tree: PyTree, other: Callable[[Any], Any] = lambda x: x
) -> PyTree:
    """Changes every function among the settings, as a ``Schedule`` that knows what it asks for.

    Args:
        other: what becomes of everything else.
    """

    def of_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, Schedule):
            if not callable(leaf):
                return other(leaf)
            leaf = Schedule(leaf)
        if leaf.asks is None:
            parameters = inspect.signature(leaf.fn).parameters.values()
            by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            needed = [p for p in parameters if p.default is p.empty and p.kind in by_position]
            leaf = dataclasses.replace(leaf, asks=len(needed) >= 2)
        return change(leaf)

    return jax.tree.map(of_leaf, tree, is_leaf=lambda x: isinstance(x, Schedule))
