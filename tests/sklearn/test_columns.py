"""Columns and targets that cannot be squared: one sentence from every estimator, or a sound fit."""

import warnings

import numpy as np
import pandas as pd
import pytest

import nestax as nx
from nestax.sklearn import (
    CoxRegressor,
    MeanDeviationPortfolio,
    RankingClassifier,
    RobustClassifier,
    RobustRegressor,
    TiltedClassifier,
    TiltedRegressor,
)

X = np.random.default_rng(0).normal(size=(60, 3))
SCORES = X @ [1.0, -1.0, 0.5]
CLASSES = (SCORES > 0).astype(int)
SHORT = {"max_iter": 40, "random_state": 0}
#: Every estimator with its targets.
ESTIMATORS = {
    "TiltedClassifier": (TiltedClassifier(inner_tilt=0.0, l2=0.1, **SHORT), CLASSES),
    "TiltedRegressor": (TiltedRegressor(**SHORT), SCORES),
    "RobustClassifier": (RobustClassifier(**SHORT), CLASSES),
    "RobustRegressor": (RobustRegressor(**SHORT), SCORES),
    "RankingClassifier": (RankingClassifier(**SHORT), CLASSES),
    "CoxRegressor": (CoxRegressor(l2=0.1), np.exp(-SCORES)),
}
REGRESSORS = ("TiltedRegressor", "RobustRegressor")


def with_column(change):
    rows = X.copy()
    rows[:, 1] = change(rows[:, 1])
    return rows


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda x: 1e200 * x,
            r"column 1 of X holds numbers of size .*e\+200, too large to compute with",
        ),
        (lambda x: (x > 0) * 1.7e308, r"column 1 .* of size 1.7e\+308, too large"),
        (lambda x: np.full_like(x, 7e200), r"column 1 .* of size 7.0e\+200, too large"),
        (lambda x: np.where(np.arange(60) == 7, 1e154, x), r"column 1 .* of size 1.0e\+154, too large"),
        (lambda x: 1e-200 * x, "column 1 of X varies by .*e-200 only, too little to compute with"),
    ],
)
def test_what_cannot_be_squared_is_named(name, change, words):
    estimator, y = ESTIMATORS[name]
    with pytest.raises(
        nx.ProblemError, match=f"^{words}.*: (divide|multiply) it by a power of ten, or le"
    ):
        estimator.fit(with_column(change), y)


def test_a_column_of_a_frame_is_called_by_its_name():
    frame = pd.DataFrame(with_column(lambda x: 1e200 * x), columns=["age", "mass", "height"])
    with pytest.raises(nx.ProblemError, match=r"^column 'mass' of X holds numbers"):
        ESTIMATORS["RobustRegressor"][0].fit(frame, SCORES)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_is_refused(name, bad):
    estimator, y = ESTIMATORS[name]
    with pytest.raises(ValueError, match="NaN" if np.isnan(bad) else "infinity"):
        estimator.fit(with_column(lambda x: np.where(np.arange(60) == 3, bad, x)), y)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_unit_of_a_column_changes_nothing(name):
    """And a constant one counts for nothing."""
    estimator, y = ESTIMATORS[name]
    coef = lambda rows: np.ravel(estimator.fit(rows, y).coef_)
    usual = coef(X)
    for unit in (1e30, 1e-30, 1e140, 1e-140):
        np.testing.assert_allclose(
            coef(with_column(lambda x, u=unit: u * x)) * [1, unit, 1], usual, 1e-6
        )
    assert coef(with_column(lambda x: np.full_like(x, 7.0)))[1] == pytest.approx(0, abs=1e-12)


def test_rows_of_a_later_call_are_looked_at_too():
    fitted = TiltedClassifier(inner_tilt=0.0, l2=0.1).partial_fit(X, CLASSES, classes=[0, 1])
    with pytest.raises(nx.ProblemError, match="column 1 of X holds numbers"):
        fitted.partial_fit(with_column(lambda x: 1e200 * x), CLASSES)
    fitted.partial_fit(with_column(lambda x: 1e-200 * x), CLASSES)  # in the scale of the first call


def test_a_portfolio_refuses_what_has_no_sum():
    portfolio = MeanDeviationPortfolio(**SHORT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the gap, after so few steps
        portfolio.fit(with_column(lambda x: 1e200 * x))
    with pytest.raises(nx.ProblemError, match=r"column 1 of X .* of size 1.7e\+308, too large"):
        portfolio.fit(with_column(lambda x: (x > 0) * 1.7e308))


@pytest.mark.parametrize("name", REGRESSORS)
@pytest.mark.parametrize(
    ("y", "words"),
    [
        (
            np.where(np.arange(60) < 5, 0, 1.7e308),
            r"y holds numbers of size 1.7e\+308, .*: divide it by a power of ten",
        ),
        (np.where(X[:, 0] > 1, 1e200 * SCORES, 0), "y holds numbers of size .*e.200, too large"),
        (
            np.where(np.arange(60) == 4, 1e200, SCORES),
            r"y is 1.0e\+200 in row 4, too far from the others",
        ),
    ],
)
def test_targets_that_cannot_be_squared_are_named(name, y, words):
    with pytest.raises(nx.ProblemError, match=words):
        ESTIMATORS[name][0].fit(X, y)


@pytest.mark.parametrize("name", REGRESSORS)
def test_the_unit_of_targets_changes_nothing(name):
    estimator = ESTIMATORS[name][0]
    usual = estimator.fit(X, SCORES).coef_
    for unit in (1e200, 1e-200):
        np.testing.assert_allclose(estimator.fit(X, unit * SCORES).coef_ / unit, usual, rtol=1e-9)
