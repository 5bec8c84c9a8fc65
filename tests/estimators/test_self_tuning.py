"""Self-tuning trackers, written out with plain loops in NumPy, and what they promise."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.estimators.transcribe import noiseless, product, sgd, transcribe
from tests.support.cases import ROWS, Case, NumpyLevel, noisy, quiet, rng_of
from tests.support.compare import assert_same, flat
from tests.support.compiled import compiled_init, compiled_update
from tests.support.drive import Run
from tests.support.filtering import filtered, first_known

import nestax as nx

#: The largest Jacobian that is remembered without being asked for.
MOST_ENTRIES = 1000


# A run, step by step, with batches of any size


def draws_of_steps(problem, sizes, seed=0):
    """Batches of the steps 0, 1, …, of the sizes given."""
    passes = nx.SelfTuning().passes
    levels = len(problem.levels)

    def draw(step, size):
        return nx.draw_batches(problem, passes, jax.random.key(seed), step, (size,) * levels)

    return [jax.device_get(draw(jnp.asarray(t), size)) for t, size in enumerate(sizes)]


def run_of(problem, sizes, lr, method=None, seed=0) -> Run:
    """Descent with a batch of the given size at every step."""
    method = nx.SelfTuning() if method is None else method
    w = problem.project(problem.w0)
    run = Run([], [], [], [])
    state = None
    for batches in draws_of_steps(problem, sizes, seed):
        if state is None:
            estimate, state = compiled_init(method, problem, w, batches)
        else:
            estimate, state = compiled_update(method, problem, w, batches, state)
        for column, entry in zip(run, (w, estimate, state, batches), strict=True):
            column.append(entry)
        w = problem.project(jax.tree.map(lambda x, g: x - lr * g, w, estimate.grad))
    return run


def sizes_of(batch, steps=12, first=5):
    return [first, *[batch] * steps]


# The transcription


class Log(NamedTuple):
    """What is known of the arrays of every level after each step, what was cut, and the first batch."""

    known: list
    clipped: list
    cut: list
    first: int


def in_groups(batch):
    """At most 16 groups of equal size; where that gives fewer than 4, every draw by itself."""
    size = len(batch)
    count = max(g for g in range(1, 17) if size % g == 0)
    if count < 4:
        count = size
    each = size // count
    return [batch[k * each : (k + 1) * each] for k in range(count)]


class Place(NamedTuple):
    """Where an array is: in the value (0) or in the Jacobian (1) of a level, and its entries there."""

    which: int
    entries: Any


def places(level, tracked):
    """The arrays of a level that are followed: outputs with noise, tiles of the Jacobian."""
    shape = level.shape
    cut = lambda sizes: [slice(end - n, end) for n, end in zip(sizes, np.cumsum(sizes), strict=True)]
    rows = cut(shape.outputs.sizes)
    columns = cut(shape.inputs.sizes)
    out = [Place(0, row) for row, noise in zip(rows, shape.noisy, strict=True) if noise]
    for o, row in enumerate(rows):
        for i, column in enumerate(columns):
            if tracked and shape.repeats[o] is None and shape.depends[o][i]:
                out.append(Place(1, (row, column)))
    return out


def self_tuning(case, log, tracked=True, unseen=1.0):
    """A step: every level in turn at the tracked value before it, and the plain chain beside."""

    def method(t, w, xi, state):
        u = [w]
        V = []
        known = []
        plain_u = [w]
        plain_J = []
        for i, level in enumerate(case.levels):
            batch = xi[i]["value"]
            plain_J.append(level.J(plain_u[i], batch))
            plain_u.append(level.project(level.f(plain_u[i], batch)))
            both = [level.f(u[i], batch), level.J(u[i], batch)]
            arrays = [] if noiseless(batch) else places(case.problem.levels[i], tracked)
            mine = []
            for k, (which, entries) in enumerate(arrays):
                of = (level.f, level.J)[which]
                at = lambda x, of=of, entries=entries, batch=batch: [
                    of(x, group)[entries] for group in in_groups(batch)
                ]
                if t == 0:
                    mine.append(first_known(at(u[i]), unseen))
                else:
                    u_old, known_old, _ = state
                    length = np.linalg.norm(u[i] - u_old[i])
                    now = at(u[i]), at(u_old[i])
                    batches = t - 1 + log.first / len(batch)
                    mine.append(filtered(known_old[i][k], *now, t, length, unseen, log.clipped, batches))
                both[which][entries] = mine[-1].theta
            u.append(level.project(both[0]))
            # What is remembered of a value is what was handed on, inside its range.
            for k, place in enumerate(arrays):
                if place.which == 0:
                    mine[k] = mine[k]._replace(theta=u[-1][place.entries])
            V.append(both[1])
            known.append(mine)
        v = product(V)
        log.known.append(known)
        length = np.linalg.norm(product(plain_J))
        usual = length
        if t > 0:
            rate = max(1 / (t + 1), 0.05)
            usual = np.sqrt((1 - rate) * state[2] ** 2 + rate * length**2)
            most = 2 * max(usual, length)
            log.cut.append(np.linalg.norm(v) > most)
            v = v * min(1, most / np.linalg.norm(v))
        return v, u[-1][0], (u, known, usual)

    return method


def assert_beliefs(run, log, tolerance):
    fields = ("error", "spread", "change", "joint", "drift", "gain")
    square = lambda x: np.vstack([x[:5] * np.abs(x[:5]), x[5:]])  # beliefs are roots
    for state, known in zip(run.state, log.known, strict=True):
        for belief, arrays in zip(state.believed, known, strict=True):
            assert (belief is None) == (not arrays)
            if arrays:
                told = np.asarray([array[1:] for array in arrays]).T
                found = square(np.stack([getattr(belief, field) for field in fields]))
                # Of rounding errors alone nothing follows but that there is no noise.
                some_noise = told[1] > 1e-25
                assert_same(found[:, some_noise], told[:, some_noise], tolerance)
                assert_same(found[:5], told[:5], tolerance)


def assert_follows(case, sizes, derivatives="auto", unseen=1.0, tolerance=1e-10, seed=0) -> Log:
    """That a run is its transcription; returns what had a say in it."""
    run = run_of(case.problem, sizes, case.lr, nx.SelfTuning(derivatives), seed)
    log = Log([], [], [], sizes[0])
    method = self_tuning(case, log, derivatives != "fresh", unseen)
    weights, grads, values = transcribe(case, run.draws, method, sgd(case))
    assert_same(run.weights, weights, tolerance)
    assert_same(run.grads, grads, tolerance)
    assert_same(run.values, values, tolerance)
    assert_beliefs(run, log, tolerance)
    return log


@pytest.mark.parametrize("derivatives", ["auto", "fresh"])
@pytest.mark.parametrize("name", ["three_levels", "portfolio", "tree"])
def test_a_dozen_steps_written_out(name, derivatives):
    log = assert_follows(noisy(name), sizes_of(3), derivatives)
    gains_of = [array.k1 for known in log.known[1:] for arrays in known for array in arrays]
    assert min(gains_of) < 0.5 < max(gains_of)


#: No mean of exp(a·w) along the runs here is smaller.
LEAST = 0.1


@functools.cache
def log_of_mean_exp() -> Case:
    """log E exp(a·w): errors of value and derivative of one batch cancel, those of memory do not."""
    rng = rng_of("log of mean exp")
    rows = 1.5 * rng.standard_t(3, size=(ROWS, 2))
    inner = nx.Level(lambda w, a: jnp.exp(a @ w), rows, project=lambda u: jnp.maximum(u, LEAST))
    problem = nx.Problem([inner, nx.Level(jnp.log)], w0=np.ones(2) / 2)
    levels = (
        NumpyLevel(
            value=lambda w, a: np.exp(a @ w),
            jac=lambda w, a: np.exp(a @ w) * a,
            project=lambda u: np.maximum(u, LEAST),
        ),
        NumpyLevel(value=lambda u: np.log(u), jac=lambda u: 1 / u),
    )
    return Case(problem, levels, lr=0.3)


@pytest.mark.parametrize("batch", [1, 2, 6, 20])
def test_batches_of_any_size_written_out(batch):
    """One draw, told from what was predicted; draws by themselves; groups of several draws."""
    log = assert_follows(noisy("two_levels"), sizes_of(batch, first=batch))
    if batch == 1:
        assert 0 < sum(log.clipped) < len(log.clipped)


def test_spreads_are_forgotten_after_fifty_steps():
    assert_follows(noisy("two_levels"), sizes_of(3, steps=60), tolerance=1e-9)


def test_rows_without_replacement_written_out():
    """A batch that holds a quarter of the rows has three quarters of the error."""
    case = noisy("two_levels")
    levels = [x.replace(data=nx.Population(x.source.data, replace=False)) for x in case.problem.levels]
    case = case._replace(problem=case.problem.replace(levels=levels))
    assert_follows(case, sizes_of(10, first=10), unseen=0.75)


def test_the_cut_written_out():
    log = assert_follows(log_of_mean_exp(), sizes_of(4, steps=14, first=4), seed=12)
    assert 0 < sum(log.cut) < len(log.cut)


# What has no unit


def along(problem, path, batch, method=None):
    """Estimates and states at given weights."""
    method = nx.SelfTuning() if method is None else method
    out = []
    for w, batches in zip(path, draws_of_steps(problem, [batch] * len(path)), strict=True):
        if out:
            out.append(compiled_update(method, problem, w, batches, out[-1][1]))
        else:
            out.append(compiled_init(method, problem, w, batches))
    return out


def walk(w0, steps=12, size=0.1):
    rng = rng_of("walk")
    return np.asarray(w0) + size * np.cumsum(rng.normal(size=(steps, *np.shape(w0))), axis=0)


def gains_along(run):
    return np.stack([np.concatenate([b.gain for b in state.believed]) for _, state in run])


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_unit_of_a_level_changes_no_gain(scale, batch):
    problem = noisy("two_levels").problem
    inner, outer = problem.levels
    scaled = [
        inner.replace(fn=lambda w, draw: scale * inner.fn(w, draw)),
        outer.replace(fn=lambda u, draw: outer.fn(u / scale, draw)),
    ]
    path = walk(problem.w0)
    told = along(problem, path, batch)
    found = along(problem.replace(levels=scaled), path, batch)
    np.testing.assert_allclose(gains_along(found), gains_along(told), rtol=1e-8)
    for (estimate, _), (other, _) in zip(found, told, strict=True):
        np.testing.assert_allclose(estimate.grad, other.grad, rtol=1e-8)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_unit_of_the_weights_changes_no_gain(scale, batch):
    problem = noisy("two_levels").problem
    inner, outer = problem.levels
    scaled = inner.replace(fn=lambda w, draw: inner.fn(w / scale, draw))
    path = walk(problem.w0)
    told = along(problem, path, batch)
    other = nx.Problem([scaled, outer], w0=scale * problem.w0)
    found = along(other, scale * path, batch)
    np.testing.assert_allclose(gains_along(found), gains_along(told), rtol=1e-8)
    for (estimate, _), (other, _) in zip(found, told, strict=True):
        np.testing.assert_allclose(scale * estimate.grad, other.grad, rtol=1e-8)


# Without noise


def assert_exact(problem, run):
    for w, estimate in zip(run.w, run.estimate, strict=True):
        value, grad = problem.value_and_grad(w)
        assert_same(estimate.value, value)
        assert_same(flat(estimate.grad), flat(grad))
    assert np.abs(np.diff(run.grads, axis=0)).max() > 1e-4


@pytest.mark.parametrize("derivatives", ["auto", "fresh"])
@pytest.mark.parametrize("batch", [2, 7, 20])
def test_equal_rows_are_exact(batch, derivatives):
    case = quiet("three_levels")
    run = run_of(case.problem, sizes_of(batch), case.lr, nx.SelfTuning(derivatives))
    assert_exact(case.problem, run)


@pytest.mark.parametrize("derivatives", ["auto", "fresh"])
def test_all_rows_at_every_step_are_exact(derivatives):
    """Drawn without replacement: the rows differ, but no row is missing."""
    case = noisy("two_levels")
    levels = [x.replace(data=nx.Population(x.source.data, replace=False)) for x in case.problem.levels]
    problem = case.problem.replace(levels=levels)
    run = run_of(problem, [ROWS] * 8, case.lr, nx.SelfTuning(derivatives))
    assert_exact(problem, run)
    assert all((belief.error == 0).all() for state in run.state for belief in state.believed)


@pytest.mark.parametrize(("batch", "replace"), [(3, True), (1, False)])
def test_a_population_of_one_row_is_exact(batch, replace):
    case = noisy("two_levels")
    one = lambda level: nx.Population(jax.tree.map(lambda x: x[:1], level.source.data), replace=replace)
    problem = case.problem.replace(levels=[x.replace(data=one(x)) for x in case.problem.levels])
    assert_exact(problem, run_of(problem, [batch] * 8, case.lr))


# Odd levels and small batches


@pytest.mark.parametrize("derivatives", ["auto", "fresh"])
@pytest.mark.parametrize("name", ["one_level", "three_levels", "portfolio", "tree"])
def test_a_batch_of_one_draw_is_enough(name, derivatives):
    case = noisy(name)
    run = run_of(case.problem, [1] * 13, case.lr, nx.SelfTuning(derivatives))
    assert all(np.isfinite(flat(state)).all() for state in run.state)
    assert np.isfinite(run.grads).all()
    assert np.abs(run.grads).max() > 1e-3


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("derivatives", ["auto", "fresh"])
@pytest.mark.parametrize(
    "fn",
    [lambda w, r: jnp.ones(2), lambda w, r: 0 * (r @ w) * jnp.ones(2) + 1, lambda w, r: r[:2]],
    ids=["sees nothing", "sees in vain", "sees draws only"],
)
def test_a_level_that_returns_a_constant(fn, derivatives, batch):
    rows = rng_of("constant").normal(size=(ROWS, 3))
    problem = nx.Problem([nx.Level(fn, rows), nx.Level(lambda u, r: r @ u, rows[:, :2])], w0=np.ones(3))
    run = run_of(problem, [batch] * 6, 0.1, nx.SelfTuning(derivatives))
    assert all(np.isfinite(flat(state)).all() for state in run.state)
    np.testing.assert_array_equal(run.grads, 0)


def test_float32_stays_near_float64():
    case = noisy("two_levels")
    rows = [jax.tree.map(lambda x: x.astype(np.float32), x.source.data) for x in case.problem.levels]
    levels = [x.replace(data=data) for x, data in zip(case.problem.levels, rows, strict=True)]
    problem = nx.Problem(levels, w0=np.asarray(case.w0, np.float32))
    narrow = run_of(problem, sizes_of(4), case.lr)
    wide = run_of(case.problem, sizes_of(4), case.lr)
    floats = [x for x in jax.tree.leaves(narrow.state) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert {x.dtype for x in floats} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(narrow.grads, wide.grads, rtol=1e-3, atol=1e-3)


def test_draws_in_groups_have_an_order():
    """Of twenty draws two and two are averaged first, so that other pairs give other gains.

    Up to sixteen draws, and where their number does not divide well, every draw is by itself and the
    order changes nothing: the law of permutations.
    """
    problem = noisy("two_levels").problem
    path = walk(problem.w0, steps=3)

    def last_gains(batch, turned):
        state = None
        for w, batches in zip(path, draws_of_steps(problem, [batch] * 3), strict=True):
            order = np.random.default_rng(0).permutation(batch) if turned else np.arange(batch)
            batches = jax.tree.map(lambda x, order=order: x[order], batches)
            start = lambda w, b: compiled_init(nx.SelfTuning(), problem, w, b)
            follow = lambda w, b, s=state: compiled_update(nx.SelfTuning(), problem, w, b, s)
            _, state = (start if state is None else follow)(w, batches)
        return np.concatenate([belief.gain for belief in state.believed])

    assert_same(last_gains(16, turned=True), last_gains(16, turned=False))
    assert_same(last_gains(17, turned=True), last_gains(17, turned=False))
    assert np.abs(last_gains(20, turned=True) - last_gains(20, turned=False)).max() > 1e-4


def test_small_jacobians_are_remembered_and_large_ones_if_asked_for():
    rows = rng_of("many weights").normal(size=(ROWS, 1))

    def remembers(entries, derivatives):
        level = nx.Level(lambda w, r: r[0] * (w @ w), rows)
        problem = nx.Problem([level], w0=np.ones(entries))
        method = nx.SelfTuning(derivatives)
        (state,) = run_of(problem, [3], 0.1, method).state
        assert (method.trackers(state).jac is not None) == (state.jac[0] is not None)
        return state.jac[0] is not None

    assert remembers(MOST_ENTRIES, "auto")
    assert not remembers(MOST_ENTRIES + 1, "auto")
    assert remembers(MOST_ENTRIES + 1, "tracked")
    assert not remembers(1, "fresh")


# How long gradients are


@pytest.mark.parametrize("seed", range(4))
def test_gradients_are_at_most_twice_as_long_as_plain_ones(seed):
    case = log_of_mean_exp()
    run = run_of(case.problem, [4] * 15, case.lr, seed=seed)
    for w, estimate, state, batches in zip(*run, strict=True):
        plain, _ = compiled_init(nx.Plain(), case.problem, w, batches)
        longest = 2 * max(np.linalg.norm(plain.grad), state.usual)
        assert np.linalg.norm(estimate.grad) <= longest * (1 + 1e-12)


def test_the_usual_length_is_that_of_plain_gradients():
    """Their root mean square, up to the twentieth step."""
    case = noisy("three_levels")
    run = run_of(case.problem, [3] * 15, case.lr)
    plain = []
    for w, _, state, batches in zip(*run, strict=True):
        estimate, _ = compiled_init(nx.Plain(), case.problem, w, batches)
        plain.append(np.linalg.norm(estimate.grad))
        assert_same(state.usual, np.sqrt(np.mean(np.square(plain))), tolerance=1e-10)


# What is believed, against what is


def test_what_does_not_move_is_a_running_mean():
    """The Jacobian of an affine level is the same everywhere: every batch counts alike."""
    rng = rng_of("running mean")
    A = rng.normal(size=(5000, 3, 4))
    problem = nx.Problem(
        [nx.Level(lambda w, A: A @ w, A), nx.Level(lambda u: u @ u / 2)], w0=rng.normal(size=4)
    )
    steps = 40
    path = walk(problem.w0, steps)
    run = along(problem, path, 16)
    drawn = [batches[0]["value"].draws for batches in draws_of_steps(problem, [16] * steps)]
    mean = np.mean(drawn, axis=(0, 1))
    off = [np.linalg.norm(np.mean(batch, axis=0) - mean) for batch in drawn]
    tracked = run[-1][1].jac[0].dense()
    assert np.linalg.norm(tracked - mean) < np.mean(off) / steps
    for t in range(5, steps):
        assert abs(run[t][1].believed[0].gain[1] * (t + 1) - 1) < 0.2


def gaussian_draw(key):
    matrix, shift = jax.random.split(key)
    return jax.random.normal(matrix, (3, 2)), jax.random.normal(shift, (3,))


MEAN = np.asarray([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]])


def true_and_believed(outputs, speed, batch, seeds=200, steps=100):
    """Squared errors of the value of an affine level while weights go round a circle, by seed and step.

    outputs: how many of its three outputs the level has.
    """
    mean = jnp.asarray(MEAN[:outputs])
    affine = lambda w, d: (mean + d[0][:outputs]) @ w + d[1][:outputs]
    level = nx.Level(affine, nx.Sampler(gaussian_draw))
    problem = nx.Problem([level, nx.Level(jnp.sum)], w0=np.ones(2))
    method = nx.SelfTuning()
    at = lambda t: jnp.stack([jnp.cos(speed * t), jnp.sin(speed * t)])

    @jax.jit
    @jax.vmap
    def errors(seed):
        draw = lambda t: nx.draw_batches(problem, method.passes, jax.random.key(seed), t, (batch, batch))
        _, state = method.init(problem, at(0), draw(0))

        def step(state, t):
            _, state = method.update(problem, at(t), draw(t), state)
            true = jnp.sum((state.value[0] - mean @ at(t)) ** 2)
            return state, (true, state.believed[0].error[0] ** 2, state.believed[0].spread[0] ** 2)

        return jax.lax.scan(step, state, jnp.arange(1, steps + 1))[1]

    return [np.asarray(x) for x in errors(jnp.arange(seeds))]


@pytest.mark.parametrize(
    ("outputs", "speed", "batch"),
    [
        (3, 0.0, 16),
        (3, 0.1, 16),
        (3, 0.5, 16),
        (3, 0.1, 4),
        (3, 0.1, 1),
        (1, 0.1, 16),
        (1, 0.01, 4),
    ],
)
def test_the_believed_error_is_the_true_one(outputs, speed, batch):
    """Within a factor of two of where it is exact, and memory helps; a factor of three would be seen."""
    true, believed, spread = true_and_believed(outputs, speed, batch)
    late = slice(50, None)
    ratio = believed[:, late].mean() / true[:, late].mean()
    assert 0.6 < ratio < 1.7  # so that neither three times as much nor a third would pass
    assert true[:, late].mean() < spread[:, late].mean() / 2


def test_with_two_draws_of_one_number_memory_helps_more_than_it_knows():
    """Their spread is known so badly at first that the error is believed to be several times smaller."""
    true, _, spread = true_and_believed(outputs=1, speed=0.01, batch=2)
    late = slice(50, None)
    assert true[:, late].mean() < spread[:, late].mean() / 2


def test_a_level_with_one_output_is_passed_through_backwards_once():
    """Tracked and plain gradients are multiples of one; networks would cost half as much again."""
    backward = []

    @jax.custom_vjp
    def loss(w, row):
        return jnp.exp(row @ w)

    def back(kept, p):
        backward.append(1)
        w, row = kept
        return p * jnp.exp(row @ w) * row, None

    loss.defvjp(lambda w, row: (loss(w, row), (w, row)), back)
    rows = np.random.default_rng(0).normal(size=(40, 3))
    problem = nx.Problem([nx.Level(loss, rows), nx.Level(jnp.log)], jnp.ones(3))
    method = nx.SelfTuning("fresh")
    first, second = draws_of_steps(problem, [8, 8])
    _, state = method.init(problem, problem.w0, first)
    backward.clear()
    w = problem.w0 + 0.1
    estimate, state = method.update(problem, w, second, state)
    assert len(backward) == 1
    terms = np.exp(second[0]["value"].draws @ w)
    plain = (terms / terms.sum()) @ second[0]["value"].draws
    ratio = estimate.grad / plain  # the same gradient, divided by another value
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)


# What most batches do not hold


def test_a_rare_class_is_not_forgotten():
    """Where 1 % of the rows count as much as all others, memory ends below its start, and below none."""
    rng = np.random.default_rng(0)
    rare = np.arange(4_000) < 40
    x = rng.normal(size=(4_000, 2)) + rare[:, None]

    def loss(w, row):
        x, rare = row
        loss = jax.nn.softplus(jnp.where(rare, -1, 1) * (x @ w[:2] + w[2]))
        return {"rare": rare * loss / 0.01, "others": (1 - rare) * loss / 0.99}

    together = nx.Level(lambda u: jnp.logaddexp(u["rare"], u["others"]))
    problem = nx.Problem([nx.Level(loss, (x, rare)), together], w0=np.zeros(3))

    def ends(method):
        settings = {"seeds": 12, "steps": 2_000, "batch_size": 2, "record_every": 500}
        build = lambda s: (method, optax.adam(s.lr))
        runs = nx.sweep(problem, build, settings=nx.grid(lr=[0.003]), progress=False, **settings)
        return runs.records["exact_value"][0, :, -1]

    ours = ends(nx.SelfTuning())
    assert ours.max() < problem.value(problem.w0)
    assert ours.mean() < ends(nx.Plain()).mean()


@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1e12, 1e25])
def test_the_unit_of_a_level_changes_nothing_in_single_precision(scale):
    """Squares of such values are beyond it, the values are not."""
    rows = (1 + rng_of("unit").normal(size=(200, 3)) / 2).astype(np.float32)

    def weights(scale):
        scale = np.float32(scale)
        levels = [
            nx.Level(lambda w, r: scale * jnp.exp(r @ w), rows),
            nx.Level(lambda u: jnp.log(u / scale)),
        ]
        problem = nx.Problem(levels, w0=np.zeros(3, np.float32))
        return run_of(problem, sizes_of(4, steps=30), 0.01).w[-1]

    np.testing.assert_allclose(weights(scale), weights(1), rtol=2e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_runs(dtype):
    """Beliefs are kept in single precision: squares of the gains were lost, and runs ended in NaN."""
    rows = jnp.asarray(1 + rng_of("half").normal(size=(200, 3)) / 2, dtype)
    problem = nx.Problem(
        [nx.Level(lambda w, r: jnp.exp(r @ w), rows), nx.Level(jnp.log)], jnp.ones(3, dtype)
    )
    run = run_of(problem, sizes_of(4, steps=100), 0.01)
    assert run.state[-1].believed[0].numbers.dtype == jnp.float32
    assert run.w[-1].dtype == dtype
    assert np.isfinite(np.asarray(run.w[-1], float)).all()
    assert problem.value(run.w[-1]) < problem.value(run.w[0]) - 0.5


def test_what_no_batch_has_shown_is_not_known():
    """No error bar where no two draws have differed; 0 where all rows were seen."""
    rows = np.zeros((100, 2))
    rows[-1] = 5.0
    levels = [nx.Level(lambda w, r: r @ w, rows), nx.Level(lambda u: u**2)]
    problem = nx.Problem(levels, w0=np.ones(2))
    method = nx.SelfTuning()
    run = run_of(problem, [2, 2], 0.1)
    assert np.isnan(method.believed(problem, run.state[-1])["believed_error"][0])
    levels[0] = levels[0].replace(data=nx.Population(rows, replace=False))
    whole = problem.replace(levels=levels)
    run = run_of(whole, [100, 100], 0.0001)
    assert_same(method.believed(whole, run.state[-1])["believed_error"], 0)
