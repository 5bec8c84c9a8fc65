"""The portfolio estimator: scikit-learn's own checks, exact optima, streams, units, sentences."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import nestax as nx
from nestax.programs import TRACES
from nestax.run.result import Status
from nestax.sklearn import MeanDeviationPortfolio
from nestax.sklearn import fitted as running
from nestax.sklearn.windows import Window

#: All tests use 129 to 256 rows of five assets in batches of 16, which share their programs.
RETURNS = nx.datasets.synthetic_returns(200, 5)
MORE = nx.datasets.synthetic_returns(150, 5, seed=1)
INDUSTRIES = Path(os.environ.get("NESTAX_DATA", ".")) / "industry10_daily.csv.gz"


def estimator(**settings):
    return MeanDeviationPortfolio(**({"batch_size": 16, "random_state": 0} | settings))


def normalised(X, fitted):
    return (X - fitted._centre) / fitted.scale_


def objective(w, X, risk=0.2, delta=1e-8):
    """F, written once more."""
    returns, s = X @ w, np.sqrt(X.var(axis=0).mean())
    return -returns.mean() + risk * np.sqrt(returns.var() + delta * s**2)


def least(X, risk=0.2, bounds=(0, 1)):
    """The optimum by a cone solver."""
    cp = pytest.importorskip("cvxpy")
    x = cp.Variable(X.shape[1])
    centred = (X - X.mean(axis=0)) / np.sqrt(len(X))
    root = np.sqrt(1e-8 * X.var(axis=0).mean())
    goal = -X.mean(axis=0) @ x + risk * cp.norm(cp.hstack([centred @ x, root]))
    allowed = [x >= bounds[0], x <= bounds[1], cp.sum(x) == 1]
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-10)
    cp.Problem(cp.Minimize(goal), allowed).solve(solver="CLARABEL", **tight)
    return goal.value, x.value


@parametrize_with_checks([MeanDeviationPortfolio()])
def test_scikit_learn_finds_no_fault(estimator, check):
    check(estimator)


@pytest.mark.parametrize("risk", [0.0, 0.05, 0.2, 2.0])
def test_fit_reaches_the_optimum_of_a_cone_solver(risk):
    fitted = estimator(risk=risk).fit(RETURNS)
    value, x = least(RETURNS, risk)
    np.testing.assert_allclose(fitted.weights_, x, atol=1e-4)
    assert abs(fitted.objective_ - value) < 1e-8
    np.testing.assert_allclose(fitted.objective_, objective(fitted.weights_, RETURNS, risk), rtol=1e-12)
    assert -1e-9 < fitted.objective_ - value <= fitted.gap_ + 1e-9  # the gap is a proof
    assert fitted.gap_ <= 1e-5 * (1 + risk) * fitted.scale_


@pytest.mark.parametrize("bounds", [(0, 0.4), (-0.5, 1.0)])
def test_bounds_hold_exactly_and_the_gap_knows_them(bounds):
    fitted = estimator(bounds=bounds, risk=0.5).fit(RETURNS)
    value, x = least(RETURNS, 0.5, bounds)
    assert ((fitted.weights_ >= bounds[0]) & (fitted.weights_ <= bounds[1])).all()
    assert abs(fitted.weights_.sum() - 1) < 1e-15
    np.testing.assert_allclose(fitted.weights_, x, atol=1e-4)
    assert abs(fitted.objective_ - value) < 1e-8
    facts = {"risk": 0.5, "delta": 1e-8, "constraint": "box", "bounds": bounds}
    start = nx.problems.exact_portfolio(normalised(RETURNS, fitted), **facts)
    w = np.full(5, 0.2)
    far = fitted.scale_ * start.value(w) - fitted._centre - value
    assert 0 < far <= fitted.scale_ * start.gap(w)


def test_a_riskless_asset_or_equal_assets_are_no_trouble():
    """At the riskless corner F has a kink: steps must shrink with the deviation."""
    for cash in (np.full(200, 0.02), 0.02 + 1e-3 * RETURNS[::-1, 0]):
        X = np.column_stack([RETURNS[:, :4], cash])
        fitted = estimator().fit(X)
        assert fitted.gap_ <= 1.2e-5 * fitted.scale_
        assert fitted.weights_[4] > 0.99
    twins = estimator().fit(RETURNS[:, [0, 1, 2, 2, 0]])
    assert twins.gap_ <= 1.2e-5 * twins.scale_
    # Nothing to choose between: the gap is that of rounding, squared.
    assert estimator().fit(np.full((200, 5), 0.1)).gap_ < 1e-30


def test_neither_the_unit_nor_the_origin_of_the_returns_matters():
    percent = estimator().fit(RETURNS)
    fraction = estimator().fit(RETURNS / 100)
    gross = estimator().fit(1 + RETURNS / 100)
    np.testing.assert_allclose(fraction.weights_, percent.weights_, atol=1e-9)
    np.testing.assert_allclose(gross.weights_, percent.weights_, atol=1e-9)
    np.testing.assert_allclose(100 * fraction.objective_, percent.objective_, rtol=1e-9)
    np.testing.assert_allclose(100 * (1 + gross.objective_), percent.objective_, rtol=1e-6)


def test_single_precision_gives_double_precision_weights():
    with jax.enable_x64(False):
        fitted = estimator(risk=5.0).fit(RETURNS)
    for x in (fitted.weights_, fitted.predict(RETURNS)):
        assert type(x) is np.ndarray
        assert x.dtype == np.float64
    assert abs(fitted.weights_.sum() - 1) < 1e-15
    assert fitted.gap_ <= 6e-5 * fitted.scale_
    assert 0 in fitted.weights_  # not a rounding error above it


def test_predict_and_score():
    fitted = estimator(risk=0.3).fit(RETURNS)
    np.testing.assert_array_equal(fitted.predict(MORE), MORE @ fitted.weights_)
    returns = MORE @ fitted.weights_
    assert abs(fitted.score(MORE) - (returns.mean() - 0.3 * returns.std())) < 1e-8
    assert abs(fitted.score(RETURNS) + fitted.objective_) < 1e-14


def run(fitted, X, steps, start=None):
    """The same run without scikit-learn."""
    problem = nx.problems.mean_deviation(normalised(X, fitted), delta=1e-8)
    method = nx.SMVR(lr=fitted._rate)
    seed = np.random.RandomState(0).randint(2**31 - 1)
    return nx.minimize(
        problem, method, steps=steps, batch_size=16, seed=seed, record=[], record_every=1, start=start
    )


def assert_carries_are_equal(carry, other):
    assert (carry.step, carry.cost) == (other.step, other.cost)
    for a, b in zip(jax.tree.leaves(carry.lane), jax.tree.leaves(other.lane), strict=True):
        np.testing.assert_array_equal(a, b)


def test_partial_fit_is_one_run_trackers_included():
    streamed = estimator().partial_fit(RETURNS)
    streamed = pickle.loads(pickle.dumps(streamed)).partial_fit(RETURNS)
    once = run(streamed, RETURNS, 2 * 13)
    assert_carries_are_equal(streamed._carry, once.carry)
    np.testing.assert_allclose(streamed.weights_, once.w, rtol=1e-14)
    assert (streamed.n_iter_, streamed.samples_) == (26, once.carry.cost.samples)

    scale = streamed.scale_
    streamed.partial_fit(MORE)  # other rows, and not as many
    assert streamed.scale_ == scale
    assert_carries_are_equal(streamed._carry, run(streamed, MORE, 10, once.carry).carry)
    np.testing.assert_allclose(streamed.objective_, -streamed.score(MORE), rtol=1e-12)

    before = streamed.weights_
    streamed.partial_fit(MORE[:1])  # one row is enough to go on
    assert streamed.n_iter_ == 37
    assert not np.array_equal(streamed.weights_, before)


def test_partial_fit_after_fit_starts_from_its_weights():
    fitted = estimator().fit(RETURNS)
    steps, best = fitted.n_iter_, fitted.weights_
    fitted.partial_fit(RETURNS)
    assert fitted.n_iter_ == steps + 13
    assert 0 < np.abs(fitted.weights_ - best).max() < 0.1
    assert fitted._carry.step == 13
    assert fitted.fit(RETURNS).n_iter_ == steps  # and fit forgets everything
    np.testing.assert_array_equal(fitted.weights_, best)


def test_a_stream_comes_close_to_the_optimum():
    X = nx.datasets.synthetic_returns(8_000, 5, seed=2)
    streamed = estimator()
    for k in range(0, len(X), 200):
        streamed.partial_fit(X[k : k + 200])
    value, _ = least(X)
    equal = objective(np.full(5, 0.2), X) - value
    assert objective(streamed.weights_, X) - value < 0.1 * equal


def test_a_window_draws_and_averages_like_its_rows():
    window = Window(RETURNS)
    rows = nx.Population(RETURNS)
    key = jax.random.key(3)
    np.testing.assert_array_equal(window.draw(key, 5, 32).draws, rows.draw(key, 5, 32).draws)
    assert window.size == 256
    all_rows = window.population()
    np.testing.assert_allclose(all_rows.weights.sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(all_rows.weights @ all_rows.draws, RETURNS.mean(axis=0), rtol=1e-12)
    assert Window(RETURNS[:1]).size == 64


def test_similar_windows_and_other_settings_share_one_program():
    estimator().fit(RETURNS)
    before = dict(TRACES)
    estimator(risk=0.7, tol=1e-4, learning_rate=0.3, random_state=5).fit(RETURNS[:140])
    assert before == TRACES


def test_the_whole_budget_is_used_and_a_warning_says_when_it_was_too_small():
    too_small = r"after 700 steps F\(w\) may still be .* above the least value, .* raise max_iter or tol"
    with pytest.warns(ConvergenceWarning, match=too_small):
        fitted = estimator(max_iter=700, tol=0).fit(RETURNS)
    assert fitted.n_iter_ == 700
    # For each of two levels: 256 rows at the start and at every 16th step, 16 draws otherwise.
    assert fitted.samples_ == 2 * (256 * (1 + 43) + 16 * (700 - 43))


def test_a_learning_rate_that_is_too_large_is_halved_until_it_descends():
    fitted = estimator(learning_rate=1e3).fit(RETURNS)
    assert fitted.gap_ <= 1.2e-5 * fitted.scale_
    assert fitted.n_iter_ > estimator().fit(RETURNS).n_iter_
    with pytest.warns(ConvergenceWarning):  # so large that a projection loses all digits
        hopeless = estimator(learning_rate=1e30).fit(RETURNS)
    np.testing.assert_allclose(hopeless.weights_, 0.2)


def test_a_method_of_choice_takes_all_of_its_steps():
    fitted = estimator(method="exact", max_iter=1_000).fit(RETURNS)
    assert fitted.n_iter_ == 1_000
    assert fitted.gap_ < 1e-9 * fitted.scale_
    np.testing.assert_allclose(fitted.weights_, estimator().fit(RETURNS).weights_, atol=1e-4)


def test_learning_rates_of_methods(monkeypatch):
    """The automatic rate is for gradient steps, less for noisy ones, and yields to any other."""

    class SeenError(Exception):
        pass

    def seen(problem, method, step, **options):
        raise SeenError(method)

    def rate(**settings):
        with pytest.raises(SeenError) as caught:
            estimator(**settings).fit(RETURNS)
        lr = caught.value.args[0].lr
        return None if lr is None else float(lr)

    monkeypatch.setattr(running, "minimize", seen)
    rows = (RETURNS - RETURNS.mean()) / np.sqrt(RETURNS.var(axis=0).mean())
    known, w = nx.problems.exact_portfolio(rows, delta=1e-8), np.full(5, 0.2)
    np.testing.assert_allclose(rate(), known.learning_rate(w, 16))
    np.testing.assert_allclose(rate(method="exact"), known.learning_rate(w, 16))
    np.testing.assert_allclose(rate(method="smvr"), known.learning_rate(w, 16, fading=False))
    assert rate(method="smvr") < rate(method="exact")
    assert rate(method=nx.SMVR(lr=0.25)) == 0.25
    assert rate(method=nx.SMVR(lr=0.25), learning_rate=0.5) == 0.5
    assert rate(method="nlasg") is None


def test_a_run_that_is_interrupted_or_breaks_down_is_no_fit(monkeypatch):
    def ended(status):
        def fake(*args, **options):
            found = nx.minimize(*args, **options)
            return type(found)(found.w, found.records, status, "It broke.", found.carry)

        return fake

    monkeypatch.setattr(running, "minimize", ended(Status.INTERRUPTED))
    with pytest.raises(KeyboardInterrupt):
        estimator().fit(RETURNS)
    monkeypatch.setattr(running, "minimize", ended(Status.NONFINITE))
    with pytest.warns(ConvergenceWarning, match="It broke"):
        estimator().partial_fit(RETURNS)


def test_model_selection_pipelines_and_copies():
    def sharpe(fitted, X, y=None):
        returns = fitted.predict(X)
        return returns.mean() / returns.std()

    X = np.vstack([RETURNS, RETURNS, RETURNS])
    splits = TimeSeriesSplit(3, max_train_size=200, test_size=100)
    scores = cross_val_score(estimator(), X, cv=splits)
    train, test = list(splits.split(X))[1]
    assert scores[1] == estimator().fit(X[train]).score(X[test])
    search = GridSearchCV(estimator(), {"risk": [0.05, 1.0]}, scoring=sharpe, cv=splits, refit=False)
    assert search.fit(X).cv_results_["mean_test_score"].shape == (2,)
    clipped = make_pipeline(FunctionTransformer(np.clip, kw_args={"a_min": -2, "a_max": 2}), estimator())
    direct = estimator().fit(np.clip(RETURNS, -2, 2))
    np.testing.assert_array_equal(clipped.fit(RETURNS)[-1].weights_, direct.weights_)
    copy = clone(estimator(method=nx.SMVR(beta=0.3), bounds=(0, 0.5)))
    assert float(copy.method.beta) == 0.3
    assert copy.bounds == (0, 0.5)


def test_names_of_assets_are_kept():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(RETURNS, columns=["NoDur", "Durbl", "Manuf", "Enrgy", "HiTec"])
    fitted = estimator().fit(frame)
    assert list(fitted.feature_names_in_) == list(frame.columns)
    np.testing.assert_allclose(fitted.weights_, estimator().fit(RETURNS).weights_, atol=1e-12)
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame[frame.columns[::-1]])


def test_walk_forward_of_skfolio():
    model_selection = pytest.importorskip("skfolio.model_selection")
    walk = model_selection.WalkForward(train_size=140, test_size=20)
    scores = cross_val_score(estimator(), RETURNS, cv=walk)
    assert scores.shape == (3,)
    assert scores[0] == estimator().fit(RETURNS[:140]).score(RETURNS[140:160])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"risk": -1}, "risk must be a number of at least 0; got -1"),
        ({"risk": "high"}, "risk must be a number of at least 0; got 'high'"),
        ({"delta": 0}, "delta must be a positive number; got 0"),
        ({"tol": float("nan")}, "tol must be a number of at least 0; got nan"),
        ({"learning_rate": 0}, "learning_rate must be a positive number; got 0"),
        ({"max_iter": 0}, "max_iter must be a whole number of at least 1; got 0"),
        ({"batch_size": 1.5}, "batch_size must be a whole number of at least 1; got 1.5"),
        ({"method": "SMRV"}, "no method is called 'SMRV'; did you mean 'SMVR'"),
        ({"method": 3}, "method must be a name or an estimator such as nx.SMVR\\(\\); got 3"),
        ({"bounds": 0.1}, "bounds must be \\(low, high\\), .* each of the 5 assets; got 0.1"),
        ({"bounds": (0, 0.1)}, "bounds must leave room for weights that add up to 1"),
    ],
)
def test_settings_are_refused_in_one_sentence(settings, sentence):
    for fit in (estimator(**settings).fit, estimator(**settings).partial_fit):
        with pytest.raises(nx.SettingError, match=sentence):
            fit(RETURNS)


def test_returns_are_refused_in_one_sentence():
    for fit in (estimator().fit, estimator().partial_fit):
        with pytest.raises(ValueError, match=r"1 sample.* while a minimum of 2 is required"):
            fit(RETURNS[:1])
    broken = RETURNS.copy()
    broken[3, 2] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        estimator().fit(broken)


def test_without_scikit_learn_one_sentence_says_what_to_install():
    code = "import sys; sys.modules['sklearn'] = None; import nestax; nestax.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip().endswith("nx.sklearn needs scikit-learn: pip install 'nestax[sklearn]'.")


@pytest.mark.data
@pytest.mark.skipif(
    not INDUSTRIES.exists(),
    reason="REAL DATA NOT CHECKED: set NESTAX_DATA to the folder of industry10_daily.csv.gz",
)
def test_the_portfolio_of_ten_industries():
    """The optimum is that of tests/test_reference.py."""
    returns = np.loadtxt(INDUSTRIES, delimiter=",", skiprows=1)[:, 1:]
    with jax.enable_x64(False):
        fitted = MeanDeviationPortfolio(random_state=0).fit(returns)
    assert abs(fitted.objective_ - 0.1298972) < 1e-7
