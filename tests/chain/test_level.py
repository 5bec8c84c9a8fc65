"""Levels: structure read off the trace, batched forms, arguments, ranges."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nestax as nx
from nestax.chain.structure import analyse
from nestax.programs import TRACES

X = {"a": jax.ShapeDtypeStruct((3,), "float64"), "b": jax.ShapeDtypeStruct((), "float64")}
DRAW = jax.ShapeDtypeStruct((3,), "float64")


def structure(fn):
    found = analyse(fn, X, DRAW)
    return found.repeats, found.depends, found.noisy


def test_untouched_inputs_zero_blocks_and_noise_are_found():
    repeats, depends, noisy = structure(lambda x, r: (x["a"], r @ x["a"], x["b"] ** 2, r.sum()))
    assert repeats == (0, None, None, None)
    assert depends == ((True, False), (True, False), (False, True), (False, False))
    assert noisy == (False, True, False, True)


def test_structure_is_seen_through_jit():
    inner = jax.jit(lambda x, r: (x["b"], r @ x["a"]))
    assert structure(lambda x, r: inner(x, r)) == (
        (1, None),
        ((False, True), (True, False)),
        (False, True),
    )


def test_a_changed_input_is_not_taken_for_an_untouched_one():
    repeats, _, _ = structure(lambda x, r: (x["a"] * 1.0, x["a"][::-1], x["b"] + 0.0 * r[0]))
    assert repeats == (None, None, None)


def test_identity_blocks_cost_no_memory():
    problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(50, 30))
    result = nx.minimize(problem, nx.SMVR(0.1), optax.sgd(0.01), steps=1, record=["value"])
    first = result.carry.lane.state.jac[0]
    assert sum(x.size for x in jax.tree.leaves(first)) == 30
    assert first.dense().shape == (31, 30)


def network(w, draw):
    x, y = draw
    return w - 0.1 * jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(w)


def one_draw(w, draw):
    return network(w, jax.tree.map(lambda d: d[None], draw))


DATA = (np.random.default_rng(0).normal(size=(40, 3)), np.random.default_rng(1).normal(size=40))


def test_a_batched_level_agrees_with_its_one_draw_form():
    w = jnp.asarray([0.3, -1.0, 0.5])
    single = nx.Level(one_draw, DATA, name="step")
    nx.testing.check_batched(nx.Level(network, DATA, name="step", batched=True), single, w)
    wrong = nx.Level(lambda w, d: network(w, d) * 1.001, DATA, name="step", batched=True)
    with pytest.raises(AssertionError, match="batched form of level 'step' has another value"):
        nx.testing.check_batched(wrong, single, w)


@pytest.mark.parametrize("estimator", [nx.SMVR(), nx.AdjointSMVR(), nx.SnapshotSMVR(period=5)])
def test_runs_with_batched_levels_equal_runs_without(estimator):
    chain = lambda step: nx.Problem(
        [step, nx.Level(lambda w: jnp.sum((w - 1.0) ** 2), name="goal")], jnp.zeros(3)
    )
    run = lambda step: nx.minimize(chain(step), estimator, optax.sgd(0.1), steps=12, batch_size=4).w
    batched = run(nx.Level(network, DATA, name="step", batched=True))
    np.testing.assert_allclose(batched, run(nx.Level(one_draw, DATA, name="step")), rtol=1e-10)


def test_batched_levels_refuse_unequal_weights():
    with pytest.raises(nx.ProblemError, match="batched=True needs draws of equal weight"):
        nx.Level(network, nx.Population(DATA, weights=np.arange(1.0, 41.0)), batched=True)


def test_args_are_leaves_so_changing_them_compiles_nothing():
    def scaled(w, r, factor):
        return factor * r * w

    problem = lambda factor: nx.Problem(
        [
            nx.Level(scaled, np.linspace(0.5, 1.5, 7), args=(factor,), name="scale"),
            nx.Level(lambda u: u**2, name="square"),
        ],
        jnp.asarray(1.0),
    )
    run = lambda p: nx.minimize(p, nx.SMVR(), optax.sgd(0.1), steps=3).w
    first, second = problem(1.0), problem(2.0)
    one = run(first)
    before = dict(TRACES)
    two = run(second)
    assert before == TRACES
    assert one != two
    np.testing.assert_array_equal(two, run(first.with_args(scale=(2.0,))))


def test_levels_may_be_equinox_modules():
    import equinox as eqx

    class Affine(eqx.Module):
        slope: jax.Array

        def __call__(self, w, r):
            return self.slope * w + r

    problem = nx.Problem(
        [
            nx.Level(Affine(jnp.asarray(2.0)), np.linspace(-1.0, 1.0, 9), name="affine"),
            nx.Level(lambda u: (u - 3.0) ** 2, name="distance"),
        ],
        jnp.asarray(0.0),
    )
    result = nx.minimize(problem, nx.SnapshotSMVR(), optax.sgd(0.1), steps=200)
    np.testing.assert_allclose(result.w, 1.5, rtol=1e-6)
