"""A tracker inside a loss that somebody else wrote: a function that remembers, and nothing around it.

It is a part, like the rules of ``tracking`` and ``gains`` that it is made of: pure mathematics on trees
that knows no levels, no estimator and no loop. Losses and the layers of frameworks are built on it.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.errors import UNIT, SettingError, check_count, check_setting, choose, is_traced
from nestax.parts.gains import Belief, first_belief, follow
from nestax.parts.tracking import average, storm


class TrackState(eqx.Module):
    """What ``track`` remembers; a tree of arrays, whose structure, shapes and dtypes never change.

    value: the tracked value, or one row of it per example; inf where nothing was seen yet. That is all
        that a table keeps of a row with ``beta``: 4 bytes for a number in single precision.
    left_out: how many values were left out of the memory because they were not finite.
    count, belief: how often each was moved, spreads and error bars, where gains set themselves.
    n: how many rows a table has; None for one memory.
    """

    value: PyTree
    left_out: Array
    count: Array | None
    belief: Belief | None
    n: int | None = eqx.field(static=True)


def track_init(example: PyTree, n: int | None = None, gain: str | None = None) -> TrackState:
    """Makes the memory of ``track`` before anything was seen.

    Args:
        example: anything with the shape and the dtype of what is tracked, without an axis of draws or
            rows: an array, a number, ``jax.ShapeDtypeStruct((3,), jnp.float32)``, or a tree of them. Its
            values do not matter. Half precision is remembered in single precision.
        n: how many rows a table has, one per example or class; None means one memory, no table.
        gain: "auto" for a memory with gains that set themselves.
    """
    _check_gain(gain)
    n = None if n is None else check_count("n", n)
    lead = () if n is None else (n,)
    shapes = jax.tree.map(lambda x: x if hasattr(x, "dtype") else jnp.asarray(x), example)
    dtypes = {trees.average_dtype(x.dtype) for x in jax.tree.leaves(shapes)}
    if len(dtypes) != 1 or not jnp.issubdtype(min(dtypes, key=str), jnp.floating):
        raise SettingError(
            "what is tracked must be arrays of one floating-point dtype; got "
            f"{', '.join(sorted(map(str, dtypes))) or 'no array'}: cast them, track them one by one, or "
            "give jnp.zeros(shape) where a shape is meant."
        )
    (dtype,) = dtypes
    value = jax.tree.map(lambda x: jnp.full((*lead, *x.shape), jnp.inf, dtype), shapes)
    count = belief = None
    if gain is not None:
        count = jnp.zeros(lead, jnp.int32)
        belief = Belief(jnp.zeros((*lead, 6, len(jax.tree.leaves(value))), dtype))
    return TrackState(value, jnp.zeros((), jnp.int32), count, belief, n)


def track(
    g: PyTree,
    state: TrackState | None,
    index: Any = None,
    *,
    beta: Any = None,
    gain: str | None = None,
    previous: PyTree = None,
    lagged: bool = False,
    log: bool = False,
    project: Callable[[PyTree], PyTree] | None = None,
) -> tuple[PyTree, TrackState]:
    """A noisy value inside a loss, replaced by its tracked value; the derivative stays the fresh one.

        u_t = (1−β)·u_{t-1} + β·g_t                      a moving average
        u_t = g_t + (1−β)·(u_{t-1} − g⁻_t)               STORM, with previous = g⁻_t
        u_t = u_{t-1} + k₁(g_t − u_{t-1}) + k₂(g_t − g⁻_t)     gain="auto": see ``nestax.parts.gains``

    and u_1 = g_1. Returned is u_t + (g_t − stop_gradient(g_t)), so that for a loss f(u) the gradient is
    J_g(w_t; ξ)ᵀ ∇f(u_t), and the new state. A chain of K levels is K − 1 calls, one inside the other,
    each with its own state and its own draws: that is SCSC with ``previous``, and SOX's inner part for a
    table.

    What bias is left. g_t and its derivative come from the same draws, of which u_t holds the share β.
    So the gradient is off by order β/b for b draws. Take g = ξw, E ξ = 1, Var ξ = σ², f(u) = u²/2, and
    a memory that is right, u_{t-1} = w: the gradient ξu_t has the mean (1 + βσ²)w instead of w, and
    (1 + σ²)w with β = 1, that is without memory. With ``lagged`` the value of the step before is used,
    which these draws have not touched, and the mean is w; the price is a value that is one step old.
    (The first value of a memory is always the fresh one.) Besides, a moving average lags behind weights
    that move, by about 1/β steps, which STORM does not.

    Compiled code cannot refuse what it does not know yet: there an index out of range gives NaN and
    changes nothing, one that is repeated keeps any one of its values, and ``state.left_out`` counts
    where a warning would be given.

    Args:
        g: the value of a batch: an array or a tree of them. With ``index`` one per row along a leading
            axis, with gain="auto" one per draw along the next, at least two, whose mean is tracked. A
            value that is not finite is left out of the memory, with a warning, and returned as it is.
        state: from ``track_init``, or from the call before. None makes one at the first call, which is
            enough in a Python loop; ``jax.lax.scan`` and checkpoints want ``track_init``.
        index: the rows of the table that g belongs to, all different.
        beta: β in (0, 1], what is forgotten in a step; 1 remembers nothing.
        gain: "auto" instead of ``beta``; needs ``previous``.
        previous: g of the same draws at the weights that the memory belongs to, which are those of the
            last step, in a table those of the last visit of each row. STORM for a row that is visited
            rarely, with the weights of the last step, does not help: leave it out there. Where nothing
            is remembered yet it does not count.
        lagged: whether the value of the step before is returned.
        log: whether g is the logarithm of what is averaged, e.g. a logsumexp, and the logarithm of the
            tracked mean is returned, u_t = log((1−β)·exp(u_{t-1}) + β·exp(g_t)) with the derivative
            exp(g_t − u_t)·∂g_t, so that nothing overflows. Only with ``beta`` and without ``previous``,
            which might make the mean negative.
        project: moves one tracked value into its range, e.g. ``lambda u: u.clip(1e-6)``: unlike a moving
            average, STORM may leave it.

    Reference: Wang, Fang, Liu, Math. Program. 2017 (moving average); Chen, Sun, Yin, IEEE Trans. Signal
    Process. 2021 (STORM); Wang, Yang, ICML 2022 (tables).
    """
    check_forgetting(beta, gain)
    if log and (gain is not None or previous is not None):
        raise SettingError(
            "log=True is a moving average: give it beta=, and neither gain= nor previous=."
        )
    if gain is not None and previous is None:
        raise SettingError(
            "gain='auto' compares g at two points: pass previous=, g of the same draws at the weights "
            "of the last step, which at the first step is g itself."
        )
    if not isinstance(state, TrackState | None):
        raise SettingError(
            "state must be what nx.track_init made, or what the last call returned: "
            f"u, state = nx.track(g, state, ...); got {type(state).__name__}."
        )
    g, previous = jax.tree.map(jnp.asarray, (g, previous))
    fresh, before, state = jax.lax.stop_gradient((g, previous, state))
    if state is None:
        state = _first_state(fresh, index, gain)
    if (gain is None) != (state.belief is None):
        raise SettingError(
            "gain='auto' and its memory belong together: make the state with "
            "nx.track_init(example, gain='auto'), and with nx.track_init(example) for beta."
        )
    index = _check_index(index, state)
    _check_shapes(fresh, before, state, index)
    _check_devices(fresh, state.value)
    dtype = jax.tree.leaves(state.value)[0].dtype
    fresh = trees.cast(fresh, dtype)
    before = trees.cast(before, dtype)
    row = (state.value, state.count, state.belief)
    move = functools.partial(_move, beta=beta, lagged=lagged, log=log, project=project)
    if index is None or state.n is None:
        shown, (value, count, belief), fine = move(fresh, before, row)
    else:
        outside = (index < 0) | (index >= state.n)
        index = jnp.where(outside, state.n, index)  # a negative one would count from the end
        rows = jax.tree.map(lambda x: x.at[index].get(mode="clip"), row)
        shown, moved, fine = jax.vmap(move)(fresh, before, rows)
        value, count, belief = jax.tree.map(lambda x, new: x.at[index].set(new, mode="drop"), row, moved)
        if is_traced(index):
            shown = jax.tree.map(lambda x: jax.vmap(jnp.where, (0, None, 0))(outside, np.nan, x), shown)
    # Said of the dtype, for with x64 a sum of booleans would be a wider number than is kept.
    lost = jnp.sum(~fine, dtype=jnp.int32)
    if not is_traced(lost) and lost:
        warnings.warn(
            f"{lost} of {fine.size} values to track are not finite and are left out of the memory: look "
            "for the step that made them.",
            stacklevel=2,
        )

    def with_derivative(u: Array, x: Array) -> Array:
        value = jax.lax.stop_gradient(x)
        derivative = (x - value).astype(dtype)
        return u + (jnp.exp(value.astype(dtype) - u) * derivative if log else derivative)

    out = jax.tree.map(with_derivative, shown, untracked(g, index, gain))
    return out, TrackState(value, state.left_out + lost, count, belief, state.n)


def _move(
    g: PyTree, previous: PyTree, row: Any, *, beta: Any, lagged: bool, log: bool, project: Any
) -> Any:
    """One memory after one batch: what is shown of it, what is kept, and whether g was finite."""
    stored, count, belief = row
    # Only finite values are ever kept, so that the first number tells.
    first = jnp.any(jnp.isinf(jnp.ravel(jax.tree.leaves(stored)[0])[:1]))
    mean = g if belief is None else jax.tree.map(lambda x: jnp.mean(x, 0), g)
    value = _either(first, mean, stored)
    believed = None
    if belief is None:
        beta = jnp.asarray(beta, jax.tree.leaves(g)[0].dtype)
        if log:
            moved = jax.tree.map(
                lambda u, x: jnp.logaddexp(u + jnp.log1p(-beta), x + jnp.log(beta)), value, g
            )
        elif previous is None:
            moved = average(value, beta, g)
        else:
            moved = storm(g, 1 - beta, value, previous)
    else:
        leaves, treedef = jax.tree.flatten(g)
        # How far the weights went is not known here: steps count as equally long.
        length = jnp.ones((), leaves[0].dtype)
        estimates, believed = follow(
            leaves,
            jax.tree.leaves(previous),
            jax.tree.leaves(value),
            belief,
            jnp.maximum(count, 1),
            length,
        )
        moved = treedef.unflatten(estimates)
        believed = _either(first, first_belief(leaves), believed)
    moved = _either(first, mean, moved)
    if project is not None:
        moved = _projected(project, moved)
    fine = trees.all_finite(g) & (first | trees.all_finite(previous))
    shown = value if lagged else moved
    value, belief = _either(fine, (moved, believed), (stored, belief))
    return shown, (value, None if count is None else count + fine, belief), fine


def _either(condition: Array, yes: PyTree, no: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def _projected(project: Callable[[PyTree], PyTree], value: PyTree) -> PyTree:
    out = project(value)
    if _shapes(out) != _shapes(value):
        raise SettingError(
            "project must return what it is given, one tracked value: it made "
            f"{_shapes(out)} of {_shapes(value)}."
        )
    return out


def _first_state(g: PyTree, index: Any, gain: str | None) -> TrackState:
    if index is not None:
        raise SettingError(
            "a table must know how many rows it has: make the state with nx.track_init(example, n=...)."
        )
    inside = g if gain is None else jax.tree.map(lambda x: x[0] if x.ndim else x, g)
    return track_init(inside, gain=gain)


def untracked(g: PyTree, index: Any, gain: str | None) -> PyTree:
    """Returns the value of a batch by itself: with gains that set themselves the mean of its draws."""
    return g if gain is None else jax.tree.map(lambda x: jnp.mean(x, 0 if index is None else 1), g)


def check_forgetting(beta: Any, gain: str | None) -> None:
    """Refuses anything but a β or gains that set themselves."""
    _check_gain(gain)
    if (beta is None) == (gain is None):
        raise SettingError("a tracker needs either beta=, a number in (0, 1], or gain='auto'.")
    if callable(beta) or np.ndim(beta):
        raise SettingError(
            "beta must be one number in (0, 1]; of a schedule, give the number of this step."
        )
    check_setting("beta", beta, *UNIT)


def _check_gain(gain: Any) -> None:
    if gain is not None:
        choose("gain", gain, ("auto",))


def _check_index(index: Any, state: TrackState) -> Array | None:
    """Returns the rows as an array; refuses those that cannot be, as far as they are known."""
    n = state.n
    if (index is None) != (n is None):
        raise SettingError(
            "index= goes with a table: make the state with nx.track_init(example, n=...), and call "
            "track without index for one made without n."
        )
    if index is None or n is None:
        return None
    index = index if is_traced(index) else np.asarray(index)
    if index.ndim != 1 or not jnp.issubdtype(index.dtype, jnp.integer):
        raise SettingError(
            f"index must be a vector of whole numbers, one per row of g; got {index.dtype}{index.shape}."
        )
    if index.shape[0] > n:
        raise SettingError(
            f"{index.shape[0]} rows in one batch and {n} in the memory: make it with a larger n."
        )
    if not is_traced(index):
        outside = index[(index < 0) | (index >= n)]
        if outside.size:
            raise SettingError(
                f"index {outside[0]} lies outside the {n} rows of the memory, 0 to {n - 1}: "
                "make it with a larger n, or look where the index comes from."
            )
        rows, times = np.unique(index, return_counts=True)
        if (times > 1).any():
            raise SettingError(
                f"index {rows[times > 1][0]} occurs {times.max()} times in one batch: a row moves "
                "once a step, so average its values, or draw without replacement."
            )
    return trees.row_numbers(index)


def _check_shapes(g: PyTree, previous: PyTree, state: TrackState, index: Array | None) -> None:
    """Refuses what does not fit the memory; rows and draws have an axis each before the rest."""
    rows = () if index is None else index.shape
    auto = state.belief is not None
    leaves = jax.tree.leaves(g)
    kept = jax.tree.leaves(state.value)
    if index is not None and any(x.ndim and x.shape[:1] != rows for x in leaves):
        raise SettingError(
            f"g is {_shapes(g)} and index has {len(index)} numbers: one for every row of g."
        )
    draws = leaves[0].shape[len(rows) : len(rows) + 1] if auto and leaves else ()
    wanted = [(*rows, *draws, *x.shape[len(rows) :]) for x in kept]
    alike = jax.tree.structure(g) == jax.tree.structure(state.value)
    if not alike or [x.shape for x in leaves] != wanted or len(draws) != auto:
        axes = ["an axis of rows"] * len(rows) + ["an axis of draws"] * auto
        after = " after " + " and ".join(axes) if axes else ""
        raise SettingError(
            f"g is {_shapes(g)} and the memory {_shapes(state.value)}: give g the shape of what is "
            f"tracked{after}, or make the state with nx.track_init for it."
        )
    dtype = kept[0].dtype
    other = [x.dtype for x in leaves if trees.average_dtype(x.dtype) != dtype]
    if other:
        raise SettingError(
            f"g is {other[0]} and the memory {dtype}: cast g, or make the state with nx.track_init(g)."
        )
    if draws in ((0,), (1,)):
        raise SettingError(
            "gain='auto' follows from the spread of the draws, and one draw has none: use batches of at "
            "least two, or beta=."
        )
    if previous is not None and _shapes(previous) != _shapes(g):
        raise SettingError(
            f"previous is {_shapes(previous)} and g {_shapes(g)}: it is g of the same draws at the last "
            "weights."
        )


def _check_devices(g: PyTree, value: PyTree) -> None:
    """Refuses what was put on two devices; what nobody has put anywhere follows the rest."""
    batch, memory = (
        {
            ", ".join(sorted(map(str, x.devices())))
            for x in jax.tree.leaves(tree)
            if not is_traced(x) and x.committed
        }
        for tree in (g, value)
    )
    for ours in batch:
        for theirs in memory - {ours}:
            raise SettingError(
                f"g is on {ours} and the memory on {theirs}: move the state there, with jax.device_put."
            )


def _shapes(tree: PyTree) -> str:
    """Returns the shapes and dtypes of a tree, for a sentence."""
    leaves = (
        f"{x.dtype}{list(x.shape)}" if hasattr(x, "dtype") else type(x).__name__
        for x in jax.tree.leaves(tree)
    )
    return ", ".join(leaves) or "nothing"
