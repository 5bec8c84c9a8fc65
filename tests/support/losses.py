"""Every loss with a tracked mean on the same few rows, for tests in every framework."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import nestax as nx

N = 12
BATCH = 4
STEPS = 50


class Data(NamedTuple):
    """Scores of all rows, with times that are tied, events and labels."""

    h: Any
    time: Any
    event: Any
    labels: Any


_rng = np.random.default_rng(4)
data = Data(
    h=jnp.asarray(_rng.normal(size=N)),
    time=jnp.asarray(np.array([1, 2, 2, 3, 4, 4, 4, 5, 6, 6, 7, 8.0])[_rng.permutation(N)]),
    event=jnp.asarray(np.array([1, 1, 1, 0, 1, 1, 1, 0, 1, 0, 1, 0.0])[_rng.permutation(N)]),
    labels=jnp.asarray(np.array([1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0.0])),
)


class Loss(NamedTuple):
    """``call(h, rows, state, **memory)`` on the rows of a batch, and the state that it begins with."""

    call: Callable[..., Any]
    state: Callable[[], Any]


def single():
    return nx.track_init(0.0)


def table():
    return nx.track_init(0.0, n=N)


LOSSES = {
    "log_mean_exp": Loss(lambda h, _, state, **m: nx.losses.log_mean_exp(h, state, **m), single),
    "kl_robust": Loss(
        lambda h, _, state, **m: nx.losses.kl_robust(h, state, temperature=0.5, **m), single
    ),
    "cvar_robust": Loss(
        lambda h, _, state, **m: nx.losses.cvar_robust(h, state, share=0.25, **m), single
    ),
    "cvar_robust of a table": Loss(
        lambda h, rows, state, **m: nx.losses.cvar_robust(h, state, rows, share=0.25), table
    ),
    "donsker_varadhan": Loss(
        lambda h, _, state, **m: nx.losses.donsker_varadhan(h, 2 * h, state, **m), single
    ),
    "info_nce": Loss(
        lambda h, rows, state, **m: nx.losses.info_nce(
            jnp.outer(h, h), state, rows, temperature=0.7, **m
        ),
        table,
    ),
    "average_precision": Loss(
        lambda h, rows, state, **m: nx.losses.average_precision(h, data.labels[rows], state, rows, **m),
        lambda: nx.track_init(jnp.zeros(2), n=N),
    ),
}


def steps_of() -> list[tuple[np.ndarray, np.ndarray]]:
    """Scores and rows of some batches, of weights that move."""
    rng = np.random.default_rng(6)
    out = []
    for t in range(STEPS):
        rows = rng.choice(N, BATCH, replace=False)
        out.append((np.asarray(data.h)[rows] + 0.02 * t + 0.1 * rng.normal(size=BATCH), rows))
    return out
