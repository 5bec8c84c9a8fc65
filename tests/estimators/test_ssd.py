"""SSD after Zhang and Lan, in its primal form, written out with matrices in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.estimators.transcribe import (
    assert_follows,
    descent,
    follow,
    jacobians,
    product,
    sgd,
    transcribe,
)
from tests.support.blocked import blocked
from tests.support.cases import ROWS, Case, NumpyLevel, noisy, rng_of, sigmoid
from tests.support.drive import STEPS, drive

import nestax as nx

FLOOR = 0.4


def ssd(case, theta=lambda t: (t - 1) / t, tau=lambda t: (t - 1) / 2):
    """θ_t and τ_t start at t = 1; m[i] is the query point of level i + 1."""

    def method(n, x, xi, state):
        t = n + 1
        x_old, m_old = (x, None) if state is None else state
        y, m = x + theta(t) * (x - x_old), []
        for i, level in enumerate(case.levels):
            m.append(y if m_old is None else (tau(t) * m_old[i] + y) / (1 + tau(t)))
            if i < len(case.levels) - 1:
                batch = xi[i]["value"]
                y = level.project(level.f(m[i], batch) + level.J(m[i], batch) @ (y - m[i]))
        g = product(jacobians(case, m, xi, "grad"))
        return g, case.levels[-1].f(m[-1], xi[-1]["grad"])[0], (x, m)

    return method


def soft(x, draw):
    A, b = draw
    return jax.nn.softplus(A @ x + b)


def tail(v, draw):
    s, c = draw
    return s @ v + jnp.exp(c * v[0])


@functools.cache
def monotone(middle_is_exact=False) -> Case:
    """Convex levels, 4 → 3 → 2 → 1, the second and the third increasing."""
    rng = rng_of("monotone")
    first = (rng.normal(size=(3, 4)) + 0.3 * rng.normal(size=(ROWS, 3, 4)), rng.normal(size=(ROWS, 3)))
    second = (rng.uniform(size=(ROWS, 2, 3)), rng.normal(size=(ROWS, 2)))
    third = (rng.uniform(size=(ROWS, 2)), 0.5 * rng.uniform(size=ROWS))
    row = tuple(x[0] for x in second)
    middle = nx.Level(lambda u: soft(u, row)) if middle_is_exact else nx.Level(soft, second)
    above = lambda u: jnp.maximum(u, FLOOR)
    problem = nx.Problem(
        [nx.Level(soft, first, project=above), middle, nx.Level(tail, third)], rng.normal(size=4)
    )
    value = lambda x, A, b: np.log1p(np.exp(A @ x + b))
    jac = lambda x, A, b: sigmoid(A @ x + b)[:, None] * A
    exact = NumpyLevel(lambda u: value(u, *row), lambda u: jac(u, *row))
    levels = (
        NumpyLevel(value, jac, project=lambda u: np.maximum(u, FLOOR)),
        exact if middle_is_exact else NumpyLevel(value, jac),
        NumpyLevel(
            value=lambda v, s, c: s @ v + np.exp(c * v[0]),
            jac=lambda v, s, c: s + c * np.exp(c * v[0]) * np.array([1.0, 0.0]),
        ),
    )
    return Case(problem, levels, lr=0.1)


def test_middle_level_without_noise():
    case = monotone(middle_is_exact=True)
    follow(case, nx.SSD(), ssd(case), sgd(case), case.lr)


def published(case, lr, noise):
    return descent(case, lambda c: 1 / (2 / (lr * (c + 1)) + noise * np.sqrt(STEPS)))


def test_published_pair():
    case = monotone()
    run = follow(case, nx.SSD(), ssd(case), published(case, 1.0, 0.1))
    assert run.values[-1] < run.values[0]


def test_published_pair_on_a_simplex():
    case = noisy("portfolio")
    follow(case, nx.SSD(noise=0.3, lr=0.5), ssd(case), published(case, 0.5, 0.3))


def test_the_queries_lag_behind_the_weights():
    """The first level's queries are averages, so another gradient than at the weights themselves."""
    case = monotone()
    run = drive(case.problem, nx.SSD(), case.lr)
    transcript = transcribe(case, run.draws, ssd(case), sgd(case))
    straight = transcribe(case, run.draws, ssd(case, theta=lambda t: 0, tau=lambda t: 0), sgd(case))
    assert_follows(run, transcript)
    assert np.abs(run.grads[0] - straight[1][0]).max() < 1e-12
    assert np.abs(run.grads[-1] - straight[1][-1]).max() > 1e-3


def test_blocks_are_refused_as_by_others():
    with pytest.raises(nx.ProblemError, match=r"SSD knows no blocks: wrap it as nx.PerBlock"):
        nx.SSD().check(blocked().problem)
