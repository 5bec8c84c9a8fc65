"""What several transcriptions share: a chain of two levels, step rules in NumPy, the comparison."""

import functools

import jax.numpy as jnp
import numpy as np
from tests.helpers import ROWS, Case, NumpyLevel, assert_same, rng_of, squash, waves

import nestax as nx

# Two levels, 4 → 3 → 1: noise and curvature in the inner Jacobian, a range for the inner values


@functools.cache
def bent_two_levels(outer_noisy: bool = True, rows: int = ROWS, shrink: float = 0.0) -> Case:
    """The rows of b add up to 0, so every mean of tanh(Aw) + b is inside [−1, 1].

    shrink: strength of an ℓ1 term.
    """
    rng = rng_of("bent two levels")
    A = rng.normal(size=(3, 4)) + 0.4 * rng.normal(size=(rows, 3, 4))
    b = rng.normal(size=(rows, 3))
    c = 1 + rng.normal(size=(ROWS, 3))
    outer = nx.Level(waves, c) if outer_noisy else nx.Level(lambda u: waves(u, jnp.asarray(c[0])))
    inner = nx.Level(squash, (A, b - b.mean(axis=0)), project=lambda u: jnp.clip(u, -1, 1))
    levels = (
        NumpyLevel(
            value=lambda w, A, b: np.tanh(A @ w) + b,
            jac=lambda w, A, b: (1 - np.tanh(A @ w) ** 2)[:, None] * A,
            project=lambda u: np.clip(u, -1, 1),
        ),
        NumpyLevel(
            value=lambda u, c=c[0]: c @ np.sin(u) + u @ u / 2,
            jac=lambda u, c=c[0]: c * np.cos(u) + u,
        ),
    )
    prox = nx.Prox.l1(shrink) if shrink else None
    return Case(nx.Problem([inner, outer], w0=0.8 * rng.normal(size=4), prox=prox), levels, lr=0.1)


def without_range(case: Case) -> Case:
    return case._replace(levels=tuple(level._replace(project=lambda u: u) for level in case.levels))


# Step rules without a feasible set: (c, w, v) ↦ new weights, where c counts from 0


def descent(rate):
    """rate: a number, or a function of c."""
    return lambda c, w, v: w - (rate(c) if callable(rate) else rate) * v


def averaged(lr, tau):
    return lambda c, w, v: w - tau(c) * lr * v


def shrunk(rate, strength):
    """Proximal descent with r(w) = strength·‖w‖₁."""

    def step(c, w, v):
        lr = rate(c) if callable(rate) else rate
        ahead = w - lr * v
        return np.sign(ahead) * np.maximum(np.abs(ahead) - lr * strength, 0)

    return step


def bounded(lr, eps):
    def step(c, w, v):
        move = -lr * v
        return w + min(0.5, lr * eps / np.linalg.norm(move)) * move

    return step


# A transcript has one row (weights, gradient estimate, value) per step


def assert_follows(run, transcript):
    weights, grads, values = zip(*transcript, strict=True)
    assert_same(run.weights, weights)
    assert_same(run.grads, grads)
    assert_same(run.values, values)


def apart(one, other) -> float:
    """How far the last weights of two transcripts are from each other."""
    return np.linalg.norm(one[-1][0] - other[-1][0])
