"""Cox regression: scikit-learn's own checks, loops over rows, and sentences."""

import pickle

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import nestax as nx
from nestax.sklearn import CoxRegressor
from nestax.sklearn.cox import concordance_index

ROWS = 120


def made(seed=0):
    """Features of unlike units, and outcomes as scikit-survival has them; some at equal times."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, 3))
    time = np.ceil(20 * rng.exponential(size=ROWS) / np.exp(X @ [1.0, -0.5, 0.0]))
    y = np.rec.fromarrays([rng.random(ROWS) < 0.7, time], names=["event", "time"])
    return X * [1.0, 100.0, 0.01] + [0.0, 50.0, 3.0], np.asarray(y)


X, Y = made()


@parametrize_with_checks([CoxRegressor(), CoxRegressor(ties="breslow", l2=0.1)])
def test_scikit_learn_finds_no_fault(estimator, check):
    check(estimator)


def test_weights_are_those_of_the_problem_whatever_the_units():
    fitted = CoxRegressor().fit(X, Y)
    best = nx.problems.exact_cox(X, Y["time"], Y["event"]).least()
    np.testing.assert_allclose(fitted.coef_, best.w, rtol=1e-8)
    np.testing.assert_allclose(fitted.objective_, best.value, rtol=1e-12)
    np.testing.assert_allclose(fitted.predict(X).mean(), 0, atol=1e-12)
    other = CoxRegressor(l2=0.1).fit(7 * X + 3, Y)
    np.testing.assert_allclose(7 * other.coef_, CoxRegressor(l2=0.1).fit(X, Y).coef_, rtol=1e-9)
    assert np.linalg.norm(other.coef_ * X.std(0)) < np.linalg.norm(fitted.coef_ * X.std(0))


def test_strata_and_late_rows_are_passed_on():
    strata = np.arange(ROWS) % 2
    entry = Y["time"] - 1 - np.arange(ROWS) % 5
    fitted = CoxRegressor().fit(X, Y, strata=strata, entry=entry)
    best = nx.problems.exact_cox(X, Y["time"], Y["event"], strata=strata, entry=entry).least()
    np.testing.assert_allclose(fitted.coef_, best.w, rtol=1e-8)
    times = [5.0, 20.0]
    zero, one = (fitted.baseline_survival(times, stratum) for stratum in (0, 1))
    assert (zero != one).all()
    with pytest.raises(nx.ProblemError, match="one of those of fit, 0, 1; got None"):
        fitted.baseline_survival(times)


@pytest.mark.parametrize("ties", ["breslow", "efron"])
def test_baseline_survival_by_loops(ties):
    fitted = CoxRegressor(ties=ties).fit(X, Y)
    hazard = np.exp(fitted.predict(X))
    total = 0.0
    event, time = Y["event"], Y["time"]
    for when in np.unique(time[event]):
        tied = event & (time == when)
        for k in range(tied.sum()):
            spared = k / tied.sum() * hazard[tied].sum() if ties == "efron" else 0
            total += 1 / (hazard[time >= when].sum() - spared)
        np.testing.assert_allclose(fitted.baseline_survival(when), np.exp(-total), rtol=1e-10)
    assert fitted.baseline_survival(0) == 1
    curves = fitted.predict_survival(X[:4], [1.0, 10.0, 1e9])
    np.testing.assert_allclose(curves[:, 2], np.exp(-total) ** hazard[:4], rtol=1e-9)
    assert (np.diff(curves, axis=1) <= 0).all()


def pairs(event, time, risk):
    right = known = 0.0
    for i in range(len(time)):
        for j in range(len(time)):
            if event[i] and (time[i] < time[j] or (time[i] == time[j] and not event[j])):
                known += 1
                right += (risk[i] > risk[j]) + (risk[i] == risk[j]) / 2
    return right / known


@pytest.mark.parametrize("rows", [3, 31, 64, 100])
def test_concordance_counts_pairs(rows):
    rng = np.random.default_rng(rows)
    for _ in range(5):
        event, time = rng.random(rows) < 0.6, rng.integers(0, rows // 2 + 1, rows)
        event[0], time[:2] = True, [0, 1]
        risk = rng.integers(0, 6, rows)
        assert np.isclose(concordance_index(event, time, risk), pairs(event, time, risk))
    fitted = CoxRegressor().fit(X, Y)
    assert np.isclose(fitted.score(X, Y), pairs(Y["event"], Y["time"], fitted.predict(X)))


def test_outcomes_in_other_forms():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"died": Y["event"], "days": Y["time"]})
    named = CoxRegressor().fit(pd.DataFrame(X, columns=["a", "b", "c"]), frame)
    np.testing.assert_allclose(named.coef_, CoxRegressor().fit(X, Y).coef_, rtol=1e-9)
    assert list(named.feature_names_in_) == ["a", "b", "c"]
    everyone = Y.copy()
    everyone["event"] = True
    np.testing.assert_array_equal(
        CoxRegressor().fit(X, Y["time"]).coef_, CoxRegressor().fit(X, everyone).coef_
    )


def test_searches_and_copies():
    search = GridSearchCV(CoxRegressor(), {"l2": [0.0, 0.1, 100.0]}, cv=3).fit(X, Y)
    assert search.best_score_ > 0.6
    fitted = search.best_estimator_
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))


def test_an_order_without_exceptions_is_a_warning():
    time = np.arange(1.0, 30.0)
    with pytest.warns(ConvergenceWarning, match="no finite weights are best: .* Raise l2"):
        CoxRegressor().fit(-time[:, None], time)
    CoxRegressor(l2=0.01).fit(-time[:, None], time)


def outcome(event, time):
    return np.asarray(np.rec.fromarrays([event, time], names=["event", "time"]))


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (outcome(np.zeros(ROWS, bool), Y["time"]), "no row has an event"),
        (outcome(Y["event"], -Y["time"]), "time must be finite and at least 0; row 0 has"),
        (
            outcome(Y["event"], np.full(ROWS, np.nan)),
            "time must be finite and at least 0; row 0 has nan",
        ),
        (outcome(Y["time"], Y["event"]), "the event first and the time second; got event, time"),
        (outcome(Y["time"], Y["time"]), "event must be 1 or 0"),
        (np.zeros(ROWS, [("a", bool), ("b", float), ("c", float)]), "two fields, .* got a, b, c"),
        (Y[:5], "inconsistent numbers of samples"),
        (
            np.column_stack([Y["event"], Y["time"]]),
            r"np.rec.fromarrays\(\[event, time\].* shape \(120, 2\)",
        ),
        (Y.tolist(), r"np.rec.fromarrays\(\[event, time\]"),
    ],
)
def test_one_sentence_each(y, sentence):
    with pytest.raises(ValueError, match=sentence):
        CoxRegressor().fit(X, y)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda f: CoxRegressor(l2=-1).fit(X, Y), "l2 must be a number of at least 0; got -1"),
        (lambda f: CoxRegressor(ties="none").fit(X, Y), "ties must be one of efron, breslow"),
        (lambda f: f.fit(X, Y, strata=[1]), "strata must hold one label for each of the 120 rows"),
        (lambda f: f.fit(X, Y, entry=Y["time"]), "entry must be before time; row 0"),
        (lambda f: f.baseline_survival(-1.0), "times must be at least 0"),
        (lambda f: f.score(X[:1], Y[:1]), "no event after which another row was still there"),
        (lambda f: concordance_index([1, 0], [1, 2], [np.nan, 1]), "the predicted risks are not finite"),
    ],
)
def test_other_calls_that_make_no_sense(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(CoxRegressor().fit(X, Y))
