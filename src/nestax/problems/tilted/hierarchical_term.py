"""Hierarchical tilted empirical risk minimisation: a tilt within groups and another across them, K = 4.

    F(w) = (1/t)·log Σ_g p_g e^{t R_g(w)},     R_g(w) = (1/τ)·log E_{z in g} e^{τℓ(w; z)}

level 1   f_1(w; z_1, …, z_G) = (e^{τ(ℓ(w; z_g) − c_g)})_g      losses, one member of every group a draw;
          f_1(w; z) = ([z in g]·e^{τ(ℓ(w; z) − c_g)}/p_g)_g     or one row of them all, pooled
level 2   f_2(u) = (log(u_g)/τ + c_g)_g                          risks of the groups, deterministic
level 3   f_3(y) = Σ_g p_g e^{t(y_g − c)}                        groups, exact or sampled
level 4   f_4(z) = log(z)/t + c                                  risk, deterministic

Li, Beirami, Sanjabi, Smith: Tilted empirical risk minimization, ICLR 2021; the four levels are those of
Jiang et al., ICML 2022, for any number of groups.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.source import Groups, Population
from nestax.errors import ProblemError
from nestax.problems.losses import RowLoss, fit_together, read_numbers
from nestax.problems.tilted.tilting import (
    check_tilt,
    make_tilt,
    nonnegative,
    tilted,
    tilted_mean,
    untilted,
)


class GroupLosses(eqx.Module):
    """Level 1: one entry per group, from one member of each."""

    row_loss: RowLoss

    def __call__(self, w: PyTree, members: Any, *tilt: Array) -> Array:
        rows = jax.tree.map(lambda *members: jnp.stack(members), *members)
        return tilted(self.row_loss.each(w, rows), *tilt)


class PooledLosses(eqx.Module):
    """Level 1 for a row of any group: zero but for its own, which counts 1/p_g times."""

    row_loss: RowLoss
    share: Array

    def __call__(self, w: PyTree, member: tuple[Any, Array], *tilt: Array) -> Array:
        row, group = member
        member_of = jnp.arange(self.share.size) == group
        losses = jnp.full(self.share.shape, self.row_loss(w, row))
        return jnp.where(member_of, tilted(losses, *tilt) / self.share, 0)


class AllGroups(eqx.Module):
    """Level 3, exact."""

    share: Array

    def __call__(self, y: Array, *tilt: Array) -> Array:
        return self.share @ tilted(y, *tilt)


def one_group(y: Array, g: Array, *tilt: Array) -> Array:
    """Level 3 for a group g, which is drawn with probability p_g."""
    return tilted(y[g], *tilt)


class HierarchicalRisk(eqx.Module):
    """F in closed form, over all rows."""

    row_loss: RowLoss
    groups: tuple[tuple[Array, Array], ...]
    share: Array
    inner_tilt: Array | None
    outer_tilt: Array | None

    def __call__(self, w: PyTree) -> Array:
        risks = [tilted_mean(self.row_loss.each(w, rows), self.inner_tilt) for rows in self.groups]
        return tilted_mean(jnp.stack(risks), self.outer_tilt, self.share)


def hierarchical_term(
    groups: Sequence[tuple[Any, Any]],
    loss: str | Callable[[Any, Any], Array] = "logistic",
    *,
    inner_tilt: float = -2.0,
    outer_tilt: float = 10.0,
    model: Callable[[PyTree, Any], Any] | None = None,
    w0: PyTree = None,
    intercept: bool = False,
    sample_groups: bool = False,
    pooled: bool = False,
    l2: float = 0.0,
    floor: float = 1e-3,
    **problem: Any,
) -> Problem:
    """Tilted losses within every group, and tilted risks across the groups.

    The defaults are the published ones for noisy and imbalanced classes: within a class look away from
    rows with large losses, which may be mislabelled, and across classes look at the worst one.

    Only level 1 is stochastic unless ``sample_groups`` is set, so that in effect the chain has two
    levels: one that is sampled and a deterministic rest. With few groups, sampling them only adds noise.

    Args:
        groups: pairs (X, y), one a group; ``nx.problems.groups_of(X, y)`` splits rows by class.
        loss: "logistic" (labels 0 and 1), "multinomial" (classes 0, 1, 2, …), "squared", or
            ``loss(prediction, y)`` of one row, at least 0.
        inner_tilt: τ, within groups. Negative: robust to rows with large losses. 0: their mean.
        outer_tilt: t, across groups. Positive: the worst groups count most. 0: the mean of all rows.
            ``nx.problems.with_tilts`` ranges over both in a sweep. In float32 a tilt below 0.01 in size
            costs digits (values are right to about 10⁻⁷/|tilt|), 0 does not.
        model: ``model(w, x)``, the prediction for one row; by default linear, w·x.
        w0: the starting weights, a tree or ``fn(key)``; zeros for a linear model.
        intercept: whether the linear model has one: w is then {"slope", "intercept"}. The published
            problem has none. Set it unless the features hold a constant, as one-hot features do.
        sample_groups: draw groups at level 3, each with probability p_g, its share of the rows, instead
            of adding up all of them.
        pooled: draw rows of all groups together, as a plain batch does, and count those of a group 1/p_g
            times, instead of drawing one member of every group. Means are the same, with far more noise
            in those of rare groups: a batch without any of their rows says that their mean is 0.
        l2: strength of a penalty l2/2·‖w‖², without the intercept. The published problem has none; but
            classes that can be separated have no finite optimum without.
        floor: in (0, 1). For a negative tilt, tracked means of exponentials are kept above this part of
            their value at the start: a group's risk is taken to rise by at most log(1/floor)/|τ|, which
            is 3.5 by default. It bounds the slope of the logarithm.
        problem: further arguments of ``nx.Problem``, such as a feasible set or metrics.
    """
    tau = check_tilt("inner_tilt", inner_tilt)
    t = check_tilt("outer_tilt", outer_tilt)
    named = [
        (f"group {number}", *_pair(group, number))
        for number, group in enumerate([] if groups is None else groups)
    ]
    if not named:
        raise ProblemError("groups is empty: give a list of pairs (X, y), one a group.")
    fit = fit_together(named, loss, model, w0, intercept, l2)
    sizes = np.asarray([len(losses) for losses in fit.at_start])
    share = jnp.asarray(sizes / sizes.sum(), fit.dtype)
    risks = jnp.stack([tilted_mean(losses, tau) for losses in fit.at_start])
    inner = make_tilt(tau, risks, floor)
    outer = make_tilt(t, tilted_mean(risks, t, share), floor)
    losses: Any = GroupLosses(fit.row_loss)
    members: Any = Groups(fit.parts)
    if pooled:
        losses = PooledLosses(fit.row_loss, share)
        together = jax.tree.map(lambda *parts: jnp.concatenate(parts), *fit.parts)
        members = (together, jnp.repeat(jnp.arange(len(sizes)), sizes))
    across = AllGroups(share)
    data = None
    if sample_groups:
        across = one_group
        data = Population(jnp.arange(len(sizes)), weights=share)
    return Problem(
        [
            Level(losses, members, args=inner.args, project=inner.range, name="losses"),
            Level(untilted, args=inner.args, project=nonnegative, name="group_risks"),
            Level(across, data, args=outer.args, project=outer.range, name="groups"),
            Level(untilted, args=outer.args, name="risk"),
        ],
        w0=fit.w0,
        penalty=fit.penalty,
        exact=HierarchicalRisk(fit.row_loss, fit.parts, share, inner.t, outer.t),
        **problem,
    )


def groups_of(X: Any, y: Any, groups: Any = None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows (X, y) split by class, or by what ``groups`` says of every row; in order of the labels."""
    X = read_numbers(X, "X")
    y = np.asarray(y)
    word, labels = ("y", y) if groups is None else ("groups", np.asarray(groups))
    for name, column in {"y": y, word: labels}.items():
        if column.shape[:1] != X.shape[:1]:
            raise ProblemError(
                f"{name} must have an entry for each of the {len(X)} rows of X; got {column.shape}."
            )
    try:
        values = np.unique(labels)
    except TypeError:  # they cannot be sorted
        values = []
    if labels.ndim != 1 or len(values) < 2 or np.any(labels != labels):
        raise ProblemError(
            f"{word} must hold two labels or more, all of one type and none missing; without groups use "
            "nx.problems.term."
        )
    return [(X[labels == value], y[labels == value]) for value in values]


def _pair(group: Any, number: int) -> tuple[Any, Any]:
    if not isinstance(group, tuple | list) or len(group) != 2:
        raise ProblemError(
            f"group {number} must be a pair (X, y); got {type(group).__name__}. "
            "nx.problems.groups_of(X, y) makes a list of pairs."
        )
    return group[0], group[1]
