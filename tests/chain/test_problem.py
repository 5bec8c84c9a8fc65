"""Chains that fit and chains that do not; what is exact about them."""

import traceback
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nestax as nx
from nestax.chain.jacobian import Jacobian

ROWS = np.linspace(-1.0, 1.3, 12).reshape(4, 3)


def level(fn=lambda x, r: jnp.tanh(x * r), data=ROWS, **rest):
    return nx.Level(fn, data, **({"name": "inner"} | rest))


def outer(fn=lambda u: jnp.sum(u**2)):
    return nx.Level(fn, name="outer")


def test_an_error_in_a_level_keeps_the_line_that_raised_it():
    def helper(table):
        return table["misspelt"]

    def level(w, row):
        return helper({"spelt": w}) @ row

    with pytest.raises(nx.ProblemError, match=r"cannot take the value before it.*'misspelt'") as told:
        nx.Problem([nx.Level(level, data=jnp.ones((3, 2)))], jnp.zeros(2))
    lines = traceback.extract_tb(told.value.__cause__.__traceback__)
    assert [line.name for line in lines] == ["level", "helper"]
    with pytest.raises(nx.ProblemError, match="cannot take") as told:  # nothing of it is the user's
        nx.Problem([nx.Level(jnp.dot, data=jnp.ones((3, 2)))], jnp.zeros(4))
    assert told.value.__cause__ is None


def test_the_weights_of_a_network_are_described_in_a_line():
    w = {f"layer {k}": {"weight": jnp.zeros((64, 64)), "bias": jnp.zeros(64)} for k in range(12)}
    level = nx.Level(lambda w, r: jnp.sum(w["layer 1"]["bias"] * r), jnp.ones((3, 64)), name="loss")
    weights = nx.Problem([level], w).describe().splitlines()[0]
    dtype = jnp.zeros(()).dtype
    assert weights == f"  w            weights        dict of 24 arrays, 49,920 numbers, {dtype}"


def test_describe_prints_the_chain():
    problem = nx.Problem(
        [
            nx.Level(lambda w, r: {"mean": r @ w["x"], "x": w["x"]}, ROWS, name="mean"),
            nx.Level(lambda u, k: u["mean"] * k, nx.Sampler(jax.random.normal), name="noise"),
            nx.Level(lambda u: u**2, name="square"),
        ],
        w0={"x": jnp.ones(3)},
    )
    assert problem.describe().splitlines() == [
        "  w            weights        {x: float64[3]}",
        "  mean         4 rows         {mean: float64[], x: float64[3]}",
        "  noise        sampler        float64[]",
        "  square       deterministic  float64[]",
    ]
    terms = {"prox": nx.Prox.l1(0.1), "penalty": lambda w: w["x"] @ w["x"]}
    extra = nx.Problem(problem.levels, problem.w0, **terms)
    assert extra.describe() == f"{problem.describe()}\n  with prox, penalty"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: nx.Problem([], jnp.ones(3)), "a list of at least one nx.Level"),
        (lambda: nx.Problem([level()], jnp.ones(3)), "must return one scalar"),
        (lambda: nx.Problem([level(), outer(lambda u: (jnp.sum(u),))], jnp.ones(3)), "one scalar"),
        (
            lambda: nx.Problem([level(), outer()], jnp.ones(4)),
            "level 'inner' cannot take the value",
        ),
        (lambda: nx.Problem([level(), outer()], jnp.ones(3, int)), "w0 must hold floating-point"),
        (lambda: nx.Problem([level(), outer()], np.arange(3)), "w0 must hold floating-point"),
        (
            lambda: nx.Problem([level(), outer()], {"a": jnp.ones(3), "b": jnp.ones(3, "float32")}),
            "of one dtype",
        ),
        (
            lambda: nx.Problem([level(lambda x, r: jnp.sign(x).astype(int)), outer()], jnp.ones(3)),
            "returns int64 where w is float64",
        ),
        (lambda: nx.Problem([outer()], jnp.ones(3)), "nothing to sample"),
        (lambda: nx.Problem([level(), level(), outer()], jnp.ones(3)), "level names must differ"),
        (
            lambda: nx.Problem([level(), outer()], jnp.ones(3), linear_oracle=jnp.argmin),
            r"linear_oracle must return weights like w0, float64\[3\]; it returns int64\[\]",
        ),
        (
            lambda: nx.Problem([level(), outer()], jnp.ones(3), project=lambda w: w[:2]),
            r"project must return weights like w0, float64\[3\]; it returns float64\[2\]",
        ),
        (
            lambda: nx.Problem([level(), outer()], jnp.ones(3), prox=nx.Prox(jnp.sum, lambda w: w)),
            r"prox cannot take weights of shape float64\[3\]: .* 1 positional argument",
        ),
        (lambda: level(data=np.zeros((0, 3))), "data is empty"),
        (lambda: level(data={}), "holds no array"),
        (lambda: level(data=1.0), "one row per draw"),
        (lambda: level(data=(ROWS, ROWS[:2])), r"got lengths \[2, 4\]"),
        (lambda: level(data=np.where(ROWS > 1.2, np.nan, ROWS)), "first at row 3, column 2"),
        (lambda: level(data=np.where(ROWS < -0.9, np.inf, ROWS)), "first at row 0, column 0"),
        (lambda: nx.Level("mean", ROWS), "first argument is its function"),
        (lambda: nx.Population(ROWS, weights=[1, 2]), "one number per row"),
        (lambda: nx.Population(ROWS, weights=[1, 2, 0, 1]), "weights must be positive"),
        (lambda: nx.Population(ROWS, weights=[1] * 4, replace=False), "cannot be combined"),
        (lambda: nx.Groups([]), "at least one group"),
        (lambda: nx.Groups([ROWS, nx.Sampler(jax.random.normal)]), "group 1 must be a population"),
    ],
)
def test_bad_problems_get_one_sentence(make, sentence):
    with pytest.raises((nx.ProblemError, nx.SettingError), match=sentence) as caught:
        make()
    assert "Traceback" not in str(caught.value)


def test_a_chain_that_does_not_fit_is_printed():
    with pytest.raises(nx.ProblemError) as caught:
        nx.Problem([level(), outer(lambda u: u @ jnp.ones((7, 7)))], jnp.ones(3))
    text = str(caught.value)
    assert "w            weights        float64[3]" in text
    assert "inner        4 rows         float64[3]" in text
    assert "outer        <- does not fit" in text


def test_a_function_with_the_wrong_arguments_is_told_how_it_is_called():
    with pytest.raises(nx.ProblemError, match=r"called as fn\(x, draw, \*args\)"):
        nx.Problem([level(lambda x: x), outer()], jnp.ones(3))


def test_a_problem_prints_as_its_chain():
    assert repr(PROBLEM) == f"Problem\n{PROBLEM.describe()}"


def test_float64_weights_without_x64_are_refused():
    with jax.enable_x64(False), pytest.raises(nx.ProblemError, match="jax_enable_x64"):
        nx.Problem([level(), outer()], np.ones(3))


def test_the_weights_decide_the_dtype_of_everything():
    problem = nx.Problem([level(), outer()], jnp.ones(3, "float32"))
    assert problem.levels[0].source.data.dtype == jnp.float32
    result = nx.minimize(problem, nx.SMVR(radius=1.0), optax.adam(0.1), steps=3)
    floats = [x for x in jax.tree.leaves(result.carry.lane) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert {x.dtype for x in floats} == {jnp.dtype("float32")}


PROBLEM = nx.Problem([level(), outer()], jnp.asarray([0.5, -1.0, 2.0]))
MINIMIZE = {"problem": PROBLEM, "estimator": nx.SMVR(), "optimizer": optax.sgd(0.1), "steps": 2}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1; got 0"),
        ({"steps": 2.5}, "steps must be a whole number"),
        ({"steps": None}, "either steps or samples"),
        ({"samples": 100}, "either steps or samples"),
        ({"steps": None, "samples": 10}, "does not pay for one step"),
        ({"batch_size": 0}, "batch_size of level 'inner' must be a whole number of at least 1"),
        ({"batch_size": {"outer": 3}}, "exactly the levels that draw: inner; got outer"),
        ({"init_batch_size": -1}, "init_batch_size of level 'inner'"),
        ({"record_every": -5}, "record_every must be a whole number"),
        ({"record": ["loss"]}, "no column is called 'loss'; there are exact_value"),
        ({"record": ["gap"]}, "pass optimum="),
        ({"stop": nx.stop.Gap(0.1)}, "pass optimum="),
        ({"output": "best"}, "output must be one of last, random, average"),
        ({"optimizer": 0.1}, "such as optax.sgd"),
        ({"estimator": optax.sgd(0.1)}, "must be an estimator such as nx.SMVR"),
        ({"seed": "x"}, "seed must be a whole number"),
        ({"problem": "portfolio"}, "first argument must be an nx.Problem"),
        ({"stop": 3}, "stop must be a function of one record.* or a rule such as nx.stop.Gap"),
        ({"stop": nx.stop.Gap}, "stop must be a function of one record.* or a rule such as nx.stop.Gap"),
        ({"estimator": nx.SMVR(radius=[1.0, 2.0, 3.0])}, "got 3 for 2 levels"),
    ],
)
def test_bad_runs_get_one_sentence(changes, sentence):
    arguments = MINIMIZE | changes
    with pytest.raises(nx.SettingError, match=sentence):
        nx.minimize(arguments.pop("problem"), arguments.pop("estimator"), **arguments)


def test_bad_stop_rules_get_one_sentence():
    with pytest.raises(nx.SettingError, match="patience must be a whole number"):
        nx.stop.Patience(0)
    with pytest.raises(nx.SettingError, match="seconds must be positive"):
        nx.stop.Seconds(0)


@pytest.mark.parametrize("beta", [0.0, -0.1, 1.5, float("nan")])
@pytest.mark.parametrize("method", [nx.SMVR, nx.AdjointSMVR, nx.ProductSMVR, nx.SnapshotSMVR])
def test_beta_outside_its_range_is_refused(method, beta):
    with pytest.raises(nx.SettingError, match=r"beta must be in \(0, 1\]; got"):
        method(beta=beta)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: nx.SMVR(beta="0.1"), "beta must be in \\(0, 1\\]; got '0.1'"),
        (lambda: nx.SMVR(radius=0.0), "radius must be positive"),
        (lambda: nx.SMVR(ball="l1"), "ball must be one of frobenius, spectral"),
        (lambda: nx.AdjointSMVR(mode="shared"), "mode must be one of fresh, lagged, reuse"),
        (lambda: nx.SnapshotSMVR(period=0), "period must be a whole number"),
    ],
)
def test_bad_estimators_get_one_sentence(make, sentence):
    with pytest.raises(nx.SettingError, match=sentence):
        make()


def sampled():
    return nx.Problem(
        [
            nx.Level(lambda w, z: w + z, nx.Sampler(jax.random.normal), name="noise"),
            nx.Level(lambda u: u**2, name="square"),
        ],
        jnp.asarray(1.0),
    )


def test_a_sampler_has_no_exact_record():
    assert set(nx.minimize(sampled(), nx.SMVR(0.1), optax.sgd(0.1), steps=2).records) == {
        "step",
        "samples",
        "value_calls",
        "derivative_calls",
        "value",
        "moved",
        "left",
    }
    with pytest.raises(nx.SettingError, match=r"exact_value needs the population.* a Stream has none"):
        nx.minimize(sampled(), nx.SMVR(), optax.sgd(0.1), steps=2, record=["exact_value"])
    with pytest.raises(nx.ProblemError, match="a Sampler or a Stream does not have: use SMVR"):
        nx.minimize(sampled(), nx.SnapshotSMVR(), optax.sgd(0.1), steps=2)
    with pytest.raises(nx.ProblemError, match="a Sampler has no population"):
        sampled().value(jnp.asarray(1.0))


def test_copies_name_the_levels_they_do_not_find():
    with pytest.raises(nx.ProblemError, match="no level is called middle; the levels are inner, outer"):
        PROBLEM.with_data(middle=ROWS)


@pytest.mark.filterwarnings("ignore:Not moved")
def test_random_weights_differ_by_seed_and_repeat_with_it():
    problem = nx.Problem([level(), outer()], lambda key: jax.random.normal(key, (3,)))
    first = lambda seed: (
        nx.minimize(problem, nx.SMVR(), optax.sgd(0.0), steps=1, seed=seed, record=["value"]).w
    )
    np.testing.assert_array_equal(first(1), first(1))
    assert not np.array_equal(first(1), first(2))


class Wave(eqx.Module):
    """Weights that come with a function, and can be called."""

    shape: Callable
    length: jax.Array

    def __call__(self, r):
        return self.shape(self.length * r)


def test_a_tree_with_arrays_is_weights_even_if_it_can_be_called():
    wave = Wave(jnp.sin, jnp.asarray([0.5, -1.0, 2.0]))
    levels = [level(lambda w, r: w(r)), outer()]
    given = nx.Problem(levels, wave)
    assert given.shape.leaves == (((3,), "float64"),)
    drawn = nx.Problem(levels, lambda key: wave)
    results = [nx.minimize(p, nx.SMVR(), optax.sgd(0.1), steps=5).w for p in (given, drawn)]
    np.testing.assert_array_equal(*(w.length for w in results))
    np.testing.assert_allclose(results[0](2.0), np.sin(2.0 * results[0].length))
    assert not np.array_equal(results[0].length, wave.length)


def test_exact_values_gradients_and_jacobians_are_population_means():
    w = jnp.asarray([0.5, -1.0, 2.0])
    inner = jnp.tanh(w * ROWS).mean(axis=0)
    jac = jnp.diag(((1 - jnp.tanh(w * ROWS) ** 2) * ROWS).mean(axis=0))
    value, grad = PROBLEM.value_and_grad(w)
    np.testing.assert_allclose(PROBLEM.level_values(w)[0], inner, rtol=1e-13)
    np.testing.assert_allclose(value, (inner**2).sum(), rtol=1e-13)
    np.testing.assert_allclose(grad, jac @ (2 * inner), rtol=1e-12)
    np.testing.assert_allclose(PROBLEM.level_jacobians(w)[0].dense(), jac, rtol=1e-12)


def test_row_weights_are_probabilities():
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    problem = nx.Problem([level(data=nx.Population(ROWS, weights=weights)), outer()], jnp.ones(3))
    expected = np.average(np.tanh(ROWS), axis=0, weights=weights)
    np.testing.assert_allclose(problem.level_values(jnp.ones(3))[0], expected, rtol=1e-12)


def test_the_gradient_mapping_vanishes_exactly_at_constrained_optima():
    problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(400, 4), delta=1e-4)
    result = nx.minimize(problem, nx.Exact(), optax.sgd(0.3), steps=3000, record=["grad_norm"])
    assert result.records["grad_norm"][-1] < 1e-9
    _, grad = problem.value_and_grad(result.w)
    assert jnp.linalg.norm(grad) > 1e-3


def test_jacobians_push_and_pull_like_their_matrix():
    problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(40, 4))
    jac: Jacobian = problem.level_jacobians(problem.w0)[0]
    matrix = np.asarray(jac.dense())
    t = jnp.asarray([1.0, -2.0, 0.5, 3.0])
    p = (jnp.asarray(0.7), jnp.asarray([1.0, 2.0, -1.0, 0.3]))
    flat = lambda tree: jax.flatten_util.ravel_pytree(tree)[0]
    np.testing.assert_allclose(flat(jac.push(t)), matrix @ t, rtol=1e-13)
    np.testing.assert_allclose(flat(jac.pull(p)), matrix.T @ flat(p), rtol=1e-13)
    np.testing.assert_allclose(jac.square(), (matrix**2).sum(), rtol=1e-13)
    np.testing.assert_allclose(jac.scalable().dense(), matrix, rtol=0)
    np.testing.assert_allclose(jac.filled(jac.dense()).dense(), matrix, rtol=0)


def test_other_arguments_mean_another_closed_form():
    rows = nx.datasets.synthetic_returns(200, 4)
    changed = nx.problems.mean_deviation(rows, optimum=0.1).with_args(utility=(0.9, 1e-8))
    built = nx.problems.mean_deviation(rows, risk=0.9)
    np.testing.assert_allclose(changed.value(changed.w0), built.value(built.w0), rtol=1e-12)
    assert changed.optimum is None
