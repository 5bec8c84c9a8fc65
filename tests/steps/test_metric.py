"""Steps that scale every entry end where they should under constraints, or are refused in a sentence."""

import functools
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.compare import assert_same
from tests.support.compiled import quick_jit

import nestax as nx
from nestax.parts.entries import bends, by_entry
from nestax.parts.step_rule import as_step

P = nx.projections
ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import optimisers  # noqa: E402

SIZE, STEPS = 5, 3000
RNG = np.random.default_rng(2)
Q = RNG.normal(size=(SIZE, 8))
Q = Q @ Q.T / 8 + 0.1 * np.eye(SIZE)
C = -Q @ RNG.dirichlet(np.full(SIZE, 0.5)) + 0.3 * RNG.normal(size=SIZE)
SETS = {
    "simplex": {"project": P.simplex},
    "box": {"project": functools.partial(P.box, lower=0.1, upper=0.3)},
    "budget": {"project": functools.partial(P.budget, lower=0.05, upper=0.4)},
    "ball": {"project": functools.partial(P.l2_ball, scale=0.3)},
    "l1 ball": {"project": functools.partial(P.l1_ball, scale=0.4)},
    "own": {"project": lambda w: P.simplex(w)},  # cannot be told a metric
    "clip": {"project": lambda w: w.clip(0.1, 0.3)},
    "prox": {"prox": nx.Prox.l1(0.1)},
    "own prox": {
        "prox": nx.Prox(lambda w: 0.1 * jnp.abs(w).sum(), lambda w, s: nx.Prox.l1(0.1).fn(w, s))
    },
    "free": {},
}
S = nx.steps
RULES = {
    "Adam": S.Adam,
    "AMSGrad": S.AMSGrad,
    "AdaGrad": S.AdaGrad,
    "RMSprop": S.RMSprop,
    "adagrad_mean": S.adagrad_mean,
    "adam_type": S.adam_type,
    "amsgrad_type": S.amsgrad_type,
    "adabound_type": S.adabound_type,
    "optax.adam": optax.adam,
    "optax.rmsprop": optax.rmsprop,
    "optax.adagrad": optax.adagrad,
}


def problem(kind, dtype=float):
    level = nx.Level(lambda w, x: x * (w @ jnp.asarray(Q, dtype) @ w / 2 + jnp.asarray(C, dtype) @ w))
    level = level.replace(data=jnp.ones(2, dtype))
    return nx.Problem([level], jnp.full(SIZE, 1 / SIZE, dtype), **SETS[kind])


def ends(kind, step, dtype=float, steps=STEPS):
    over = problem(kind, dtype)
    rule = as_step(step).ready(steps, over.dtype)
    rule.check(over)

    def move(carry, _):
        w, state = carry
        return rule.update(over, w, jnp.asarray(Q, dtype) @ w + jnp.asarray(C, dtype), {}, state), None

    run = lambda: jax.lax.scan(move, (over.w0, rule.init(over.w0)), length=steps)[0][0]
    return quick_jit(run)()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("kind", SETS)
def test_they_end_at_the_optimum(kind, name):
    if name.startswith("optax") and "prox" in kind:
        with pytest.raises(nx.ProblemError, match=r"nx\.steps\.Adam\(lr\)"):
            as_step(optax.adam(0.1)).check(problem(kind))
        return
    over = problem(kind)
    rate = 1.0 if "grad" in name.lower() else 0.1
    w = ends(kind, RULES[name](optax.cosine_decay_schedule(rate, STEPS)))
    mapped = over.proximal(w - (Q @ w + C), 1.0)  # a fixed point of the problem itself
    np.testing.assert_allclose(w, mapped, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("step", [S.Adam(0.03), optax.adam(0.03)], ids=["ours", "Optax's"])
def test_in_low_precision(step, dtype):
    w = ends("simplex", step, dtype, 500)
    assert w.dtype == dtype
    reference = ends("simplex", step, float, 500)
    np.testing.assert_allclose(w.astype(float), reference, atol=12 * float(jnp.finfo(dtype).eps) + 1e-4)


def test_one_step_by_hand():
    """Adam's first step has D = |g|: argmin lr⟨g, x⟩ + Σ|g|(x − w)²/2 over the simplex."""
    over = problem("simplex")
    g = jnp.asarray([1.0, 2.0, 4.0, 0.5, 1.0])
    for step in (S.adam_type(0.1, delta=1e-12), optax.rmsprop(0.01, 0.99, eps=1e-24)):
        rule = as_step(step).ready(1, over.dtype)
        w, _ = rule.update(over, over.w0, g, {}, rule.init(over.w0))
        ahead = over.w0 - 0.1 * np.sign(g)
        assert_same(w, P.simplex(ahead, metric=g), 1e-9)
        assert np.abs(w - over.w0).max() > 1e-3  # the Euclidean projection does not move at all
        assert_same(P.simplex(ahead), over.w0, 1e-12)


@pytest.mark.parametrize(
    "step",
    [optax.sgd(0.1), optax.sgd(0.1, 0.9), optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1))],
)
@pytest.mark.parametrize("kind", ["simplex", "ball", "own"])
def test_those_that_do_not_scale_entries_are_untouched(kind, step):
    over = problem(kind)
    rule = as_step(step)
    text = lambda fn: str(jax.make_jaxpr(fn)(over.w0, rule.init(over.w0)))

    def before(w, state):
        change, state = rule.optimizer.update(w, state, w, grad=w, value=1.0)
        return over.project(optax.apply_updates(w, change)), state

    assert text(lambda w, state: rule.update(over, w, w, {"value": 1.0}, state)) == text(before)


def test_what_treats_entries_by_themselves():
    w = {"a": jnp.ones(3), "b": jnp.ones((2, 2))}
    assert by_entry(lambda w: {"a": w["a"].clip(0), "b": jnp.maximum(w["b"], jnp.ones(2))}, w)
    assert not by_entry(lambda w: w | {"a": w["a"].clip(w["b"].sum())}, w)
    assert not by_entry(lambda w: w | {"a": jnp.roll(w["a"], 1)}, w)
    assert not by_entry(P.simplex, w)
    assert by_entry(lambda w: w | {"b": jnp.zeros((2, 2))}, w)


@pytest.mark.parametrize(
    ("optimizer", "bent"),
    [
        (optax.sgd(optax.cosine_decay_schedule(0.1, 9)), False),
        (optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)), False),
        (optax.chain(optax.zero_nans(), optax.sgd(0.1)), False),
        (optax.noisy_sgd(0.1, key=0), False),
        (optax.MultiSteps(optax.sgd(0.1), 2), False),
        (optax.contrib.dog(1.0), False),
        (optax.adam(0.1), True),
        (optax.lion(0.1), True),
        (optax.chain(optax.clip(1.0), optax.sgd(0.1)), True),
        (optax.inject_hyperparams(optax.adam)(learning_rate=0.1), True),
    ],
)
def test_what_bends_the_direction(optimizer, bent):
    optimizer = optax.with_extra_args_support(optimizer)
    for w in (jnp.ones(3), {"a": jnp.ones(3), "b": jnp.ones((2, 2))}):
        assert (
            bends(lambda g, state, w=w: optimizer.update(g, state, w)[0], w, optimizer.init(w)) == bent
        )


def test_factors_of_single_arrays_are_refused_where_a_set_couples_them():
    w0 = {"a": jnp.full(2, 0.25), "b": jnp.full(2, 0.25)}
    level = nx.Level(lambda w, x: x * (jnp.sum(w["a"] ** 2) + jnp.sum(w["b"])), jnp.ones(2))
    coupled = nx.Problem([level], w0, project=P.simplex)
    as_step(optax.sgd(0.1)).check(coupled)
    as_step(optax.adam(0.1)).check(coupled)
    with pytest.raises(
        nx.SettingError, match="scales every array of the weights by a factor of its own"
    ):
        as_step(optax.lars(0.1)).check(coupled)


# Through minimize and sweep


def test_a_run_and_a_sweep_with_noise_end_near_the_optimum():
    over = nx.problems.mean_deviation(nx.datasets.synthetic_returns(200, 4))
    least = nx.minimize(over, nx.Exact(), optax.sgd(0.1), steps=2000, record=["exact_value"])
    runs = nx.sweep(
        over,
        lambda s: (nx.SelfTuning(), optax.adam(s.lr)),
        settings=nx.grid(lr=[0.003, 0.01]),
        seeds=2,
        steps=1500,
        batch_size=16,
        record=["exact_value"],
    )
    gaps = runs.records["exact_value"][:, :, -1] - least.records["exact_value"][-1]
    start = least.records["exact_value"][0] - least.records["exact_value"][-1]
    assert gaps.max() < 0.05 * start


def test_squares_of_plain_batches(tmp_path):
    over = nx.problems.mean_deviation(nx.datasets.synthetic_returns(200, 4))
    common = {"steps": 40, "batch_size": 1, "record": ["value"]}
    rule = S.Adam(0.01, squares="plain")
    run = nx.minimize(over, nx.SelfTuning(), rule, checkpoint=tmp_path, **common)
    own = nx.minimize(over, nx.SelfTuning(), S.Adam(0.01), steps=40, batch_size=1, record=["value"])
    assert np.abs(run.w - own.w).max() > 1e-6
    kept = nx.Checkpoint(tmp_path, resume=True)
    again = nx.minimize(over, nx.SelfTuning(), rule, checkpoint=kept, **common)
    assert np.array_equal(run.w, again.w)
    plain = nx.minimize(over, nx.Plain(), S.Adam(0.01, squares="plain"), steps=9, batch_size=4)
    same = nx.minimize(over, nx.Plain(), S.Adam(0.01), steps=9, batch_size=4)
    assert np.array_equal(plain.w, same.w)  # nothing at hand: the gradient itself
    with pytest.raises(nx.SettingError, match="squares must be one of own, plain"):
        S.Adam(0.01, squares="batch")


def test_settings_of_a_set_are_data():
    """Other bounds and totals are the same program."""
    run = lambda total: nx.minimize(
        nx.Problem(
            problem("free").levels,
            jnp.full(SIZE, 1 / SIZE),
            project=jax.tree_util.Partial(P.simplex, total=jnp.asarray(total)),
        ),
        nx.SMVR(beta=0.1),
        S.Adam(0.01),
        steps=3,
        batch_size=2,
        record=["value"],
    )
    from nestax.programs import TRACES

    assert float(run(1.0).w.sum()) == pytest.approx(1)
    before = dict(TRACES)
    assert float(run(2.0).w.sum()) == pytest.approx(2)
    assert before == TRACES


def test_schedule_free_weights_are_those_of_their_average():
    free = problem("free")
    method = optax.contrib.schedule_free_sgd(0.1)
    run = nx.minimize(free, nx.Exact(), method, steps=300, record=["exact_value"])
    state, w = method.init(free.w0), free.w0
    for _ in range(300):
        change, state = method.update(free.value_and_grad(w)[1], state, w)
        w = optax.apply_updates(w, change)
    assert_same(run.w, optax.contrib.schedule_free_eval_params(state, w), 1e-9)
    assert_same(run.records["exact_value"][-1], free.value(run.w), 1e-9)


def test_what_an_optimiser_evaluates_itself():
    free = problem("free")
    run = nx.minimize(free, nx.Exact(), optax.lbfgs(), steps=20, record=["exact_value"])
    assert_same(run.w, -np.linalg.solve(Q, C), 1e-6)
    with pytest.raises(nx.SettingError, match="takes F without noise"):
        nx.minimize(free, nx.SMVR(beta=0.1), optax.lbfgs(), steps=3)
    with pytest.raises(nx.SettingError, match="takes F without noise"):
        nx.minimize(free, nx.Plain(), optax.contrib.sophia(0.1), steps=3)
    with pytest.raises(nx.SettingError, match="by a matrix"):
        nx.minimize(problem("simplex"), nx.Exact(), optax.lbfgs(), steps=3)


# Every optimiser of Optax, as docs/optimisers.md says


def told():
    page = (ROOT / "docs" / "optimisers.md").read_text()
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \| (.+?) \|$", page, re.M)
    return {name: dict(zip(optimisers.SETS, cells, strict=True)) for name, *cells in rows}


TOLD = told()


def test_the_page_has_all_of_them():
    assert set(TOLD) == set(optimisers.optimisers())


@pytest.mark.parametrize("kind", ["simplex", pytest.param("box", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(TOLD))
def test_it_arrives_or_is_refused_as_the_page_says(name, kind):
    left = optimisers.left(kind, optimisers.optimisers()[name])
    assert optimisers.told(left, []).split(" (")[0] == TOLD[name][kind].split(" (")[0]
