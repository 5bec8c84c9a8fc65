"""Multilevel Monte Carlo against its formula, its mean against ∇F, and what is said where it applies."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.compare import assert_same

import nestax as nx
from nestax.estimators.multilevel import DOUBLINGS
from nestax.loop.plan import Meter
from nestax.parts.estimator import draw_batches

KEY = jax.random.key(0)
VISIT = 3
OUTER = nx.Sampler(lambda key: 1 + 0.5 * jax.random.normal(key))


def chain(outer=OUTER, visit=VISIT):
    """E ξ(E w ξ + η)⁴ with η ~ N(0, 1): w⁴ E ξ⁵."""
    first = nx.Conditional(outer, lambda xi, key: jax.random.normal(key), visit=visit)
    return nx.Problem(
        [
            nx.Level(lambda w, draw: w * draw[0] + draw[1], first, name="inner"),
            nx.Level(lambda u, xi: xi * u**4, nx.Conditional(outer, visit=visit), name="outer"),
        ],
        jnp.asarray(0.7),
    )


def by_loops(problem, w, visits, size):
    """Value and gradient of every block from all parts of its draws, and the mean over blocks."""
    keys = visits.index
    u = float(jax.random.uniform(jax.random.fold_in(keys[0, 0], DOUBLINGS)))
    n = int(np.floor(-np.log(u) / np.log(3)))
    values, grads = [], []
    for number in range(VISIT):
        xi = float(OUTER.fn(visits.blocks[number]))
        draws = np.asarray(
            [
                [float(jax.random.normal(jax.random.fold_in(keys[number, b], k))) for b in range(size)]
                for k in range(2**n)
            ]
        )

        def plugged(parts, xi=xi):
            u = w * xi + parts.mean()
            return np.asarray([xi * u**4, 4 * xi**2 * u**3])

        both = plugged(draws[:1])
        if n:
            half = 2 ** (n - 1)
            difference = plugged(draws) - (plugged(draws[:half]) + plugged(draws[half:])) / 2
            both = both + 1.5 * 3**n * difference
        values.append(both[0])
        grads.append(both[1])
    return n, np.mean(values), np.mean(grads)


def test_transcription():
    """Steps with no doubling, with one and with more."""
    problem, method, size, seen = chain(), nx.Multilevel(), 2, set()
    look = eqx.filter_jit(
        lambda t: (
            method.init(problem, problem.w0, b := draw_batches(problem, method, KEY, t, (size, 0))),
            b,
        )
    )
    for t in range(12):
        (estimate, _), batches = look(jnp.asarray(t))
        n, value, grad = by_loops(problem, 0.7, batches[0]["value"], size)
        assert_same(estimate.value, value, 1e-10)
        assert_same(estimate.grad, grad, 1e-10)
        seen.add(n)
    assert len(seen) >= 3


def test_the_mean_is_the_gradient_and_that_of_plain_batches_is_not():
    """Of 1,500 steps; a step visits 64 outer draws, with two inner draws each."""
    problem = chain(visit=64)
    fifth = np.mean((1 + 0.5 * np.random.default_rng(0).normal(size=2_000_000)) ** 5)
    truth = 4 * 0.7**3 * fifth
    for method, fine in ((nx.Multilevel(), True), (nx.Plain(), False)):
        draw = lambda t, m=method: draw_batches(problem, m, KEY, t, (2, 0))
        one = lambda t, m=method, draw=draw: m.init(problem, problem.w0, draw(t))[0].grad
        grads = np.asarray(jax.jit(lambda ts, one=one: jax.lax.map(one, ts))(jnp.arange(1_500)))
        off = abs(grads.mean() - truth) / (grads.std() / len(grads) ** 0.5)
        assert bool(off < 3.5) is fine, off


def test_samples_are_two_batches_on_average():
    meter = Meter(chain(), nx.Multilevel(), (4, 0), (4, 0))
    assert meter.per_step.samples == 2 * VISIT * 4


@pytest.mark.slow
def test_lanes_agree_with_runs_and_nothing_depends_on_chunks():
    problem = chain()
    settings = {"steps": 8, "batch_size": 2, "record": ["value"], "progress": False}
    run = nx.minimize(problem, nx.Multilevel(), optax.sgd(1e-3), record_every=8, **settings)
    parts = nx.minimize(problem, nx.Multilevel(), optax.sgd(1e-3), record_every=2, **settings)
    assert_same(run.w, parts.w)
    lanes = nx.sweep(
        problem,
        lambda s: (nx.Multilevel(), optax.sgd(s.lr)),
        settings=nx.grid(lr=[1e-3, 2e-3]),
        seeds=2,
        record_every=2,
        **settings,
    )
    assert_same(lanes.records["value"][0, 0], parts.records["value"], 1e-9)


def test_rows_that_come_back_may_be_outer_draws_too():
    rows = jnp.asarray([0.5, 1.0, 2.0])
    problem = chain(rows, visit=2)
    run = nx.minimize(problem, nx.Multilevel(), optax.sgd(3e-3), steps=100, batch_size=4, progress=False)
    assert abs(run.w) < 0.6
    nx.minimize(problem, nx.SOX(0.3, 0.3), optax.sgd(1e-3), steps=3, batch_size=4, progress=False)


def test_where_blocks_never_come_back_every_method_with_memory_says_so():
    problem = chain()
    for method in (
        nx.SOX(),
        nx.MSVR(),
        nx.BlockSMVR(),
        nx.PerBlock(nx.SCSC(0.1)),
        nx.SMVR(),
        nx.Exact(),
    ):
        with pytest.raises(nx.ProblemError, match=r"never come back, .* nx.Multilevel\(\)"):
            nx.minimize(problem, method, optax.sgd(0.1), steps=3)
    report = nx.check(problem)
    assert "outer draws never come back" in report.advice[0]
    assert "no memory can remove that, and nx.Multilevel() does" in report.memory[0]
    assert "endless blocks" in str(problem)
    default = nx.minimize(problem, optimizer=optax.sgd(1e-3), steps=2, batch_size=2, progress=False)
    assert default.records["samples"][-1] == 2 * VISIT * 2 * 2 + default.records["samples"][0]


def test_rows_are_refused():
    rows = nx.Conditional(jnp.ones(4), jnp.ones(4), visit=2)
    problem = nx.Problem([nx.Level(lambda w, d: w * d[0], rows), nx.Level(jnp.square)], jnp.ones(()))
    with pytest.raises(nx.ProblemError, match="all levels that draw need a simulator"):
        nx.minimize(problem, nx.Multilevel(), optax.sgd(0.1), steps=3)
