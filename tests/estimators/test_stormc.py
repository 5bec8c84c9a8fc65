"""STORM-Compositional of Yuan and Hu, written out with matrices in NumPy."""

import jax.numpy as jnp
from tests.estimators.transcribe_two import apart, assert_follows, bounded, descent
from tests.support.cases import bent_two_levels, without_range
from tests.support.drive import STEPS, drive

import nestax as nx


def stormc(case, draws, a_g, a_G, a_F, step):
    """STORM on g, on its Jacobian G and on F = Gᵀ∇f(g), each with its own momentum and batch."""
    (g, f), x, x_old, rows = case.levels, case.w0, None, []
    for t, (inner, outer) in enumerate(draws):
        B_g, B_G, B_f = inner["value"], inner["jac"], outer["jac"]
        if t == 0:
            u, G = g.project(g.f(x, B_g)), g.J(x, B_G)
            F = (f.J(u, B_f) @ G)[0]
        else:
            u_old, G_old = u, G
            u = g.project((1 - a_g(t)) * (u - g.f(x_old, B_g)) + g.f(x, B_g))
            G = (1 - a_G(t)) * (G - g.J(x_old, B_G)) + g.J(x, B_G)
            F = (1 - a_F(t)) * (F - (f.J(u_old, B_f) @ G_old)[0]) + (f.J(u, B_f) @ G)[0]
        rows.append((x, F, f.f(u, B_f)[0]))
        x_old, x = x, step(t, x, F)
    return rows


def always(number):
    return lambda t: number


def test_number():
    case = bent_two_levels()
    momenta = [0.3, 0.2, 0.4]
    run = drive(case.problem, nx.STORMC(*momenta), case.lr)
    follow = lambda case, *a: stormc(case, run.draws, *map(always, a), descent(case.lr))
    here = follow(case, *momenta)
    assert_follows(run, here)
    others = [(0.2, 0.2, 0.4), (0.3, 0.3, 0.4), (0.3, 0.2, 0.3)]
    assert min(apart(here, follow(case, *other)) for other in others) > 1e-4
    assert apart(here, follow(without_range(case), *momenta)) > 1e-4


def test_published():
    case = bent_two_levels()
    run = drive(case.problem, nx.STORMC())
    a = always(0.1)
    assert_follows(run, stormc(case, run.draws, a, a, a, bounded(0.5, STEPS**-0.5)))


def test_schedules():
    case = bent_two_levels()
    beta = lambda t: 1 / (1 + jnp.asarray(t, float))
    run = drive(case.problem, nx.STORMC(beta, beta_grad=0.2, eps=10.0, lr=0.3))
    a = lambda t: 1 / (1 + t)
    assert_follows(run, stormc(case, run.draws, a, a, always(0.2), bounded(0.3, 10.0)))
