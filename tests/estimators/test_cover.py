"""COVER and RECOVER of Qi et al., with a deterministic outer function, written out in NumPy."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from tests.estimators.transcribe_two import apart, assert_follows, descent
from tests.support.cases import bent_two_levels, without_range
from tests.support.compare import assert_same
from tests.support.drive import STEPS, drive

import nestax as nx
from nestax.parts.settings import with_schedules


def cover(case, draws, beta, step):
    """STORM on g and on its Jacobian with the same draws; then Vᵀ∇f(u)."""
    (g, f), x, x_old, rows = case.levels, case.w0, None, []
    for t, (inner, outer) in enumerate(draws):
        xi = inner["value"]
        if t == 0:
            u, V = g.f(x, xi), g.J(x, xi)
        else:
            u = (1 - beta(t)) * (u - g.f(x_old, xi)) + g.f(x, xi)
            V = (1 - beta(t)) * (V - g.J(x_old, xi)) + g.J(x, xi)
        u = g.project(u)
        v = (f.J(u, outer["value"]) @ V)[0]
        rows.append((x, v, f.f(u, outer["value"])[0]))
        x_old, x = x, step(t, x, v)
    return rows


def test_number():
    case = bent_two_levels(outer_noisy=False)
    run = drive(case.problem, nx.COVER(beta=0.3), case.lr)
    here = cover(case, run.draws, lambda t: 0.3, descent(case.lr))
    assert_follows(run, here)
    assert apart(here, cover(case, run.draws, lambda t: 1.0, descent(case.lr))) > 1e-3
    assert apart(here, cover(without_range(case), run.draws, lambda t: 0.3, descent(case.lr))) > 1e-4


@pytest.mark.parametrize("offset", [100, 3])
def test_published(offset):
    case = bent_two_levels(outer_noisy=False)
    run = drive(case.problem, nx.COVER() if offset == 100 else nx.COVER(offset=offset, lr=0.4))
    beta = lambda t: 0.5 * (1 + t / offset) ** (-2 / 3)
    lr = 0.1 if offset == 100 else 0.4
    rate = lambda c: lr * (1 + c / offset) ** (-1 / 3)
    assert_follows(run, cover(case, run.draws, beta, descent(rate)))


@pytest.mark.parametrize(
    ("settings", "beta", "first", "lr"),
    [
        ({}, 0.5, 1000, 0.1),
        ({"beta": 0.8, "first_stage": 3, "lr": 0.4}, 0.8, 3, 0.4),
    ],
)
def test_stages(settings, beta, first, lr):
    case = bent_two_levels(outer_noisy=False)
    run = drive(case.problem, nx.RECOVER(**settings))
    stage = lambda t: math.floor(math.log2(1 + t / first))
    rate = lambda c: lr / 2 ** (stage(c) / 2)
    here = cover(case, run.draws, lambda t: beta / 2 ** stage(t), descent(rate))
    assert_follows(run, here)
    if first == 3:
        assert [stage(t) for t in (2, 3, 8, 9)] == [0, 1, 1, 2]
        assert apart(here, cover(case, run.draws, lambda t: beta, descent(lr))) > 1e-3


def test_stages_begin_on_time():
    """Stage s begins at step first·(2^s − 1), however late."""
    case = bent_two_levels(outer_noisy=False)
    rule = with_schedules(nx.RECOVER(first_stage=1).published_step(case.problem), STEPS, "float64")
    for s in range(1, 20):
        for c, stage in ((2**s - 2, s - 1), (2**s - 1, s)):
            moved, _ = rule.update(
                case.problem, jnp.zeros(4), jnp.ones(4), {}, jnp.asarray(c, jnp.int32)
            )
            assert_same(moved, np.full(4, -0.1 / 2 ** (stage / 2)))
