"""Robust losses against the worst shares themselves, which are found without a dual variable."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import brentq, minimize
from tests.support.cases import rng_of
from tests.support.compare import assert_same

import nestax as nx
from nestax.programs import TRACES

P = nx.problems
DIVERGENCES = {
    "KL": P.KL(0.3),
    "KL in a ball": P.KL(0.01, radius=0.2),
    "KL in a ball that does not bind": P.KL(2.0, radius=0.5),
    "chi-square": P.ChiSquare(0.3),
    "chi-square in a ball": P.ChiSquare(0.01, radius=0.6),
    "chi-square in a ball that does not bind": P.ChiSquare(3.0, radius=0.6),
    "CVaR": P.CVaR(0.22, width=1e-6),
}
SIZES = (9, 4, 7)


def data():
    rng = rng_of("robust rows")
    X = rng.normal(size=(sum(SIZES), 3))
    y = (X @ [1.0, -1.0, 0.5] + rng.normal(size=len(X)) > 0).astype(float)
    return X, y, np.repeat(["a", "b", "c"], SIZES)


def losses_by_numpy(w):
    X, y, _ = data()
    return np.log1p(np.exp(X @ w)) - y * (X @ w)


def worst_case(divergence, losses, share):
    """sup_q q·ℓ − λ₀·D(q‖p) over the ball: the form of the worst shares is known, up to one number."""
    if isinstance(divergence, P.CVaR):
        q, left = np.zeros_like(share), 1.0
        for k in np.argsort(-losses):
            q[k] = min(share[k] / divergence.tail, left)
            left -= q[k]
        return q @ losses

    def shares(scale):
        if isinstance(divergence, P.KL):
            q = share * np.exp((losses - losses.max()) / scale)
            return q / q.sum()
        gain = lambda a: share @ np.maximum(losses - a, 0) / scale - 1
        a = brentq(gain, losses.min() - 2 * scale, losses.max(), xtol=1e-15)
        return share * np.maximum(losses - a, 0) / scale

    def distance(q):
        if isinstance(divergence, P.KL):
            return q @ np.log(np.maximum(q, 1e-300) / share)
        return share @ (q / share - 1) ** 2 / 2

    scale, radius = divergence.penalty, divergence.radius
    if radius is not None and distance(shares(scale)) > radius:
        scale = brentq(lambda s: distance(shares(s)) - radius, scale, 1e3, xtol=1e-15)
    q = shares(scale)
    assert_same(q.sum(), 1, 1e-9)
    return q @ losses - divergence.penalty * distance(q)


def best_dual(problem, model):
    """The least value over the dual variables alone, from where the problem starts."""
    start = {name: a for name, a in problem.start(jax.random.key(0)).items() if name != "model"}
    value = jax.jit(jax.value_and_grad(lambda dual: problem.value({"model": model, **dual})))
    if not start:
        return float(value({})[0])
    (name,) = start
    low = float(problem.project({"model": model, name: jnp.asarray(-1e9)})[name])

    def both(a):
        out, grad = value({name: jnp.asarray(a[0])})
        return float(out), np.asarray([grad[name]])

    tight = {"ftol": 1e-16, "gtol": 1e-12}
    bounds = [(max(low, -1e3), 1e3)]
    found = minimize(both, [start[name]], jac=True, bounds=bounds, method="L-BFGS-B", options=tight)
    return found.fun


@pytest.mark.parametrize("groups", [False, True], ids=["rows", "groups"])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_the_best_dual_variable_gives_the_worst_case(name, groups):
    X, y, labels = data()
    w = 0.7 * rng_of("robust weights").normal(size=3)
    problem = P.dro(X, y, "logistic", DIVERGENCES[name], groups=labels if groups else None)
    losses, share = losses_by_numpy(w), np.full(len(X), 1 / len(X))
    if groups:
        losses = np.asarray([losses[labels == g].mean() for g in "abc"])
        share = np.asarray(SIZES) / sum(SIZES)
    expected = worst_case(DIVERGENCES[name], losses, share)
    assert_same(best_dual(problem, jnp.asarray(w)), expected, 1e-5 if "CVaR" in name else 1e-9)


@pytest.mark.parametrize("groups", [False, True], ids=["rows", "groups"])
@pytest.mark.parametrize("name", ["KL", "KL in a ball", "chi-square in a ball", "CVaR"])
def test_levels_agree_with_the_closed_form(name, groups):
    X, y, labels = data()
    divergence = P.CVaR(0.3, width=0.1) if name == "CVaR" else DIVERGENCES[name]
    more = {"groups": labels} if groups else {"intercept": True, "l2": 0.1}
    problem = P.dro(X, y, "logistic", divergence, **more)
    rng = rng_of("robust point")
    w = jax.tree.map(lambda x: x + 0.2 * jnp.abs(rng.normal(size=x.shape)), problem.w0)
    report = nx.check(problem, w=w, draws=64)
    assert report.ok, report
    assert report.exact_error < 1e-12
    assert not report.advice


def test_kl_without_a_radius_is_a_tilted_risk():
    X, y, labels = data()
    w = jnp.asarray([0.3, -0.2, 1.0])
    flat = P.dro(X, y, "logistic", P.KL(0.4), l2=0.2)
    assert_same(flat.value({"model": w}), P.term(X, y, "logistic", 1 / 0.4, l2=0.2).value(w))
    grouped = P.dro(X, y, "logistic", P.KL(0.4), groups=labels)
    softmax = P.hierarchical_term(P.groups_of(X, y, labels), inner_tilt=0, outer_tilt=1 / 0.4)
    assert_same(grouped.value({"model": w}), softmax.value(w))


@pytest.mark.parametrize("name", ["KL in a ball", "chi-square in a ball"])
def test_a_run_finds_the_model_that_is_best_in_the_worst_case(name):
    """Batches of one row in five, against SciPy on the worst case itself."""
    X, y, _ = data()
    share = np.full(len(X), 1 / len(X))
    divergence = {"KL in a ball": P.KL(0.1, 0.2), "chi-square in a ball": P.ChiSquare(0.1, 0.6)}[name]

    def goal(w):
        return worst_case(divergence, losses_by_numpy(w), share) + 0.05 * w @ w

    best = minimize(goal, np.zeros(3), tol=1e-12).fun
    problem = P.dro(X, y, "logistic", divergence, l2=0.1)
    lr = optax.cosine_decay_schedule(0.03, 4_000)
    result = nx.minimize(
        problem, nx.SMVR(0.1), optax.adam(lr), steps=4_000, batch_size=4, progress=False
    )
    gap = float(result.records["exact_value"][-1]) - best
    first = float(result.records["exact_value"][0]) - best
    assert -1e-6 < gap < 0.01 * first


def test_weights_of_the_model_keep_their_feasible_set_and_may_be_drawn():
    X, y, _ = data()
    problem = P.dro(X, y, "squared", P.KL(0.5, 1.0), project=nx.projections.simplex)
    out = problem.project({"model": jnp.asarray([3.0, 0.0, 0.0]), "scale": jnp.asarray(0.1)})
    assert_same(out["model"], [1, 0, 0])
    assert_same(out["scale"], 0.5)
    drawn = P.dro(
        X,
        y,
        "squared",
        P.CVaR(0.2),
        model=lambda w, x: jnp.tanh(x @ w),
        w0=lambda key: jax.random.normal(key, (3,)),
    )
    starts = [drawn.start(jax.random.key(k)) for k in range(2)]
    assert starts[0]["threshold"] == starts[1]["threshold"]
    assert not np.allclose(starts[0]["model"], starts[1]["model"])


def test_float32_and_losses_that_grow_stay_finite():
    """A scale at its bound and a loss far above the start's: exponents are continued, not overflown."""
    X, y, _ = data()
    problem = P.dro(np.float32(X), y, "squared", P.KL(0.05, 0.3), w0=jnp.zeros(3, jnp.float32))
    w = {"model": jnp.full(3, 30.0, jnp.float32), "scale": jnp.asarray(0.05, jnp.float32)}
    value, grad = eqx.filter_jit(problem.value_and_grad)(w)
    losses = problem.levels[0].value(w, problem.levels[0].source.population())
    assert np.isfinite([value, losses[0], *grad["model"]]).all()
    tracked = problem.levels[0].project((jnp.asarray(-1.0, jnp.float32), {"scale": w["scale"]}))
    assert np.isfinite(jax.grad(problem.levels[1].fn)(tracked)[0])


def outliers(penalty, largest=20.0, dtype=np.float32, n=4_177):
    """Regression from least squares, where one error in many is far out: one row carries the mean."""
    rng = np.random.default_rng(0)
    X = np.hstack([rng.normal(size=(n, 8)), np.ones((n, 1))])
    errors = rng.standard_t(2, size=n)
    errors -= X @ np.linalg.lstsq(X, errors)[0]
    y = X @ rng.normal(size=9) + errors * np.sqrt(largest / np.max(errors**2))
    w0 = np.linalg.lstsq(X, y)[0]
    return P.dro(dtype(X), dtype(y), "squared", P.KL(penalty), w0=dtype(w0))


@pytest.mark.filterwarnings("ignore::nestax.ConvergenceWarning")
@pytest.mark.parametrize("lr", [1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("method", [nx.SelfTuning(), nx.Plain()])
def test_a_row_that_carries_the_mean_overflows_nothing(method, lr):
    """The least value of the mean is e⁻⁸⁰: its logarithm is finite, and so is a gradient over it."""
    problem = outliers(0.2)
    run = nx.minimize(problem, method, optax.adam(lr), steps=300, batch_size=64, progress=False)
    assert run.status is nx.Status.SUCCESS, run.message
    assert np.isfinite(run.records["exact_value"]).all()


def test_a_loss_of_zero_has_a_finite_logarithm_and_slope():
    """The reference is as low as single precision allows: that is above its least number."""
    problem = outliers(0.2)
    level, risk = problem.levels
    bound = level.project((jnp.asarray(0.0, jnp.float32), {}))
    value, slope = jax.value_and_grad(risk.fn)(bound)
    np.testing.assert_allclose(value, 0.0, atol=1e-5)
    part = jnp.asarray(1e-3, jnp.float32)  # what a small gradient multiplies it with
    np.testing.assert_allclose((part * bound[0]) * slope[0], 0.2 * part, rtol=1e-5)


def test_a_second_divergence_of_the_same_kind_compiles_nothing():
    X, y, _ = data()
    run = lambda penalty: nx.minimize(
        P.dro(X, y, "logistic", P.KL(penalty, 0.2), l2=0.1),
        nx.SCSC(0.5),
        optax.sgd(0.1),
        steps=4,
        batch_size=2,
        progress=False,
    )
    run(0.1)
    before = TRACES.copy()
    run(0.2)
    assert before == TRACES


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda X, y: P.dro(X, y, "logistic", "kl"), r"divergence must be nx.problems.KL\(...\)"),
        (lambda X, y: P.dro(X, y, "logistic", P.KL), r"divergence must be nx.problems.KL\(...\)"),
        (lambda X, y: P.KL(0), "penalty must be positive and finite; got 0"),
        (lambda X, y: P.KL(None), "penalty must be positive and finite; got nan"),
        (lambda X, y: P.KL("small"), "penalty must be positive and finite; got 'small'"),
        (lambda X, y: P.ChiSquare(0.1, radius=-1), "radius must be positive and finite; got -1"),
        (lambda X, y: P.CVaR(1), r"tail must be in \(0, 1\); got 1"),
        (lambda X, y: P.CVaR(0.1, width=np.inf), "width must be positive and finite; got inf"),
        (lambda X, y: P.dro(X, 1e6 * y, "squared", P.KL(1.0)), "too large for a penalty of 1"),
        (lambda X, y: P.dro(X, y, "logistic", P.KL(1.0), groups=["a"] * len(y)), "two labels or more"),
        (lambda X, y: P.dro(X, np.ones(len(y)), "logistic", P.KL(1.0)), "every label is 1"),
        (lambda X, y: P.dro(X * np.nan, y, "logistic", P.KL(1.0)), "NaN or infinite"),
    ],
)
def test_refusals(build, sentence):
    X, y, _ = data()
    with pytest.raises(ValueError, match=sentence):
        build(X, y)
