"""Error bars of one level, whose gradient is its Jacobian; runs are in ``tests/run/test_result.py``."""

import jax.numpy as jnp
import numpy as np
import pytest

import nestax as nx

ROWS = np.random.default_rng(0).normal(size=(64, 900))


def bars(data, drawn, **settings):
    problem = nx.Problem([nx.Level(lambda w, r: r @ w, data)], jnp.ones(900))
    method = nx.SelfTuning(**settings)
    _, state = method.init(problem, problem.w0, [{"value": nx.Batch(drawn)}])
    return {name: float(column.squeeze()) for name, column in method.believed(problem, state).items()}


def test_the_gradient_is_as_uncertain_as_the_jacobian():
    found = bars(ROWS, ROWS[:16], derivatives="tracked")
    spread = np.sqrt(np.sum(np.var(ROWS[:16], axis=0, ddof=1)) / 16)
    assert found["believed_jac_error"] == pytest.approx(spread, rel=1e-9)
    assert found["believed_grad_error"] == pytest.approx(spread, rel=0.05)
    assert found["believed_error"] == pytest.approx(np.std(ROWS[:16].sum(axis=1), ddof=1) / 4, rel=1e-9)


def test_nothing_is_known_of_a_gradient_whose_jacobian_is_not_tracked():
    found = bars(ROWS, ROWS[:16], derivatives="fresh")
    assert found["believed_error"] > 0
    assert np.isnan([found["believed_jac_error"], found["believed_grad_error"]]).all()


def test_nothing_is_known_where_no_two_draws_differ_unless_all_rows_were_seen():
    same = np.tile(ROWS[:1], (64, 1))
    source = nx.Population(same, replace=False)
    half, whole = (bars(source, same[:size], derivatives="tracked") for size in (32, 64))
    for name in ("believed_error", "plain_error", "believed_grad_error"):
        assert np.isnan(half[name])
        assert whole[name] == 0
