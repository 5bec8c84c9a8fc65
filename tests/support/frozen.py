"""Estimators at weights that never move: the scalar chain f_2(f_1(w)), f_1 = ξw, f_2 = u²/2."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import nestax as nx

STEPS, BATCHES = 100_000, 50


def scale(w, xi):
    return xi * w


def half_square(u):
    return u * u / 2


def chain(sigma: float) -> nx.Problem:
    """ξ is 1 − σ or 1 + σ with equal probability; ∇F(w) = w."""
    data = np.asarray([1 - sigma, 1 + sigma])
    return nx.Problem([nx.Level(scale, data), nx.Level(half_square)], w0=jnp.asarray(1.0))


@functools.cache
def draws(sigma: float, passes: tuple[str, ...]):
    problem = chain(sigma)
    one = lambda t: nx.draw_batches(problem, passes, jax.random.key(0), t, (1, 1))
    return one(0), jax.vmap(one)(jnp.arange(1, STEPS + 1))


def follow(estimator, sigma: float, first, rest):
    """Gradient estimate and tracked value of the first level after every step, at w = 1."""
    problem, w = chain(sigma), jnp.asarray(1.0)
    _, state = estimator.init(problem, w, first)

    def step(state, batches):
        estimate, state = estimator.update(problem, w, batches, state)
        return state, (estimate.grad, estimator.trackers(state).value[0])

    return jax.lax.scan(step, state, rest)[1]


def mean_and_error(series) -> tuple[np.ndarray, np.ndarray]:
    """Mean along the last axis after a tenth of the run, and its standard error by batch means."""
    kept = series[..., series.shape[-1] // 10 :]
    kept = kept[..., : kept.shape[-1] // BATCHES * BATCHES]
    means = np.asarray(kept).reshape(*kept.shape[:-1], BATCHES, -1).mean(-1)
    return means.mean(-1), means.std(-1, ddof=1) / np.sqrt(BATCHES)
