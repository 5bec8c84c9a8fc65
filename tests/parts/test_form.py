"""Batches from anybody's own loop: the form that estimators take, and one sentence for any other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.blocked import blocked
from tests.support.compare import assert_same, flat

import nestax as nx

RETURNS = nx.datasets.synthetic_returns(100, 5)
ROWS = nx.Batch(jnp.asarray(RETURNS[:8]))
PROBLEM = nx.problems.mean_deviation(RETURNS)
W = PROBLEM.w0
FORM = r"\[\{'value': nx.Batch\(rows\)\}, \{'value': nx.Batch\(rows\)\}, \{\}\]"


@pytest.mark.parametrize("nothing", [{}, None, {"value": None}])
def test_a_level_without_data_draws_nothing_whatever_is_given(nothing):
    smvr = nx.SMVR(beta=0.1)
    estimate, state = smvr.init(PROBLEM, W, [{"value": ROWS}, {"value": ROWS}, nothing])
    expected, _ = smvr.init(PROBLEM, W, ({"value": ROWS}, {"value": ROWS}, {"value": None}))
    assert_same(flat(estimate), flat(expected))
    step = jax.jit(lambda batches: smvr.update(PROBLEM, W, batches, state)[0])
    assert np.isfinite(flat(step([{"value": ROWS}, {"value": ROWS}, nothing]))).all()


@pytest.mark.parametrize(
    ("batches", "what"),
    [
        (ROWS, "got Batch"),
        ([ROWS, ROWS, None], "level 'mean' has Batch instead of a dictionary"),
        ([ROWS.draws, ROWS.draws, None], "level 'mean' has an array instead of a dictionary"),
        ([{"value": ROWS}, {"value": ROWS.draws}, {}], "level 'variance' has an array for 'value'"),
        ([{"value": ROWS}, {"value": None}, {}], "level 'variance' has NoneType for 'value'"),
        ([{"value": ROWS}, {"values": ROWS}, {}], "level 'variance' has nothing for 'value'"),
        ([{"value": ROWS}, {"value": ROWS}], "got 2 for 3 levels"),
    ],
)
def test_any_other_form_is_refused_with_the_right_one(batches, what):
    smvr = nx.SMVR(beta=0.1)
    _, state = smvr.init(PROBLEM, W, [{"value": ROWS}, {"value": ROWS}, {}])
    with pytest.raises(nx.SettingError, match=f"{FORM}; {what}[.]$"):
        smvr.init(PROBLEM, W, batches)
    with pytest.raises(nx.SettingError, match=f"{FORM}; {what}[.]$"):
        smvr.update(PROBLEM, W, batches, state)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ((np.ones((8, 5), "f"), np.ones(7, "f")), r"\(f32\[8,5\], f32\[7\]\)"),
        (np.ones((8, 5), "f"), r"f32\[8,5\]"),
        ((np.ones(5, "f"), np.ones((), "f")), r"\(f32\[5\], f32\[\]\)"),
        ((np.ones((0, 5), "f"), np.ones(0, "f")), r"\(f32\[0,5\], f32\[0\]\)"),
        (([[1.0] * 5], [1.0]), "floats"),
    ],
)
def test_rows_that_are_no_draws_side_by_side_are_refused(rows, what):
    data = (np.ones((3, 5)), np.ones(3))
    problem = nx.Problem([nx.Level(lambda w, row: w @ row[0] - row[1], data, name="one")], jnp.zeros(5))
    draw = r"\(f64\[5\], f64\[\]\)"
    with pytest.raises(
        nx.SettingError, match=f"level 'one' has a Batch of {what} for 'value': .* {draw}"
    ):
        nx.Plain().init(problem, problem.w0, [{"value": nx.Batch(rows)}])


def test_draws_may_be_longer_than_the_data_of_the_level():
    problem = nx.Problem([nx.Level(lambda w, row: w * jnp.mean(row), np.ones((3, 5)))], jnp.ones(()))
    estimate, _ = nx.Plain().init(problem, problem.w0, [{"value": nx.Batch(np.full((2, 9), 2.0))}])
    assert_same(estimate.value, 2)


def test_one_draw_is_a_batch():
    estimate, _ = nx.Plain().init(PROBLEM, W, [{"value": nx.Batch(RETURNS[:1])}] * 2 + [{}])
    assert np.isfinite(flat(estimate)).all()


def test_the_form_names_the_passes_of_the_method():
    two_passes = nx.AdjointSMVR(beta=0.1, mode="fresh")
    with pytest.raises(
        nx.SettingError, match=r"\[\{'value': nx.Batch\(rows\), 'grad': nx.Batch\(rows\)\}"
    ):
        two_passes.init(PROBLEM, W, [{"value": ROWS}, {"value": ROWS}, {}])


def test_methods_with_memory_of_every_block_are_checked_too():
    problem = blocked("two_levels").problem
    with pytest.raises(nx.SettingError, match="batches must be one dictionary per level"):
        nx.SOX(0.1, 0.1).init(problem, problem.w0, [ROWS, ROWS])


def test_a_method_of_ones_own_is_checked_without_doing_anything():
    class Own(nx.Plain):
        def update(self, problem, w, batches, state):
            return super().update(problem, w, batches, state)

    _, state = Own().init(PROBLEM, W, [{"value": ROWS}, {"value": ROWS}, {}])
    with pytest.raises(nx.SettingError, match="batches must be one dictionary per level"):
        Own().update(PROBLEM, W, ROWS, state)
