"""What a run reports as its cost, and what it really evaluates."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.cases import noisy, rng_of
from tests.support.drive import BATCH, FIRST_BATCH, STEPS, draws_at
from tests.support.methods import core_methods

import nestax as nx
from nestax.loop.plan import Meter

# Per draw and step: passes, value calls, derivative calls.
TABLE = {
    "SMVR": (1, 2, 2),
    "AdjointSMVR fresh": (2, 2, 2),
    "AdjointSMVR lagged": (1, 3, 2),
    "AdjointSMVR reuse": (1, 2, 2),
    "ProductSMVR fresh": (2, 2, 2),
    "ProductSMVR lagged": (1, 3, 2),
    "ProductSMVR reuse": (1, 2, 2),
    "Plain": (1, 1, 1),
}


def cost_columns(records):
    return np.stack([records[c] for c in ("samples", "value_calls", "derivative_calls")], axis=1)


def expected_cost(estimator, levels, steps):
    passes, values, derivatives = TABLE[estimator]
    start = levels * FIRST_BATCH * np.asarray([passes, 1, 1])
    return start + levels * BATCH * np.outer(steps, [passes, values, derivatives])


def test_minimize_reports_draws_and_calls():
    """Two of the portfolio's three levels are stochastic."""
    case = noisy("portfolio")
    records = nx.minimize(
        case.problem,
        nx.SMVR(0.3),
        optax.sgd(case.lr),
        steps=STEPS,
        batch_size=BATCH,
        init_batch_size=FIRST_BATCH,
        record_every=2,
        record=["value"],
    ).records
    steps = np.arange(0, STEPS + 1, 2)
    np.testing.assert_array_equal(records["step"], steps)
    expected = expected_cost("SMVR", levels=2, steps=steps)
    np.testing.assert_array_equal(cost_columns(records), expected)


@pytest.mark.parametrize("estimator", TABLE)
def test_every_estimator_declares_its_cost(estimator):
    problem = noisy("portfolio").problem
    meter = Meter(problem, core_methods()[estimator], (BATCH,) * 3, (FIRST_BATCH,) * 3)
    for steps in (0, 1, 7):
        cost = meter.after(meter.start, 0, steps)
        np.testing.assert_array_equal(cost, expected_cost(estimator, 2, [steps])[0])


def test_snapshots_count_the_population():
    case = noisy("one_level")
    records = nx.minimize(
        case.problem,
        nx.SnapshotSMVR(0.3, period=5),
        optax.sgd(case.lr),
        steps=STEPS,
        batch_size=BATCH,
        record=["value"],
    ).records
    rows, step = 40 * np.ones(3), BATCH * np.asarray([1, 3, 3])
    expected = [rows * (1 + t // 5) + step * (t - t // 5) for t in range(STEPS + 1)]
    np.testing.assert_array_equal(cost_columns(records), expected)


def test_exact_counts_the_population_at_every_step():
    problem = noisy("portfolio").problem
    meter = Meter(problem, nx.Exact(), (BATCH,) * 3, (FIRST_BATCH,) * 3)
    assert meter.after(meter.start, 0, 7) == (400 * 8, 400 * 8, 400 * 8)


# Calls counted while tracing


class Counted:
    """A level function that counts how often it is evaluated and how often differentiated."""

    def __init__(self, fn):
        self.values = self.derivatives = 0
        self.core = jax.custom_vjp(fn)

        def backward(saved, p):
            self.derivatives += 1
            return jax.vjp(fn, *saved)[1](p)

        self.core.defvjp(lambda x, draw: (fn(x, draw), (x, draw)), backward)

    def __call__(self, x, draw):
        self.values += 1
        return self.core(x, draw)

    def count(self):
        counted = (self.values, self.derivatives)
        self.values = self.derivatives = 0
        return counted


def counted_problem():
    """4 → 3 → 1: fewer outputs than inputs, so that Jacobians are taken in reverse mode."""
    rng = rng_of("counted")
    inner = Counted(lambda w, A: jnp.tanh(A @ w))
    outer = Counted(lambda u, c: c @ (u * u))
    problem = nx.Problem(
        [nx.Level(inner, rng.normal(size=(9, 3, 4))), nx.Level(outer, rng.normal(size=(9, 3)))],
        w0=rng.normal(size=4),
    )
    inner.count(), outer.count()
    return problem, (inner, outer)


@pytest.mark.parametrize("estimator", core_methods())
def test_declared_passes_are_the_calls_that_are_made(estimator):
    method = core_methods()[estimator]
    problem, functions = counted_problem()
    passes = method.passes
    batches = draws_at(problem, tuple(passes), 0, BATCH)

    _, state = jax.eval_shape(lambda b: method.init(problem, problem.w0, b), batches)
    once = len(passes), 1
    assert [f.count() for f in functions] == [once, once]

    jax.eval_shape(lambda b, s: method.update(problem, problem.w0, b, s), batches, state)
    declared = (
        sum(max(calls.values, calls.derivatives) for calls in passes.values()),
        sum(calls.derivatives for calls in passes.values()),
    )
    assert [f.count() for f in functions] == [declared, declared]
