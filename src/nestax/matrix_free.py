"""The forward half that all matrix-free SMVR estimators share: tracked values and pullbacks.

The backward half has memory, so the draws it uses must be independent of the points at which it
uses them. The value of level i at step t was made from the draws of step t, hence three modes:

fresh:  a second, independent batch for the derivatives; twice the samples.
lagged: the derivatives of step t are taken at the points of the two steps before, with the draws
        of step t; no further samples, and the gradient belongs to the weights one step ago.
reuse:  the same draws and the same points. Biased by the variance over the batch size, and
        making beta small does not help. Only for comparison with published code.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.errors import SettingError
from nestax.estimator import Batches, Calls
from nestax.jacobian import pull_through
from nestax.level import Level
from nestax.problem import Problem
from nestax.tracking import storm

MODES = ("fresh", "lagged", "reuse")
Pair = tuple[PyTree, PyTree]


class Forward(NamedTuple):
    """Tracked inputs (w, u^1, …, u^{K-1}), the tracked objective, and pullbacks.

    At the start a pullback maps one adjoint. After that it maps a pair of them, those at the newer and
    at the older of two points. Where the product is formed draw by draw, an adjoint has one part a draw.
    """

    inputs: tuple[PyTree, ...]
    last: Array
    pulls: list[Callable[[Any], Any]]


def passes_of(mode: str) -> dict[str, Calls]:
    if mode == "fresh":
        return {"value": Calls(2, 0), "grad": Calls(0, 2)}
    return {"value": Calls(3, 2) if mode == "lagged" else Calls(2, 2)}


def draws_in(batches: Batches) -> int:
    """How many draws every level has, for products formed draw by draw."""
    sizes = {b.size for batch in batches for b in batch.values() if b is not None}
    if len(sizes) > 1:
        raise SettingError(
            "products draw by draw need one batch size for all levels; "
            f"got {sorted(sizes)}. Use one batch_size, or per_draw=False."
        )
    return sizes.pop()


def mean_of_products(pulls: list[Any], like: Any, size: int | None) -> PyTree:
    """J_1ᵀ⋯J_Kᵀ of the mean Jacobians or, with ``size``, the mean over draws of such products.

    ``like`` has the shape of the objective, or is a pair of such arrays.
    """
    if size is None:
        return pull_through(pulls, like)
    ones = jax.tree.map(lambda x: jnp.ones((size, *x.shape), x.dtype), like)
    return jax.tree.map(lambda g: jnp.mean(g, axis=0), pull_through(pulls, ones))


def at_both(fn: Callable[..., PyTree], *pairs: Pair) -> Pair:
    """``fn`` at two points, mapped over them: half the program, and twice the work in one go."""
    stacked = (jax.tree.map(lambda a, b: jnp.stack([a, b]), *pair) for pair in pairs)
    both = jax.vmap(fn)(*stacked)
    first, second = (jax.tree.map(lambda y, k=k: y[k], both) for k in (0, 1))
    return first, second


def first_forward(
    problem: Problem, w: PyTree, batches: Batches, mode: str, size: int | None = None
) -> Forward:
    """Plain evaluation at the start."""
    inputs, pulls = [w], []
    for level, batch in zip(problem.levels, batches, strict=True):
        if mode == "fresh":
            f = level.value(inputs[-1], batch["value"])
            _, pull = level.value_and_pulls(inputs[-1], batch["grad"], size)
        else:
            f, pull = level.value_and_pulls(inputs[-1], batch["value"], size)
        inputs.append(level.project(f))
        pulls.append(pull)
    *inputs, last = inputs
    return Forward(tuple(inputs), last, pulls)


def track_forward(
    problem: Problem,
    w: PyTree,
    batches: Batches,
    mode: str,
    keep: Array,
    state: Any,
    size: int | None = None,
) -> Forward:
    """STORM on every value; ``state`` has ``inputs``, ``before`` and ``last`` of the last step."""
    tracked, inputs, pulls = (*state.inputs[1:], state.last), [w], []
    for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
        before = state.before[i] if mode == "lagged" else None
        u, u_old, pull = _evaluate(level, batch, mode, size, inputs[i], state.inputs[i], before)
        if not level.deterministic:
            u = storm(u, keep, tracked[i], u_old)
        pulls.append(pull)
        inputs.append(level.project(u))
    *inputs, last = inputs
    return Forward(tuple(inputs), last, pulls)


def _evaluate(
    level: Level, batch: Any, mode: str, size: int | None, new: PyTree, old: PyTree, before: PyTree
) -> tuple[PyTree, PyTree, Callable[[Pair], Pair]]:
    """Values of one level at the new point and at the old one, and its pullbacks at two points."""
    draws = batch["value"]
    if mode == "fresh":
        value = lambda x: level.value(x, draws)
        pull = lambda x, p: level.value_and_pulls(x, batch["grad"], size)[1](p)
        return *at_both(value, (new, old)), lambda pair: at_both(pull, (new, old), pair)
    u_old, pull_old = level.value_and_pulls(old, draws, size)
    if mode == "lagged":
        _, pull_before = level.value_and_pulls(before, draws, size)
        return level.value(new, draws), u_old, lambda pair: (pull_old(pair[0]), pull_before(pair[1]))
    u, pull_new = level.value_and_pulls(new, draws, size)
    return u, u_old, lambda pair: (pull_new(pair[0]), pull_old(pair[1]))
