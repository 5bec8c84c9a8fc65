"""Losses with a mean inside: exact on all rows, right in the mean, better with memory than without."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.compare import assert_same
from tests.support.compiled import quick_jit
from tests.support.losses import BATCH, LOSSES, N, data, steps_of

import nestax as nx

BETA = 0.2
ALL = jnp.arange(N)
CVAR = ("cvar_robust", "cvar_robust of a table")


def exact(name, h):
    """The loss of all rows, in NumPy and with loops."""
    h, y = np.asarray(h), np.asarray(data.labels)
    if name == "kl_robust":
        return 0.5 * np.log(np.mean(np.exp(h / 0.5)))
    if name == "log_mean_exp":
        return np.log(np.mean(np.exp(h)))
    if name == "donsker_varadhan":
        return np.mean(h) - np.log(np.mean(np.exp(2 * h)))
    if name in CVAR:
        return np.sort(h)[-N // 4 :].mean()
    if name == "info_nce":
        s = np.outer(h, h) / 0.7
        terms = [[np.exp(s[i, j] - s[i, i]) for j in range(N) if j != i] for i in range(N)]
        return np.mean(np.log(np.mean(terms, axis=1)))
    if name == "average_precision":
        loss = lambda i, j: max(0.0, 1 + h[j] - h[i]) ** 2
        share = lambda i: sum(y[j] * loss(i, j) for j in range(N)) / sum(loss(i, j) for j in range(N))
        return -sum(share(i) for i in range(N) if y[i]) / N
    raise KeyError(name)


def slope(fn, h, step=1e-6):
    """Central differences."""
    moved = [[fn(h + sign * step * e) for sign in (1, -1)] for e in np.eye(N)]
    return np.array([(up - down) / (2 * step) for up, down in moved])


@pytest.mark.parametrize("name", LOSSES)
def test_all_rows_without_memory_are_the_exact_loss(name):
    h = np.asarray(data.h)
    kind = LOSSES[name]
    call = lambda h: kind.call(h, ALL, kind.state(), beta=1.0)[0]
    value, grad = quick_jit(jax.value_and_grad(call))(h)
    assert_same(value, exact(name, h), 1e-10)
    if name not in CVAR:  # its quantile is not moved
        assert_same(grad, slope(partial(exact, name), h), 1e-7)


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in CVAR])
def test_gradients_of_small_batches_are_nearer_to_the_truth_with_memory(name):
    """Their mean over many batches at fixed weights, compared with the exact gradient."""
    kind = LOSSES[name]
    truth = slope(partial(exact, name), np.asarray(data.h))
    scaled = lambda beta: np.linalg.norm(mean_gradient(kind, beta) - truth) / np.linalg.norm(truth)
    assert scaled(0.02) < 0.25 * scaled(1.0)


def batches(count):
    draw = lambda key: jax.random.choice(key, N, (BATCH,), replace=False)
    return jax.vmap(draw)(jax.random.split(jax.random.key(0), count))


def mean_gradient(kind, beta, steps=4_000):
    def step(state, rows):
        loss = lambda h: kind.call(h[rows], rows, state, beta=beta)
        grad, state = jax.grad(loss, has_aux=True)(data.h)
        return state, grad

    return np.mean(jax.lax.scan(step, kind.state(), batches(steps))[1][steps // 10 :], axis=0)


def test_cvar_of_small_batches_is_far_too_low_without_memory():
    kind = LOSSES["cvar_robust"]
    truth = exact("cvar_robust", data.h)

    def mean_value(**memory):
        step = lambda state, rows: kind.call(data.h[rows], rows, state, **memory)[::-1]
        return jnp.mean(jax.lax.scan(step, kind.state(), batches(2_000))[1][200:])

    assert mean_value(beta=1.0) < truth - 0.15
    assert abs(mean_value(beta=0.02, lagged=True) - truth) < 0.03


def test_cvar_of_any_batch_is_right_in_the_mean_once_all_rows_were_seen():
    """By the quantile of all rows; old losses stay until a row is seen again."""
    table = LOSSES["cvar_robust of a table"]
    _, state = table.call(data.h, ALL, table.state())
    values = [table.call(data.h[rows], rows, state)[0] for rows in ALL.reshape(-1, 1)]
    assert_same(np.mean(values), exact("cvar_robust", data.h))
    _, state = table.call(data.h[:1] + 1, ALL[:1], state)
    assert_same(state.value, data.h.at[0].add(1))


def test_an_index_out_of_range_gives_nan_in_compiled_code():
    for name in ("cvar_robust of a table", "info_nce", "average_precision"):
        kind = LOSSES[name]
        loss = lambda h, rows, kind=kind: kind.call(h, rows, kind.state(), beta=BETA)[0]
        assert np.isnan(jax.jit(loss)(data.h[:3], jnp.array([0, 1, N]))), name


def test_a_batch_without_a_positive_row_is_worth_nothing():
    zero = jnp.zeros(3)
    rows = jnp.arange(3)
    h = data.h[:3]
    ranks = nx.track_init(jnp.zeros(2), n=N)
    loss = lambda h: nx.losses.average_precision(h, zero, ranks, rows, beta=BETA)[0]
    assert_same(loss(h), 0)
    assert_same(jax.grad(loss)(h), np.zeros(3))


@pytest.mark.parametrize("labels", [2 * data.labels - 1, data.labels > 0])
def test_labels_may_be_1_and_minus_1_or_true_and_false(labels):
    ranks = nx.track_init(jnp.zeros(2), n=N)
    loss = lambda labels: nx.losses.average_precision(data.h, labels, ranks, ALL, beta=BETA)[0]
    assert_same(loss(labels), loss(data.labels))


def test_the_same_steps_as_by_hand():
    """What the modules of other frameworks are compared with is itself checked: a log of a mean."""
    u = None
    state = nx.track_init(0.0)
    for h, _ in steps_of():
        u = np.mean(np.exp(h)) if u is None else (1 - BETA) * u + BETA * np.mean(np.exp(h))
        value, state = nx.losses.log_mean_exp(jnp.asarray(h), state, beta=BETA)
        assert_same(value, np.log(u))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: nx.losses.kl_robust(data.h, None, temperature=0, beta=BETA),
            "temperature must be positive",
        ),
        (lambda: nx.losses.cvar_robust(data.h, None, share=0, beta=BETA), "share must be in .0, 1."),
        (
            lambda: nx.losses.cvar_robust(data.h, nx.track_init(0.0, n=N), ALL, share=0.5, beta=BETA),
            "remembers losses as they were: leave beta out",
        ),
        (
            lambda: nx.losses.info_nce(
                data.h[:1, None], LOSSES["info_nce"].state(), [0], temperature=1.0, beta=BETA
            ),
            "info_nce compares .* at least two",
        ),
        (
            lambda: nx.losses.average_precision(
                data.h[:1], data.labels[:1], LOSSES["average_precision"].state(), [0], beta=BETA
            ),
            "average_precision compares .* at least two",
        ),
        (
            lambda: nx.losses.info_nce(
                data.h, LOSSES["info_nce"].state(), ALL, temperature=1.0, beta=BETA
            ),
            r"similarity has the anchors of a batch as rows .* got \(12,\)",
        ),
        (
            lambda: nx.losses.average_precision(
                data.h, data.labels[1:], LOSSES["average_precision"].state(), ALL, beta=BETA
            ),
            r"scores and labels are vectors .* got \(12,\) and \(11,\)",
        ),
        (lambda: nx.losses.log_mean_exp(data.h, None), "either beta=, a number"),
        (lambda: nx.losses.log_mean_exp(1.0, None, beta=BETA), "along its last axis; got one number"),
        (
            lambda: nx.losses.kl_robust(data.h.mean(), None, temperature=1.0, beta=BETA),
            r"losses is a vector with one number per row of the batch, not their mean; got \(\)",
        ),
        (
            lambda: nx.losses.cvar_robust(data.h[:, None], None, share=0.5, beta=BETA),
            "losses is a vector",
        ),
        (
            lambda: nx.losses.donsker_varadhan(data.h, data.h[:, None], None, beta=BETA),
            r"marginal is a vector .* got \(12, 1\)",
        ),
        (
            lambda: nx.losses.average_precision(data.h, data.labels, 0.0, ALL, beta=BETA),
            "how many rows the data have",
        ),
        (
            lambda: nx.losses.average_precision(data.h, data.labels, None, ALL, beta=BETA),
            "how many rows the data have",
        ),
    ],
)
def test_one_sentence_each(call, sentence):
    with pytest.raises(nx.SettingError, match=sentence):
        call()
