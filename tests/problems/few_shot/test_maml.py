"""Meta-learning against explicit loops over tasks and steps, and when it has one level."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.compare import assert_same, flat

import nestax as nx
from nestax.loop.columns import tracker_errors
from nestax.parts.estimator import Trackers
from nestax.problems.few_shot.networks import perceptron

M, SUPPORT, QUERY, STEPS, INNER_LR = 3, 4, 3, 5, 0.02
NETWORK = perceptron(1, 3, 1)
TASKS = nx.datasets.sinusoids(M, support=SUPPORT, query=QUERY, seed=1)


def problem_of(tasks=TASKS, visit=2, inner_steps=STEPS, **options):
    w0 = NETWORK.init(jax.random.key(3))
    options = {"inner_lr": INNER_LR, "visit": visit, "inner_steps": inner_steps} | options
    return nx.problems.maml(NETWORK.apply, tasks, w0, **options)


@pytest.fixture(scope="module")
def problem():
    return problem_of(score={"adapted": TASKS})


def task_loss(w, pair, m):
    x, y = (jnp.asarray(a)[m].reshape(-1) for a in pair)
    first, last = w
    hidden = jnp.maximum(x[:, None] * first["weight"][0] + first["bias"], 0)
    return jnp.mean((hidden @ last["weight"][:, 0] + last["bias"][0] - y) ** 2)


def by_loops(w):
    """The mean over tasks of the query loss after five steps on all support rows."""

    def one(m):
        own = w
        for _ in range(STEPS):
            grad = jax.grad(task_loss)(own, TASKS.support, m)
            own = jax.tree.map(lambda x, g: x - INNER_LR * g, own, grad)
        return task_loss(own, TASKS.query, m)

    return jnp.mean(jax.vmap(one)(jnp.arange(M)))


@pytest.mark.erratum("E20")
def test_value_and_gradient_are_those_of_explicit_steps(problem):
    w = NETWORK.init(jax.random.key(8))
    value, grad = eqx.filter_jit(lambda w: problem.value_and_grad(w))(w)
    expected, expected_grad = jax.jit(jax.value_and_grad(by_loops))(w)
    assert_same(value, expected)
    assert_same(flat(grad), flat(expected_grad))
    assert_same(problem.metrics["adapted"](w), expected)


def test_derivatives_of_every_level():
    report = nx.check(problem_of(inner_steps=1))
    assert report.ok, str(report)
    assert [level.name for level in report.levels] == ["step 1", "query"]
    assert all(level.gradient_error < 1e-5 for level in report.levels)


def test_a_batch_is_the_mean_over_its_rows():
    """Values and derivatives, at an inner step and at the query; a row may hold several examples."""
    wide = nx.problems.Tasks(
        *(tuple(np.concatenate([a, 2 * a], axis=2) for a in pair) for pair in TASKS[:2])
    )
    w, direction = (NETWORK.init(jax.random.key(k)) for k in (8, 9))

    @eqx.filter_jit
    def both(level, rows):
        whole = lambda w: level.fn(w, rows, *level.args)
        one = lambda w, row: level.fn(w, jax.tree.map(lambda a: a[None], row), *level.args)
        mean = lambda w: jax.tree.map(lambda y: y.mean(axis=0), jax.vmap(lambda r: one(w, r))(rows))
        return [jax.jvp(f, (w,), (direction,)) for f in (whole, mean)]

    for level in problem_of(wide, inner_steps=1).levels:
        whole, mean = both(level, jax.tree.map(lambda a: a[1], level.source.data))
        assert_same(flat(whole), flat(mean))


class Visited(NamedTuple):
    """Weights after a move that is the same for all methods; trackers and gradient after one step."""

    w: Any
    value: Any
    grad: Any


def visit(problem, estimator, sizes):
    w0, key = problem.w0, jax.random.key(5)
    w = jax.tree.map(lambda x: x + 0.1 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), w0)
    first = nx.draw_batches(problem, estimator, key, 0, sizes, every_block=True)
    batches = nx.draw_batches(problem, estimator, key, 1, sizes)

    @eqx.filter_jit
    def run(problem, w0, w, first, batches):
        _, state = estimator.init(problem, w0, first)
        return estimator.update(problem, w, batches, state)

    estimate, state = run(problem, w0, w, first, batches)
    return Visited(w, estimator.trackers(state).value, estimate.grad)


@pytest.mark.parametrize("inner", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_with_all_support_rows_there_is_one_level(inner):
    """The inner levels have no noise then: trackers are what no memory has, and are exact."""
    problem, sizes = problem_of(inner_steps=inner), (*[SUPPORT] * inner, 2)
    methods = [nx.Plain(), nx.AdjointSMVR(0.3, mode="fresh"), nx.SCSC(0.3)]
    plain, *others = (visit(problem, nx.PerBlock(m), sizes) for m in methods)
    for other in others:
        assert_same(flat(other.value[:-1]), flat(plain.value[:-1]))

    def one(m, w, values):
        own = jax.tree.map(lambda x: x[m], Trackers(None, values))
        return tracker_errors(problem.block(m), w, own)["value_error"]

    visited = nx.draw_batches(problem, nx.Plain(), jax.random.key(5), 1, sizes)[0]["value"].blocks
    errors = jax.jit(jax.vmap(one, (0, None, None)))(visited, plain.w, plain.value)
    assert np.all(errors[:, :-1] < 1e-12)
    assert np.all(errors[:, -1] > 1e-3)  # two of three query rows


@pytest.mark.slow
def test_dense_and_matrix_free_agree_without_memory():
    """With beta = 1 there is none, whatever a method tracks."""
    problem, sizes = problem_of(inner_steps=3), (2,) * 4
    methods = [nx.Plain(), nx.SMVR(1.0), nx.AdjointSMVR(1.0, mode="reuse")]
    plain, *others = (visit(problem, nx.PerBlock(m), sizes) for m in methods)
    for other in others:
        assert_same(flat(other.grad), flat(plain.grad), 1e-10)


@pytest.mark.slow
def test_dense_and_matrix_free_agree_at_1761_weights():
    """One block without noise: both are the exact gradient, also with memory."""
    tasks = nx.datasets.sinusoids(1, support=2, query=2)
    problem = nx.problems.maml(
        tasks=tasks, w0=perceptron(1, 40, 40, 1).init(jax.random.key(0)), visit=1, inner_steps=1
    )
    for method in (nx.SMVR(0.5), nx.AdjointSMVR(0.5, mode="fresh")):
        found = visit(problem, nx.PerBlock(method), (2, 2))
        _, expected = problem.value_and_grad(found.w)
        assert flat(found.grad).size == 1_761
        assert_same(flat(found.grad), flat(expected), 1e-10)


def test_weights_rule_the_precision():
    w0 = jax.tree.map(lambda x: x.astype(jnp.float32), NETWORK.init(jax.random.key(3)))
    problem = nx.problems.maml(NETWORK.apply, TASKS, w0, visit=1, inner_steps=1, score={"s": TASKS})
    assert problem.dtype == jnp.float32
    assert problem.metrics["s"](w0).dtype == jnp.float32


# Classes


def test_images_by_number_and_classes():
    """Rows of two classes: cross-entropy of the pictures, and the share that is right."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 3, 3), np.uint8)
    number = rng.permutation(12).reshape(1, 6, 2).astype(np.int32)
    label = np.broadcast_to(np.arange(2, dtype=np.int32), number.shape)
    tasks = nx.problems.Tasks((number[:, :3], label[:, :3]), (number[:, 3:], label[:, 3:]), images)
    w = rng.normal(size=(9, 2))
    problem = nx.problems.maml(
        lambda w, x: x.ravel() @ w,
        tasks,
        w,
        visit=1,
        inner_steps=1,
        inner_lr=0.5,
        score={"right": tasks},
    )

    def loss(w, rows):
        scores = images[rows[0][0].ravel()].reshape(-1, 9) / 255 @ w
        picked = jnp.take_along_axis(scores, rows[1][0].reshape(-1, 1), axis=1)[:, 0]
        return jnp.mean(jnp.log(jnp.sum(jnp.exp(scores), axis=1)) - picked), scores

    adapted = w - 0.5 * jax.grad(lambda w: loss(w, tasks.support)[0])(w)
    expected, scores = loss(adapted, tasks.query)
    assert_same(problem.value(w), expected)
    right = np.argmax(scores, axis=1) == tasks.query[1].ravel()
    assert_same(problem.metrics["right"](w), right.mean())
    assert 0 < right.mean() < 1


# Tasks


def test_sinusoids_are_sinusoids():
    tasks = nx.datasets.sinusoids(50, support=6, query=4, seed=2)
    assert tasks.support[0].shape == tasks.support[1].shape == (50, 6, 1, 1)
    assert tasks.query[0].shape == (50, 4, 1, 1)
    for x, y, x_test, y_test in zip(*tasks.support, *tasks.query, strict=True):
        basis = lambda x: np.column_stack([np.sin(x.ravel()), np.cos(x.ravel())])
        c, s = np.linalg.lstsq(basis(x), y.ravel())[0]
        assert_same(basis(x_test) @ [c, s], y_test.ravel(), 1e-9)
        assert 0.1 <= np.hypot(c, s) <= 5
        assert 0 <= np.arctan2(s, c) <= np.pi
    assert np.abs(tasks.support[0]).max() <= 5
    again = nx.datasets.sinusoids(50, support=6, query=4, seed=2)
    np.testing.assert_array_equal(again.query[1], tasks.query[1])
    assert (nx.datasets.sinusoids(50, support=6, query=4).query[1] != tasks.query[1]).all()


def test_fewer_shots_and_fewer_tasks():
    few = TASKS.with_shots(2).first(1)
    assert_same(few.support[0], TASKS.support[0][:1, :2])
    assert_same(few.query[1], TASKS.query[1][:1])
    with pytest.raises(nx.ProblemError, match="a task has 4 rows to learn from, fewer than the 5 asked"):
        TASKS.with_shots(5)
    with pytest.raises(nx.ProblemError, match="there are 3 tasks, fewer than the 4 asked for"):
        TASKS.first(4)
    with pytest.raises(nx.SettingError, match="shots must be a whole number of at least 1; got 0"):
        TASKS.with_shots(0)


# What is refused

OTHER = nx.datasets.sinusoids(M + 1, query=QUERY).query
X, Y = TASKS.support
BAD = {
    "no steps": ({"inner_steps": 0}, "inner_steps must be a whole number of at least 1; got 0"),
    "inner lr": ({"inner_lr": -0.1}, "inner_lr must be positive; got -0.1"),
    "visits": ({"visit": 4}, "visit must be at most the number of blocks, 3; got 4"),
    "no weights": ({"w0": None}, "a model of your own needs its starting weights: give w0"),
    "not finite": (
        {"model": lambda w, x: NETWORK.apply(w, x) / 0},
        "losses of task 0 are not finite at the start, such as inf: choose another w0, scale x, or",
    ),
    "classes": (
        {"tasks": nx.problems.Tasks((X, np.full(Y.shape[:3], 3)), (X, np.full(Y.shape[:3], 3)))},
        "such as nan: choose another w0, scale x, or give the model an output for every class",
    ),
    "model": (
        {"model": lambda w, x: x @ jnp.ones(2)},
        "model, loss and tasks do not fit together: dot_general requires",
    ),
    "loss": (
        {"loss": lambda p, y: jnp.concatenate([p - y, p - y])},
        r"loss must be one number an example; it has the shape \(2,\)",
    ),
    "no tasks": ({"tasks": (X, Y)}, r"tasks must be nx.problems.Tasks\(support, query\); got tuple"),
    "no pair": ({"tasks": nx.problems.Tasks(X, (X, Y))}, r"support must be a pair \(x, y\) of arrays"),
    "axes": (
        {"tasks": nx.problems.Tasks((X, Y), (X, Y[:, :2]))},
        r"query needs x and y with common .* got \(3, 4, 1, 1\) and \(3, 2, 1, 1\)",
    ),
    "numbers": ({"tasks": TASKS._replace(query=OTHER)}, "support holds 3 tasks and query 4"),
    "unequal": (
        {"tasks": nx.problems.Tasks(([X[0], X[1, :2]], [Y[0], Y[1, :2]]), (X, Y))},
        "support holds tasks of different sizes: cut them to one size",
    ),
    "features": (
        {"tasks": nx.problems.Tasks((np.repeat(X, 2, axis=3), Y), (X, Y))},
        r"x of an example has the shape \(2,\) in support and \(1,\) in query",
    ),
    "NaN": (
        {"tasks": nx.problems.Tasks((np.where(X[1, 2] == X, np.nan, X), Y), (X, Y))},
        "row 2 of block 1 holds NaN or infinity: remove or fill it",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said_in_a_sentence(case):
    changes, sentence = BAD[case]
    usual = {"model": NETWORK.apply, "tasks": TASKS, "w0": NETWORK.init, "visit": 2}
    with pytest.raises((nx.ProblemError, nx.SettingError), match=sentence):
        nx.problems.maml(**(usual | changes))


def test_a_batch_is_no_larger_than_a_task(problem):
    with pytest.raises(nx.ProblemError, match="a batch of 5 different rows needs blocks of at least 5"):
        nx.minimize(problem, nx.Plain(), optax.sgd(0.1), steps=2, batch_size=5)
