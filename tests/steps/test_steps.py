"""Step rules written out in NumPy; linear oracles against brute force."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.cases import rng_of, simplex_by_sorting
from tests.support.compare import assert_same, flat
from tests.support.compiled import quick_jit

import nestax as nx
from nestax.parts.settings import with_schedules
from nestax.parts.step_rule import as_step

SIZE, STEPS, HORIZON = 5, 8, 20
STRENGTH = 0.3
RNG = rng_of("steps")
GRADS = RNG.normal(size=(STEPS, SIZE))
RATES = RNG.uniform(0.1, 0.5, STEPS)
W0 = {"a": jnp.asarray(RNG.normal(size=2)), "b": jnp.asarray(RNG.normal(size=(1, 3)))}


def tree(x):
    return {"a": jnp.asarray(x[:2]), "b": jnp.asarray(x[2:]).reshape(1, 3)}


def squares(w, scale):
    return scale * (jnp.sum(w["a"] ** 2) + jnp.sum(w["b"] ** 2))


def problem(kind):
    """Weights are a tree, so that norms and sets that forget a leaf are found out."""
    simplex = {"project": nx.projections.simplex, "linear_oracle": nx.linear_oracles.simplex}
    options = {"free": {}, "simplex": simplex, "prox": {"prox": nx.Prox.l1(STRENGTH)}}
    w0 = tree(simplex_by_sorting(flat(W0))) if kind == "simplex" else W0
    return nx.Problem([nx.Level(squares, np.ones(2))], w0, **options[kind])


def vertex(v):
    return np.eye(SIZE)[np.argmin(v)]


# Each rule in NumPy: (land, w, v, c, settings) ↦ new weights; land(u, lr) projects, or shrinks


def descent(land, w, v, c, lr):
    return land(w - lr * v, lr)


def averaged(land, w, z, c, lr, tau):
    y = land(w - lr * z, lr)
    return w + tau * (y - w)


def bounded(land, w, v, c, lr, eps):
    ahead = land(w - lr * v, lr)
    gamma = min(1 / 2, lr * eps / np.linalg.norm(ahead - w))
    return w + gamma * (ahead - w)


def normalized(land, w, v, c, lr):
    rate = lr / np.linalg.norm(v)
    return land(w - rate * v, rate)


def suggested(land, w, v, c):
    return land(w - RATES[c] * v, RATES[c])


def frank_wolfe(land, w, v, c, lr):
    return w + lr * (vertex(v) - w)


def inner_frank_wolfe(land, w, v, c, lr, beta=1.0, iterations=10):
    z = w
    for _ in range(iterations):
        s = vertex(v + beta * (z - w))
        length = beta * np.sum((s - z) ** 2)
        gamma = (beta * (w - z) - v) @ (s - z) / length if length > 0 else 0.0
        z = z + np.clip(gamma, 0, 1) * (s - z)
    return w + lr * (z - w)


RULES = {
    "Descent": (descent, {"lr": 0.3}),
    "Averaged": (averaged, {"lr": 0.7, "tau": 0.4}),
    "Bounded": (bounded, {"lr": 0.3, "eps": 0.8}),
    "Normalized": (normalized, {"lr": 0.3}),
    "Suggested": (suggested, {}),
    "FrankWolfe": (frank_wolfe, {"lr": 0.3}),
    "InnerFrankWolfe": (inner_frank_wolfe, {"lr": 0.3, "beta": 2.0}),
}
PROJECTION_FREE = ("FrankWolfe", "InnerFrankWolfe")
PAIRS = [(name, "simplex") for name in RULES] + [
    (name, kind) for name in RULES if name not in PROJECTION_FREE for kind in ("free", "prox")
]
SHRINKING = lambda u, lr: np.sign(u) * np.maximum(np.abs(u) - STRENGTH * lr, 0)
LAND = {"free": lambda u, lr: u, "simplex": lambda u, lr: simplex_by_sorting(u), "prox": SHRINKING}


def fade(number, c, horizon):
    return number / (1 + c / jnp.asarray(horizon, float))


def steps_of(rule, kind, grads=GRADS):
    chain = problem(kind)
    rule = with_schedules(rule, HORIZON, "float64")
    step = quick_jit(rule.update)
    w, state, path = chain.w0, rule.init(chain.w0), []
    for v, rate in zip(grads, RATES, strict=False):
        w, state = step(chain, w, tree(v), {"rate": jnp.asarray(rate)}, state)
        path.append(flat(w))
    return np.stack(path)


def steps_in_numpy(name, kind, settings):
    """settings: a function from c to the keyword arguments of the rule."""
    w, path = flat(problem(kind).w0), []
    for c, v in enumerate(GRADS):
        w = RULES[name][0](LAND[kind], w, v, c, **settings(c))
        path.append(w)
    return np.stack(path)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_numbers(name, kind):
    settings = RULES[name][1]
    path = steps_of(getattr(nx.steps, name)(**settings), kind)
    assert_same(path, steps_in_numpy(name, kind, lambda c: settings))
    if kind == "simplex":
        assert path.min() >= 0
        assert_same(path.sum(axis=1), np.ones(STEPS))


@pytest.mark.parametrize(("name", "kind"), [pair for pair in PAIRS if RULES[pair[0]][1]])
def test_schedules_of_the_count_and_the_horizon(name, kind):
    settings = RULES[name][1]
    schedules = {key: lambda c, horizon, x=x: fade(x, c, horizon) for key, x in settings.items()}
    path = steps_of(getattr(nx.steps, name)(**schedules), kind)
    now = lambda c: {key: schedule(c, HORIZON) for key, schedule in schedules.items()}
    assert_same(path, steps_in_numpy(name, kind, now))
    assert np.abs(path - steps_in_numpy(name, kind, lambda c: settings)).max() > 1e-3


def test_bounded_without_an_accuracy_takes_that_of_the_length_of_the_run():
    path = steps_of(nx.steps.Bounded(0.3), "free")
    assert_same(path, steps_in_numpy("Bounded", "free", lambda c: {"lr": 0.3, "eps": HORIZON**-0.5}))


def test_numbers_of_an_optimiser_are_leaves():
    def program(lr, first):
        rule = as_step(optax.adagrad(lr, initial_accumulator_value=first))
        return jax.tree.structure(rule.lifted(W0, lambda: {"value": jnp.zeros(())}))

    assert program(0.1, 0.2) == program(0.3, 0.4)


def test_bounded_meets_both_bounds():
    lengths = np.linalg.norm(GRADS, axis=1)
    assert 0 < np.sum(0.8 / lengths < 0.5) < STEPS


def test_what_is_left_out():
    path = steps_of(nx.steps.Normalized(), "free")
    assert_same(path, steps_in_numpy("Normalized", "free", lambda c: {"lr": HORIZON ** (-2 / 3)}))
    path = steps_of(nx.steps.InnerFrankWolfe(0.3), "simplex")
    assert_same(path, steps_in_numpy("InnerFrankWolfe", "simplex", lambda c: {"lr": 0.3}))
    path = steps_of(nx.steps.InnerFrankWolfe(0.3, iterations=2), "simplex")
    two = lambda c: {"lr": 0.3, "iterations": 2}
    assert_same(path, steps_in_numpy("InnerFrankWolfe", "simplex", two))


@pytest.mark.parametrize("name", [name for name in RULES if name not in PROJECTION_FREE])
def test_no_gradient_no_step(name):
    path = steps_of(getattr(nx.steps, name)(**RULES[name][1]), "free", np.zeros((2, SIZE)))
    assert_same(path, np.tile(flat(W0), (2, 1)))


def test_inner_frank_wolfe_stays_where_the_projection_is():
    """Many inner iterations come close to y = Π(w − v/β), which is what they replace."""
    path = steps_of(nx.steps.InnerFrankWolfe(1.0, 2.0, 3000), "simplex", GRADS[:1])
    ahead = simplex_by_sorting(flat(problem("simplex").w0) - GRADS[0] / 2.0)
    np.testing.assert_allclose(path[0], ahead, atol=2e-2)


def test_rules_refuse_a_problem_without_what_they_need():
    for name in PROJECTION_FREE:
        with pytest.raises(nx.ProblemError):
            getattr(nx.steps, name)(0.1).check(problem("free"))
    corners = nx.Problem([nx.Level(squares, np.ones(2))], W0, linear_oracle=nx.linear_oracles.simplex)
    with pytest.raises(nx.ProblemError):
        nx.steps.Descent(0.1).check(corners)
    nx.steps.FrankWolfe(0.1).check(corners)
    with pytest.raises(nx.ProblemError, match="has a linear_oracle and no project"):
        as_step(optax.sgd(0.1)).check(corners)
    for kind in ("free", "simplex"):
        as_step(optax.sgd(0.1)).check(problem(kind))


# Linear oracles


def signs(size):
    return np.asarray(list(itertools.product([-1.0, 1.0], repeat=size)))


LOWER, UPPER = -1 - RNG.uniform(size=SIZE), RNG.uniform(size=SIZE)
BOX = (signs(SIZE) > 0) * (UPPER - LOWER) + LOWER
DIRECTIONS = RNG.normal(size=(4000, SIZE))
SPHERE = 2.5 * DIRECTIONS / np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)
CROSS = 1.5 * np.vstack([np.eye(SIZE), -np.eye(SIZE)])
ORACLES = {
    "simplex": (lambda v: nx.linear_oracles.simplex(v, 2.0), 2 * np.eye(SIZE)),
    "l1_ball": (
        lambda v: nx.linear_oracles.l1_ball(v, 1.5),
        CROSS,
    ),
    "l2_ball": (lambda v: nx.linear_oracles.l2_ball(v, 2.5), SPHERE),
    "box": (lambda v: nx.linear_oracles.box(v, tree(LOWER), tree(UPPER)), BOX),
    "box of numbers": (lambda v: nx.linear_oracles.box(v, -1.0, 2.0), 0.5 + 1.5 * signs(SIZE)),
}


@pytest.mark.parametrize("name", ORACLES)
def test_oracle_against_all_vertices(name):
    oracle, points = ORACLES[name]
    found = np.stack([flat(x) for x in map(jax.jit(oracle), map(tree, GRADS))])
    if name == "l2_ball":
        assert_same(np.linalg.norm(found, axis=1), np.full(STEPS, 2.5))
        margins = np.min(points @ GRADS.T, axis=0) - np.sum(found * GRADS, axis=1)
        assert margins.min() >= 0
        assert margins.max() < 0.2 * np.linalg.norm(GRADS, axis=1).max()
    else:
        assert_same(found, points[np.argmin(points @ GRADS.T, axis=0)])


@pytest.mark.parametrize("name", ORACLES)
def test_oracle_at_zero_is_inside(name):
    x = flat(ORACLES[name][0](tree(np.zeros(SIZE))))
    inside = {
        "simplex": x.min() >= 0 and np.isclose(x.sum(), 2.0),
        "l1_ball": np.abs(x).sum() <= 1.5,
        "l2_ball": np.linalg.norm(x) <= 2.5,
        "box": (x >= LOWER).all() and (x <= UPPER).all(),
        "box of numbers": (x >= -1).all() and (x <= 2).all(),
    }
    assert inside[name]


def test_defaults_have_size_one():
    v = tree(GRADS[0])
    for oracle in (nx.linear_oracles.simplex, nx.linear_oracles.l1_ball, nx.linear_oracles.l2_ball):
        assert_same(np.linalg.norm(flat(oracle(v))), 1.0)


# Half precision


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [1e-4, 300.0])
@pytest.mark.parametrize(
    "step",
    [nx.steps.Normalized(0.1), nx.steps.Bounded(0.1, eps=0.5), as_step(optax.adam(0.1))],
    ids=lambda step: type(step).__name__,
)
def test_squares_of_half_precision_neither_vanish_nor_overflow(step, size, dtype):
    """Of numbers that half precision can hold, like those here, the squares are none of it."""

    def moved(dtype):
        w = jnp.zeros(3, dtype)
        free = nx.Problem([nx.Level(lambda w, x: x * jnp.sum(w), jnp.ones(2, dtype))], w)
        grad = jnp.asarray([size, 0.0, -size / 2], dtype)
        ready = step.ready(10, dtype)
        return ready.update(free, w, grad, {}, ready.init(w))[0]

    assert moved(dtype).dtype == dtype
    assert_same(moved(dtype).astype(float), moved("float64"), 0.01)
