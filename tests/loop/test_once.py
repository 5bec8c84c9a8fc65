"""What a carry holds several times is carried once, and what only begins so is not."""

import jax
import numpy as np
import optax

import nestax as nx
from nestax.run.prepare import Budget, as_method, prepare

ROWS = np.random.default_rng(0).normal(size=(30, 3))


def compiled(estimator):
    problem = nx.Problem(
        [nx.Level(lambda w, r: (r @ w, w), ROWS), nx.Level(lambda u: u[0] ** 2 + u[1] @ u[1])],
        w0=np.ones(3),
    )
    method = as_method(problem, estimator, optax.sgd(0.1))
    return prepare(problem, method, Budget(steps=7, batch_size=2), jax.random.key(0)).compiled


def test_equal_leaves_are_carried_once():
    """The weights are also the state's, and handed on by the first level; the last level has F."""
    assert [name.removeprefix("carry.") for name in compiled(nx.SMVR(0.1)).carried()] == [
        "w",
        "estimate.value",
        "estimate.grad",
        "state.value[0][0]",
        "state.jac[0].tiles[0][0]",
        "state.count",
    ]


def test_leaves_that_do_not_stay_equal_are_carried_apart():
    """A snapshot's weights are those of the start, and not those after a step."""
    carried = compiled(nx.SnapshotSMVR(period=5, beta=0.1)).carried()
    assert {"carry.w", "carry.state.at[0]", "carry.state.value[0][1]"} <= set(carried)


def test_a_carry_is_unpacked_as_it_was():
    run = compiled(nx.SMVR(0.1))
    carry = run.advance(run.start(), 1, 3).after.carry
    assert carry.state.w is carry.w is carry.state.value[0][1]
    assert carry.state.value[1] is carry.estimate.value
