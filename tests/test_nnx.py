"""The module of Flax NNX against ``nx.track``; run by ``make test-torch``."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.compare import assert_same, flat
from tests.support.tracked import BETA, KINDS, STEPS, TOLERANCE, expected_of, steps_of

import nestax as nx

nnx = pytest.importorskip("flax.nnx")


def state_of(tracked):
    return tracked.memory.get_value()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", KINDS)
def test_fifty_steps(name, dtype):
    tracked = nx.nnx.Tracked(**KINDS[name].made_with, dtype=dtype)
    step = nnx.jit(lambda tracked, g, index, previous: tracked(g, index, previous))
    for now, expected in zip(steps_of(name, dtype), expected_of(name, dtype), strict=True):
        u = step(tracked, now.g, now.index, now.previous)
        assert u.dtype == dtype
        assert_same(u, expected.u, TOLERANCE[dtype])
    assert_same(flat(state_of(tracked)), flat(expected.state), TOLERANCE[dtype])


class Model(nnx.Module):
    def __init__(self):
        self.linear = nnx.Linear(3, 1, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
        self.tracked = nx.nnx.Tracked(beta=BETA)

    def inner(self, x):
        return jnp.mean(jnp.exp(self.linear(x)))

    def __call__(self, x):
        return jnp.log(self.tracked(self.inner(x)))


def test_in_a_model_it_has_the_fresh_derivative_and_no_weights_of_its_own():
    model = Model()
    x = np.random.default_rng(0).normal(size=(2, 6, 3))
    model(x[0])
    value, grad = nnx.jit(nnx.value_and_grad(lambda model: model(x[1])))(model)
    assert_same(value, jnp.log(state_of(model.tracked).value))
    by_hand = nnx.grad(lambda model: model.inner(x[1]))(model)
    assert_same(grad.linear.kernel[...], by_hand.linear.kernel[...] / jnp.exp(value))
    assert "tracked" not in grad


def test_in_eval_mode_nothing_is_remembered():
    model = Model()
    x = np.random.default_rng(0).normal(size=(2, 6, 3))
    model(x[0])
    before = flat(state_of(model.tracked))
    model.eval()
    assert_same(model(x[1]), jnp.log(model.inner(x[1])))
    assert_same(flat(state_of(model.tracked)), before)
    model.train()
    model(x[1])
    assert (flat(state_of(model.tracked)) != before).any()


def test_a_view_for_evaluation_remembers_nothing():
    model = Model()
    x = np.random.default_rng(0).normal(size=(2, 6, 3))
    model(x[0])
    before = flat(state_of(model.tracked))
    frozen = nnx.view(model, deterministic=True)
    assert_same(frozen(x[1]), jnp.log(model.inner(x[1])))
    assert_same(flat(state_of(model.tracked)), before)
    nnx.view(frozen, deterministic=False)(x[1])  # a view shares its variables
    assert (flat(state_of(model.tracked)) != before).any()


def test_resumed_in_the_middle_it_is_the_same(tmp_path):
    """Through Orbax, which Flax brings along."""
    import orbax.checkpoint as ocp

    name = "gains, table"
    tracked = nx.nnx.Tracked(**KINDS[name].made_with)
    steps = steps_of(name, "float64")
    with ocp.StandardCheckpointer() as files:
        for t, now in enumerate(steps):
            if t == STEPS // 2:
                files.save(tmp_path / "run", nnx.state(tracked))
                files.wait_until_finished()
            u = tracked(now.g, now.index, now.previous)
        again = nx.nnx.Tracked(**KINDS[name].made_with)
        nnx.update(again, files.restore(tmp_path / "run", nnx.state(again)))
    for now in steps[STEPS // 2 :]:
        u_again = again(now.g, now.index, now.previous)
    assert np.array_equal(u, u_again)


def test_what_cannot_be_is_refused_at_once():
    with pytest.raises(nx.SettingError, match=r"either beta=, a number in .0, 1., or gain='auto'"):
        nx.nnx.Tracked(n=3)
