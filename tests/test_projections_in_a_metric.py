"""Projections in a diagonal metric: against quadratic programs that are solved by trying all faces."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nestax as nx

P = nx.projections
SIZE = 4
LOW, HIGH = np.array([-0.5, 0.0, 0.1, -1.0]), np.array([0.3, 0.6, 0.4, 0.2])
A = np.array([1.0, -2.0, 0.5, 1.5])
RNG = np.random.default_rng(5)
POINTS = [RNG.normal(size=SIZE) * scale for scale in (0.1, 0.5, 1.0, 5.0, 50.0) for _ in range(4)]
METRICS = [10 ** RNG.uniform(-spread, spread, SIZE) for spread in (0.0, 0.5, 2.0, 4.0)]


def on_faces(y, D, low, high, total):
    """min Σ D (x − y)² over low ≤ x ≤ high, Σx = total, by trying which bounds hold."""
    best, value = None, np.inf
    for face in itertools.product((0, 1, 2), repeat=len(y)):
        face = np.array(face)
        x = np.where(face == 0, low, high).astype(float)
        free = face == 2
        if (~np.isfinite(x[~free])).any():
            continue
        rest = total - x[~free].sum()
        if free.any():
            x[free] = y[free] - (y[free].sum() - rest) / D[free] / (1 / D[free]).sum()
        elif abs(rest) > 1e-9:
            continue
        if (x >= low - 1e-9).all() and (x <= high + 1e-9).all() and D @ (x - y) ** 2 < value:
            best, value = x, D @ (x - y) ** 2
    return best


def l1_by_faces(y, D):
    if np.abs(y).sum() <= 1:
        return y
    inside = on_faces(np.abs(y), D, np.zeros(SIZE), np.full(SIZE, np.inf), 1.0)
    return np.sign(y) * inside


def l2_by_newton(y, D):
    """D (x − y) = −τ x with the τ where ‖x‖ = 0.7, by halving it in extended precision."""
    if np.linalg.norm(y) <= 0.7:
        return y
    y, D = y.astype(np.longdouble), D.astype(np.longdouble)
    low, high = np.longdouble(0), D.max() * np.linalg.norm(y) / 0.7
    for _ in range(200):
        middle = (low + high) / 2
        long = np.linalg.norm(D * y / (D + middle)) > 0.7
        low, high = (middle, high) if long else (low, middle)
    return (D * y / (D + high)).astype(float)


def along(y, D, excess):
    return y - A / D * excess(A @ y - 0.2) / (A**2 / D).sum()


SETS = {
    "simplex": (
        functools.partial(P.simplex, total=1.5),
        lambda y, D: on_faces(y, D, np.zeros(SIZE), np.full(SIZE, np.inf), 1.5),
    ),
    "budget": (
        lambda w, metric=None: P.budget(w, jnp.asarray(LOW), jnp.asarray(HIGH), 0.4, metric=metric),
        lambda y, D: on_faces(y, D, LOW, HIGH, 0.4),
    ),
    "l1 ball": (P.l1_ball, l1_by_faces),
    "l2 ball": (functools.partial(P.l2_ball, scale=0.7), l2_by_newton),
    "linf ball": (P.linf_ball, lambda y, D: np.clip(y, -1, 1)),
    "box": (functools.partial(P.box, lower=-0.2, upper=0.4), lambda y, D: np.clip(y, -0.2, 0.4)),
    "nonnegative": (P.nonnegative, lambda y, D: np.maximum(y, 0)),
    "halfspace": (
        functools.partial(P.halfspace, a=jnp.asarray(A), b=0.2),
        lambda y, D: along(y, D, lambda e: max(e, 0.0)),
    ),
    "hyperplane": (
        functools.partial(P.hyperplane, a=jnp.asarray(A), b=0.2),
        lambda y, D: along(y, D, lambda e: e),
    ),
}


@pytest.mark.parametrize("name", SETS)
def test_it_is_the_nearest_point_in_that_norm(name):
    project, reference = SETS[name]
    found = jax.jit(lambda w, D: project(w, metric=D))
    for y, D in itertools.product(POINTS, METRICS):
        expected = reference(y, D)
        np.testing.assert_allclose(found(y, D), expected, atol=1e-13 * max(1, np.abs(y).max()))


@pytest.mark.parametrize("name", SETS)
def test_lanes_scale_and_equal_entries(name):
    project, _ = SETS[name]
    points = jnp.asarray(np.stack(POINTS))
    D = jnp.asarray(METRICS[2])
    one = jax.jit(lambda w, D: project(w, metric=D))
    lanes = jax.jit(jax.vmap(one, (0, None)))(points, D)
    np.testing.assert_allclose(lanes, [one(y, D) for y in points], atol=1e-13)
    np.testing.assert_allclose(lanes, jax.vmap(one, (0, None))(points, 1e6 * D), atol=1e-12)
    plain = jax.vmap(project)(points)
    even = jax.vmap(one, (0, None))(points, jnp.full(SIZE, 3.0))
    np.testing.assert_allclose(even, plain, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("size", [1, 6, 300])
@pytest.mark.parametrize(
    "project",
    [
        P.simplex,
        P.l1_ball,
        P.l2_ball,
        functools.partial(P.budget, lower=0.0, upper=1.0),
        lambda w, metric: P.halfspace(w, jnp.ones_like(w), 0.1, metric=metric),
    ],
    ids=["simplex", "l1", "l2", "budget", "halfspace"],
)
def test_narrow_weights_stay_narrow(project, size, dtype):
    rng = np.random.default_rng(size)
    w = jnp.asarray(rng.normal(size=size), dtype)
    D = jnp.asarray(10 ** rng.uniform(-1, 1, size), "float32")
    more = (
        {"a": jnp.ones(size, dtype)}
        if project.__class__ is functools.partial and "b" in project.keywords
        else {}
    )
    narrow = project(w, metric=D, **more)
    wide = project(
        w.astype(float), metric=D.astype(float), **{k: v.astype(float) for k, v in more.items()}
    )
    assert narrow.dtype == dtype
    np.testing.assert_allclose(narrow.astype(float), wide, atol=4 * float(jnp.finfo(dtype).eps))


def test_entries_that_hardly_move_and_those_that_move_freely():
    w = P.simplex(jnp.asarray([0.4, 0.4, 0.4]), metric=jnp.asarray([1e30, 1.0, 1e-30]))
    np.testing.assert_allclose(w, [0.4, 0.4, 0.2], atol=1e-12)
    w = P.l2_ball(jnp.asarray([3.0, 4.0]), metric=jnp.asarray([1.0, 1e12]))
    np.testing.assert_allclose(np.linalg.norm(w), 1.0)


# Parts and rows


def test_a_product_has_a_set_for_each_part():
    both = P.Product({"x": P.simplex, "a": None})
    w = {"x": jnp.asarray([0.5, 0.9, -0.3]), "a": jnp.asarray(7.0)}
    D = {"x": jnp.asarray([1.0, 4.0, 2.0]), "a": jnp.asarray(0.1)}
    assert P.takes_metric(both)
    for metric in (None, D, 2.0):
        found = both(w, metric=metric)
        inner = D["x"] if metric is D else None
        np.testing.assert_allclose(found["x"], P.simplex(w["x"], metric=inner), atol=1e-15)
        assert float(found["a"]) == 7.0
    assert not P.takes_metric(P.Product([lambda w: w, P.simplex]))


def test_rows_by_themselves():
    w = jnp.asarray(RNG.normal(size=(5, 3)))
    D = jnp.asarray(10 ** RNG.uniform(-1, 1, (5, 3)))
    each = P.Each(functools.partial(P.simplex, total=2.0))
    expected = [P.simplex(x, 2.0, metric=d) for x, d in zip(w, D, strict=True)]
    np.testing.assert_allclose(each(w, metric=D), expected, atol=1e-15)
    np.testing.assert_allclose(each(w), [P.simplex(x, 2.0) for x in w], atol=1e-15)


def test_what_can_be_told_a_metric():
    assert P.takes_metric(P.simplex)
    assert P.takes_metric(jax.tree_util.Partial(P.budget, lower=0, upper=1))
    assert P.takes_metric(lambda w, metric=None: w)
    assert not P.takes_metric(lambda w: w)
    assert not P.takes_metric(P.Each(jnp.abs))


# What cannot be


@pytest.mark.parametrize(
    "call",
    [
        lambda w: P.simplex(w, metric=jnp.ones(3)),
        lambda w: P.box(w, 0, 1, metric={"a": w}),
        lambda w: P.l2_ball(w, metric=jnp.ones((SIZE, SIZE))),
        lambda w: P.Each(P.simplex)(w[None], metric=w),
        lambda w: P.Product({"a": P.simplex})({"a": w}, metric=w),
    ],
)
def test_an_unknown_form_of_metric_is_refused(call):
    with pytest.raises(nx.ProblemError, match="metric must be one positive number for every entry"):
        call(jnp.ones(SIZE))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda w: P.simplex(w, -1.0), "a simplex of size -1.0 has no point"),
        (lambda w: P.l2_ball(w, -1.0), "a ball of size -1.0 has no point"),
        (lambda w: P.l1_ball(w, -1.0), "a ball of size -1.0 has no point"),
        (lambda w: P.linf_ball(w, -1.0), "a ball of size -1.0 has no point"),
        (lambda w: P.box(w, 1.0, 0.0), "bounds of which 1 are crossed"),
        (lambda w: P.budget(w, 0.0, 0.1), "add up to 1: the lower ones add up to 0 and the upper"),
        (lambda w: P.budget(w, 0.5, 1.0), "the lower ones add up to 2 and the upper ones to 4"),
        (lambda w: P.budget(w, LOW, -HIGH), "crossed"),
    ],
)
def test_an_empty_set_is_refused(call, words):
    with pytest.raises(nx.ProblemError, match=words):
        call(jnp.ones(SIZE))
    level = nx.Level(lambda w, x: x * jnp.sum(w), jnp.ones(2))
    with pytest.raises(nx.ProblemError, match=words):
        nx.Problem([level], jnp.ones(SIZE), project=call)
