"""Tilted risks: levels, closed forms, limits, and what happens at extreme tilts."""

import os
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse
from scipy.special import logsumexp
from tests.support.cases import rng_of
from tests.support.compare import assert_same, flat
from tests.support.compiled import quick_jit

import nestax as nx
from nestax.problems.tilted.tilting import TiltedRange, largest_exponent, tilted
from nestax.programs import TRACES

from experiments.cleavage import hiv1

SIZES = (12, 5, 7)


def rows(size, rng, loss="logistic"):
    targets = {
        "logistic": lambda: np.arange(size) % 2,
        "multinomial": lambda: np.arange(size) % 3,
        "squared": lambda: rng.normal(size=size),
    }
    return rng.normal(size=(size, 3)), targets[loss]()


def groups_for(loss="logistic"):
    rng = rng_of("groups of rows")
    return [rows(size, rng, loss) for size in SIZES]


def by_numpy(groups, w, inner, outer, loss="logistic"):
    """F(w) written down a second time, with SciPy's logarithm of sums of exponentials."""

    def losses(X, y):
        scores = X @ w
        if loss == "squared":
            return (scores - y) ** 2
        if loss == "multinomial":
            return logsumexp(scores, axis=1) - scores[np.arange(len(y)), y]
        return np.log1p(np.exp(scores)) - y * scores

    def mean(x, t, share):
        return np.sum(share * x) if t == 0 else logsumexp(t * x, b=share) / t

    risks = np.array([mean(losses(X, y), inner, 1 / len(y)) for X, y in groups])
    return mean(risks, outer, np.array(SIZES) / sum(SIZES))


def weights(loss="logistic"):
    shape = (3, 3) if loss == "multinomial" else 3
    return 0.5 * rng_of("weights").normal(size=shape)


# Levels and closed form


@pytest.mark.parametrize(
    ("loss", "inner", "outer", "more"),
    [
        ("logistic", -2, 10, {}),
        ("multinomial", 3, -4, {"sample_groups": True}),
        ("squared", 0, 0, {"l2": 0.5}),
        ("logistic", -2, 10, {"pooled": True, "sample_groups": True}),
        ("squared", 0, 0, {"pooled": True}),
    ],
)
def test_levels_and_closed_form_are_those_of_numpy(loss, inner, outer, more):
    groups, w = groups_for(loss), jnp.asarray(weights(loss))
    problem = nx.problems.hierarchical_term(groups, loss, inner_tilt=inner, outer_tilt=outer, **more)
    penalty = more.get("l2", 0) / 2 * np.sum(weights(loss) ** 2)
    value, chain = quick_jit(lambda w: (problem.value(w), problem.level_values(w)[-1]))(w)
    assert_same(value, by_numpy(groups, weights(loss), inner, outer, loss) + penalty)
    assert_same(chain + penalty, value)
    if inner:
        report = nx.check(problem, w=w, draws=64)
        assert report.ok, report
        assert not report.advice  # noise does not carry a value out of the domain of a logarithm


def test_a_pooled_draw_counts_for_its_own_group_alone():
    """[z in g]·e^{τ(ℓ(w; z) − c_g)}/p_g, from rows of all groups one after the other."""
    groups, w = groups_for(), weights()
    level = nx.problems.hierarchical_term(groups, pooled=True).levels[0]
    _, c = level.args
    (X, y), group = level.source.data
    np.testing.assert_array_equal(group, np.repeat([0, 1, 2], SIZES))
    for row in (0, 11, 12, 16, 17, 23):
        g = int(group[row])
        loss = np.log1p(np.exp(X[row] @ w)) - y[row] * (X[row] @ w)
        expected = np.zeros(3)
        expected[g] = np.exp(-2 * (loss - c[g])) * sum(SIZES) / SIZES[g]
        draw = jax.tree.map(lambda x, row=row: x[row], level.source.data)
        assert_same(level.fn(jnp.asarray(w), draw, *level.args), expected)
    # A batch without rows of a group: its mean is 0, and kept above a thousandth of the start.
    few = nx.draws.source.Batch(jax.tree.map(lambda x: x[:4], level.source.data))
    assert_same(level.project(level.value(jnp.asarray(w), few))[1:], [1e-3, 1e-3])


def test_the_flat_risk_is_that_of_one_group():
    X, y = groups_for()[0]
    w = jnp.asarray(weights())
    for tilt in (-2, 0, 3):
        problem = nx.problems.term(X, y, "logistic", tilt, optimum=0.1)
        assert problem.optimum == 0.1
        assert_same(problem.value(w), by_numpy([(X, y)] * 3, weights(), tilt, 0))
    assert nx.check(problem, w=w, draws=64).ok


def test_closed_forms_at_every_tilt():
    """One problem of nonzero tilts serves for all of them, and equals the one built with them."""
    groups, w = groups_for(), jnp.asarray(weights())
    base = nx.problems.hierarchical_term(groups)

    @jax.jit
    def through_both(inner, outer):
        problem = nx.problems.with_tilts(base, inner_tilt=inner, outer_tilt=outer)
        return problem.value(w), problem.level_values(w)[-1]

    for inner in (-50.0, -2.0, 1e-6, 3.0, 50.0):
        for outer in (-50.0, 1e-6, 10.0, 50.0):
            expected = by_numpy(groups, weights(), inner, outer)
            for value in through_both(inner, outer):
                assert_same(value, expected, 1e-9)  # 1e-16 over a tilt of 1e-6
    built = nx.problems.hierarchical_term(groups, inner_tilt=3.0, outer_tilt=-50.0)
    moved = nx.problems.with_tilts(base, inner_tilt=3.0, outer_tilt=-50.0)
    assert_same(built.value(w), moved.value(w))


def test_tilts_near_zero_and_near_infinity():
    groups, w = groups_for(), jnp.asarray(weights())

    def risk(inner, outer):
        problem = nx.problems.hierarchical_term(groups, inner_tilt=inner, outer_tilt=outer)
        return float(problem.level_values(w)[-1])

    mean = risk(0, 0)
    assert abs(risk(1e-6, 0) - mean) < 1e-5
    assert abs(risk(0, -1e-6) - mean) < 1e-5
    group_means = [by_numpy([group] * 3, weights(), 0, 0) for group in groups]
    assert_same(risk(0, 300), max(group_means), np.log(sum(SIZES)) / 300)
    assert_same(risk(0, -300), min(group_means), np.log(sum(SIZES)) / 300)
    assert risk(-2, 0) < mean < risk(2, 0)


@pytest.mark.erratum("E19")
def test_values_start_at_one_and_lie_in_their_ranges():
    for inner, outer in ((-2, 10), (3, -4)):
        problem = nx.problems.hierarchical_term(groups_for(), inner_tilt=inner, outer_tilt=outer)
        first, risks, third, risk = problem.level_values(problem.w0)
        assert_same(first, np.ones(3))
        assert_same(third, 1.0)
        assert_same(risks, np.full(3, np.log(2)))
        assert_same(risk, np.log(2))
        for level, value in zip(problem.levels, problem.level_values(weights()), strict=True):
            assert_same(level.project(value), value)
        assert_same(problem.levels[1].project(-risks), np.zeros(3))


def test_a_start_far_away_keeps_the_reference_within_reach():
    """900 times a tilt of 1 is beyond the largest exponents; a loss of 0 must be representable, too."""
    far = lambda prediction, y: (prediction - 30) ** 2
    for sign in (-1, 1):
        problem = nx.problems.hierarchical_term(
            groups_for(), far, inner_tilt=sign, outer_tilt=0, floor=0.01
        )
        _, reference = problem.levels[0].args
        assert_same(reference, np.full(3, 354.9 if sign < 0 else 701.46), 1e-3)
        first, *_, risk = problem.level_values(problem.w0)
        assert_same(risk, 900.0, 1e-9)
        assert_same(
            problem.levels[0].project(0 * first), 0.01 * first if sign < 0 else np.exp(-reference)
        )


def test_the_range_of_a_tilted_mean():
    numbers = [jnp.asarray(x) for x in (-2.0, 0.7, 0.7, 1e-3)]
    falling = TiltedRange(*numbers)
    assert_same(falling(jnp.asarray([-1.0, 0.5, 9.0])), [1e-3, 0.5, np.exp(1.4)])
    rising = eqx.tree_at(lambda r: r.t, falling, jnp.asarray(2.0))
    assert_same(rising(jnp.asarray([-1.0, 0.5, 9.0])), [np.exp(-1.4), 0.5, 9.0])


def test_exponentials_go_on_along_their_tangent():
    most = largest_exponent(jnp.float32)
    one = jnp.asarray([1.0, 0.0], jnp.float32)
    x = jnp.asarray([0.0, most - 1, most, most + 1, 1e9], jnp.float32)
    value, slope = jax.vmap(jax.value_and_grad(lambda x: tilted(x, *one)))(x)
    assert value.dtype == jnp.float32
    edge = np.exp(most)
    np.testing.assert_allclose(value, [1, edge / np.e, edge, 2 * edge, 1e9 * edge], rtol=1e-5)
    np.testing.assert_allclose(slope, [1, edge / np.e, edge, edge, edge], rtol=1e-5)


def test_rows_in_parts_are_the_rows(monkeypatch):
    problem = nx.problems.hierarchical_term(groups_for())
    whole = quick_jit(lambda w: jax.value_and_grad(problem.exact)(w))(jnp.asarray(weights()))
    monkeypatch.setattr("nestax.problems.losses.ROWS_AT_ONCE", 4)
    parts = quick_jit(lambda w: jax.value_and_grad(problem.exact)(w))(jnp.asarray(weights()))
    assert_same(flat(parts), flat(whole))


# Models


def test_two_classes_of_a_multinomial_loss_are_a_logistic_one():
    groups, w = groups_for(), weights()
    logistic = nx.problems.hierarchical_term(groups)
    multinomial = nx.problems.hierarchical_term(groups, "multinomial")
    assert multinomial.w0.shape == (3, 2)
    assert_same(multinomial.value(jnp.stack([0 * w, w], axis=1)), logistic.value(jnp.asarray(w)))


def test_an_intercept_is_a_constant_feature_without_a_penalty():
    groups, w = groups_for(), weights()
    bent = nx.problems.hierarchical_term(groups, intercept=True, l2=0.5)
    wider = [(np.hstack([X, np.ones((len(X), 1))]), y) for X, y in groups]
    plain = nx.problems.hierarchical_term(wider)
    value = bent.value({"slope": jnp.asarray(w), "intercept": jnp.asarray(0.3)})
    assert_same(value, plain.value(jnp.asarray([*w, 0.3])) + 0.25 * w @ w)


def test_a_network_and_a_loss_of_its_own():
    shape = eqx.nn.MLP(3, "scalar", 4, 1, key=jax.random.key(0))
    static = eqx.filter(shape, eqx.is_array, inverse=True)
    problem = nx.problems.hierarchical_term(
        groups_for("squared"),
        lambda prediction, y: jnp.abs(prediction - y),
        model=lambda w, x: eqx.combine(w, static)(x),
        w0=lambda key: eqx.filter(eqx.nn.MLP(3, "scalar", 4, 1, key=key), eqx.is_array),
        outer_tilt=2,
    )
    w = problem.start(jax.random.key(1))
    closed = quick_jit(problem.value_and_grad)(w)
    chain = quick_jit(nx.Problem(problem.levels, problem.w0).value_and_grad)(w)
    assert_same(flat(chain), flat(closed))
    run = nx.minimize(problem, nx.Plain(), optax.sgd(0.1), steps=150, batch_size=4)
    assert isinstance(run.w, eqx.nn.MLP)
    assert run.records["exact_value"][-1] < 0.8 * run.records["exact_value"][0]


def test_a_module_is_weights_although_it_can_be_called():
    network = eqx.nn.MLP(3, "scalar", 4, 1, key=jax.random.key(0))
    model = lambda w, x: w(x)
    given = nx.problems.hierarchical_term(groups_for(), model=model, w0=network)
    drawn = nx.problems.hierarchical_term(groups_for(), model=model, w0=lambda key: network)
    assert_same(flat(drawn.start(jax.random.key(1))), flat(given.w0))
    run = nx.minimize(given, nx.Plain(), optax.sgd(0.3), steps=100, batch_size=4)
    assert run.records["exact_value"][-1] < 0.95 * run.records["exact_value"][0]
    x, y = groups_for()[0]
    scores = jax.vmap(run.w)(x)
    assert scores[y == 1].mean() > scores[y == 0].mean()


def test_groups_of_splits_by_class_or_by_anything():
    X, y = np.arange(8.0).reshape(4, 2), np.array([1, 0, 0, 1])
    zeros, ones = nx.problems.groups_of(X, y)
    assert_same(zeros[0], X[[1, 2]])
    assert_same(ones[1], [1, 1])
    east, west = nx.problems.groups_of(X, y, groups=["west", "east", "east", "east"])
    assert_same(east[0], X[1:])
    assert_same(west[1], [1])


# Runs


@pytest.fixture(scope="module")
def noisy():
    """Two classes, 1 : 9, one label in ten wrong."""
    rng = rng_of("noisy")
    y = np.arange(400) % 10 == 0
    X = rng.normal(size=(400, 3)) + 2.0 * y[:, None]
    wrong = rng.uniform(size=400) < 0.1
    groups = nx.problems.groups_of(X, (y ^ wrong).astype(int))
    return nx.problems.hierarchical_term(groups, intercept=True, l2=1e-2)


@pytest.fixture(scope="module")
def least(noisy):
    run = nx.minimize(noisy, nx.Exact(), optax.adam(0.1), steps=1_000, record_every=1_000)
    assert run.records["grad_norm"][-1] < 1e-6
    return run.records["exact_value"][-1]


@pytest.mark.parametrize("sample_groups", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_mini_batches_come_close_to_the_optimum(noisy, least, sample_groups):
    problem = noisy
    if sample_groups:
        groups = [member.data for member in noisy.levels[0].source.members]
        problem = nx.problems.hierarchical_term(
            groups, intercept=True, l2=1e-2, sample_groups=sample_groups
        )
        assert [level.deterministic for level in problem.levels] == [False, True, False, True]
    run = nx.minimize(
        problem,
        nx.SMVR(beta=0.1),
        optax.sgd(optax.exponential_decay(0.3, 1_000, 0.3)),
        steps=3_000,
        batch_size=8,
        record_every=100,
        record=["exact_value"],
    )
    gap = run.records["exact_value"] - least
    assert gap[-1] < (0.03 if sample_groups else 0.01) * gap[0]


def test_a_sweep_over_tilts_compiles_once(noisy):
    def run(tilts):
        sweep = nx.sweep(
            noisy,
            lambda s: (nx.problems.with_tilts(noisy, inner_tilt=s.t), nx.SMVR(beta=0.3), optax.sgd(0.1)),
            settings=nx.grid(t=tilts),
            seeds=1,
            steps=20,
            record=["exact_value"],
            record_every=20,
        )
        return sweep.records["exact_value"][:, 0, 0]

    starts = run([-2.0, 2.0])
    traced = TRACES["advance"]
    assert_same(run([-1.0, 4.0]), starts)  # at w = 0 every loss is log 2
    assert TRACES["advance"] == traced


def extreme_run(k):
    """Any tilts from −50 to 50 and features of any scale, batch 1 and a learning rate of 10."""
    rng = np.random.default_rng(k)
    groups = [rows(size, rng) for size in SIZES]
    scale = 10 ** rng.uniform(-1, 1)
    inner, outer = rng.uniform(-50, 50, size=2)
    problem = nx.problems.hierarchical_term(
        [(scale * X, y) for X, y in groups],
        w0=jnp.zeros(3, jnp.float32),
        inner_tilt=inner,
        outer_tilt=outer,
        sample_groups=True,
    )
    return nx.minimize(
        problem,
        nx.SMVR(beta=0.5),
        optax.sgd(10.0),
        steps=100,
        batch_size=1,
        init_batch_size=1,
        seed=k,
        record_every=50,
    )


@pytest.mark.parametrize("count", [10, pytest.param(1_000, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::nestax.ConvergenceWarning")
def test_extreme_tilts_end_finite_or_say_where_they_did_not(count):
    finite = 0
    for k in range(count):
        run = extreme_run(k)
        assert run.w.dtype == jnp.float32
        assert np.isfinite(run.w).all()
        for column in ("value", "exact_value", "grad_norm"):
            assert np.isfinite(run.records[column]).all()
        if run.status is nx.Status.SUCCESS:
            finite += 1
        else:
            assert run.status is nx.Status.NONFINITE
            parts = r"The (value|Jacobian) of level 'losses'|The (gradient est|exact (value|grad))"
            assert re.match(parts, run.message)
    assert finite > 0.6 * count


# What is refused

X, Y = groups_for()[0]
HOLE = np.where(np.arange(36).reshape(12, 3) == 7, np.nan, X)
BAD = {
    "no group": ({"groups": []}, "groups is empty: give a list of pairs"),
    "no pair": ({"groups": (X, Y)}, r"group 0 must be a pair \(X, y\); got ndarray. nx"),
    "no member": ({"groups": [(X, Y), (X[:0], Y[:0])]}, "group 1 is empty: leave it out"),
    "nothing": ({"groups": [([], []), (X, Y)]}, "group 0 is empty: leave it out"),
    "lengths": ({"groups": [(X, Y), (X, Y[1:])]}, "group 1 has 12 rows in X but 11 in y"),
    "features": (
        {"groups": [(X, Y), (X[:, :2], Y)]},
        r"group 1 has features of shape \(2,\) in a row where group 0 has \(3,\)",
    ),
    "one class": ({"groups": [(X, 0 * Y)]}, "every label is 0: a logistic loss needs rows of two"),
    "NaN": (
        {"groups": [(X, Y), (HOLE, Y)]},
        "X of group 1 has 1 entries that are NaN or infinite, the first at row 2, column 1: remove",
    ),
    "text": ({"groups": [(X.astype(str) + "a", Y)]}, "X of group 0 must be an array of numbers: could"),
    "text labels": ({"groups": [(X, ["a"] * 12)]}, "y of group 0 must be an array of numbers"),
    "labels": (
        {"groups": [(X, 2 * Y - 1)]},
        "y of group 0 must hold labels 0 and 1 for a logistic loss; got -1",
    ),
    "classes": (
        {"groups": [(X, Y + 0.5)], "loss": "multinomial"},
        "must hold classes numbered 0, 1, 2, … for a multinomial loss; got 0.5",
    ),
    "no table": ({"groups": [(X[:, 0], Y)]}, "X of group 0 must be a table"),
    "a number": ({"groups": [(1.0, Y)]}, "X of group 0 must have one entry for every row"),
    "loss": ({"loss": "logstic"}, "loss must be one of logistic, multinomial, squared; got 'logstic'"),
    "floor": ({"floor": 1.0}, r"floor must be in \(0, 1\); got 1.0"),
    "tilt": ({"inner_tilt": "strong"}, "inner_tilt must be a finite number; got 'strong'"),
    "infinite": ({"outer_tilt": np.inf}, "outer_tilt must be a finite number; got inf"),
    "penalty": ({"l2": -1}, "l2 must be a number of at least 0; got -1"),
    "no weights": ({"model": lambda w, x: x @ w}, "needs its starting weights: give w0"),
    "intercept": (
        {"model": lambda w, x: x @ w, "w0": np.zeros(3), "intercept": True},
        "leave out one of intercept and model",
    ),
    "shapes": ({"w0": np.zeros(4)}, "model, loss and rows do not fit together: "),
    "vector loss": (
        {"loss": lambda p, y: jnp.stack([p, y])},
        r"loss must be one number for every row; for group 0 it has the shape \(2,\)",
    ),
    "negative": ({"loss": lambda p, y: p - 1}, "row 0 of group 0 is -1, and losses must be at least 0"),
    "infinite loss": ({"loss": lambda p, y: 1 / p}, "the loss of row 0 of group 0 is inf at the start"),
    "too large": (
        {"loss": lambda p, y: (p - 30) ** 2},
        "losses of 900 at the start are too large for a tilt of -2 in float64: scale the targets",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said_in_a_sentence(case):
    settings, sentence = BAD[case]
    with pytest.raises((nx.ProblemError, nx.SettingError), match=sentence):
        nx.problems.hierarchical_term(**({"groups": groups_for()} | settings))


def test_more_that_is_refused():
    for y in (np.ones(12), np.where(Y, np.nan, 0), [None, "a"] * 6, Y[:, None]):
        with pytest.raises(nx.ProblemError, match="y must hold two labels or more, all of one type"):
            nx.problems.groups_of(X, y)
    with pytest.raises(nx.ProblemError, match="groups must have an entry for each of the 12 rows of X"):
        nx.problems.groups_of(X, Y, groups=["east"])
    with pytest.raises(nx.ProblemError, match=r"X is sparse: pass X.toarray\(\)"):
        nx.problems.groups_of(scipy.sparse.csr_array(X), Y)
    with pytest.raises(nx.ProblemError, match="must be an array of numbers: setting an array element"):
        nx.problems.term([[1, 2], [3]], [0, 1], "logistic", 1.0)
    with pytest.raises(nx.ProblemError, match="y of the data must hold labels 0 and 1"):
        nx.problems.term(X, Y - 1, "logistic", 1.0)
    flat_problem = nx.problems.term(X, Y, "logistic", 0)
    with pytest.raises(nx.SettingError, match="this problem has no tilt to change"):
        nx.problems.with_tilts(flat_problem, tilt=2.0)
    with pytest.raises(nx.SettingError, match="this problem has no inner_tilt to change"):
        nx.problems.with_tilts(nx.problems.term(X, Y, "logistic", 1), inner_tilt=2.0)
    with pytest.raises(nx.SettingError, match="tilt cannot become 0 here: build the problem"):
        nx.problems.with_tilts(nx.problems.term(X, Y, "logistic", 1), tilt=0.0)


# Real data


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif("NESTAX_DATA" not in os.environ, reason="REAL DATA NOT CHECKED: set NESTAX_DATA")
def test_cleavage_of_hiv_1_with_a_rare_class_and_wrong_labels():
    """The recipe of the TERM paper's code, first split: 1 : 20, 1,500 of 4,385 labels drawn anew."""
    X, y = hiv1()
    old = np.random.RandomState
    order = old(0).permutation(len(y))
    X, y = X[order], y[order]
    train, test = slice(int(0.8 * len(y))), slice(int(0.9 * len(y)), None)
    X_test, y_test, X, y = X[test], y[test], X[train], y[train]
    common, rare = np.flatnonzero(y == 0), np.flatnonzero(y == 1)
    kept = np.concatenate([common, rare[: int(0.05 * len(common))]])
    kept = kept[old(123456).permutation(len(kept))]
    X, y = X[kept], y[kept]
    y[:1500] = old(0).choice([0, 1], 1500, p=[1 - y.mean(), y.mean()])
    assert len(y) == 4385

    problem = nx.problems.hierarchical_term(nx.problems.groups_of(X, y))
    full = nx.minimize(problem, nx.Exact(), optax.sgd(1.0), steps=3_000, record=["exact_value"])
    right = (X_test @ np.asarray(full.w) > 0) == y_test
    assert abs(full.records["exact_value"][-1] - 0.0933) < 1e-4
    assert abs(right[y_test == 1].mean() - 0.748) < 1e-3
    assert abs(right.mean() - 0.886) < 1e-3

    runs = nx.sweep(
        problem,
        lambda s: (nx.SMVR(beta=0.5), optax.sgd(s.lr)),
        settings=nx.grid(lr=[1.0]),
        seeds=5,
        steps=3_000,
        batch_size=8,
        record=["exact_value"],
    )
    right = (np.einsum("nd,sd->sn", X_test, runs.w[0]) > 0) == y_test
    print(runs.records["exact_value"][0, :, -1], right[:, y_test == 1].mean(1), right.mean(1))
    assert abs(runs.records["exact_value"][0, :, -1].mean() - 0.0929) < 3e-3
    assert abs(right[:, y_test == 1].mean() - 0.762) < 0.03
    assert abs(right.mean() - 0.885) < 0.01
