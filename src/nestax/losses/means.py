"""Losses with a tracked mean inside: ``value, state = loss(..., state, beta=...)``.

Each is a few lines around ``nx.track``, whose ``beta`` and ``lagged`` it takes. The state is
``nx.track_init(0.0)``, and for losses that take an ``index`` it has one row per row of the data,
``nx.track_init(0.0, n=...)``. With beta=1 nothing is remembered.

Losses over positive rows are divided by the number of all rows in the batch. A division by how many of
the former it happens to hold would bring back a bias that no memory removes.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from nestax.errors import POSITIVE, UNIT, SettingError, check_setting
from nestax.parts.track import TrackState, track

Tracked = tuple[Array, TrackState]


def log_mean_exp(s: Array, state: TrackState | None, index: Any = None, **memory: Any) -> Tracked:
    """log E exp(s): of a batch of exponents along the last axis, and one per row with ``index``.

    Also importance-weighted bounds, E_x log E_z exp(log p(x, z) − log q(z|x)), which few samples z make
    too low: ``s`` are log weights, rows × samples, and ``index`` the rows of x.

    Reference: Burda, Grosse, Salakhutdinov, ICLR 2016.
    """
    if not jnp.ndim(s):
        raise SettingError("s has the exponents of a batch along its last axis; got one number.")
    mean = jax.nn.logsumexp(s, axis=-1) - np.log(s.shape[-1])
    return track(mean, state, index, log=True, **memory)


def kl_robust(losses: Array, state: TrackState | None, *, temperature: Any, **memory: Any) -> Tracked:
    """λ log E exp(ℓ/λ) = max over q of E_q ℓ − λ·KL(q ‖ p): the loss when the worst rows count more.

    Args:
        losses: one per row of the batch.
        temperature: λ > 0; large is the mean, small the largest loss.

    Reference: Qi, Guo, Xu, Jin, Yang, NeurIPS 2021.
    """
    check_setting("temperature", temperature, *POSITIVE)
    _one_per_row("losses", losses)
    value, state = log_mean_exp(losses / temperature, state, **memory)
    return temperature * value, state


def cvar_robust(
    losses: Array, state: TrackState | None, index: Any = None, *, share: float, **memory: Any
) -> Tracked:
    """t + E (ℓ − t)₊ / share: the mean of the largest losses, with a remembered quantile t.

    Any t gives an upper bound of it in the mean, and the right one the least; so an error of t counts
    only to the second order, and t needs no derivative. With ``index`` t is the quantile of the losses
    of all rows as last seen. That is the better one: nothing is to be set, and a step sorts n numbers.
    Without, t is the tracked quantile of batches, whose mean is not that of all rows.

    Args:
        losses: one per row of the batch.
        state: ``nx.track_init(0.0)``, or ``nx.track_init(0.0, n=n)`` for n rows of data.
        index: the rows of the data that the batch is; without ``beta`` then.
        share: of the rows that count, in (0, 1]; 1 is the mean.

    Reference: Rockafellar, Uryasev, J. Risk 2000.
    """
    check_setting("share", share, *UNIT)
    _one_per_row("losses", losses)
    if index is None:
        fresh = jnp.quantile(jax.lax.stop_gradient(losses), 1 - share)
        t, state = track(fresh, state, **memory)
    elif memory:
        raise SettingError(
            f"cvar_robust with index= remembers losses as they were: leave {', '.join(memory)} out."
        )
    else:
        losses, state = track(losses, state, index, beta=1.0)
        # NaN is what ``nanquantile`` passes over; inf, for rows not seen yet, would be the largest loss.
        known = jnp.where(jnp.isfinite(state.value), state.value, jnp.nan)
        t = jnp.nanquantile(known, 1 - share)
    return t + jnp.mean(jnp.maximum(losses - t, 0)) / share, state


def donsker_varadhan(joint: Array, marginal: Array, state: TrackState | None, **memory: Any) -> Tracked:
    """E_p T − log E_q exp(T), a lower bound of KL(p ‖ q), and of a mutual information; to be maximised.

    Args:
        joint: T of draws of p. marginal: T of draws of q.

    Reference: Donsker, Varadhan, Comm. Pure Appl. Math. 1983; Belghazi et al., ICML 2018, who track it.
    """
    _one_per_row("marginal", marginal)
    inner, state = log_mean_exp(marginal, state, **memory)
    return jnp.mean(joint) - inner, state


def info_nce(
    similarity: Array, state: TrackState | None, index: Any, *, temperature: Any, **memory: Any
) -> Tracked:
    """Computes the mean over anchors i of log E_{j≠i} exp((s_ij − s_ii)/τ), all negatives remembered.

    Args:
        similarity: s_ij of anchor i and candidate j of the batch, rows × rows; partners on the diagonal.
        index: the anchors as rows of the data.
        temperature: τ > 0.

    Reference: van den Oord, Li, Vinyals, arXiv 1807.03748; Yuan et al., ICML 2022, who track it.
    """
    check_setting("temperature", temperature, *POSITIVE)
    if similarity.ndim != 2 or similarity.shape[0] != similarity.shape[1]:
        raise SettingError(
            "similarity has the anchors of a batch as rows and their candidates as columns, partners "
            f"on the diagonal; got {similarity.shape}."
        )
    rows = _batch("info_nce", similarity)
    diagonal = jnp.eye(rows, dtype=bool)
    s = (similarity - jnp.diagonal(similarity)[:, None]) / temperature
    # −inf leaves the partner out of the sum, and gives it a derivative of 0.
    s = jnp.where(diagonal, -jnp.inf, s) + np.log(rows / (rows - 1))
    losses, state = log_mean_exp(s, state, index, **memory)
    return jnp.mean(losses), state


def average_precision(
    scores: Array,
    labels: Array,
    state: TrackState | None,
    index: Any,
    *,
    margin: float = 1.0,
    **memory: Any,
) -> Tracked:
    """Average precision, smoothed: −1/n Σ_i y_i (Σ_j y_j ℓ(h_j − h_i) / Σ_j ℓ(h_j − h_i)).

    That is minus the average precision times the share of positive rows. i and j range over all n rows
    of the data, and ℓ(s) = max(0, margin + s)². Beside row i the other rows of a batch stand for the
    other n − 1.

    Args:
        scores, labels: h and y of every row of the batch, drawn without regard to the label. y is 1 or
            0, True or False, or 1 or -1.
        state: ``nx.track_init(jnp.zeros(2), n=n)``, n being the rows of the data.
        index: the rows of the data that the batch is.

    Reference: Qi, Luo, Xu, Ji, Yang, NeurIPS 2021.
    """
    check_setting("margin", margin, *POSITIVE)
    n = _rows_of_data("average_precision", state)
    if scores.ndim != 1 or jnp.shape(labels) != scores.shape:
        raise SettingError(
            "scores and labels are vectors with one number per row of the batch; got "
            f"{scores.shape} and {jnp.shape(labels)}."
        )
    rows = _batch("average_precision", scores)
    others = 1 - jnp.eye(rows, dtype=scores.dtype)
    loss = others * jnp.maximum(margin + scores[None, :] - scores[:, None], 0) ** 2
    y = jnp.maximum(jnp.asarray(labels, scores.dtype), 0)
    ranks = jnp.stack([loss @ y, jnp.sum(loss, 1)], axis=1) / (rows - 1)
    ranks, state = track(ranks, state, index, **memory)
    self_share = margin**2 / max(n - 1, 1)
    precision = (ranks[:, 0] + self_share) / (ranks[:, 1] + self_share)
    return -jnp.mean(y * precision), state


def _one_per_row(name: str, numbers: Array) -> None:
    if jnp.ndim(numbers) != 1:
        raise SettingError(
            f"{name} is a vector with one number per row of the batch, not their mean; got "
            f"{jnp.shape(numbers)}."
        )


def _batch(name: str, rows: PyTree) -> int:
    """Returns how many rows a batch has that compares them with each other."""
    size = rows.shape[0]
    if size < 2:
        raise SettingError(
            f"{name} compares the rows of a batch with each other and needs at least two."
        )
    return size


def _rows_of_data(name: str, state: TrackState | None) -> int:
    if not isinstance(state, TrackState) or state.n is None:
        raise SettingError(
            f"{name} needs to know how many rows the data have: give n= to nx.track_init."
        )
    return state.n
