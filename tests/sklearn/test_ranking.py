"""The ranking estimator: scikit-learn's own checks, both objectives, sentences."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import nestax as nx
from nestax.sklearn import RankingClassifier

rng = np.random.default_rng(0)
X = rng.normal(size=(200, 3)) * [1.0, 100.0, 0.01] + [0.0, 50.0, 3.0]
Y = X[:, 0] + 0.005 * (X[:, 1] - 50) + 0.5 * rng.normal(size=200) > 1.5
NAMES = np.where(Y, "rare", "common")


def ranking(**settings):
    return RankingClassifier(**({"max_iter": 400, "random_state": 0} | settings))


@pytest.mark.slow
@parametrize_with_checks([ranking()])
def test_scikit_learn_finds_no_fault(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "objective", ["average_precision", pytest.param("partial_auc", marks=pytest.mark.slow)]
)
def test_the_rare_class_comes_first(objective):
    fitted = ranking(objective=objective).fit(X, NAMES)
    assert fitted.classes_.tolist() == ["common", "rare"]
    scores = fitted.decision_function(X)
    assert fitted.score(X, NAMES) == average_precision_score(Y, scores) > 0.8
    assert (fitted.predict(X) == "rare").sum() == Y.sum()
    np.testing.assert_array_equal(fitted.predict(X) == "rare", scores > 0)
    rows = (X - X.mean(axis=0)) / X.std(axis=0)
    make = getattr(nx.problems, objective)
    slopes = fitted.coef_[0] * X.std(axis=0)
    known = make(rows, Y.astype(float), l2=fitted.l2).value(slopes)
    np.testing.assert_allclose(fitted.objective_, known, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "y", "sentence"),
    [
        ({}, np.full(200, "one"), "there is one class only, one"),
        ({}, np.arange(200) % 3, "Only binary classification is supported: .*; y has 3 classes"),
        ({"objective": "ndcg"}, NAMES, "objective must be one of average_precision, partial_auc"),
        ({"margin": 0}, NAMES, "margin must be a positive number; got 0"),
        ({"temperature": np.nan}, NAMES, "temperature must be a positive number; got nan"),
        ({"method": nx.SOX(lr=0.1)}, NAMES, "method must leave its lr out"),
    ],
)
def test_one_sentence_each(change, y, sentence):
    with pytest.raises(ValueError, match=sentence):
        ranking(**change).fit(X, y)
