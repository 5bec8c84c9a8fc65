"""The robust estimators: scikit-learn's own checks, worst cases written out, optima, sentences."""

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import nestax as nx
from nestax.sklearn import RobustClassifier, RobustRegressor

STEPS = 480
ROWS = 300

rng = np.random.default_rng(0)
X = rng.normal(size=(ROWS, 3)) * [1.0, 100.0, 0.01] + [0.0, 50.0, 3.0]
Z = StandardScaler().fit_transform(X)
Y = (Z @ [1.0, -1.0, 0.5] + rng.logistic(size=ROWS) > 0).astype(int)
NAMES = np.array(["no", "yes"])[Y]
#: A tenth of the rows follows another line.
FEW = np.arange(ROWS) < 30
TARGETS = Z @ [1.0, -1.0, 0.0] + 2 * FEW * Z[:, 2] + 0.3 * rng.normal(size=ROWS)
PENALTY, RADIUS, TAIL = 0.05, 0.5, 0.1


def classifier(**settings):
    return RobustClassifier(**({"max_iter": STEPS, "random_state": 0} | settings))


def regressor(**settings):
    return RobustRegressor(**({"max_iter": STEPS, "random_state": 0} | settings))


@pytest.mark.slow
@parametrize_with_checks(
    [classifier(), regressor(), classifier(divergence="chi2"), regressor(divergence="cvar")]
)
def test_scikit_learn_finds_no_fault(estimator, check):
    check(estimator)


def worst(losses, divergence, share):
    """The largest risk the adversary can make, by its dual."""
    if divergence == "kl":

        def risk(log_scale):
            scale = max(np.exp(log_scale), PENALTY)
            return scale * logsumexp(losses / scale, b=share) + (scale - PENALTY) * RADIUS

        return minimize_scalar(risk, bounds=(np.log(PENALTY), 10), method="bounded").fun

    def risk(a):
        over = losses - a
        if divergence == "cvar":
            return a + share @ (PENALTY * np.logaddexp(0, over / PENALTY)) / TAIL
        u = share @ np.maximum(over, 0) ** 2
        best = max(np.sqrt(u / (1 + 2 * RADIUS)), PENALTY)
        return a + u / (2 * best) + best / 2 + (best - PENALTY) * RADIUS

    bounds = (losses.min() - 10 * np.ptp(losses) - 1, losses.max())
    return minimize_scalar(risk, bounds=bounds, method="bounded", options={"xatol": 1e-9}).fun


def written(fitted, groups=None):
    """F of slopes and intercept for scaled features, and those that were fitted."""
    regression = isinstance(fitted, RobustRegressor)
    middle = np.median(TARGETS)
    spread = np.median(np.abs(TARGETS - middle)) / 0.6744897501960817

    def F(v):
        scores = Z @ v[:3] + v[3]
        if regression:
            losses = (scores - (TARGETS - middle) / spread) ** 2
        else:
            losses = np.logaddexp(0, np.where(Y, -1, 1) * scores)
        share = np.full(ROWS, 1 / ROWS)
        if groups is not None:
            share = np.array([np.mean(groups == g) for g in np.unique(groups)])
            losses = np.array([losses[groups == g].mean() for g in np.unique(groups)])
        return worst(losses, fitted.divergence, share) + fitted.l2 / 2 * (v[:3] ** 2).sum()

    coef = np.ravel(fitted.coef_)
    at = np.append(coef * X.std(axis=0), np.ravel(fitted.intercept_) + coef @ X.mean(axis=0))
    if regression:
        at = np.append(at[:3], at[3] - middle) / spread
    return F, at


CASES = [
    (kind, divergence, groups)
    for kind in ("classifier", "regressor")
    for divergence in ("kl", "chi2", "cvar")
    for groups in (False, True)
]
QUICK = [("classifier", "kl", False), ("regressor", "chi2", True)]


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES]
)
def test_a_fit_comes_close_to_the_worst_case_optimum(case):
    kind, divergence, grouped = case
    groups = FEW if grouped else None
    make, y = (classifier, NAMES) if kind == "classifier" else (regressor, TARGETS)
    fitted = make(divergence=divergence, max_iter=4 * STEPS).fit(X, y, groups)
    F, at = written(fitted, groups)
    np.testing.assert_allclose(fitted.objective_, F(at), rtol=1e-4)
    best = minimize(F, at, method="Nelder-Mead", options={"maxfev": 3_000, "fatol": 1e-10})
    assert fitted.objective_ - best.fun < 0.03 * (F(np.zeros(4)) - best.fun)
    assert list(fitted.dual_) == ["scale" if divergence == "kl" else "threshold"]


def test_a_robust_line_serves_the_few():
    plain = np.linalg.lstsq(np.column_stack([Z, np.ones(ROWS)]), TARGETS)[0]
    error = lambda guess: np.mean((guess - TARGETS)[FEW] ** 2)
    fitted = regressor(divergence="chi2", max_iter=4 * STEPS).fit(X, TARGETS, FEW)
    assert error(fitted.predict(X)) < 0.7 * error(Z @ plain[:3] + plain[3])


@pytest.mark.slow
def test_divergences_of_the_library_and_three_classes():
    three = np.digitize(Z[:, 0], [-0.5, 0.5])
    fitted = classifier(divergence=nx.problems.KL(0.2)).fit(X, three)
    assert fitted.dual_ == {}
    assert fitted.coef_.shape == (3, 3)
    assert fitted.score(X, three) > 0.6


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"divergence": "tv"}, r"divergence must be 'kl', 'chi2' or 'cvar', .*; got 'tv'"),
        ({"penalty": 0}, "penalty must be a positive number; got 0"),
        ({"radius": -1}, "radius must be positive; got -1"),
        ({"tail": 1}, r"tail must be a number in \(0, 1\); got 1"),
        ({"l2": "auto"}, "l2 must be a number of at least 0; got 'auto'"),
        ({"learning_rate": 0}, "learning_rate must be a positive number; got 0"),
    ],
)
def test_settings_are_refused_in_one_sentence(settings, sentence):
    with pytest.raises(nx.SettingError, match=sentence):
        classifier(**settings).fit(X, NAMES)


def test_rows_and_groups_are_refused_in_one_sentence():
    with pytest.raises(nx.ProblemError, match="there is one class only, no: a classifier needs rows"):
        classifier().fit(X, np.full(ROWS, "no"))
    with pytest.raises(nx.SettingError, match="there is one group only: leave groups out"):
        classifier().fit(X, NAMES, np.zeros(ROWS))
    with pytest.raises(nx.ProblemError, match=r"groups must hold one label .* shape \(3,\)"):
        classifier().fit(X, NAMES, [1, 2, 3])
    with pytest.raises(ValueError, match="contains infinity"):
        regressor().fit(X, np.where(FEW, np.inf, TARGETS))
