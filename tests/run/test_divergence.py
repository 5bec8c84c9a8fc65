"""A run that went the wrong way says so, once, at the line that started it."""

import warnings

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nestax as nx
from nestax.run.divergence import _ascent

ROWS = np.linspace(0.5, 1.5, 20)


def bowl(outer=lambda u: jnp.sum(u**2)):
    return nx.Problem(
        [nx.Level(lambda w, r: r * w, ROWS, name="scale"), nx.Level(outer, name="outer")],
        jnp.asarray(2.0),
    )


def go(problem=None, lr=0.1, **changes):
    settings = {"steps": 20, "batch_size": 4, "record_every": 5} | changes
    return nx.minimize(problem or bowl(), nx.Plain(), optax.sgd(lr), **settings)


def warned(run):
    """The one warning of a run, and its result."""
    with pytest.warns(nx.DivergenceWarning) as caught:
        result = run()
    assert len(caught) == 1
    return caught[0], result


def test_a_run_that_ends_far_above_its_start_says_so_and_what_to_do():
    warning, result = warned(lambda: go(lr=1.3))
    assert result.status is nx.Status.SUCCESS
    first, last = result.records["exact_value"][[0, -1]]
    words = str(warning.message)
    assert f"the exact value is {last:.4g} at step 20 and was {first:.4g} at step 0" in words
    assert "Lower the learning rate first" in words
    assert "enlarge the batch" in words
    assert "project=" in words
    assert warning.filename == __file__


def test_without_the_exact_value_the_tracked_one_is_watched():
    warning, _ = warned(lambda: go(lr=1.3, record=["value"]))
    assert "the tracked value is" in str(warning.message)
    assert go(lr=1.3, record=[]).status is nx.Status.SUCCESS  # nothing was recorded to judge by


def test_a_run_that_is_not_finite_any_more_warns_with_its_message():
    warning, result = warned(lambda: go(bowl(lambda u: jnp.exp(u * u)), lr=-0.1, steps=200))
    assert result.status is nx.Status.NONFINITE
    assert str(warning.message) == result.message
    assert warning.filename == __file__


def test_the_warning_points_at_the_user_through_functions_of_nestax():
    stages = [nx.theory.Stage(lr=1.3, beta=1.0, steps=20)]
    run = lambda: nx.solve_stages(bowl(), stages, batch_size=4, record_every=5)
    assert warned(run)[0].filename == __file__


def test_runs_that_go_down_and_sweeps_are_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        go()
        lanes = nx.sweep(
            bowl(),
            lambda s: (nx.Plain(), optax.sgd(s.lr)),
            settings=nx.grid(lr=[0.1, 1.3]),
            seeds=1,
            steps=20,
            batch_size=4,
        )
    assert lanes.records["exact_value"][1, 0, -1] > lanes.records["exact_value"][1, 0, 0]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ([1.0], False),
        ([1.0, 2.0], False),
        ([1.0, 2.1], True),
        ([-1.0, -0.1], False),
        ([-1.0, 0.1], True),
        ([1.0, -5.0, 6.0], False),  # it had come down by 6, and is 5 above its start
        ([1.0, -5.0, 7.1], True),
        ([1.0, 9.0, 0.5], False),  # it came back
        ([1.0, np.nan], False),
    ],
)
def test_far_is_further_than_zero_and_than_the_run_had_come_down(column, said):
    sentence = _ascent("exact_value", range(0, 10 * len(column), 10), np.asarray(column))
    assert (sentence is not None) is said
    if said and len(column) == 3:
        assert "its start, after -5 at step 10." in sentence


def test_the_last_records_of_a_tracked_value_have_to_agree():
    column = np.asarray([1.0, *[0.1] * 10, 5.0])
    steps = range(len(column))
    assert _ascent("value", steps, column) is None
    assert _ascent("exact_value", steps, column) is not None  # the weights are where it says they are
    column[-3:] = 5.0
    assert _ascent("value", steps, column) is not None
    column[-2] = 0.9
    assert _ascent("value", steps, column) is None


def test_a_gap_says_more_than_a_tracked_value():
    known = nx.Problem(bowl().levels, jnp.asarray(2.0), optimum=0.0)
    warning, _ = warned(lambda: go(known, lr=1.3, record=["value", "gap"]))
    assert "the gap is" in str(warning.message)


@pytest.mark.parametrize(
    ("name", "column", "said"),
    [
        ("exact_value", [1.0, 0.9, 1.2, 1.15, 1.3], True),
        ("gap", [14.0, 16.0, 18.0, 20.0], True),
        ("exact_value", [-1.0, -0.8, -0.8, -0.8], True),
        ("exact_value", [1.0, 1.2, 1.05, 1.3], False),  # within a tenth of its start
        ("exact_value", [1.0, 1.5, 1.5], False),  # two records may be a hill on the way
        ("value", [1.0, 1.5, 1.5, 1.5], False),  # noise alone may do that
    ],
)
def test_a_run_that_stays_above_its_start_says_so(name, column, said):
    sentence = _ascent(name, range(len(column)), np.asarray(column))
    assert (sentence is not None) is said
    if said:
        assert sentence.startswith("The run ended worse than it began: the ")
        assert "nx.check(problem) tells whether few rows carry a mean" in sentence
