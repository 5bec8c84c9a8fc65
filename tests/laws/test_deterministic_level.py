"""A level flagged deterministic (no data) is the same as one whose rows are all equal."""

import functools

import jax
import jax.numpy as jnp
import pytest
from tests.helpers import assert_same, drive, every_estimator, noisy

import nestax as nx

ESTIMATORS = [
    "smvr", "adjoint_fresh", "adjoint_lagged", "adjoint_reuse",
    "product_fresh", "product_lagged", "product_reuse", "snapshot",
]  # fmt: skip


def equal_rows(level: nx.Level) -> nx.Level:
    rows = jax.tree.map(lambda x: jnp.repeat(x[:1], len(x), axis=0), level.source.data)
    return level.replace(data=rows)


def flagged(level: nx.Level) -> nx.Level:
    row = jax.tree.map(lambda x: x[0], level.source.data)
    return nx.Level(level.fn, args=(row,), name=level.name)


@functools.cache
def three_levels(change, which):
    """The chain of three levels with those in ``which`` changed."""
    problem = noisy("three_levels").problem
    levels = [change(v) if i in which else v for i, v in enumerate(problem.levels)]
    return nx.Problem(levels, problem.w0)


@pytest.mark.parametrize(
    ("which", "estimator"),
    [((0, 2), name) for name in ESTIMATORS] + [((1,), "smvr"), ((1,), "adjoint_lagged")],
)
def test_flag_changes_nothing(which, estimator):
    method, lr = every_estimator()[estimator], noisy("three_levels").lr
    tracked = drive(three_levels(equal_rows, which), method, lr)
    exact = drive(three_levels(flagged, which), method, lr)
    assert_same(tracked.weights, exact.weights)
    assert_same(tracked.grads, exact.grads)
    assert_same(tracked.values, exact.values)
