"""NASA of Ghadimi, Ruszczyński and Wang, written out with matrices in NumPy."""

import jax.numpy as jnp
from tests.estimators.transcribe_two import apart, assert_follows, averaged, descent
from tests.support.cases import bent_two_levels, without_range
from tests.support.drive import STEPS, drive

import nestax as nx


def nasa(case, draws, tau, a, b, step):
    """G and J of g at the new x, ∇f at the old u; z ← (1 − aτ)z + aτJᵀ∇f, u ← (1 − bτ)u + bτG."""
    (g, f), x, rows = case.levels, case.w0, []
    for t, (omega, nu) in enumerate(draws):
        G, J = g.f(x, omega["value"]), g.J(x, omega["value"])
        if t == 0:
            u = g.project(G)
            value, z = f.f(u, nu["value"]), (f.J(u, nu["value"]) @ J)[0]
        else:
            k = t - 1
            value, s = f.f(u, nu["value"]), f.J(u, nu["value"])
            z = (1 - a * tau(k)) * z + a * tau(k) * (s @ J)[0]
            u = g.project((1 - b * tau(k)) * u + b * tau(k) * G)
        rows.append((x, z, value[0]))
        x = step(t, x, z)
    return rows


def published_tau(k):
    return 1.0 if k == 0 else STEPS**-0.5


def test_number():
    case = bent_two_levels()
    run = drive(case.problem, nx.NASA(tau=0.4, a=1.5, b=2.0), case.lr)
    follow = lambda case, a=1.5, b=2.0: nasa(case, run.draws, lambda k: 0.4, a, b, descent(case.lr))
    here = follow(case)
    assert_follows(run, here)
    for other in (follow(case, a=1.0), follow(case, b=1.0), follow(without_range(case))):
        assert apart(here, other) > 1e-4


def test_published():
    case = bent_two_levels()
    run = drive(case.problem, nx.NASA())
    assert_follows(run, nasa(case, run.draws, published_tau, 1, 1, averaged(0.3, published_tau)))


def test_schedule_starts_at_0_for_the_step_and_the_estimate():
    case = bent_two_levels()
    tau = lambda k, horizon: 1 / (1 + jnp.asarray(k, float) / horizon)
    run = drive(case.problem, nx.NASA(tau, lr=0.5))
    numpy_tau = lambda k: 1 / (1 + k / STEPS)
    assert_follows(run, nasa(case, run.draws, numpy_tau, 1, 1, averaged(0.5, numpy_tau)))
