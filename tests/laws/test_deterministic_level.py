"""A level flagged deterministic (no data) is the same as one whose rows are all equal."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.cases import equal_rows
from tests.support.compare import assert_same
from tests.support.drive import drive
from tests.support.methods import DETERMINISTIC, chain_of, core_methods, every_method, is_for_any_chain

import nestax as nx


def a_row(level: nx.Level, mean: bool) -> Any:
    """The mean of the rows, or the first row; that of the first block, where there are blocks."""
    if mean:
        return jax.tree.map(lambda x: jnp.mean(x, axis=0), level.source.data)
    first = (0, 0) if isinstance(level.source, nx.Blocks) else 0
    return jax.tree.map(lambda x: x[first], level.source.data)


def flagged(level: nx.Level, row: Any) -> nx.Level:
    return nx.Level(level.fn, args=(row,), name=level.name, project=level.onto)


_CHANGED: dict[Any, Any] = {}


def changed(problem: nx.Problem, change, which) -> nx.Problem:
    """The chain with the levels in ``which`` changed; always the same object for the same chain."""
    key = (id(problem), change, which)
    # The range of the inner level of two holds what the mean of the rows gives, and not what each does.
    mean = len(problem.levels) == 2 and problem.blocks is None
    if key not in _CHANGED:
        levels = list(problem.levels)
        for i in which:
            levels[i] = change(levels[i], a_row(levels[i], mean))
        _CHANGED[key] = nx.Problem(levels, problem.w0), problem
    return _CHANGED[key][0]


def both_runs(method, which):
    """With equal rows, and with the flag."""
    case = chain_of(method)
    return [drive(changed(case.problem, how, which), method, case.lr) for how in (equal_rows, flagged)]


def assert_flag_changes_nothing(method, which):
    with_rows, without = both_runs(method, which)
    assert_same(with_rows.weights, without.weights)
    assert_same(with_rows.grads, without.grads)
    assert_same(with_rows.values, without.values)


@pytest.mark.parametrize(("name", "which"), DETERMINISTIC.covers.items())
def test_flag_changes_nothing(name, which):
    assert_flag_changes_nothing(every_method()[name], which)


@pytest.mark.parametrize("name", ["SMVR", "AdjointSMVR lagged"])
def test_flag_in_the_middle_changes_nothing(name):
    assert_flag_changes_nothing(core_methods()[name], (1,))


@pytest.mark.parametrize(
    "name", [n for n in sorted(DETERMINISTIC.left_out()) if is_for_any_chain(every_method()[n])]
)
def test_where_the_flag_is_an_exception_it_changes_the_algorithm(name):
    with_rows, without = both_runs(every_method()[name], (0,))
    assert np.abs(with_rows.grads - without.grads).max() > 1e-4
