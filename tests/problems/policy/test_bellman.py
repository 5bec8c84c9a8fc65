"""Bellman residuals of a small chain of states, in closed form: from files and from simulators."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.compare import assert_same

import nestax as nx

STATES, FEATURES, GAMMA = 6, 3, 0.8
RNG = np.random.default_rng(0)
PHI = RNG.normal(size=(STATES, FEATURES))
#: How often each state was followed by each: 40 transitions from half of the states, 20 from the others.
SEEN = np.asarray(
    [RNG.multinomial(40 if s % 2 else 20, RNG.dirichlet(np.ones(STATES))) for s in range(STATES)]
)
REWARD = RNG.normal(size=(STATES, STATES))


def transitions():
    """Rows (features of s, r, features of s'), shuffled."""
    pairs = [(s, t) for s in range(STATES) for t in range(STATES) for _ in range(SEEN[s, t])]
    s, t = np.asarray(pairs)[RNG.permutation(len(pairs))].T
    return PHI[s], REWARD[s, t], PHI[t]


def exact(share):
    """Σ_s share_s (b_s + A_s·w)²: value, gradient and optimum in closed form."""
    P = SEEN / SEEN.sum(1, keepdims=True)
    A = GAMMA * P @ PHI - PHI
    b = (P * REWARD).sum(1)
    root = np.sqrt(share / share.sum())
    best = np.linalg.lstsq(root[:, None] * A, -root * b, rcond=None)[0]
    value = lambda w: np.sum(share / share.sum() * (b + A @ w) ** 2)
    return value, lambda w: 2 * A.T @ (share / share.sum() * (b + A @ w)), best


def step(s, key):
    """The simulator: state numbers as one-hot features of the tabular case times PHI."""
    number = jnp.argmin(jnp.sum((jnp.asarray(PHI) - s) ** 2, axis=1))
    logits = jnp.log(jnp.maximum(jnp.asarray(SEEN)[number], 1e-30))
    after = jax.random.categorical(key, logits)
    return jnp.asarray(REWARD)[number, after], jnp.asarray(PHI)[after]


W = np.asarray([0.3, -0.2, 0.5])


def test_transitions_of_a_file_are_blocks_of_states():
    """States count as often as they were seen; value and gradient are those of the matrices."""
    problem = nx.problems.bellman(transitions=transitions(), discount=GAMMA, visit=4)
    value, grad, _ = exact(SEEN.sum(1).astype(float))
    got, slope = jax.jit(lambda w: problem.value_and_grad(w))(jnp.asarray(W))
    assert_same(got, value(W))
    assert_same(slope, grad(W))
    assert problem.blocks.blocks == STATES


def test_memory_of_states_finds_the_optimum_and_plain_batches_another():
    """One next state a visit: without memory its variance is minimised as well."""
    problem = nx.problems.bellman(transitions=transitions(), discount=GAMMA, visit=STATES)
    value, _, best = exact(SEEN.sum(1).astype(float))
    start, least = value(np.zeros(FEATURES)), value(best)
    left = {}
    for name, method in {"memory": nx.SOX(0.05, 1.0), "plain": nx.Plain()}.items():
        rate = optax.cosine_decay_schedule(0.05, 4_000)
        run = nx.minimize(problem, method, optax.sgd(rate), steps=4_000, batch_size=1, progress=False)
        left[name] = (value(np.asarray(run.w)) - least) / (start - least)
    assert left["memory"] < 0.01
    assert left["plain"] > 3 * left["memory"]


@pytest.mark.slow
def test_two_independent_next_states_leave_no_bias():
    """The mean over many draws is F and its gradient; with one next state it is more."""
    value, grad, best = exact(np.ones(STATES))
    problem = nx.problems.bellman(states=PHI, simulate=step, discount=GAMMA, two=True)
    draws = problem.levels[0].source.draw(jax.random.key(1), jnp.asarray(0), 40_000)
    got, pull = problem.levels[0].value_and_pull(jnp.asarray(W), draws)
    assert len(problem.levels) == 1
    assert abs(got - value(W)) < 0.05 * value(W)
    assert np.abs(pull(jnp.ones(())) - grad(W)).max() < 0.05 * np.abs(grad(W)).max()
    run = nx.minimize(problem, nx.STORM(lr=0.1), steps=3_000, batch_size=8, progress=False)
    assert value(np.asarray(run.w)) - value(best) < 0.02 * (value(np.zeros(FEATURES)) - value(best))


def test_simulators_with_rows_and_with_states_that_never_come_back():
    value, _, best = exact(np.ones(STATES))
    start = value(np.zeros(FEATURES)) - value(best)
    rows = nx.problems.bellman(states=PHI, simulate=step, discount=GAMMA, visit=STATES)
    rate = optax.cosine_decay_schedule(0.05, 2_000)
    run = nx.minimize(rows, nx.SOX(0.1, 1.0), optax.sgd(rate), steps=2_000, batch_size=2, progress=False)
    assert value(np.asarray(run.w)) - value(best) < 0.03 * start
    states = nx.Sampler(lambda key: jnp.asarray(PHI)[jax.random.randint(key, (), 0, STATES)])
    endless = nx.problems.bellman(states=states, simulate=step, discount=GAMMA, visit=8)
    assert endless.endless
    interval = nx.evaluate(endless, jnp.asarray(W), draws=500)
    assert interval.low < value(W) < interval.high


def test_a_network():
    def model(w, s):
        return jnp.tanh(s @ w["inner"]) @ w["outer"]

    w0 = {"inner": jnp.asarray(RNG.normal(size=(FEATURES, 8))), "outer": jnp.zeros(8)}
    problem = nx.problems.bellman(
        transitions=transitions(), discount=GAMMA, model=model, w0=w0, visit=STATES
    )
    run = nx.minimize(
        problem, nx.SOX(0.2, 0.5), optax.adam(0.01), steps=600, batch_size=4, progress=False
    )
    assert run.records["exact_value"][-1] < 0.4 * run.records["exact_value"][0]


S, R, T = np.ones((4, 2)), np.ones(4), np.ones((4, 2))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"transitions": (S, R, T), "discount": 1.0}, r"discount must be in \[0, 1\)"),
        ({}, "either transitions"),
        ({"states": S}, "either transitions"),
        ({"transitions": (S, R, T), "two": True}, "two independent next states need a simulator"),
        ({"transitions": (S, R)}, "must be three arrays"),
        ({"transitions": (S, R[:3], T)}, "one state, one reward and one next state a row; got shapes"),
        ({"transitions": (S, np.full(4, np.nan), T)}, "r of transitions has 4 entries that are NaN"),
        ({"transitions": (S, R, T), "model": lambda w, s: 0.0}, "needs its starting weights"),
        ({"transitions": (R, R, R)}, "takes states that are vectors of features"),
        ({"states": S, "simulate": lambda s, key: s}, "must return|one number"),
        ({"states": S, "simulate": lambda s, key: (0.0, s[:1])}, "a next state must look like a state"),
        ({"states": S, "simulate": 3}, "must be a function"),
        ({"states": np.zeros((0, 2)), "simulate": lambda s, key: (0.0, s)}, "states is empty"),
        ({"transitions": (S, R, T), "w0": np.full(2, np.inf)}, "residual of the first state is"),
        ({"transitions": (S, R, T), "w0": np.ones(3)}, "do not fit together"),
    ],
)
def test_refusals(given, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        nx.problems.bellman(**({"discount": 0.9} | given))
    assert "\n" not in str(error.value)
