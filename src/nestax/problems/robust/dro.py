"""Distributionally robust learning: the loss under the worst shares of rows, or of groups, K = 2.

    F(w, a) = outer(E inner(ℓ(w; z), a), a)                     the adversary weighs rows
    F(w, a) = outer(Σ_g p_g inner(E_{z in g} ℓ(w; z), a), a)    the adversary weighs groups

rows     level 1   f_1((w, a); z) = (inner(ℓ(w; z), a), a)               losses
         level 2   f_2((u, a)) = outer(u, a)                              risk, deterministic
groups   level 1   f_1((w, a); z_1, …, z_G) = ((ℓ(w; z_g))_g, a)         group_losses, one of every group
         level 2   f_2((y, a)) = outer(Σ_g p_g inner(y_g, a), a)          risk, deterministic

with inner, outer and the dual variables a of ``divergences``. The soft-max over groups is KL there.

Sagawa, Koh, Hashimoto, Liang: Distributionally robust neural networks for group shifts, ICLR 2020.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from nestax.chain.level import Level
from nestax.chain.problem import Problem, is_drawn
from nestax.draws.source import Groups
from nestax.errors import SettingError
from nestax.problems.losses import Ridge, RowLoss, fit_together
from nestax.problems.robust.divergences import AbstractDivergence, Dual
from nestax.problems.tilted.hierarchical_term import groups_of
from nestax.problems.tilted.tilting import nonnegative

Weights = dict[str, PyTree]


def dual_of(w: Weights) -> Dual:
    return {name: a for name, a in w.items() if name != "model"}


class OfModel(eqx.Module):
    """The weights of the model, or the part of them that is penalised."""

    part: Callable[[PyTree], PyTree] | None

    def __call__(self, w: Weights) -> PyTree:
        return w["model"] if self.part is None else self.part(w["model"])


class Feasible(eqx.Module):
    """Projection of the model's weights, if they have one, and of the dual variables."""

    project: Callable[[PyTree], PyTree] | None
    divergence: AbstractDivergence

    def __call__(self, w: Weights) -> Weights:
        model = w["model"] if self.project is None else self.project(w["model"])
        return {"model": model, **self.divergence.feasible(dual_of(w))}


class InnerLoss(eqx.Module):
    """Level 1, of rows."""

    row_loss: RowLoss
    divergence: AbstractDivergence

    def __call__(self, w: Weights, row: Any) -> tuple[Array, Dual]:
        return self.divergence.inner(self.row_loss(w["model"], row), dual_of(w)), dual_of(w)


class Range(eqx.Module):
    """The values of ``InnerLoss``."""

    divergence: AbstractDivergence

    def __call__(self, value: tuple[Array, Dual]) -> tuple[Array, Dual]:
        u, dual = value
        return self.divergence.onto(u, dual), dual


class Outer(eqx.Module):
    """Level 2, of rows."""

    divergence: AbstractDivergence

    def __call__(self, value: tuple[Array, Dual]) -> Array:
        return self.divergence.outer(*value)


class GroupMeans(eqx.Module):
    """Level 1, of groups: one entry for each, from one member of each."""

    row_loss: RowLoss

    def __call__(self, w: Weights, members: Any) -> tuple[Array, Dual]:
        rows = jax.tree.map(lambda *members: jnp.stack(members), *members)
        return self.row_loss.each(w["model"], rows), dual_of(w)


class OverGroups(eqx.Module):
    """Level 2, of groups."""

    divergence: AbstractDivergence
    share: Array

    def __call__(self, value: tuple[Array, Dual]) -> Array:
        return self.divergence.risk(value[0], self.share, value[1])


class RobustRisk(eqx.Module):
    """F in closed form, over all rows of all parts; a part is what the adversary cannot take apart."""

    row_loss: RowLoss
    divergence: AbstractDivergence
    rows: tuple[tuple[Array, Array], ...]
    share: Array

    def __call__(self, w: Weights) -> Array:
        losses = [self.row_loss.each(w["model"], part) for part in self.rows]
        means = losses[0] if len(losses) == 1 else jnp.stack([jnp.mean(part) for part in losses])
        return self.divergence.risk(means, self.share, dual_of(w))


def dro(
    X: Any,
    y: Any,
    loss: str | Callable[[Any, Any], Array],
    divergence: AbstractDivergence,
    *,
    groups: Any = None,
    model: Callable[[PyTree, Any], Any] | None = None,
    w0: PyTree = None,
    intercept: bool = False,
    l2: float = 0.0,
    project: Callable[[PyTree], PyTree] | None = None,
    **problem: Any,
) -> Problem:
    """Builds the loss under the worst distribution near that of the rows.

    Its weights are ``{"model": w}`` and the dual variables of the divergence, ``"scale"`` or
    ``"threshold"``, which are minimised over like w. F at the best dual variables is the worst case.

    Args:
        X: one row an example.
        y: the target of every row.
        loss: "logistic" (labels 0 and 1), "multinomial" (classes 0, 1, 2, …), "squared", or
            ``loss(prediction, y)`` of one row, at least 0.
        divergence: ``nx.problems.KL``, ``nx.problems.ChiSquare`` or ``nx.problems.CVaR``.
        groups: a label for every row. The adversary then weighs groups and not rows, from their shares
            of the rows on; groups that are served badly count more, single rows that do not fit do not.
        model: ``model(w, x)``, the prediction for one row; by default linear, w·x.
        w0: the starting weights of the model, a tree or ``fn(key)``; zeros for a linear one.
        intercept: whether the linear model has one: its weights are then {"slope", "intercept"}.
        l2: strength of a penalty l2/2·‖w‖² on the model's weights, without the intercept.
        project: the feasible set of the model's weights.
        problem: further arguments of ``nx.Problem``, such as metrics; these see all weights.
    """
    if not isinstance(divergence, AbstractDivergence):
        raise SettingError(
            "divergence must be nx.problems.KL(...), ChiSquare(...) or CVaR(...), with its numbers; "
            f"got {divergence!r}."
        )
    parts = [("the data", X, y)]
    if groups is not None:
        parts = [(f"group {k}", *rows) for k, rows in enumerate(groups_of(X, y, groups))]
    fit = fit_together(parts, loss, model, w0, intercept, l2)
    divergence = jax.tree.map(lambda x: jnp.asarray(x, fit.dtype), divergence)
    sizes = np.asarray([len(losses) for losses in fit.at_start])
    if groups is None:
        share = jnp.full(sizes[0], 1 / sizes[0], fit.dtype)
        at_start = fit.at_start[0]
    else:
        share = jnp.asarray(sizes / sizes.sum(), fit.dtype)
        at_start = jnp.stack([jnp.mean(losses) for losses in fit.at_start])
    divergence, dual = divergence.start(at_start, share)
    if groups is None:
        fn = InnerLoss(fit.row_loss, divergence)
        levels = [
            Level(fn, fit.parts[0], project=Range(divergence), name="losses"),
            Level(Outer(divergence), name="risk"),
        ]
    else:
        fn = GroupMeans(fit.row_loss)
        levels = [
            Level(
                fn, Groups(fit.parts), project=lambda u: (nonnegative(u[0]), u[1]), name="group_losses"
            ),
            Level(OverGroups(divergence, share), name="risk"),
        ]
    ridge = fit.penalty
    return Problem(
        levels,
        w0=with_dual(fit.w0, dual),
        project=Feasible(project, divergence) if project is not None or "scale" in dual else None,
        penalty=None if ridge is None else Ridge(ridge.strength, OfModel(ridge.part)),
        exact=RobustRisk(fit.row_loss, divergence, fit.parts, share),
        **problem,
    )


def with_dual(w0: PyTree, dual: Dual) -> Any:
    """Starting weights of model and dual variables together."""
    if is_drawn(w0):
        return lambda key: {"model": w0(key), **dual}
    return {"model": w0, **dual}
