"""SMVR against Algorithm 1 of Jiang et al., written out with matrices in NumPy."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.cases import RANGE, noisy
from tests.support.compare import assert_same, flat
from tests.support.compiled import compiled_init
from tests.support.drive import BATCH, FIRST_BATCH, STEPS, draws_at, drive

import nestax as nx
from nestax.parts.balls import RunningRadius

NO_BALL = lambda V, radius: (V, False)


def frobenius_ball(V, radius):
    size = np.sqrt(np.sum(V**2))
    return (V * radius / size, True) if size > radius else (V, False)


def spectral_ball(V, radius):
    left, singular, right = np.linalg.svd(V, full_matrices=False)
    clipped = left @ np.diag(np.minimum(singular, radius)) @ right
    return clipped, singular[0] > radius


class Transcript(NamedTuple):
    w: list
    v: list
    u: list
    V: list
    active: list


def smvr(case, draws, beta, radius, ball) -> Transcript:
    """beta maps the step to β_t; radius has one entry R_i per level, or is a function of step, level
    and the drawn Jacobian; u[0] is w."""
    out = Transcript([], [], [], [], [])
    w, u, V = case.project(case.w0), None, None
    for t, xi in enumerate(draws):
        u_old, V_old, u, V, active = u, V, [w], [], []
        for i, level in enumerate(case.levels):
            f = lambda x, level=level, batch=xi[i]["value"]: level.f(x, batch)
            J = lambda x, level=level, batch=xi[i]["value"]: level.J(x, batch)
            if t == 0:
                u_i, V_i = f(u[i]), J(u[i])
            else:
                u_i = (1 - beta(t)) * (u_old[i + 1] - f(u_old[i])) + f(u[i])
                V_i = (1 - beta(t)) * (V_old[i] - J(u_old[i])) + J(u[i])
            V_i, hit = ball(V_i, radius(t, i, J(u[i])) if callable(radius) else radius[i])
            u.append(level.project(u_i)), V.append(V_i), active.append(hit)
        v = np.ones(1)
        for V_i in reversed(V):
            v = V_i.T @ v
        for column, entry in zip(out, (w, v, u[1:], V, active), strict=True):
            column.append(entry)
        w = case.project(w - case.lr * v)
    return out


def assert_follows(run, transcript, problem):
    assert_same(run.weights, transcript.w)
    assert_same(run.grads, transcript.v)
    assert_same(run.values, [u[-1][0] for u in transcript.u])
    for state, u, V in zip(run.state, transcript.u, transcript.V, strict=True):
        for i, level in enumerate(problem.levels):
            assert_same(flat(state.value[i]), u[i])
            if not level.deterministic:
                assert_same(state.jac[i].dense(), V[i])


@pytest.mark.parametrize("name", ["three_levels", "portfolio", "tree"])
def test_without_ball(name):
    case = noisy(name)
    run = drive(case.problem, nx.SMVR(beta=0.3), case.lr)
    none = [None] * len(case.levels)
    assert_follows(run, smvr(case, run.draws, lambda t: 0.3, none, NO_BALL), case.problem)


@pytest.mark.erratum("E18")
def test_tracked_values_are_moved_into_the_range_of_their_level():
    case = noisy("three_levels")
    run = drive(case.problem, nx.SMVR(beta=0.3), case.lr)
    first = np.stack([state.value[0] for state in run.state])
    at_the_edge = np.isin(first, RANGE).any(axis=1)
    assert 0 < at_the_edge.sum() < len(first)
    assert first.min() >= RANGE[0]
    assert first.max() <= RANGE[1]


def test_minimize_takes_the_same_steps():
    case = noisy("portfolio")
    run = drive(case.problem, nx.SMVR(beta=0.3), case.lr)
    result = nx.minimize(
        case.problem,
        nx.SMVR(beta=0.3),
        optax.sgd(case.lr),
        steps=STEPS,
        batch_size=BATCH,
        init_batch_size=FIRST_BATCH,
        record_every=2,
        record=["value"],
    )
    assert_same(result.records["value"], run.values[::2])
    assert_same(result.w, run.weights[-1])


def test_schedule_is_asked_with_the_number_of_the_step():
    case = noisy("one_level")
    beta = lambda t: 1 / (1 + jnp.asarray(t, float))
    run = drive(case.problem, nx.SMVR(beta), case.lr)
    transcript = smvr(case, run.draws, beta, [None], NO_BALL)
    assert_follows(run, transcript, case.problem)


def median_norms(case, draws, order):
    """A radius per level that is met about half of the time; deterministic levels never meet it."""
    free = smvr(case, draws, lambda t: 0.3, [None] * len(case.levels), NO_BALL)
    norms = np.asarray([[np.linalg.norm(V_i, order) for V_i in V] for V in free.V])
    tracked = [not level.deterministic for level in case.problem.levels]
    return np.where(tracked, np.median(norms, axis=0), 10 * norms.max(axis=0))


@pytest.mark.parametrize(
    ("name", "ball"),
    [
        ("three_levels", "frobenius"),
        ("portfolio", "frobenius"),
        ("tree", "frobenius"),
        ("three_levels", "spectral"),
        ("portfolio", "spectral"),
    ],
)
@pytest.mark.erratum("E7", "E9")
def test_ball(name, ball):
    case = noisy(name)
    order, project = {"frobenius": ("fro", frobenius_ball), "spectral": (2, spectral_ball)}[ball]
    draws = drive(case.problem, nx.SMVR(beta=0.3), case.lr).draws
    radius = median_norms(case, draws, order)
    run = drive(case.problem, nx.SMVR(beta=0.3, radius=radius, ball=ball), case.lr)
    transcript = smvr(case, draws, lambda t: 0.3, radius, project)
    active = np.asarray(transcript.active)
    tracked = [not level.deterministic for level in case.problem.levels]
    np.testing.assert_array_equal(active.any(axis=0), tracked)
    assert not active.all(axis=0).any()
    assert_follows(run, transcript, case.problem)
    assert_counts(run, active)


def assert_counts(run, active):
    """The records say at what share of the estimates so far each ball was active."""
    estimates = np.arange(1, len(active) + 1)[:, None]
    share = np.stack([e.aux["ball_active"] for e in run.estimate])
    assert_same(share * estimates, np.cumsum(active, axis=0), tolerance=1e-6)


def test_one_radius_serves_all_levels():
    case = noisy("three_levels")
    batches = draws_at(case.problem, ("value",), 0, BATCH)
    start = lambda radius: compiled_init(nx.SMVR(radius=radius), case.problem, case.w0, batches)[0]
    one, many, other = start(0.5), start([0.5, 0.5, 0.5]), start([0.5, 0.5, 0.4])
    np.testing.assert_array_equal(one.grad, many.grad)
    assert np.linalg.norm(one.grad - other.grad) > 1e-3


@pytest.mark.parametrize("ball", ["frobenius", "spectral"])
def test_a_jacobian_at_the_edge_of_its_ball_is_inside(ball):
    problem = nx.Problem([nx.Level(lambda w, r: 2 * r * w[0], jnp.ones(4))], w0=jnp.ones(1))
    batches = draws_at(problem, ("value",), 0, BATCH)
    for radius, active in ((2.0, 0), (1.5, 1)):
        method = nx.SMVR(beta=0.1, radius=radius, ball=ball)
        estimate = compiled_init(method, problem, problem.w0, batches)[0]
        assert_same(estimate.grad, [radius])
        assert estimate.aux["ball_active"] == active


@pytest.mark.parametrize("name", ["three_levels", "portfolio"])
def test_running_ball(name):
    """Radius: a factor times the running mean size of earlier draws; the first is its own."""
    case, factor, rate = noisy(name), 0.99, 0.2
    tracked = [not level.deterministic for level in case.problem.levels]
    running = RunningRadius(jnp.asarray(factor), jnp.asarray(rate))
    run = drive(case.problem, nx.SMVR(beta=0.3, radius=running), case.lr)
    sizes = {}

    def per_step(t, i, drawn):
        size = np.linalg.norm(drawn)
        before = sizes.setdefault(i, size)
        sizes[i] = before + rate * (size - before)
        return factor * before if tracked[i] else np.inf

    transcript = smvr(case, run.draws, lambda t: 0.3, per_step, frobenius_ball)
    active = np.asarray(transcript.active)
    assert active.any()
    assert not active.all(axis=0).any()
    assert_follows(run, transcript, case.problem)
    assert_counts(run, active)


def test_nothing_set_means_falling_rates_and_a_running_ball():
    filled = nx.SMVR().defaults(noisy("portfolio").problem, 100, (BATCH, BATCH, 0))
    assert isinstance(filled.radius, RunningRadius)
    assert filled.radius.factor == 10
    assert nx.SMVR(beta=0.1).defaults(noisy("portfolio").problem, 100, (1, 1, 0)).radius is None


@pytest.mark.filterwarnings("ignore::nestax.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:The weights have not moved")
def test_the_running_ball_cuts_a_rare_huge_draw_and_leaves_the_others_alone():
    draws = np.concatenate([np.ones(99), [1e6]])
    problem = nx.Problem([nx.Level(lambda w, r: r * w[0], data=jnp.asarray(draws))], w0=jnp.ones(1))

    def run(radius, steps):
        return nx.minimize(
            problem,
            nx.SMVR(beta=0.1, radius=radius),
            optax.sgd(0.0),
            steps=steps,
            batch_size=1,
            init_batch_size=1,
            record_every=1,
            record=["value"],
        )

    first = int(np.argmax(run(None, 300).records["value"] > 10))
    assert first > 10
    held, free = run(RunningRadius(), first), run(None, first)
    np.testing.assert_array_equal(held.records["ball_active"][:first, 0], 0)
    assert held.carry.lane.state.jac[0].dense().max() == 10
    assert free.carry.lane.state.jac[0].dense().max() > 1e5
