"""A rare class and shuffled labels."""

import numpy as np
import pytest

import nestax as nx
from nestax.datasets import corrupt


def made_up(counts, names=None):
    y = np.repeat(np.arange(len(counts)) if names is None else np.array(names), counts)
    return np.arange(2.0 * len(y)).reshape(-1, 2), y


def test_one_in_twenty_stays_and_labels_are_shuffled_among_themselves():
    X, y = made_up([1_000, 400])
    new_X, new_y, kept = corrupt(X, y)
    assert np.bincount(new_y).tolist() == [1_000, 50]  # noise keeps the counts
    np.testing.assert_array_equal(new_X, X[kept])
    assert len(set(kept.tolist())) == len(kept) == 1_050
    assert np.bincount(y[kept]).tolist() == [1_000, 50]
    changed = np.flatnonzero(new_y != y[kept])
    assert changed.max() < round(0.3 * 1_050)
    assert (
        2 * 5 <= len(changed) <= 2 * 25
    )  # about 14 of the 50 rare labels are lost, each makes a false one


def test_without_noise_labels_are_true_and_rows_are_mixed():
    X, y = made_up([1_000, 400])
    _, new_y, kept = corrupt(X, y, noise=0, imbalance=2.5)
    np.testing.assert_array_equal(new_y, y[kept])
    assert sorted(kept.tolist()) == list(range(1_400))  # 1,000 / 2.5 is every member
    assert (np.diff(kept) < 0).sum() > 500
    members = corrupt(X, y, noise=0)[2]
    rare = members[y[members] == 1]
    assert len(rare) == 50
    assert rare.max() - rare.min() > 300  # not the first 50


def test_noise_of_one_touches_every_row():
    X, y = made_up([500, 500])
    _, new_y, kept = corrupt(X, y, imbalance=1, noise=1)
    assert 400 < (new_y != y[kept]).sum() < 600
    assert np.bincount(new_y).tolist() == [500, 500]


def test_seeds_and_inputs():
    X, y = made_up([100, 60])
    before = y.copy()
    first, again, other = corrupt(X, y, seed=3), corrupt(X, y, seed=3), corrupt(X, y, seed=4)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (first[2] != other[2]).any()
    np.testing.assert_array_equal(y, before)


@pytest.mark.parametrize(
    ("names", "rare"),
    [(["cat", "dog", "eel"], "dog"), ([False, True, True], True), ([2.5, 4.0, -1.0], 4.0)],
)
def test_labels_may_be_anything(names, rare):
    X, y = made_up([40, 30, 20], names)
    _, new_y, _ = corrupt(X.tolist(), y.tolist(), imbalance=4, rare=rare)
    assert (new_y == rare).sum() == (y != rare).sum() // 4
    assert new_y.dtype == y.dtype


def test_the_least_frequent_class_is_the_rare_one():
    X, y = made_up([40, 15, 20])
    assert np.bincount(corrupt(X, y, imbalance=12)[1]).tolist() == [40, 5, 20]


@pytest.mark.parametrize(
    ("arguments", "settings", "sentence"),
    [
        (([[1.0]] * 3, [0, 1]), {}, r"one label an example; got shapes \(3, 1\) and \(2,\)"),
        (([[1.0]] * 2, [[0], [1]]), {}, "one label an example"),
        (([[1.0]] * 3, [1, 1, 1]), {}, "at least two classes; it holds 1"),
        (([], []), {}, "at least two classes; it holds 0"),
        (([[1.0]] * 3, [0.0, np.nan, 1]), {}, "y holds NaN"),
        (([[1.0]] * 3, np.array(["a", 1, None], object)), {}, "labels in y must be of one type"),
        (made_up([19, 5]), {}, "leaves no member of class 1, .* 19 others: lower it to 19"),
        (made_up([90, 10]), {"imbalance": 3}, "30 members of class 1, .* are 10: raise it to 9 or"),
    ],
)
def test_one_sentence_for_arrays_that_do_not_fit(arguments, settings, sentence):
    with pytest.raises(nx.ProblemError, match=sentence):
        corrupt(*arguments, **settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"imbalance": 0.5}, "imbalance must be a finite number of at least 1; got 0.5"),
        ({"imbalance": np.nan}, "imbalance must be"),
        ({"noise": 1.5}, "noise must be from 0 to 1; got 1.5"),
        ({"rare": "1"}, "rare must be a label of y, one of 0, 1; got '1'"),
        ({"seed": 0.5}, "seed must be a whole number"),
    ],
)
def test_one_sentence_for_settings(settings, sentence):
    with pytest.raises(nx.SettingError, match=sentence):
        corrupt(*made_up([100, 30]), **settings)
