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

from nestax.chain.jacobian import pull_through
from nestax.chain.problem import Problem
from nestax.errors import SettingError
from nestax.parts.estimator import Batches, Calls
from nestax.parts.tracking import storm

MODES = ("fresh", "lagged", "reuse")
Pull = Callable[[PyTree], PyTree]


class Forward(NamedTuple):
    """Tracked inputs (w, u^1, …, u^{K-1}), the tracked objective, and pullbacks at two points.

    Where the product is formed draw by draw, a pullback maps one adjoint per draw.
    """

    inputs: tuple[PyTree, ...]
    last: Array
    heads: list[Pull]
    tails: list[Pull]


def passes_of(mode: str) -> dict[str, Calls]:
    if mode == "fresh":
        return {"value": Calls(2, 0), "grad": Calls(0, 2)}
    return {"value": Calls(3, 2) if mode == "lagged" else Calls(2, 2)}


def draws_in(batches: Batches) -> int:
    """Returns how many draws every level has, for products formed draw by draw."""
    sizes = {b.size for batch in batches for b in batch.values() if b is not None}
    if len(sizes) > 1:
        raise SettingError(
            "products draw by draw need one batch size for all levels; "
            f"got {sorted(sizes)}. Use one batch_size, or per_draw=False."
        )
    return sizes.pop()


def mean_of_products(pulls: list[Pull], like: Array, size: int | None) -> PyTree:
    """J_1ᵀ⋯J_Kᵀ of the mean Jacobians or, with ``size``, the mean over draws of such products."""
    if size is None:
        return pull_through(pulls, like)
    products = pull_through(pulls, jnp.ones((size, *like.shape), like.dtype))
    return jax.tree.map(lambda g: jnp.mean(g, axis=0), products)


def first_forward(
    problem: Problem, w: PyTree, batches: Batches, mode: str, size: int | None = None
) -> Forward:
    """Plain evaluation at the start."""
    inputs = [w]
    heads = []
    for level, batch in zip(problem.levels, batches, strict=True):
        if mode == "fresh":
            f = level.value(inputs[-1], batch["value"])
            _, pull = level.value_and_pulls(inputs[-1], batch["grad"], size)
        else:
            f, pull = level.value_and_pulls(inputs[-1], batch["value"], size)
        inputs.append(level.project(f))
        heads.append(pull)
    *inputs, last = inputs
    return Forward(tuple(inputs), last, heads, heads)


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
    points = {"new": [w], "old": state.inputs, "before": state.before}
    head, tail = ("old", "before") if mode == "lagged" else ("new", "old")
    tracked = (*state.inputs[1:], state.last)
    heads = []
    tails = []
    for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
        draws = batch["grad" if mode == "fresh" else "value"]
        pulls = {p: level.value_and_pulls(points[p][i], draws, size) for p in (head, tail)}

        # Defaults bind what the loop's variables are now.
        def value(point, i=i, level=level, batch=batch, pulls=pulls):
            """With the draws for values, which are those of the derivatives unless they are fresh."""
            if point in pulls and (mode != "fresh" or level.deterministic):
                return pulls[point][0]
            return level.value(points[point][i], batch["value"])

        u = value("new")
        if not level.deterministic:
            u = storm(u, keep, tracked[i], value("old"))
        heads.append(pulls[head][1])
        tails.append(pulls[tail][1])
        points["new"].append(level.project(u))
    *inputs, last = points["new"]
    return Forward(tuple(inputs), last, heads, tails)
