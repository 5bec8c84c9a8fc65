"""Observed constants against closed forms, on families where those are known."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.cases import rng_of
from tests.support.compare import assert_same

import nestax as nx
from nestax.theory import constants
from nestax.theory.constants import LevelConstants

from experiments.smooth_chain import smooth_chain

NAMES = LevelConstants._fields[1:]


def ratios(observed, truth):
    """Observed over true, for every level and constant; where the truth is 0, so is the other."""
    assert len(observed.levels) == len(truth)
    out = {}
    for level, expected in zip(observed.levels, truth, strict=True):
        for name, value in zip(NAMES, expected, strict=True):
            if value == 0:
                assert getattr(level, name) < 1e-12, (level.level, name)
            else:
                out[level.level, name] = getattr(level, name) / value
    return out


def assert_within(observed, truth, low=0.5, high=1.001):
    """A maximum over points never exceeds the supremum, and is half of it at least."""
    wrong = {k: r for k, r in ratios(observed, truth).items() if not low <= r <= high}
    assert not wrong, wrong


# Smooth chains


def smooth_chain_constants(levels, dimension, noise):
    """Suprema for the non-convex family, by hand, with d entries and noise s in every e.

    An inner level is x + (b + e_1)·sin x + e_2 with b = ±1/2, entry by entry. Its Jacobian has 1 + (b +
    e_1)·cos x on the diagonal, the derivative of that is −(b + e_1)·sin x, so

        L_f = 1 + |b|,  ℒ_f² = (1 + |b|)² + s²,  L_J = |b|,  ℒ_J² = b² + s²,
        σ_f² = Σ s²(sin² x_j + 1) ≤ 2ds²,  σ_J² = Σ s² cos² x_j ≤ ds².

    The outer level is the mean over entries of h(x) + e_1(1 − cos x) + e_2 x with h = x²/(1 + x²), where
    |h'| ≤ h'(1/√3) = 9/(8√3) and |h''| ≤ h''(0) = 2. Its gradient is (h' + e_1 sin x + e_2)/d, so

        L_f = max|h'|/√d,  ℒ_f² ≤ L_f² + 2s²/d²,  L_J = 2/d,  ℒ_J² = (4 + s²)/d²,
        σ_f² = Σ s²((1 − cos x_j)² + x_j²)/d²,  σ_J² = Σ s²(sin² x_j + 1)/d² ≤ 2s²/d.

    Only σ_f of the outer level grows with x. It is largest where all entries of w are 2, which is as far
    from the start, 1, as 0 is; every other supremum lies within that distance, too.
    """
    d, s, b = dimension, noise, 0.5
    inner = (1 + b, b, s * math.sqrt(2 * d), s * math.sqrt(d), math.hypot(1 + b, s), math.hypot(b, s))
    x = 2.0
    for k in range(levels - 1):
        x += (-1) ** k * b * math.sin(x)
    slope = 9 / (8 * math.sqrt(3)) / math.sqrt(d)
    outer = (
        slope,
        2 / d,
        s * math.hypot(1 - math.cos(x), x) / math.sqrt(d),
        s * math.sqrt(2 / d),
        math.hypot(slope, s * math.sqrt(2) / d),
        math.hypot(2, s) / d,
    )
    return [inner] * (levels - 1) + [outer]


@pytest.mark.parametrize(
    ("levels", "noise"), [(1, 0.5), (2, 0.5), (3, 0.5), (4, 0.5), (3, 0.05), (3, 3.0), (2, 0.0)]
)
def test_smooth_chains(levels, noise):
    problem = smooth_chain(levels=levels, dimension=4, noise=noise, rows=200)
    observed = nx.theory.estimate_constants(problem, points=32)
    assert observed.radius == 2.0  # ‖w_0‖
    # The two kinds of noise of 200 rows are slightly correlated, which the formulas leave out.
    assert_within(observed, smooth_chain_constants(levels, 4, noise), high=1.1)


# Convex chains: the same six numbers from derivatives written out, on a fine grid of weights


def affine(w, A, b):
    return A @ w + b, A, np.zeros((len(b), len(w), len(w)))


def square(u, c):
    return (u - c) ** 2 / 2, np.diag(u - c), _diagonal(np.ones_like(u))


def grow(v, s):
    return v + s * v**2 / 2, np.diag(1 + s * v), _diagonal(s)


def total(fn):
    return lambda x, own, t: tuple(np.tensordot(t, part, 1)[None] for part in fn(x, own))


def loss(w, A, b):
    u = A @ w + b
    return np.array([u @ u / 2]), (A.T @ u)[None], (A.T @ A)[None]


def _diagonal(entries):
    out = np.zeros((len(entries),) * 3)
    np.einsum("iii->i", out)[:] = entries
    return out


def six_squares(f, J, D):
    """Squares of the constants at one point, from values, Jacobians and their derivatives per draw."""
    largest = lambda T: np.linalg.norm(T.reshape(-1, T.shape[-1]), 2) ** 2
    spread = lambda X: np.var(X, axis=0).sum()
    return (
        largest(J.mean(0)),
        largest(D.mean(0)),
        spread(f),
        spread(J),
        largest(J) / len(J),
        largest(D) / len(D),
    )


@pytest.mark.parametrize(
    "functions",
    [[loss], [affine, total(square)], [affine, square, grow, total(grow)]],
    ids=len,
)
def test_convex_chains(functions):
    problem = nx.problems.convex_chain(len(functions), dimension=2, rows=40)
    radius, ticks = 0.8, np.linspace(-0.8, 0.8, 17)
    x = [
        np.ones(2) + move
        for move in np.array(np.meshgrid(ticks, ticks)).reshape(2, -1).T
        if np.linalg.norm(move) <= radius
    ]
    truth = []
    for fn, level in zip(functions, problem.levels, strict=True):
        data = level.source.data
        rows = list(zip(*map(np.asarray, data if isinstance(data, tuple) else (data,)), strict=True))
        found, means = [], []
        for point in x:
            f, J, D = (np.stack(part) for part in zip(*(fn(point, *row) for row in rows), strict=True))
            found.append(six_squares(f, J, D))
            means.append(f.mean(axis=0))
        truth.append(np.sqrt(np.max(found, axis=0)))
        x = means
    observed = nx.theory.estimate_constants(problem, points=32, radius=radius)
    # The grid misses the very edge of the disc.
    assert_within(observed, truth, low=0.8, high=1.1)
    assert_same(observed.levels[0].sigma_J if len(functions) > 1 else truth[0][3], truth[0][3], 1e-9)


# The portfolio: every supremum over the simplex but one is at a corner, and known


def portfolio_constants(r, risk, delta):
    """With mean m, covariance Σ, r̃ = r − m, ρ = (−1, r) and e = r̃·x.

    Level 1 has the Jacobian [r; I], level 2 [(1, 0); 2eρ]. What depends on x is the root of a convex
    function of it, largest at a corner e_j of the simplex, except for σ_f of level 2, of which the
    corners give a lower bound, and for level 3, which is steepest at the least variance.
    """
    m, cov = r.mean(axis=0), np.cov(r.T, bias=True)
    off, rho = r - m, np.c_[-np.ones(len(r)), r]
    top = lambda M: np.linalg.eigvalsh(M)[-1]
    moment = lambda weight: (weight[:, None] * rho).T @ rho / len(r)
    mean = (
        math.sqrt(1 + m @ m),
        0,
        math.sqrt(cov.diagonal().max()),
        math.sqrt(np.trace(cov)),
        math.sqrt(1 + top(r.T @ r / len(r))),
        0,
    )
    size = (rho**2).sum(axis=1)
    first = np.zeros((len(m) + 1,) * 2)
    first[0, 0] = 1
    e = off.T  # at corner j
    variance = (
        max(1, 2 * np.linalg.norm(cov, axis=0).max()),
        2 * top(moment(np.ones(len(r)))),
        max(np.std(e**2, axis=1)),
        2 * math.sqrt(max((e**2 * size).mean(axis=1) - (cov**2).sum(axis=0))),
        math.sqrt(max(top(first + 4 * moment(row**2)) for row in e)),
        2 * math.sqrt(top(moment(size))),
    )
    x = np.full(len(m), 1 / len(m))
    for _ in range(500):  # Frank-Wolfe with the best step finds the least variance
        move = np.eye(len(m))[np.argmin(cov @ x)] - x
        x += np.clip(-(move @ cov @ x) / max(move @ cov @ move, 1e-12), 0, 1) * move
    least = x @ cov @ x + delta
    slope, curve = math.hypot(1, risk / 2 / math.sqrt(least)), risk / 4 * least**-1.5
    return [mean, variance, (slope, curve, 0, 0, slope, curve)]


def test_portfolio_on_the_simplex():
    r = nx.datasets.synthetic_returns(400, 5)
    observed = nx.theory.estimate_constants(nx.problems.mean_deviation(r, risk=0.5), points=48)
    truth = portfolio_constants(r, 0.5, 1e-8)
    assert_within(observed, truth, low=0.8)
    exact = [("mean", name) for name in ("L_f", "sigma_J", "mean_L_f")]
    found = ratios(observed, truth)
    assert_same([found[place] for place in exact], 1, 1e-3)  # two eigenvalues are nearly the same
    assert_same([found["variance", name] for name in ("L_J", "mean_L_J")], 1, 1e-6)


# What else draws can come from


def linear(w, z):
    return w * (1 + z)


def test_a_simulator_is_sampled():
    problem = nx.Problem(
        [nx.Level(linear, nx.Sampler(jax.random.normal)), nx.Level(lambda u: jnp.sum(u**2) / 2)],
        jnp.asarray([0.6, 0.8]),
    )
    observed = nx.theory.estimate_constants(problem, points=16, draws=4_000)
    # J = (1 + z)·I, of rank two; ‖w‖ ≤ 2, and u has the mean w.
    truth = [(1, 0, 2, math.sqrt(2), math.sqrt(2), 0), (2, 1, 0, 0, 2, 1)]
    assert_within(observed, truth, low=0.8, high=1.1)


def test_weights_of_rows_and_groups_count():
    rows = np.array([[0.0], [4.0]])
    build = lambda data, fn: nx.Problem([nx.Level(fn, data, name="one")], jnp.ones(1))
    scalar = lambda w, r: r[0] * w[0]
    observed = nx.theory.estimate_constants(build(nx.Population(rows, weights=[3, 1]), scalar), points=4)
    # E r = 1, E r² = 4
    assert_within(observed, [(1, 0, 2 * math.sqrt(3), math.sqrt(3), 2, 0)], low=0.7, high=1.2)
    both = lambda w, r: (r[0][0] + r[1][0]) * w[0]  # independent, though of equal size
    observed = nx.theory.estimate_constants(build(nx.Groups([rows, rows]), both), points=4)
    assert_within(observed, [(4, 0, 2 * math.sqrt(8), math.sqrt(8), math.sqrt(24), 0)], 0.7, 1.2)


def test_batched_levels_and_trees_in_single_precision():
    rows = rng_of("constants").normal(size=(20, 3)).astype("float32")
    single = lambda w, r: {"a": jnp.tanh(r * w["x"]), "b": w["y"]}
    batch = lambda w, r: {"a": jnp.tanh(r * w["x"]).mean(axis=0), "b": w["y"]}
    hand_on = nx.Level(lambda u: u, name="hand on")  # no block of its Jacobian is computed
    outer = nx.Level(lambda u: jnp.sum(u["a"]) * u["b"], name="outer")
    tables = [
        nx.theory.estimate_constants(
            nx.Problem(
                [nx.Level(fn, rows, batched=batched, name="inner"), hand_on, outer],
                {"x": jnp.zeros(3, "float32"), "y": jnp.ones((), "float32")},
            ),
            points=8,
        )
        for fn, batched in ((single, False), (batch, True))
    ]
    numbers = [[level[1:] for level in observed.levels] for observed in tables]
    assert_same(*numbers, 1e-5)
    assert_same(numbers[0][1], (1, 0, 0, 0, 1, 0), 1e-5)


# The region


def distances(problem, radius, points=40):
    rng = rng_of("points")
    directions, shares = rng.normal(size=(points - 1, 3)), rng.uniform(size=points - 1)
    w = eqx.filter_jit(constants._weights)(problem, problem.w0, radius, directions, shares)
    return np.asarray(w), np.linalg.norm(w - problem.w0, axis=1)


def small(**rest):
    return nx.Problem([nx.Level(lambda w, r: r @ w, np.ones((2, 3)))], jnp.full(3, 1 / 3), **rest)


def test_points_fill_the_feasible_part_of_the_region():
    w, far = distances(small(), 5.0)
    assert far[0] == 0
    assert np.sum(far < 1) > 5
    assert_same(np.sort(far)[-10:], 5.0)
    for kind in ("project", "linear_oracle"):
        module = nx.projections if kind == "project" else nx.linear_oracles
        problem = small(**{kind: module.simplex})
        w, far = distances(problem, 5.0)
        assert_same(w.sum(axis=1), 1)
        assert w.min() > -1e-12
        assert w.max() > 0.95  # near a corner
        assert distances(problem, 0.2)[1].max() <= 0.2 + 1e-12


# Results


def test_what_is_observed_prints_and_goes_into_the_theorems():
    problem = smooth_chain(levels=3, dimension=4, rows=200)
    observed = nx.theory.estimate_constants(problem, points=32)
    lines = str(observed).splitlines()
    first = [line.split()[0] for line in lines]
    assert first == ["level", "-------", "inner", "inner", "outer", "largest", "observed"]
    assert lines[-1] == "observed at 32 points within 2 of the start"
    k = observed.constants
    assert k.levels == 3
    assert all(getattr(k, name) == max(getattr(row, name) for row in observed.levels) for name in NAMES)
    assert float(nx.theory.theorem_1(k).lr(0)) < 1 / (2 * k.smoothness)
    other = nx.theory.estimate_constants(problem, points=32, seed=1)
    assert other != observed
    assert nx.theory.estimate_constants(problem, points=32) == observed


def test_a_jacobian_that_jumps_is_named():
    rows = rng_of("jump").normal(size=(50, 2))
    problem = nx.Problem(
        [
            nx.Level(lambda w, r: jnp.abs(r @ w - 0.3), rows, name="kink"),
            nx.Level(lambda u: u**2, name="square"),
        ],
        jnp.ones(2),
    )
    observed = nx.theory.estimate_constants(problem, points=16)
    assert len(observed.notes) == 1
    assert str(observed).splitlines()[-1].startswith("! level 'kink': its Jacobian changes more between")


def squash(w, r):
    return jnp.tanh(r * w)


PROBLEM = nx.Problem(
    [
        nx.Level(squash, np.ones((5, 3)), name="inner"),
        nx.Level(lambda u: jnp.sum(jnp.log(u)), name="log"),
    ],
    jnp.ones(3),
)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"points": 1}, "points must be at least 2; got 1"),
        ({"points": 2.5}, "points must be a whole number"),
        ({"draws": 1}, "draws must be at least 2; got 1"),
        ({"radius": 0.0}, "radius must be one positive number; got 0.0"),
        ({"radius": "far"}, "radius must be one positive number; got 'far'"),
        ({"seed": 0.5}, "seed must be a whole number"),
        ({"points": 3, "draws": 4}, "4 Jacobians of level 'inner', 3 × 3 each, .*: lower draws to 3"),
    ],
)
def test_bad_settings_get_one_sentence(settings, sentence, monkeypatch):
    monkeypatch.setattr(constants, "MOST_ENTRIES", 30)
    with pytest.raises(nx.SettingError, match=sentence):
        nx.theory.estimate_constants(PROBLEM, **settings)


def test_bad_problems_get_one_sentence(monkeypatch):
    with pytest.raises(nx.SettingError, match=r"must be an nx\.Problem; got str"):
        nx.theory.estimate_constants("portfolio")
    with pytest.raises(nx.ProblemError, match=r"level 'log' is not finite, .* within 2 of the start"):
        nx.theory.estimate_constants(PROBLEM, points=16, radius=2.0)
    assert len(nx.theory.estimate_constants(PROBLEM, points=16, radius=0.5).levels) == 2
    monkeypatch.setattr(constants, "MOST_ENTRIES", 10)
    with pytest.raises(nx.SettingError, match=r"3 × 3 each, .*: take a smaller example"):
        nx.theory.estimate_constants(PROBLEM)
