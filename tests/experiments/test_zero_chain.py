"""The hard instance: its formulas in NumPy, its gradient, and what a draw reveals."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nestax as nx

from experiments import zero_chain as z
from experiments.zero_chain import zero_chain

EPS = 0.125
T = 4


def F_T(x):
    psi = lambda t: math.exp(1 - 1 / (2 * t - 1) ** 2) if t > 0.5 else 0.0
    phi = lambda t: math.sqrt(math.e) * math.sqrt(math.pi / 2) * (1 + math.erf(t / math.sqrt(2)))
    total = -psi(1) * phi(x[0])
    for i in range(1, len(x)):
        total += psi(-x[i - 1]) * phi(-x[i]) - psi(x[i - 1]) * phi(x[i])
    return total


def points():
    rng = np.random.default_rng(0)
    return [*rng.uniform(-2, 2, (6, T)), np.zeros(T), np.asarray([1.5, 0.9, 0.2, 0.0])]


def test_value_and_gradient_are_those_of_the_formula():
    problem = zero_chain(EPS)
    for x in points():
        value, grad = problem.value_and_grad(jnp.asarray(x))
        np.testing.assert_allclose(value, 2 * EPS * F_T(x), rtol=1e-12)
        np.testing.assert_allclose(grad, 2 * EPS * z.slope(jnp.asarray(x)), atol=1e-12)
        sides = [[F_T(x + s * 1e-6 * e) for s in (1, -1)] for e in np.eye(T)]
        np.testing.assert_allclose(grad, [EPS * (a - b) / 1e-6 for a, b in sides], atol=1e-6)


def test_draws_have_the_gradient_as_their_mean():
    problem = zero_chain(EPS)
    level = problem.levels[0]
    for x in points():
        _, jac = level.value_and_jac(jnp.asarray(x), level.source.population())
        np.testing.assert_allclose(
            jac.dense()[0], 2 * EPS * np.asarray(z.slope(jnp.asarray(x))), atol=1e-12
        )


def drawn(x, seen):
    level = zero_chain(EPS).levels[0]
    return np.asarray(jax.grad(lambda x: level.fn(x, jnp.asarray(seen), *level.args))(jnp.asarray(x)))


@pytest.mark.parametrize("known", range(T))
def test_a_draw_reveals_one_weight_or_none(known):
    """All weights beyond the first ``known`` are near 0: nothing is seen behind the next one."""
    rng = np.random.default_rng(known)
    for _ in range(5):
        x = np.concatenate([rng.uniform(-2, 2, known), rng.uniform(-0.24, 0.24, T - known)])
        np.testing.assert_array_equal(drawn(x, 0.0)[known:], 0)
        np.testing.assert_array_equal(drawn(x, T**2)[known + 1 :], 0)


def test_the_chain_is_stationary_only_when_all_of_it_has_been_seen():
    rng = np.random.default_rng(1)
    grad = jax.jit(jax.grad(zero_chain(EPS).exact))
    for _ in range(200):
        x = rng.uniform(-4, 4, T)
        x[-1] = rng.uniform(-1, 1)
        assert np.linalg.norm(grad(jnp.asarray(x))) > 2 * EPS


@pytest.mark.slow
def test_what_the_docstring_says_of_sizes():
    problem = zero_chain(EPS)
    assert problem.w0.shape == (T,)
    assert [zero_chain(0.5 / n).w0.size for n in range(2, 40)] == list(range(2, 40))
    seen = np.asarray(problem.levels[0].source.population().draws)
    assert seen.mean() == 1
    assert sorted(set(seen)) == [0, T**2]
    # A draw's derivative is not that of a drawn function, which is all that a check has against it.
    assert [line for line in nx.check(problem).levels if line.gradient_error < 1e-4] == []
    with pytest.raises(nx.SettingError, match=r"eps must be in \(0, 0.25\]; got 0.5"):
        zero_chain(0.5)


def test_a_method_moves_no_weight_that_it_has_not_seen():
    """A weight leaves 0 no earlier than the next draw with z = 1 allows."""
    problem = zero_chain(EPS)
    known = []
    for steps in range(0, 120, 8):
        run = nx.minimize(
            problem,
            nx.SMVR(0.3),
            optimizer=nx.steps.Descent(0.05),
            steps=max(steps, 1),
            batch_size=1,
            seed=3,
            progress=False,
        )
        moved = np.flatnonzero(np.asarray(run.w))
        assert list(moved) == list(range(len(moved)))
        known.append(len(moved))
    assert known == sorted(known)
    assert known[0] < T
