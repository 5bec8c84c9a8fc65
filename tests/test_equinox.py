"""The layer of Equinox against ``nx.track``."""

import io

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.compare import assert_same, flat
from tests.support.compiled import quick_jit
from tests.support.tracked import BETA, KINDS, STEPS, TOLERANCE, expected_of, steps_of

import nestax as nx

Tracked = nx.equinox.Tracked


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", KINDS)
def test_fifty_steps(name, dtype):
    layer, state = eqx.nn.make_with_state(Tracked)(**KINDS[name].made_with, dtype=dtype)
    step = quick_jit(lambda g, state, index, previous: layer(g, state, index, previous))
    for now, expected in zip(steps_of(name, dtype), expected_of(name, dtype), strict=True):
        u, state = step(now.g, state, now.index, now.previous)
        assert u.dtype == dtype
        assert_same(u, expected.u, TOLERANCE[dtype])
    assert_same(flat(state.get(layer.memory)), flat(expected.state), TOLERANCE[dtype])


class Model(eqx.Module):
    linear: eqx.nn.Linear
    tracked: Tracked

    def __init__(self, key):
        self.linear = eqx.nn.Linear(3, "scalar", key=key)
        self.tracked = Tracked(beta=BETA)

    def __call__(self, x, state):
        inner = jnp.mean(jnp.exp(jax.vmap(self.linear)(x)))
        inner, state = self.tracked(inner, state)
        return jnp.log(inner), state


def test_in_a_model_it_has_the_fresh_derivative_and_no_weights_of_its_own():
    model, state = eqx.nn.make_with_state(Model)(jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(2, 6, 3))
    _, state = model(x[0], state)
    (value, state), grad = eqx.filter_value_and_grad(lambda m: m(x[1], state), has_aux=True)(model)
    inner = lambda m: jnp.mean(jnp.exp(jax.vmap(m.linear)(x[1])))
    assert_same(value, jnp.log(state.get(model.tracked.memory).value))
    by_hand = eqx.filter_grad(inner)(model).linear.weight / jnp.exp(value)
    assert_same(grad.linear.weight, by_hand)
    assert not jax.tree.leaves(grad.tracked)


def test_in_inference_mode_nothing_is_remembered():
    model, state = eqx.nn.make_with_state(Model)(jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(2, 6, 3))
    _, state = model(x[0], state)
    value, after = eqx.nn.inference_mode(model)(x[1], state)
    assert_same(value, jnp.log(jnp.mean(jnp.exp(jax.vmap(model.linear)(x[1])))))
    assert_same(flat(after.get(model.tracked.memory)), flat(state.get(model.tracked.memory)))
    auto, state = eqx.nn.make_with_state(Tracked)(gain="auto")
    seen, _ = eqx.nn.inference_mode(auto)(jnp.arange(3.0), state)
    assert_same(seen, 1.0)


def test_resumed_in_the_middle_it_is_the_same():
    name = "gains, table"
    make = lambda: eqx.nn.make_with_state(Tracked)(**KINDS[name].made_with)
    layer, state = make()
    step = quick_jit(lambda state, now: layer(now.g, state, now.index, now.previous))
    file = io.BytesIO()
    steps = steps_of(name, "float64")
    for t, now in enumerate(steps):
        if t == STEPS // 2:
            eqx.tree_serialise_leaves(file, state)
        u, state = step(state, now)
    file.seek(0)
    layer, again = make()
    step = quick_jit(lambda state, now: layer(now.g, state, now.index, now.previous))
    again = eqx.tree_deserialise_leaves(file, again)
    for now in steps[STEPS // 2 :]:
        u_again, again = step(again, now)
    assert np.array_equal(u, u_again)


def test_what_cannot_be_is_refused_at_once():
    with pytest.raises(nx.SettingError, match=r"either beta=, a number in .0, 1., or gain='auto'"):
        eqx.nn.make_with_state(Tracked)(n=3)
    with pytest.raises(nx.SettingError, match=r"beta must be in .0, 1."):
        eqx.nn.make_with_state(Tracked)(beta=1.5)
    with pytest.raises(nx.SettingError, match="n must be a whole number of at least 1"):
        eqx.nn.make_with_state(Tracked)(n=0, beta=BETA)
    layer, _ = eqx.nn.make_with_state(Tracked)(beta=BETA)
    with pytest.raises(nx.SettingError, match=r"that eqx.nn.make_with_state made .* got TrackState"):
        layer(jnp.ones(()), nx.track_init(0.0))
