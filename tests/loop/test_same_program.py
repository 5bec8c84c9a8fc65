"""A program is compiled once for runs that compute the same, and never used for one that does not."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.asked import asked

import nestax as nx
from nestax.programs import TRACES, settled

ROWS = np.random.default_rng(0).normal(size=(30, 3)) + 1
RISK = 0.2
TABLE = {"risk": 0.2}
STEPS = [0.2, 1.0]
WEIGHTS = np.full(3, 0.2)
module = types.ModuleType("settings_of_mine")
module.RISK = 0.2


class Settings:
    risk = 0.2


def helper(x):
    return RISK * x


def inner():
    return module.RISK


class Model:
    def __init__(self, risk):
        self.risk = risk

    def loss(self, w, r):
        return self.risk * jnp.sum((w - r) ** 2)


MODEL = Model(0.2)


def problem_of(fn, **more):
    return nx.Problem([nx.Level(fn, ROWS, name="loss")], w0=jnp.ones(3), **more)


def solve(problem, optimizer=None, steps=5, **options):
    optimizer = optimizer or optax.sgd(0.1)
    result = nx.minimize(problem, nx.Plain(), optimizer, steps=steps, batch_size=2, **asked(**options))
    return result.records["value"], np.asarray(result.w)


def change(monkeypatch, kind):
    """Changes what a function of the table below reads."""
    if kind in ("global", "function called", "nested function", "jitted call"):
        monkeypatch.setitem(globals(), "RISK", 2.0)
    elif kind in ("attribute of a module", "function called by that"):
        monkeypatch.setattr(module, "RISK", 2.0)
    elif kind == "attribute of a class":
        monkeypatch.setattr(Settings, "risk", 2.0)
    elif kind == "attribute of an object":
        monkeypatch.setattr(MODEL, "risk", 2.0)
    elif kind == "entry of a dictionary":
        monkeypatch.setitem(TABLE, "risk", 2.0)
    elif kind == "entry of a list":
        STEPS[0] = 2.0
    elif kind == "array in place":
        WEIGHTS[:] = 2.0


@pytest.fixture(autouse=True)
def _put_back():
    yield
    STEPS[0] = 0.2
    WEIGHTS[:] = 0.2


#: What is read, and a function that makes a new function that reads it.
READS = {
    "global": lambda: lambda w, r: RISK * jnp.sum((w - r) ** 2),
    "nested function": lambda: lambda w, r: (lambda x: RISK * x)(jnp.sum((w - r) ** 2)),
    "attribute of a module": lambda: lambda w, r: module.RISK * jnp.sum((w - r) ** 2),
    "attribute of a class": lambda: lambda w, r: Settings.risk * jnp.sum((w - r) ** 2),
    "attribute of an object": lambda: MODEL.loss,
    "entry of a dictionary": lambda: lambda w, r: TABLE["risk"] * jnp.sum((w - r) ** 2),
    "entry of a list": lambda: lambda w, r: STEPS[0] * jnp.sum((w - r) ** 2),
    "function called": lambda: lambda w, r: helper(jnp.sum((w - r) ** 2)),
    "function called by that": lambda: lambda w, r: inner() * jnp.sum((w - r) ** 2),
    "array in place": lambda: lambda w, r: jnp.sum(WEIGHTS * (w - r) ** 2),
}


@pytest.mark.parametrize("kind", READS)
@pytest.mark.parametrize("again", ["problem", "same problem"])
def test_a_change_of_what_a_function_reads_is_seen(kind, again, monkeypatch):
    """In a new problem with new functions, and in the same problem."""
    first = problem_of(READS[kind]())
    before, _ = solve(first)
    np.testing.assert_array_equal(solve(first)[0], before)
    change(monkeypatch, kind)
    after, _ = solve(problem_of(READS[kind]()) if again == "problem" else first)
    np.testing.assert_allclose(after[0], 10 * before[0], rtol=1e-12)  # 2.0 for 0.2


def test_default_arguments_count():
    make = lambda k: lambda w, r, k=k: k * jnp.sum((w - r) ** 2)
    one, other = solve(problem_of(make(1.0)))[0], solve(problem_of(make(2.0)))[0]
    np.testing.assert_allclose(other[0], 2 * one[0], rtol=1e-12)


@pytest.mark.parametrize("part", ["project", "penalty", "exact", "metrics", "w0", "range", "sampler"])
@pytest.mark.filterwarnings("ignore::nestax.ConvergenceWarning")
def test_every_function_of_a_problem_is_looked_at(part, monkeypatch):
    loss = lambda w, r: jnp.sum((w - r) ** 2)

    def run():
        more, level = {}, nx.Level(loss, ROWS)
        if part == "project":
            more["project"] = lambda w: RISK * w
        elif part == "penalty":
            more["penalty"] = lambda w: RISK * w @ w
        elif part == "exact":
            more["exact"] = lambda w: RISK * w @ w
        elif part == "metrics":
            more["metrics"] = {"own": lambda w: RISK * w @ w}
        elif part == "range":
            level = nx.Level(loss, ROWS, project=lambda v: RISK * v)
        elif part == "sampler":
            level = nx.Level(loss, nx.Sampler(lambda key: RISK * jax.random.normal(key, (3,))))
        w0 = (lambda key: RISK * jnp.ones(3)) if part == "w0" else jnp.ones(3)
        problem = nx.Problem([level], w0, **more)
        result = nx.minimize(problem, nx.Plain(), optax.sgd(0.1), steps=3, batch_size=2)
        return np.concatenate([np.ravel(c) for c in result.records.values()])

    before = run()
    np.testing.assert_array_equal(run(), before)
    monkeypatch.setitem(globals(), "RISK", 2.0)
    assert not np.array_equal(run(), before)


def test_a_method_of_ones_own_is_looked_at(monkeypatch):
    class Mine(nx.Plain):
        def update(self, problem, w, batches, state):
            estimate, state = nx.Plain().update(problem, w, batches, state)
            return nx.Estimate(
                estimate.value, jax.tree.map(lambda g: RISK * g, estimate.grad), {}
            ), state

    problem = nx.problems.convex_chain(levels=1)
    run = lambda: nx.minimize(problem, Mine(), nx.steps.Descent(0.1), steps=4, batch_size=2).w
    before = run()
    traced = dict(TRACES)
    np.testing.assert_array_equal(run(), before)
    assert traced == TRACES
    monkeypatch.setitem(globals(), "RISK", 2.0)
    assert not np.array_equal(run(), before)


def test_sweeps_evaluations_and_checks_see_it_too(monkeypatch):
    problem = problem_of(lambda w, r: RISK * jnp.sum((w - r) ** 2), exact=lambda w: w @ w)
    sweep = lambda: nx.sweep(
        problem,
        lambda s: (nx.Plain(), optax.sgd(s.lr * RISK)),
        settings=nx.grid(lr=[0.1]),
        seeds=1,
        steps=3,
        batch_size=2,
    ).records["value"]
    w = jnp.zeros(3)
    before = sweep(), nx.evaluate(problem, w).value, nx.check(problem).exact_error
    monkeypatch.setitem(globals(), "RISK", 2.0)
    after = sweep(), nx.evaluate(problem, w).value, nx.check(problem).exact_error
    assert before[0][0, 0, 0] * 10 == pytest.approx(after[0][0, 0, 0])
    assert before[1] * 10 == pytest.approx(after[1])
    assert before[2] != after[2]


def test_a_run_on_disk_is_refused_after_such_a_change(monkeypatch, tmp_path):
    problem = problem_of(READS["global"]())
    keep = {"checkpoint": tmp_path, "steps": 40}
    solve(problem, **keep)
    solve(problem, resume=True, **keep)
    monkeypatch.setitem(globals(), "RISK", 2.0)
    with pytest.raises(nx.SettingError, match="holds another run: a function, or a number inside"):
        solve(problem, resume=True, **keep)


def test_a_run_on_disk_is_refused_after_an_array_was_changed_in_place(tmp_path):
    problem = problem_of(READS["array in place"]())
    solve(problem, checkpoint=tmp_path)
    WEIGHTS[0] = 3.0
    with pytest.raises(nx.SettingError, match="array 1 that functions have closed over"):
        solve(problem, checkpoint=tmp_path, resume=True)


def test_every_array_that_functions_have_closed_over_is_looked_at(tmp_path):
    """Whichever function of a run has it: here a level has one, and a metric another."""
    other = np.ones(3)
    problem = problem_of(READS["array in place"](), metrics={"own": lambda w: other @ w})
    keep = {"checkpoint": tmp_path, "record": ["value", "own"]}
    solve(problem, **keep)
    for array in (WEIGHTS, other):
        array[0] *= 2
        with pytest.raises(nx.SettingError, match=r"array \d that functions have closed over"):
            solve(problem, resume=True, **keep)
        array[0] /= 2
    solve(problem, resume=True, **keep)


# What is not compiled again


def traces_of(*calls):
    out = []
    for call in calls:
        before = sum(TRACES.values())
        call()
        out.append(sum(TRACES.values()) - before)
    return out


OPTIMIZERS = {
    "sgd": optax.sgd,
    "momentum": lambda lr: optax.sgd(lr, momentum=10 * lr),
    "adam": optax.adam,
    "adam with other decays": lambda lr: optax.adam(lr, b1=9 * lr, b2=0.9 + lr, eps=lr),
    "adamw": lambda lr: optax.adamw(lr, weight_decay=lr),
    "a schedule": lambda lr: optax.adam(optax.cosine_decay_schedule(lr, int(1000 * lr))),
    "pieces": lambda lr: optax.sgd(optax.piecewise_constant_schedule(lr, {int(100 * lr): 0.5})),
    "injected": lambda lr: optax.inject_hyperparams(optax.adam)(learning_rate=lr),
    "a chain": lambda lr: optax.chain(optax.clip_by_global_norm(10 * lr), optax.scale(-lr)),
    "nestax's own": nx.steps.Descent,
    "a schedule of nestax's own": lambda lr: nx.steps.Descent(lambda count: lr / (1 + count)),
    "one that asks for the horizon": lambda lr: nx.steps.Descent(lambda t, n: lr * (1 - t / n)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_another_learning_rate_compiles_nothing(name, monkeypatch):
    make = OPTIMIZERS[name]
    problem = problem_of(lambda w, r: jnp.sum((w - r) ** 2))
    one, other = solve(problem, make(0.01))[1], None

    def again():
        nonlocal other
        other = solve(problem, make(0.05))[1]

    assert traces_of(again) == [0]
    assert not np.array_equal(one, other)
    monkeypatch.setattr("nestax.programs._KEPT", {})  # no program is left
    assert traces_of(lambda: np.testing.assert_array_equal(other, solve(problem, make(0.05))[1])) != [0]


@pytest.mark.parametrize("estimator", [nx.SMVR(0.1), nx.SMVR(), nx.SCSC(), nx.NLASG()], ids=repr)
def test_another_number_of_steps_compiles_nothing(estimator):
    """Records, and schedules that ask for the length of the run, follow it."""
    problem = nx.problems.convex_chain(levels=2)
    run = lambda steps, **more: nx.minimize(problem, estimator, steps=steps, batch_size=2, **more)
    run(50)
    assert traces_of(lambda: run(700), lambda: run(1234), lambda: run(99, record_every=7)) == [0, 0, 0]


def test_a_number_that_changes_the_program_compiles_again():
    """Nesterov's momentum, or none at all, is another computation and not another number."""
    problem = problem_of(lambda w, r: jnp.sum((w - r) ** 2))
    solve(problem, optax.sgd(0.1, momentum=0.9))
    assert min(traces_of(lambda: solve(problem, optax.sgd(0.1, momentum=0.9, nesterov=True)))) > 0


def test_functions_written_anew_are_found_again():
    run = lambda: solve(problem_of(lambda w, r: jnp.sum(jnp.abs(w - r)) * 1.25))
    run()
    assert traces_of(run, run) == [0, 0]


def test_networks_are_found_again():
    """Activations have derivatives of their own, which every trace makes anew."""

    def run(lr):
        net = lambda w, r: jnp.sum(jax.nn.gelu(jax.nn.relu(r @ w) @ w)) ** 2
        levels = [nx.Level(net, ROWS), nx.Level(jax.nn.softplus)]
        problem = nx.Problem(levels, w0=jnp.ones((3, 3)), exact=jnp.sum)
        nx.minimize(problem, nx.SCSC(0.1), optax.adam(lr), steps=3, batch_size=2)

    run(0.1)
    assert traces_of(lambda: run(0.1), lambda: run(0.2)) == [0, 0]


def test_closed_over_arrays_are_arguments_and_not_kept():
    """Another array of the same shape is the same program."""
    make = lambda scale: problem_of(lambda w, r: jnp.sum(scale * (w - r) ** 2))
    one = solve(make(np.ones(3)))[0]
    other = []
    assert traces_of(lambda: other.append(solve(make(np.full(3, 2.0)))[0])) == [0]
    np.testing.assert_allclose(other[0][0], 2 * one[0], rtol=1e-12)


# Code that stays as it is


def test_settled_code_has_a_key_and_any_other_has_none():
    assert settled(optax.adam(0.1)) == settled(optax.adam(0.1))
    assert settled(optax.adam(0.1)) != settled(optax.adam(0.2))
    assert settled(optax.adam(0.1)) != settled(optax.adam(0.1, b1=0.8))
    assert settled(functools.partial(jnp.clip, min=0)) == settled(functools.partial(jnp.clip, min=0))
    assert settled(jax.tree_util.Partial(jnp.sin)) == settled(jax.tree_util.Partial(jnp.sin))
    assert settled(jax.nn.relu) is not None
    ours = [
        helper,
        MODEL.loss,
        lambda x: x,
        optax.sgd(lambda count: 0.1),
        functools.partial(helper, 1),
        jax.tree_util.Partial(helper),
        jax.jit(helper),
        [].append,
        np.ones(3),
        {"a": helper},
    ]
    assert [settled(thing) for thing in ours] == [None] * len(ours)


def test_ready_problems_are_not_traced_again_at_all(monkeypatch):
    make = lambda seed: nx.problems.mean_deviation(nx.datasets.synthetic_returns(50, 4, seed=seed))
    nx.minimize(make(0), nx.SMVR(0.1, lr=0.1), steps=3, batch_size=2)
    refuse = lambda *args, **more: pytest.fail("traced again")
    monkeypatch.setattr("nestax.loop.core.trace", refuse)
    nx.minimize(make(1), nx.SMVR(0.2, lr=0.3), steps=7, batch_size=2)


def test_no_class_of_the_library_hides_a_function_in_its_structure():
    """Static fields are compared as they are, so that none may hold code of the user."""
    import dataclasses
    import importlib
    import pkgutil

    import equinox as eqx

    for found in pkgutil.walk_packages(nx.__path__, "nestax."):
        optional = ("nestax.sklearn", "nestax.nnx", "nestax.torch")
        if found.name.startswith(("nestax.cli", "nestax.__main__", *optional)):
            continue
        for cls in vars(importlib.import_module(found.name)).values():
            if isinstance(cls, type) and issubclass(cls, eqx.Module):
                static = [f for f in dataclasses.fields(cls) if f.metadata.get("static")]
                assert not any("Callable" in str(f.type) for f in static), cls
