"""What a record holds: the columns that may be asked for, and how each is computed. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.problem import Problem
from nestax.errors import SettingError
from nestax.parts.estimator import AbstractEstimator, Estimate

#: Rows of all blocks, up to which records look at them unasked.
MOST_PAIRS = 2**26

#: Columns that need the population of every stochastic level.
EXACT_COLUMNS = {
    "exact_value": "F(w) over the population",
    "gap": "F(w) − F*, where the optimum is known",
    "grad_norm": "‖∇F(w)‖; ‖w − Π(w − ∇F(w))‖ under a constraint; the Frank-Wolfe gap with a linear "
    "oracle alone",
    "grad_error": "‖v − ∇F(w)‖, at the weights the estimate belongs to",
    "value_error": "‖u^i − f_i(u^{i-1})‖ for every level; the root mean square over blocks",
    "jac_error": "‖v^i − ∇f_i(u^{i-1})‖ in Frobenius norm for every level",
}
COLUMNS = {"value": "the tracked value of F(w)"} | EXACT_COLUMNS
#: Columns that come by themselves with methods that keep error bars, such as ``nx.SelfTuning``; they
#: need no population. One entry per level, 0 where it is exact, NaN where nothing is tracked.
BELIEVED_COLUMNS = {
    "believed_error": "the root of the expected ‖u^i − f_i(u^{i-1})‖², as the method believes",
    "plain_error": "the same for the mean of a batch by itself, which is what no memory would have",
    "believed_jac_error": "the root of the expected ‖v^i − ∇f_i(u^{i-1})‖², likewise",
    "plain_jac_error": "the same for a batch by itself",
    "believed_grad_error": "what these errors make of the gradient, to first order",
}
#: Columns that are finite wherever a run goes well, and what messages call them. Others may be NaN: the
#: errors of trackers that a method does not have, and metrics.
FINITE_COLUMNS = {
    "value": "the tracked value",
    "exact_value": "the exact value",
    "gap": "the gap",
    "grad_norm": "the exact gradient norm",
    "grad_error": "the error of the gradient estimate",
}


def choose_columns(
    problem: Problem, record: Sequence[str] | None, needed: Sequence[str] = ()
) -> tuple[str, ...]:
    """The columns asked for, or all that make sense by default; refuses what cannot be computed.

    Those that stop rules need are among them.
    """
    if record is None:
        pairs = 0 if problem.blocks is None else problem.blocks.size or 0
        sound = (problem.finite or problem.exact) and pairs <= MOST_PAIRS
        exact = ("exact_value", "grad_norm") if sound else ()
        gap = ("gap",) if exact and problem.optimum is not None else ()
        record = ("value", *exact, *gap, *problem.metrics)
    elif isinstance(record, str) or not isinstance(record, Iterable):
        raise SettingError(f"record must be a list of columns, such as ['value']; got {record!r}.")
    record = (*record, *needed)
    known = set(COLUMNS) | set(problem.metrics)
    for name in record:
        if name not in known:
            raise SettingError(f"record: no column is called {name!r}; there are {_list(known)}.")
    closed_form = {"exact_value", "gap", "grad_norm", "grad_error"} if problem.exact else set()
    wanted = set(record) & set(EXACT_COLUMNS) - closed_form
    if wanted and not problem.finite:
        raise SettingError(
            f"record: {_list(wanted)} needs the population of every level, and a Sampler or a Stream "
            "has none. Leave it out, pass exact= to the Problem, or use nx.evaluate after the run."
        )
    if "gap" in record and problem.optimum is None:
        raise SettingError("record: gap needs the least value of F; pass optimum= to the Problem.")
    return tuple(dict.fromkeys(record))


def measure(
    problem: Problem,
    estimator: AbstractEstimator,
    columns: tuple[str, ...],
    w: PyTree,
    estimate: Estimate,
    state: Any,
) -> dict[str, Array]:
    """One record: the chosen columns, and whatever the estimator has put into ``aux``."""
    out: dict[str, Array] = estimate.aux | estimator.believed(problem, state)
    trackers = estimator.trackers(state)
    if "value" in columns:
        penalty = 0 if problem.penalty is None else problem.penalty(w)
        out["value"] = estimate.value + penalty + problem.nonsmooth(w)
    if {"exact_value", "gap", "grad_norm"} & set(columns):
        # Where no gradient is asked for, the compiler drops it.
        exact, grad = problem.value_and_grad(w)
        exact = exact + problem.nonsmooth(w)
        exacts = {
            "exact_value": exact,
            "gap": exact if problem.optimum is None else exact - problem.optimum,
            "grad_norm": problem.stationarity(w, grad),
        }
        out |= {name: x for name, x in exacts.items() if name in columns}
    if "grad_error" in columns:
        # Blocks were visited at different weights, so there the error is that at the current ones.
        at = trackers.w if problem.blocks is None else w
        _, target = problem.value_and_grad(at)
        _, grad = problem.add_penalty(at, estimate.value, estimate.grad)
        out["grad_error"] = optax.tree.norm(trees.as_average(optax.tree.sub(grad, target)))
    if "value_error" in columns or "jac_error" in columns:
        errors = _errors(problem, w, trackers)
        out |= {name: errors[name] for name in ("value_error", "jac_error") if name in columns}
    for name, fn in problem.metrics.items():
        if name in columns:
            out[name] = fn(w)
    return out


def _errors(problem: Problem, w: PyTree, trackers: Any) -> dict[str, Array]:
    """The errors of the trackers; with blocks the root of the mean of their squares."""
    if problem.blocks is None or trackers.value is None:
        return tracker_errors(problem, w, trackers)

    def squares(block: Problem, own: Any) -> dict[str, Array]:
        return jax.tree.map(jnp.square, tracker_errors(block, w, own))

    return jax.tree.map(jnp.sqrt, problem.mean_over_blocks(squares, trackers._replace(w=None)))


def tracker_errors(problem: Problem, w: PyTree, trackers: Any) -> dict[str, Array]:
    """Distance of every tracker from what it estimates; NaN where the method has no such tracker."""
    missing = jnp.full(len(problem.levels), jnp.nan, problem.dtype)
    if trackers.value is None:
        return {"value_error": missing, "jac_error": missing}
    values = []
    jacs = []
    x = w
    for i, level in enumerate(problem.levels):
        population = None if level.source is None else level.source.population()
        if trackers.jac is None:
            f = level.value(x, population)
        else:
            f, J = level.value_and_jac(x, population)
            V = trackers.jac[i] or J
            jacs.append(jnp.linalg.norm(V.dense() - J.dense()))
        values.append(optax.tree.norm(optax.tree.sub(trackers.value[i], f)))
        x = trackers.value[i]
    return {
        "value_error": jnp.stack(values),
        "jac_error": jnp.stack(jacs) if jacs else missing,
    }


def _list(names: Any) -> str:
    return ", ".join(sorted(names))


def as_columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Puts records, a dictionary each, together as one column per name."""
    # np.stack would take 30 times as long: it makes an array of every number first.
    return {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else {})}


def as_rows(columns: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """The records that ``as_columns`` has put together."""
    parts = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in parts]
