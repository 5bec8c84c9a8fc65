"""Tilted empirical risk minimisation, K = 2.

    F(w) = (1/t)·log E e^{tℓ(w; z)}

level 1   f_1(w; z) = e^{t(ℓ(w; z) − c)}        losses, tilted
level 2   f_2(u) = log(u)/t + c                  risk, deterministic

Li, Beirami, Sanjabi, Smith: Tilted empirical risk minimization, ICLR 2021.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, PyTree

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.problems.losses import RowLoss, fit_together
from nestax.problems.tilted.tilting import check_tilt, make_tilt, tilted, tilted_mean, untilted


class TiltedLoss(eqx.Module):
    """Level 1."""

    row_loss: RowLoss

    def __call__(self, w: PyTree, row: Any, *tilt: Array) -> Array:
        return tilted(self.row_loss(w, row), *tilt)


class TiltedRisk(eqx.Module):
    """F in closed form, over all rows."""

    row_loss: RowLoss
    rows: tuple[Array, Array]
    tilt: Array | None

    def __call__(self, w: PyTree) -> Array:
        return tilted_mean(self.row_loss.each(w, self.rows), self.tilt)


def term(
    X: Any,
    y: Any,
    loss: str | Callable[[Any, Any], Array],
    tilt: float,
    *,
    model: Callable[[PyTree, Any], Any] | None = None,
    w0: PyTree = None,
    intercept: bool = False,
    l2: float = 0.0,
    floor: float = 1e-3,
    **problem: Any,
) -> Problem:
    """Builds the tilted mean of the losses of all rows.

    A negative tilt looks away from rows with large losses, such as outliers and wrong labels; a positive
    one looks at them; 0 is the plain mean.

    Args:
        X: one row an example.
        y: the target of every row.
        loss: "logistic" (labels 0 and 1), "multinomial" (classes 0, 1, 2, …), "squared", or
            ``loss(prediction, y)`` of one row, at least 0.
        tilt: t, any finite number; see ``nx.problems.with_tilts`` for ranging over it in a sweep.
        model, w0, intercept, l2, floor, problem: as in ``nx.problems.hierarchical_term``.
    """
    t = check_tilt("tilt", tilt)
    fit = fit_together([("the data", X, y)], loss, model, w0, intercept, l2)
    by = make_tilt(t, tilted_mean(fit.at_start[0], t), floor)
    return Problem(
        [
            Level(TiltedLoss(fit.row_loss), fit.parts[0], args=by.args, project=by.range, name="losses"),
            Level(untilted, args=by.args, name="risk"),
        ],
        w0=fit.w0,
        penalty=fit.penalty,
        exact=TiltedRisk(fit.row_loss, fit.parts[0], by.t),
        **problem,
    )
