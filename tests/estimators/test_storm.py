"""STORM of Cutkosky and Orabona, with its own step size, written out in NumPy."""

import jax.numpy as jnp
import numpy as np
from tests.estimators.transcribe_two import assert_follows, descent
from tests.support.cases import noisy
from tests.support.compare import assert_same
from tests.support.drive import drive

import nestax as nx


def storm(case, draws, k, c, offset, step=None):
    """η_t = k/(offset + Σ‖∇f(x_s; ξ_s)‖²)^{1/3}, k a number or k(t), and a_{t+1} = min(1, cη_t²),
    for the value too."""
    (f,), x, rows, rates, momenta = case.levels, case.w0, [], [], []
    total, x_old, d, value = 0.0, None, None, None
    for t, (xi,) in enumerate(draws):
        grad = f.J(x, xi["value"])[0]
        total += grad @ grad
        a = min(1.0, c * rates[-1] ** 2) if t else 1.0
        d = grad if t == 0 else (1 - a) * (d - f.J(x_old, xi["value"])[0]) + grad
        value = f.f(x, xi["value"])[0] + (1 - a) * (value - f.f(x_old, xi["value"])[0] if t else 0.0)
        rates.append((k(t) if callable(k) else k) / (offset + total) ** (1 / 3)), momenta.append(a)
        rows.append((x, d, value))
        x_old, x = x, step(t, x, d) if step else x - rates[-1] * d
    return rows, rates, momenta[1:]


def test_number():
    case = noisy("one_level")
    run = drive(case.problem, nx.STORM(c=30.0, offset=1.0, lr=0.2), case.lr)
    rows, rates, momenta = storm(case, run.draws, 0.2, 30.0, 1.0, descent(case.lr))
    assert min(momenta) < 0.9
    assert_follows(run, rows)
    assert_same([estimate.aux["rate"] for estimate in run.estimate], rates)


def test_published():
    case = noisy("one_level")
    run = drive(case.problem, nx.STORM())
    rows, rates, _ = storm(case, run.draws, 0.1, 10.0, 0.1)
    assert_follows(run, rows)
    assert_same([estimate.aux["rate"] for estimate in run.estimate], rates)


def test_schedule_is_asked_with_the_number_of_the_step():
    case = noisy("one_level")
    rate = lambda t: 0.2 / (1 + t)
    run = drive(case.problem, nx.STORM(c=30.0, lr=rate))
    rows, rates, momenta = storm(case, run.draws, rate, 30.0, 0.1)
    assert min(momenta) < 0.9
    assert_follows(run, rows)
    assert_same([estimate.aux["rate"] for estimate in run.estimate], rates)


def test_momentum_is_at_most_one():
    case = noisy("one_level")
    run = drive(case.problem, nx.STORM(c=40.0, lr=0.2))
    rows, _, momenta = storm(case, run.draws, 0.2, 40.0, 0.1)
    clipped = np.isin(momenta, 1.0)
    assert 0 < clipped.sum() < len(momenta)
    assert_follows(run, rows)


def test_the_sum_of_squares_has_room_in_half_precision():
    level = nx.Level(lambda w, x: 200 * x * w, jnp.ones(2, "float16"))
    problem = nx.Problem([level], jnp.zeros((), "float16"))
    result = nx.minimize(problem, nx.STORM(lr=0.01), steps=20, batch_size=1)
    assert result.status is nx.Status.SUCCESS
    wide = nx.Problem([level.replace(data=jnp.ones(2))], 0.0)
    np.testing.assert_allclose(
        float(result.w), float(nx.minimize(wide, nx.STORM(lr=0.01), steps=20, batch_size=1).w), rtol=0.01
    )
