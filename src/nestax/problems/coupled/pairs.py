"""What problems of pairs share: scores of rows, and means over pairs that are never all held at once."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from nestax.errors import ProblemError
from nestax.problems.losses import Fit, fit_together, logistic, of_rows, read_numbers

#: Pairs that are looked at side by side where all of them are; derivatives compute them again.
PAIRS_AT_ONCE = 2**22
#: Anchors visited a step, unless told otherwise.
VISIT = 16


class Score(eqx.Module):
    """A model's prediction as one number."""

    model: Callable[[PyTree, Any], Any]

    def __call__(self, w: PyTree, x: Any) -> Array:
        return jnp.reshape(self.model(w, x), ())

    def each(self, w: PyTree, X: Array) -> Float[Array, " n"]:
        return of_rows(lambda x: self(w, x), X)


def over_anchors(fn: Callable[[Any], PyTree], anchors: PyTree, partners: int) -> PyTree:
    """``fn`` of every anchor, which compares it with so many partners; some anchors at a time."""
    count = len(jax.tree.leaves(anchors)[0])
    width = max(1, PAIRS_AT_ONCE // partners)
    if width >= count:
        return jax.vmap(fn)(anchors)
    return jax.lax.map(jax.checkpoint(fn), anchors, batch_size=width)


def default_visit(visit: int | None, anchors: int) -> int:
    return min(VISIT, anchors) if visit is None else visit


def but_own(i: Array, j: Array, loss: Array, rows: int) -> Array:
    """What makes the mean over all rows j, row i among them, that over the others."""
    return jnp.where(i == j, 0, loss * (rows / (rows - 1)))


def two_classes(X: Any, y: Any, model: Any, w0: PyTree, l2: float) -> Fit:
    """Rows with labels 0 and 1, and a score for them; its losses at the start are logistic ones."""
    y = read_numbers(y, "y of the data")
    labels = np.unique(y)
    odd = labels[~np.isin(labels, (0, 1))]
    if y.ndim != 1 or len(odd):
        got = f"{odd[0]:g}" if y.ndim == 1 else f"an array of {y.ndim} dimensions"
        raise ProblemError(
            f"y must hold labels, 1 for rows that are to come first and 0 for others; got {got}."
        )
    if len(labels) < 2:
        raise ProblemError(
            f"every label is {labels[0]:g}: a ranking needs rows of two classes, 1 for those that are "
            "to come first and 0 for others."
        )
    return fit_together([("the data", X, y.astype(float))], logistic, model, w0, False, l2)
