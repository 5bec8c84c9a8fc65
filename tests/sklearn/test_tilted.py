"""The tilted estimators: scikit-learn's own checks, exact optima, groups, streams, sentences."""

import pickle

import jax
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, logsumexp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import nestax as nx
from nestax.programs import TRACES
from nestax.run.result import Status
from nestax.sklearn import TiltedClassifier, TiltedRegressor, tilted
from nestax.sklearn import fitted as running
from nestax.sklearn.tilted_rows import TiltedRows

#: All tests have at most 512 rows and 16 features, and numbers of steps that share their programs: draws
#: are made ahead for parts of a run of equal length.
STEPS, MANY, LONG = 480, 2_400, 19_200


def made(rows, seed):
    """Three features of unlike units, labels that hang on them, and wrong labels among these."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    y = (X @ [1.0, -2.0, 0.5] - 1.5 + rng.logistic(size=rows) > 0).astype(int)
    wrong = rng.uniform(size=rows) < 0.1
    y[wrong] = rng.permutation(y[wrong])
    return X * [1.0, 100.0, 0.01] + [0.0, 50.0, 3.0], y


X, Y = made(400, 0)
#: The quarter of the rows to the left, by the sign of the first feature and a coin.
SIDE = np.where((X[:, 0] < 0) & (np.arange(400) % 2 == 0), "left", "right")
NAMES = np.array(["common", "rare"])[Y]
THREE = np.array(["low", "middle", "top"])[np.digitize(X[:, 1] / 100 + X[:, 0], [0.2, 2.0])]
TARGETS = X @ [1.0, 0.02, -100.0] + 0.3 * np.random.default_rng(1).normal(size=400)
TARGETS[::20] += 30


FIXED = {"inner_tilt": -2.0, "outer_tilt": 10.0, "l2": 0.01, "balanced": False}


def classifier(**settings):
    return TiltedClassifier(**({"max_iter": STEPS, "random_state": 0} | FIXED | settings))


def regressor(**settings):
    return TiltedRegressor(**({"max_iter": STEPS, "random_state": 0} | settings))


@parametrize_with_checks([classifier()])
def test_scikit_learn_finds_no_fault_with_the_classifier(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([TiltedClassifier(), TiltedRegressor()])
def test_scikit_learn_finds_no_fault_with_defaults(estimator, check):
    check(estimator)


def tilted_mean(x, t, share=None):
    share = np.full(len(x), 1 / len(x)) if share is None else share
    return logsumexp(t * x, b=share) / t if t else share @ x


def objective(fitted, losses, labels, slopes):
    """F, written once more; ``losses`` of all rows, ``slopes`` for features of unit deviation."""
    _, member = np.unique(labels, return_inverse=True)
    share = np.bincount(member) / len(member)
    risks = [tilted_mean(losses[member == g], fitted.inner_tilt) for g in range(len(share))]
    risk = tilted_mean(np.asarray(risks), fitted.outer_tilt, share)
    return risk + fitted.l2 / 2 * (slopes**2).sum()


def binary(fitted, labels, y):
    """F as a function of slopes and intercept, and those that were fitted, for scaled features."""
    Z = StandardScaler().fit_transform(X)
    w = lambda v: np.logaddexp(0, np.where(y, -1, 1) * (Z @ v[:3] + v[3]))
    slopes = fitted.coef_[0] * X.std(axis=0)
    at = np.append(slopes, fitted.intercept_[0] + fitted.coef_[0] @ X.mean(axis=0))
    return lambda v: objective(fitted, w(v), labels, v[:3]), at


def multinomial(fitted, labels, y):
    Z = StandardScaler().fit_transform(X)
    number = np.searchsorted(fitted.classes_, y)

    def F(v):
        W = v.reshape(4, 3)
        losses = -log_softmax(Z @ W[:3] + W[3], axis=1)[np.arange(400), number]
        return objective(fitted, losses, labels, W[:3])

    slopes = (fitted.coef_ * X.std(axis=0)).T
    return F, np.vstack([slopes, fitted.intercept_ + fitted.coef_ @ X.mean(axis=0)]).ravel()


def squares(fitted, labels, y):
    Z = StandardScaler().fit_transform(X)
    middle = np.median(y)
    spread = np.median(np.abs(y - middle)) / 0.6744897501960817
    F = lambda v: objective(fitted, (Z @ v[:3] + v[3] - (y - middle) / spread) ** 2, labels, v[:3])
    at_mean = fitted.intercept_ + fitted.coef_ @ X.mean(axis=0)
    return F, np.append(fitted.coef_ * X.std(axis=0) / spread, (at_mean - middle) / spread)


CASES = {
    "two classes": (classifier(), NAMES, None, lambda f, g: binary(f, g, Y)),
    "two classes, other groups": (
        classifier(inner_tilt=-0.5),
        NAMES,
        SIDE,
        lambda f, g: binary(f, g, Y),
    ),
    "three classes": (classifier(), THREE, None, lambda f, g: multinomial(f, g, THREE)),
    "regression": (regressor(), TARGETS, None, lambda f, g: squares(f, g, TARGETS)),
    "regression in groups": (
        regressor(outer_tilt=3.0),
        TARGETS,
        SIDE,
        lambda f, g: squares(f, g, TARGETS),
    ),
}


@pytest.mark.parametrize(
    "case", ["two classes", *(pytest.param(case, marks=pytest.mark.slow) for case in list(CASES)[1:])]
)
def test_a_long_fit_comes_to_the_optimum(case):
    model, y, groups, written = CASES[case]
    fitted = clone(model).set_params(max_iter=LONG).fit(X, y, groups)
    labels = groups
    if groups is None:
        labels = y if hasattr(fitted, "classes_") else np.zeros(400)
    F, at = written(fitted, labels)
    np.testing.assert_allclose(fitted.objective_, F(at), rtol=1e-9)
    best = minimize(F, at, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-10})
    assert best.nit > 0  # a solver that does not move would find any fit exact
    assert np.abs(best.jac).max() < 1e-6
    far = F(np.zeros_like(at)) - best.fun
    assert 0 < fitted.objective_ - best.fun < 1e-3 * far


@pytest.mark.slow
def test_tilts_of_zero_are_logistic_regression():
    """The mean of all rows, whatever the groups; scikit-learn adds up losses, and divides by C."""
    fitted = classifier(inner_tilt=0, outer_tilt=0, max_iter=LONG).fit(X, NAMES)
    plain = LogisticRegression(C=1 / (400 * fitted.l2), tol=1e-10)
    plain = make_pipeline(StandardScaler(), plain).fit(X, Y)
    slopes = fitted.coef_ * X.std(axis=0)
    np.testing.assert_allclose(slopes, plain[-1].coef_, atol=0.03)
    F, _ = binary(fitted, NAMES, Y)
    known = F(np.append(plain[-1].coef_, plain[-1].intercept_))
    assert 0 < fitted.objective_ - known < 1e-3 * (F(np.zeros(4)) - known)


def test_a_rare_class_with_wrong_labels_is_found():
    """Mean over five sets: far above the plain mean, and no worse than class weights."""

    def scores(seed):
        rng = np.random.default_rng(seed)
        draw = lambda y: rng.normal(size=(len(y), 3)) + 1.5 * y[:, None]
        y = np.arange(500) % 2
        rows, labels, _ = nx.datasets.corrupt(draw(y), y, imbalance=10, noise=0.3, rare=1, seed=seed)
        new = draw(y)
        models = (classifier(), LogisticRegression(), LogisticRegression(class_weight="balanced"))
        return [balanced_accuracy_score(y, m.fit(rows, labels).predict(new)) for m in models]

    own, plain, weighted = np.mean([scores(seed) for seed in range(5)], axis=0)
    assert own > plain + 0.1
    assert own > weighted - 0.01


@pytest.mark.slow
def test_outliers_do_not_move_a_regression():
    fitted = regressor(max_iter=MANY).fit(X, TARGETS)
    assert (fitted.samples_, fitted.n_iter_) == (16 * (MANY + 10), MANY)
    np.testing.assert_allclose(fitted.coef_ * X.std(axis=0), [1.0, 2.0, -1.0], atol=0.15)


def test_classes_keep_their_names():
    fitted = classifier().fit(X, THREE)
    assert fitted.classes_.tolist() == ["low", "middle", "top"]
    assert fitted.coef_.shape == (3, 3)
    assert fitted.intercept_.shape == (3,)
    scores, shares = fitted.decision_function(X), fitted.predict_proba(X)
    np.testing.assert_allclose(scores, X @ fitted.coef_.T + fitted.intercept_)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[shares.argmax(axis=1)])
    assert fitted.score(X, THREE) == np.mean(fitted.predict(X) == THREE) > 0.8
    two = classifier().fit(X, NAMES)
    assert two.coef_.shape == (1, 3)
    np.testing.assert_allclose(two.predict_proba(X)[:, 1], expit(two.decision_function(X)), rtol=1e-12)
    np.testing.assert_array_equal(two.predict(X) == "rare", two.decision_function(X) > 0)


def test_a_class_that_is_taken_for_wrong_labels_is_a_warning():
    """Within groups that mix classes, the optimum may be one class for all, at a known F."""
    with pytest.warns(
        UserWarning, match="every row is predicted to be of class common: choose an inner"
    ):
        fitted = classifier(max_iter=MANY).fit(X, NAMES, SIDE)
    sides = [side == SIDE for side in ("left", "right")]
    share, common = np.mean(sides, axis=1), np.array([np.mean(Y[side] == 0) for side in sides])
    always = tilted_mean(np.log(common) / -2, 10, share)
    np.testing.assert_allclose(fitted.objective_, always, rtol=1e-2)
    fitted.tilt_ = 0.0
    advice = fitted._doubt(fitted._kept)
    assert advice == "every row is predicted to be of class common: raise outer_tilt, or add features."


@pytest.mark.slow
def test_groups_that_do_not_mix_classes_keep_all_of_them():
    fitted = classifier().fit(X, NAMES, np.char.add(SIDE, NAMES))
    assert balanced_accuracy_score(NAMES, fitted.predict(X)) > 0.7


def test_draws_are_counted():
    assert classifier().fit(X, NAMES).samples_ == 2 * 16 * (STEPS + 10)
    assert classifier().fit(X, THREE).samples_ == 3 * 16 * (STEPS + 10)


def carries_are_equal(carry, other):
    assert (carry.step, carry.cost) == (other.step, other.cost)
    for a, b in zip(jax.tree.leaves(carry.lane), jax.tree.leaves(other.lane), strict=True):
        np.testing.assert_array_equal(a, b)


def test_partial_fit_is_one_run_trackers_included():
    streamed = classifier().partial_fit(X, NAMES, ["rare", "common"])
    streamed = pickle.loads(pickle.dumps(streamed)).partial_fit(X, NAMES)
    once = classifier()
    once._read(X, NAMES, first=True)
    once._begin(X, np.unique(NAMES))
    once._choose(X, NAMES, None)
    carry = once._run(once._split(X, NAMES, None), 2 * 25, 1, tilted.Decay(1 / 2))
    carries_are_equal(streamed._carry, carry)
    np.testing.assert_array_equal(streamed.coef_, once.coef_)
    assert (streamed.n_iter_, streamed.samples_) == (50, once.samples_)
    assert streamed.objective_ < 0.6


def test_a_class_that_is_absent_is_not_forgotten():
    """Calls with the common class alone leave the rare one where it was."""
    model = classifier().fit(X, NAMES)
    before = np.mean(model.predict(X[Y == 1]) == "rare")
    for k in range(20):
        model.partial_fit(X[Y == 0][8 * k : 8 * k + 100], NAMES[Y == 0][:100])
    assert model.n_iter_ == STEPS + 20 * 7
    assert np.mean(model.predict(X[Y == 1]) == "rare") > before - 0.1
    many = np.repeat(X, 10, axis=0), np.repeat(Y, 10)
    assert [len(y) for _, y in map(tilted._thinned, [many, (X, Y)])] == [500, 400]


@pytest.mark.slow
def test_a_class_may_come_later():
    first, later = Y == 0, Y == 1
    model = classifier().partial_fit(X[first], NAMES[first], ["common", "rare"])
    assert model._carry.step == steps_for(first.sum(), 16)
    model.partial_fit(X[later], NAMES[later])
    assert model._carry.step == steps_for(later.sum(), 16)  # new trackers
    assert model.n_iter_ == steps_for(first.sum(), 16) + steps_for(later.sum(), 16)


def steps_for(rows, batch):
    return -(-int(rows) // batch)


def test_regression_can_begin_with_a_part():
    rows = np.random.default_rng(0).normal(size=(40, 2))
    fitted = TiltedRegressor(inner_tilt=-0.5, random_state=0).partial_fit(rows, rows[:, 0])
    assert (fitted.tilt_, fitted.coef_.shape) == (-0.5, (2,))


@pytest.mark.slow
def test_regression_goes_on_as_well():
    model = regressor()
    for _ in range(60):
        model.partial_fit(X, TARGETS)
    np.testing.assert_allclose(model.coef_, regressor(max_iter=MANY).fit(X, TARGETS).coef_, rtol=0.2)


def test_similar_tables_and_other_settings_share_one_program():
    classifier().fit(X, NAMES)
    before = dict(TRACES)
    other = classifier(inner_tilt=-1, outer_tilt=4, l2=0.1, learning_rate=0.05, random_state=7)
    other.set_params(max_iter=MANY).fit(X[:300, :2], NAMES[:300])
    assert before == TRACES


@pytest.mark.slow
def test_single_precision_gives_double_precision_weights():
    with jax.enable_x64(False):
        fitted = classifier(max_iter=MANY).fit(X, NAMES)
    assert fitted.coef_.dtype == fitted.predict_proba(X).dtype == np.float64
    F, at = binary(fitted, NAMES, Y)
    np.testing.assert_allclose(fitted.objective_, F(at), rtol=1e-9)


@pytest.mark.slow
def test_far_groups_have_room_or_are_refused():
    shifted = TARGETS + 25 * (SIDE == "left")
    fitted = regressor(max_iter=MANY).fit(X, shifted, SIDE)
    assert fitted.objective_ < 0.7 * squares(fitted, SIDE, shifted)[0](np.zeros(4))
    with pytest.raises(nx.ProblemError, match=r"group left are so far .* choose tilts nearer to 0"):
        regressor().fit(X, TARGETS + 1e4 * (SIDE == "left"), SIDE)


def test_searches_frames_and_copies():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    fitted = classifier().fit(frame, pd.Series(NAMES), groups=pd.Series(NAMES))
    assert list(fitted.feature_names_in_) == ["a", "b", "c"]
    np.testing.assert_allclose(fitted.coef_, classifier().fit(X, NAMES).coef_, rtol=1e-10)
    search = GridSearchCV(classifier(), {"inner_tilt": [-2.0, -1.0]}, cv=2).fit(X, NAMES)
    assert search.best_params_["inner_tilt"] in (-2.0, -1.0)
    assert float(clone(classifier(method=nx.SMVR(beta=0.3))).method.beta) == 0.3


def test_a_run_that_is_interrupted_or_breaks_down_is_no_fit(monkeypatch):
    def ended(status):
        def fake(*args, **options):
            found = nx.minimize(*args, **options)
            return type(found)(found.w, found.records, status, "It broke.", found.carry)

        return fake

    monkeypatch.setattr(running, "minimize", ended(Status.INTERRUPTED))
    with pytest.raises(KeyboardInterrupt):
        classifier().fit(X, NAMES)
    monkeypatch.setattr(running, "minimize", ended(Status.NONFINITE))
    with pytest.warns(ConvergenceWarning, match="It broke"):
        classifier().fit(X, NAMES)


def test_warnings_of_steps_too_long_and_groups_too_small():
    with pytest.warns(ConvergenceWarning, match=r"the objective rose from 0.693 to .*: lower learning"):
        classifier(learning_rate=1e6).fit(X, NAMES)
    lonely = np.where(np.arange(400) == 7, "x", "y")
    with pytest.warns(UserWarning, match="group x has a single row, so that nothing tells"):
        classifier(inner_tilt=-0.1).fit(X, NAMES, lonely)


def test_the_risk_that_settings_are_chosen_by_is_that_of_the_fit():
    """Both closed forms agree, and the gradient is the derivative."""
    for y, classes in ((NAMES, 2), (THREE, 3)):
        model = classifier(balanced=True).fit(X, y)
        Z = StandardScaler().fit_transform(X)
        number = np.searchsorted(model.classes_, y)
        rows = TiltedRows(Z, number, number, classes, model.outer_tilt, True)
        slopes = (model.coef_ * X.std(axis=0)).T
        at = np.vstack([slopes, model.intercept_ + model.coef_ @ X.mean(axis=0)]).ravel()
        value, grad = rows.value_and_grad(at, model.tilt_, model.l2_)
        np.testing.assert_allclose(value, model.objective_, rtol=1e-9)
        of = lambda w, rows=rows: rows.value_and_grad(w, -2.0, 0.01)[0]
        step = 1e-6 * np.eye(len(at))
        slope = [(of(at + e) - of(at - e)) / 2e-6 for e in step]
        np.testing.assert_allclose(grad, slope, atol=1e-7)


def test_tilts_are_chosen_by_the_labels_that_there_are():
    """A few wrong labels far out ask for a negative tilt."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(400, 2))
    y = (Z[:, 0] > 0).astype(int)
    Z[:20, 0], y[:20] = 8, 0
    noisy = TiltedClassifier(l2=0.01, max_iter=STEPS, random_state=0).fit(Z, y)
    assert noisy.tilt_ < 0
    assert np.mean(noisy.predict(Z)[20:] == y[20:]) > 0.97
    known = classifier(inner_tilt="auto", l2="auto").fit(X, NAMES)
    assert known.tilt_ in (0.0, -1.0, -2.0)
    assert known.l2_ in (1.0, 0.1, 0.01, 1 / 400)
    with pytest.warns(UserWarning, match="group True has a single row"):
        alone = classifier(inner_tilt="auto").fit(X[:60], np.arange(60) == 7)
    assert alone.tilt_ == 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"inner_tilt": "low"}, "inner_tilt must be a finite number; got 'low'"),
        ({"outer_tilt": np.inf}, "outer_tilt must be a finite number; got inf"),
        ({"l2": -1}, "l2 must be a number of at least 0; got -1"),
        ({"learning_rate": 0}, "learning_rate must be a positive number; got 0"),
        ({"max_iter": 0}, "max_iter must be a whole number of at least 1; got 0"),
        ({"batch_size": 1.5}, "batch_size must be a whole number of at least 1; got 1.5"),
        ({"method": "SMRV"}, "no method is called 'SMRV'; did you mean 'SMVR'"),
        ({"method": 3}, r"method must be a name or an estimator such as nx.SMVR\(\); got 3"),
        ({"method": nx.SMVR(lr=0.1)}, "method must leave its lr out, .*: set learning_rate"),
    ],
)
def test_settings_are_refused_in_one_sentence(settings, sentence):
    with pytest.raises(nx.SettingError, match=sentence):
        classifier(**settings).fit(X, NAMES)
    with pytest.raises(nx.SettingError, match=sentence):
        regressor(**settings).partial_fit(X, TARGETS)


def test_what_cannot_be_chosen_is_refused():
    with pytest.raises(nx.SettingError, match="cv must be at least 2, for rows are held out; got 1"):
        classifier(cv=1).fit(X, NAMES)
    with pytest.raises(nx.SettingError, match="inner_tilt must be a finite number; got 'auto'"):
        regressor(inner_tilt="auto").fit(X, TARGETS)


@pytest.mark.parametrize(
    ("y", "groups", "sentence"),
    [
        (np.full(400, "one"), None, "there is one class only, one: a classifier needs rows of two"),
        (Y, SIDE[:-1], r"groups must hold one label for each of the 400 rows; .* shape \(399,\)"),
        (Y, [], r"groups must hold one label for each of the 400 rows; .* shape \(0,\)"),
        (Y, X, r"one label for each of the 400 rows; got an array of shape \(400, 3\)"),
        (Y, np.where(Y, np.nan, 1.0), "groups must hold labels of one type, and none may be missing"),
        (Y, np.where(Y, None, "a"), "groups must hold labels of one type, and none may be missing"),
    ],
)
def test_labels_are_refused_in_one_sentence(y, groups, sentence):
    with pytest.raises(nx.ProblemError, match=sentence):
        classifier().fit(X, y, groups)


def test_features_and_targets_are_refused_in_one_sentence():
    broken = X.copy()
    broken[3, 2] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        classifier().fit(broken, NAMES)
    with pytest.raises(ValueError, match=r"could not convert string to float: .*high"):
        classifier().fit(np.full((400, 3), "high"), NAMES)
    with pytest.raises(nx.ProblemError, match="y must hold numbers; got 'rare'"):
        regressor().fit(X, NAMES)
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        classifier().fit(X, TARGETS)


def test_partial_fit_refuses_classes_that_do_not_fit():
    with pytest.raises(nx.SettingError, match="the first call of partial_fit needs classes="):
        classifier().partial_fit(X, NAMES)
    model = classifier().partial_fit(X, NAMES, ["common", "rare"])
    with pytest.raises(nx.SettingError, match=r"classes must be those of the first call, \['common'"):
        model.partial_fit(X, NAMES, ["common", "odd"])
    with pytest.raises(nx.ProblemError, match="y holds middle, which is none of the classes"):
        model.partial_fit(X, THREE)
