"""Cox's partial likelihood with remembered risks: exact on all rows and once all were seen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.compare import assert_same
from tests.support.compiled import quick_jit
from tests.support.losses import N, data

import nestax as nx

TIES = ("breslow", "efron")
ALL = np.arange(N)
TIME, EVENT, H = (np.asarray(x) for x in (data.time, data.event, data.h))


def sets(ties):
    return nx.losses.risk_sets(TIME, EVENT, ties=ties)


def terms(h, ties):
    """δ_i (log S_i − h_i) of every row, in NumPy and with loops; tied events in the order of rows."""
    out = np.zeros(N)
    for when in np.unique(TIME[EVENT > 0]):
        tied = [i for i in range(N) if TIME[i] == when and EVENT[i]]
        at_risk = sum(np.exp(h[j]) for j in range(N) if TIME[j] >= when)
        together = sum(np.exp(h[i]) for i in tied)
        for k, i in enumerate(tied):
            out[i] = np.log(at_risk - (ties == "efron") * k / len(tied) * together) - h[i]
    return out


def slope(h, ties, step=1e-6):
    """Of the mean of all terms, by central differences."""
    mean = lambda x: terms(x, ties).mean()
    return np.array([(mean(h + step * e) - mean(h - step * e)) / (2 * step) for e in np.eye(N)])


cox = quick_jit(nx.losses.cox)
with_slope = quick_jit(jax.value_and_grad(nx.losses.cox, has_aux=True))


def value_and_grad(h, state, rows):
    return with_slope(h[rows], state, np.asarray(rows))


@pytest.mark.parametrize("ties", TIES)
def test_all_rows_give_the_exact_loss(ties):
    (value, _), grad = value_and_grad(H, sets(ties), ALL)
    assert_same(value, terms(H, ties).mean())
    assert_same(grad, slope(H, ties), 1e-9)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("rows", [[3], [0, 7], [5, 1, 11, 2]])
def test_any_batch_gives_the_exact_derivatives_once_all_rows_were_seen(rows, ties):
    _, state = cox(data.h, sets(ties), ALL)
    (value, _), grad = value_and_grad(H, state, rows)
    assert_same(value, terms(H, ties)[rows].mean())
    assert_same(grad * len(rows) / N, slope(H, ties)[rows], 1e-9)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16"])
def test_the_rows_may_be_told_by_narrow_integers(dtype):
    rng = np.random.default_rng(0)
    state = nx.losses.risk_sets(rng.exponential(size=256), rng.integers(2, size=256))
    loss = jax.jit(lambda index: nx.losses.cox(jnp.ones(3), state, index))
    rows = np.asarray([0, 5, 127])
    assert_same(loss(rows.astype(dtype))[0], loss(rows)[0])
    assert_same(loss(rows.astype(dtype))[1].memory.value, loss(rows)[1].memory.value)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "bool"])
def test_times_may_be_unsigned(dtype, ties):
    """A time of 0 is the first one, though −0 is not the greatest of unsigned numbers."""
    time = np.asarray([0, 1, 1, 0, 1]) if dtype == "bool" else np.asarray([0, 3, 200, 0, 3])
    event = np.asarray([1, 1, 0, 1, 1])
    narrow = nx.losses.risk_sets(time.astype(dtype), event, ties=ties)
    wide = nx.losses.risk_sets(time.astype(float), event, ties=ties)
    assert jax.tree.all(jax.tree.map(np.array_equal, narrow, wide))


@pytest.mark.parametrize("ties", TIES)
def test_old_risks_stay_until_a_row_is_seen_again(ties):
    _, state = cox(data.h, sets(ties), ALL)
    moved = H.copy()
    moved[[2, 9]] += [0.5, -1.0]
    (value, _), _ = value_and_grad(moved, state, [2, 9])
    assert_same(value, terms(moved, ties)[[2, 9]].mean())


def test_rows_that_were_not_seen_count_with_the_mean_hazard():
    (value, _), _ = value_and_grad(H, sets("efron"), [1, 4])
    filled = np.full(N, np.log(np.mean(np.exp(H[[1, 4]]))))
    filled[[1, 4]] = H[[1, 4]]
    assert_same(value, terms(filled, "efron")[[1, 4]].mean())


def test_small_batches_find_the_weights_of_all_rows():
    """A linear model by one row a step ends where descent on all rows does."""
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(60, 2)))
    time = np.ceil(5 * rng.exponential(size=60) / np.exp(np.asarray(x) @ [1.0, -0.5]))
    event = rng.random(60) < 0.8
    start = nx.losses.risk_sets(time, event)

    def fit(batch, steps, rate):
        def step(carry, key):
            w, state, t = carry
            rows = jax.random.choice(key, 60, (batch,), replace=False)
            loss = lambda w: nx.losses.cox(x[rows] @ w, state, rows)
            grad, state = jax.grad(loss, has_aux=True)(w)
            return (w - rate * (1 - t / steps) * grad, state, t + 1), None

        carry = jnp.zeros(2), start, 0.0
        return jax.lax.scan(step, carry, jax.random.split(jax.random.key(3), steps))[0][0]

    best = fit(60, 500, 2.0)
    alone = jnp.asarray([0.0, 0.0])
    assert jnp.linalg.norm(fit(1, 8_000, 0.05) - best) < 0.1 * jnp.linalg.norm(alone - best)


def test_large_risks_neither_overflow_nor_vanish():
    h = (100 + 25 * H).astype(np.float32)
    assert h.max() > 90  # its exponential is too large for float32
    assert np.ptp(h) > 60
    state = nx.losses.risk_sets(TIME, EVENT, ties="breslow", dtype=jnp.float32)
    (value, _), grad = value_and_grad(h, state, ALL)
    shifted = h.astype(np.float64)
    at_risk = [np.logaddexp.reduce(shifted[when <= TIME]) for when in TIME]
    assert_same(value, np.mean(EVENT * (at_risk - shifted)), 1e-4)
    assert np.isfinite(grad).all()


def test_a_batch_without_an_event_still_moves_those_at_risk():
    rows = np.flatnonzero(EVENT == 0)
    _, state = nx.losses.cox(data.h, sets("efron"), ALL)
    (value, _), grad = value_and_grad(H, state, rows)
    assert_same(value, 0)
    assert (grad > 0).any()


def test_a_risk_that_is_not_finite_is_left_out_of_the_memory():
    _, state = nx.losses.cox(data.h, sets("efron"), ALL)
    with pytest.warns(UserWarning, match="1 of 2 values to track are not finite"):
        value, after = nx.losses.cox(jnp.asarray([np.nan, 0.0]), state, [4, 5])
    assert np.isnan(value)
    assert_same(after.memory.value[4], H[4])


def test_a_million_rows_are_no_matter():
    """Memory and time grow with the rows, and not with their square."""
    rng = np.random.default_rng(0)
    n = 1_000_000
    state = nx.losses.risk_sets(rng.integers(0, 5_000, n), rng.random(n) < 0.5)
    value, state = jax.jit(nx.losses.cox)(jnp.zeros(64), state, jnp.arange(64))
    assert np.isfinite(value)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: nx.losses.cox(data.h, None, ALL), "make its state with nx.losses.risk_sets"),
        (
            lambda: nx.losses.cox(data.h[:, None], sets("efron"), ALL),
            r"risk is a vector .* got \(12, 1\)",
        ),
        (lambda: nx.losses.risk_sets(TIME, EVENT, ties="exact"), "ties must be"),
        (lambda: nx.losses.risk_sets(TIME, 0 * EVENT), "no row has an event"),
        (lambda: nx.losses.risk_sets(TIME[:3], EVENT), r"got \(3,\) and \(12,\)"),
        (lambda: nx.losses.risk_sets(TIME - 4, EVENT), "time must be finite and at least 0; row"),
        (lambda: nx.losses.risk_sets(TIME * np.nan, EVENT), "row 0 has nan"),
        (lambda: nx.losses.risk_sets(TIME, 2 * EVENT), "event must be 1 or 0.* has 2.0"),
        (lambda: nx.losses.cox(data.h[:1], sets("efron"), [N]), "lies outside the 12 rows"),
        (lambda: nx.losses.cox(data.h[:2], sets("efron"), [3, 3]), "occurs 2 times"),
    ],
)
def test_one_sentence_each(call, sentence):
    with pytest.raises(nx.SettingError, match=sentence):
        call()
