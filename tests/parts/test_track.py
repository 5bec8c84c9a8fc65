"""A tracker inside somebody's own loss: its recursions in NumPy, and the methods that it is part of."""

import io
import os
import re
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.blocked import blocked
from tests.support.cases import noisy
from tests.support.compare import assert_same, flat
from tests.support.compiled import compiled_init, compiled_update, quick_jit
from tests.support.drive import drive

import nestax as nx
from nestax.parts.gains import first_belief, follow
from nestax.parts.tables import visited_in

STEPS = 50
BETA = 0.2
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


def noise(shape, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(STEPS, *shape))


# The mathematics


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"beta": 1.0}, 1 + 0.5**2),  # no memory: value and derivative share all of their draws
        ({"beta": BETA}, 1 + BETA * 0.5**2),
        ({"beta": BETA, "lagged": True}, 1.0),
    ],
)
def test_what_bias_is_left(settings, expected):
    """g = ξw, ξ = 1 ± σ with equal chances, f(u) = u²/2, a memory that is right: mean gradient."""
    w, sigma = 0.7, 0.5
    _, right = nx.track(jnp.asarray(w), None, **settings)

    def loss(w, xi):
        u, _ = nx.track(xi * w, right, **settings)
        return u**2 / 2

    grads = [jax.grad(loss)(w, xi) for xi in (1 - sigma, 1 + sigma)]
    assert_same(np.mean(grads), expected * w)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("with_previous", [False, True], ids=["average", "storm"])
@pytest.mark.parametrize("lagged", [False, True])
def test_the_recursion(dtype, with_previous, lagged):
    new, old = noise((3,), 0).astype(dtype), noise((3,), 1).astype(dtype)
    positive = lambda u: u.clip(-0.5)
    u = None
    state = nx.track_init(jnp.zeros(3, dtype))
    for g, g_old in zip(new, old, strict=True):
        last = g if u is None else u
        if u is None:
            u = g
        elif with_previous:
            u = g + (1 - BETA) * (u - g_old)
        else:
            u = (1 - BETA) * u + BETA * g
        u = np.clip(u, -0.5, None)
        previous = jnp.asarray(g_old) if with_previous else None
        seen, state = nx.track(
            jnp.asarray(g), state, beta=BETA, previous=previous, lagged=lagged, project=positive
        )
        assert seen.dtype == dtype
        assert_same(seen, last if lagged else u, TOLERANCE[dtype])
        assert_same(state.value, u, TOLERANCE[dtype])


def rows_of_steps(n, visit):
    rng = np.random.default_rng(5)
    return [rng.choice(n, visit, replace=False) for _ in range(STEPS)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_table_is_one_memory_per_row(dtype):
    n = 7
    table = nx.track_init(jnp.zeros(2, dtype), n=n)
    apart = [nx.track_init(jnp.zeros(2, dtype)) for _ in range(n)]
    for t, (g, rows) in enumerate(zip(noise((3, 2)).astype(dtype), rows_of_steps(n, 3), strict=True)):
        lagged = t % 2 == 1
        seen, table = nx.track(jnp.asarray(g), table, rows, beta=BETA, lagged=lagged)
        for k, i in enumerate(rows):
            alone, apart[i] = nx.track(jnp.asarray(g[k]), apart[i], beta=BETA, lagged=lagged)
            assert_same(seen[k], alone, TOLERANCE[dtype])
    assert_same(table.value, [one.value for one in apart], TOLERANCE[dtype])


@pytest.mark.parametrize("lagged", [False, True])
def test_logarithms_are_those_of_the_tracked_mean(lagged):
    """Value and derivative of log u, u tracked, without ever leaving the logarithm."""
    settings = {"beta": BETA, "lagged": lagged}
    table, logs = nx.track_init(0.0, n=4), nx.track_init(0.0, n=4)
    rows = jnp.asarray([1, 3])
    for s in jnp.asarray(noise((2,))):
        plain = lambda s, table=table: jnp.log(nx.track(jnp.exp(s), table, rows, **settings)[0])
        inside = lambda s, logs=logs: nx.track(s, logs, rows, log=True, **settings)[0]
        (value, pull), (value_too, pull_too) = jax.vjp(plain, s), jax.vjp(inside, s)
        assert_same(value_too, value)
        assert_same(pull_too(jnp.ones(2))[0], pull(jnp.ones(2))[0])
        _, table = nx.track(jnp.exp(s), table, rows, **settings)
        _, logs = nx.track(s, logs, rows, log=True, **settings)
    assert_same(jnp.exp(logs.value[rows]), table.value[rows])


def test_logarithms_overflow_nowhere():
    state = nx.track_init(0.0)
    for s in (1000.0, -1000.0, 1001.0):
        seen, state = nx.track(jnp.asarray(s), state, beta=0.5, log=True)
    assert_same(seen, 1000 + np.log(0.125 * 2 + 0.5 * np.e))


def test_a_tree_is_tracked_leaf_by_leaf():
    a, b = noise((), 0), noise((2,), 1)
    state = nx.track_init({"a": 0.0, "b": jnp.zeros(2)})
    apart = [None, None]
    for x, y in zip(a, b, strict=True):
        seen, state = nx.track({"a": jnp.asarray(x), "b": jnp.asarray(y)}, state, beta=BETA)
        for k, (name, g) in enumerate([("a", x), ("b", y)]):
            alone, apart[k] = nx.track(jnp.asarray(g), apart[k], beta=BETA)
            assert_same(seen[name], alone)


# Gains that set themselves


def test_gains_are_those_of_the_filter():
    draws = 4
    new, old = noise((draws, 3), 0), noise((draws, 3), 1)
    state = nx.track_init(jnp.zeros(3), gain="auto")
    value = belief = None
    for t, (g, g_old) in enumerate(zip(new, old, strict=True)):
        if value is None:
            value, belief = [jnp.asarray(g.mean(0))], first_belief([jnp.asarray(g)])
        else:
            given = [jnp.asarray(g)], [jnp.asarray(g_old)], value, belief
            value, belief = follow(*given, jnp.asarray(t), jnp.asarray(1.0))
        seen, state = nx.track(jnp.asarray(g), state, gain="auto", previous=jnp.asarray(g_old))
        assert_same(seen, value[0])
    assert_same(flat(state.belief), flat(belief))


def test_gains_of_a_table_are_those_of_its_rows():
    n, draws = 5, 3
    table = nx.track_init(jnp.zeros(()), n=n, gain="auto")
    apart = [nx.track_init(jnp.zeros(()), gain="auto") for _ in range(n)]
    track = quick_jit(
        lambda g, state, rows, previous: nx.track(g, state, rows, gain="auto", previous=previous)
    )
    for g, g_old, rows in zip(
        noise((2, draws), 0), noise((2, draws), 1), rows_of_steps(n, 2), strict=True
    ):
        seen, table = track(g, table, rows, g_old)
        for k, i in enumerate(rows):
            alone, apart[i] = track(g[k], apart[i], None, g_old[k])
            assert_same(seen[k], alone)
    assert_same(table.belief.error[:, 0], [one.belief.error[0] for one in apart])
    assert_same(table.count, [one.count for one in apart])


def test_where_nothing_moves_gains_give_the_running_mean():
    drawn = noise((4,))
    state = nx.track_init(0.0, gain="auto")
    for g in drawn:
        seen, state = nx.track(jnp.asarray(g), state, gain="auto", previous=jnp.asarray(g))
    assert_same(seen, drawn.mean(), 0.02)
    assert (
        0.5 < state.belief.error[0] ** 2 / (drawn.var() / drawn.size) < 2
    )  # the first four draws count most


def test_the_gradient_is_that_of_the_mean_of_the_draws():
    x = noise((4,))[0]
    loss = lambda w: nx.track(w * x, None, gain="auto", previous=x)[0]
    assert_same(jax.grad(loss)(2.0), x.mean())


# The methods that it is part of


@pytest.mark.parametrize("name", ["two_levels", "three_levels"])
def test_scsc(name):
    """SCSC is one call per level with g at the last weights and the last tracked value before it."""
    problem = noisy(name).problem
    run = drive(problem, nx.SCSC(BETA), 0.1)
    levels = problem.levels
    states = [
        nx.track_init(jax.eval_shape(lambda i=i: run.state[0].value[i])) for i in range(len(levels))
    ]

    @jax.jit
    def value_and_grad(w, w_old, draws, states):
        def loss(w):
            new, old = w, w_old
            after = []
            for level, batch, state in zip(levels[:-1], draws, states, strict=False):
                fresh = level.value(new, batch["value"])
                before = level.value(old, batch["value"])
                old = state.value
                new, state = nx.track(fresh, state, beta=BETA, previous=before, project=level.project)
                after.append(state)
            return levels[-1].value(new, draws[-1]["value"]), [*after, states[-1]]

        return jax.value_and_grad(loss, has_aux=True)(w)

    w_old = run.w[0]
    for w, estimate, draws in zip(run.w, run.estimate, run.batches, strict=True):
        (value, states), grad = value_and_grad(w, w_old, draws, states)
        assert_same(value, estimate.value)
        assert_same(flat(grad), flat(estimate.grad))
        w_old = w


def test_sox():
    """With the same draws for value and derivative, and a gradient without memory."""
    case = blocked("two_levels", outer=False)
    problem, sox = case.problem, nx.SOX(BETA, 1.0)
    g, f = problem.levels
    sizes = (3, 0)
    key = jax.random.key(0)
    draw = quick_jit(lambda t, all: nx.draw_batches(problem, ("value",), key, t, sizes, every_block=all))
    both = lambda batches: tuple({"value": b["value"], "grad": b["value"]} for b in batches)
    batches = both(draw(0, True))
    w = problem.w0
    estimate, state = compiled_init(sox, problem, w, batches)
    memory = nx.track_init(jnp.zeros(3), n=5)

    def loss(w, batches, memory):
        visits = batches[0]["value"]
        rows = jax.vmap(lambda visit: g.value(w, g.source.batch(visit)))(visits)
        u, memory = nx.track(rows, memory, visited_in(batches), beta=BETA)
        return jnp.mean(jax.vmap(lambda u: f.value(u, None))(u)), memory

    by_hand = quick_jit(jax.value_and_grad(loss, has_aux=True))
    for t in range(1, 13):
        (value, memory), grad = by_hand(w, batches, memory)
        assert_same(value, estimate.value)
        assert_same(grad, estimate.grad)
        assert_same(memory.value, state.value[0])
        w = w - 0.05 * grad
        batches = both(draw(jnp.asarray(t), False))
        estimate, state = compiled_update(sox, problem, w, batches, state)


# Transformations


def step_of(settings, rows=None):
    def step(state, g):
        seen, state = nx.track(g, state, rows, **settings)
        return state, seen

    return step


@pytest.mark.parametrize("table", [False, True])
def test_loop_jit_and_scan_agree_and_nothing_changes_its_structure(table):
    rows = np.array([4, 0, 2]) if table else None
    start = nx.track_init(jnp.zeros(()) if table else jnp.zeros(3), n=6 if table else None)
    step = step_of({"beta": BETA}, rows)
    drawn = jnp.asarray(noise((3,)))
    scanned, seen = jax.lax.scan(step, start, drawn)
    by_hand, jitted = start, start
    compiled = jax.jit(step)
    for g, expected in zip(drawn, seen, strict=True):
        by_hand, here = step(by_hand, g)
        jitted, there = compiled(jitted, g)
        assert_same(here, expected)
        assert_same(there, expected)
    shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)
    assert shapes(start) == shapes(scanned) == shapes(by_hand)
    assert compiled._cache_size() == 1
    assert_same(flat(scanned), flat(by_hand))


def test_lanes_side_by_side():
    drawn = jnp.asarray(noise((4, 3)))
    start = jax.vmap(lambda _: nx.track_init(jnp.zeros(3)))(jnp.arange(4))
    together, _ = jax.lax.scan(jax.vmap(step_of({"beta": BETA})), start, drawn)
    alone, _ = jax.lax.scan(step_of({"beta": BETA}), nx.track_init(jnp.zeros(3)), drawn[:, 2])
    assert_same(together.value[2], alone.value)


def test_resumed_in_the_middle_it_is_the_same():
    settings = {"gain": "auto"}
    step = jax.jit(lambda state, g: nx.track(g, state, [1, 3], previous=0.9 * g, **settings))
    drawn = jnp.asarray(noise((2, 4)))
    state = nx.track_init(0.0, n=4, **settings)
    file = io.BytesIO()
    for t, g in enumerate(drawn):
        if t == 20:
            eqx.tree_serialise_leaves(file, state)
        seen, state = step(state, g)
    file.seek(0)
    again = eqx.tree_deserialise_leaves(file, nx.track_init(0.0, n=4, **settings))
    for g in drawn[20:]:
        seen_again, again = step(again, g)
    assert np.array_equal(seen, seen_again)
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (state, again)), strict=True))


def test_no_derivative_flows_through_the_memory():
    def loss(w):
        _, state = nx.track(w**3, None, beta=BETA)
        u, state = nx.track(w**2, state, beta=BETA, previous=w**5)
        return u + 0 * state.value

    assert_same(jax.grad(loss)(2.0), 4.0)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_remembered_in_single(dtype):
    """0.001 of 1 is less than half precision can add to 1."""
    state = nx.track_init(jnp.ones((), dtype))
    _, state = nx.track(jnp.ones((), dtype), state, beta=0.001)
    for _ in range(100):
        seen, state = nx.track(jnp.zeros((), dtype), state, beta=0.001)
    assert seen.dtype == state.value.dtype == jnp.float32
    assert_same(seen, 0.999**100, 1e-5)
    grad = jax.grad(lambda g: nx.track(g, state, beta=0.1)[0])(jnp.ones((), dtype))
    assert grad.dtype == dtype


# What does not fit


def test_a_row_that_is_not_finite_is_left_out_of_the_memory():
    state = nx.track_init(0.0, n=3)
    rows = [0, 1, 2]
    _, state = nx.track(jnp.ones(3), state, rows, beta=BETA)
    g = jnp.asarray([2.0, jnp.nan, 2.0])
    with pytest.warns(UserWarning, match="1 of 3 values to track are not finite and are left out"):
        seen, after = nx.track(g, state, rows, beta=BETA)
    assert_same(after.value, [1.2, 1.0, 1.2])
    assert np.isnan(seen[1])
    assert np.isfinite(seen[jnp.asarray([0, 2])]).all()
    _, compiled = jax.jit(lambda g: nx.track(g, state, rows, beta=BETA))(g)
    assert_same(flat(compiled), flat(after))
    assert compiled.left_out == 1


def test_the_warning_is_also_given_while_differentiating():
    with pytest.warns(UserWarning, match="1 of 1 values to track"):
        jax.grad(lambda w: nx.track(w / 0, None, beta=BETA)[0])(jnp.asarray(1.0))


def test_an_index_out_of_range_changes_nothing_in_compiled_code():
    state = nx.track_init(0.0, n=3)
    compiled = jax.jit(lambda i: nx.track(jnp.ones(3), state, i, beta=BETA))
    seen, after = compiled(jnp.asarray([1, 3, -1]))
    assert_same(after.value, [np.inf, 1, np.inf])
    assert_same(seen, [1, np.nan, np.nan])


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [(256, "uint8"), (300, "uint8"), (200, "int8"), (65_536, "uint16"), (40_000, "int16")],
)
@pytest.mark.parametrize("wrap", [lambda fn: fn, jax.jit], ids=["at once", "compiled"])
def test_an_index_may_be_narrower_than_the_number_of_rows(rows, dtype, wrap):
    index = np.asarray([0, 5, min(rows - 1, np.iinfo(dtype).max)], dtype)
    g = jnp.asarray([1.0, 2.0, 3.0])
    tracked = wrap(lambda state, index: nx.track(g, state, index, beta=BETA))
    seen, after = tracked(nx.track_init(0.0, n=rows), index)
    assert_same(seen, g)
    assert_same(after.value[index.astype(int)], g)
    assert after.left_out == 0


def test_a_narrow_index_below_zero_does_not_count_from_the_end():
    state = nx.track_init(0.0, n=200)
    index = np.asarray([0, -1], np.int8)
    seen, after = jax.jit(lambda i: nx.track(TWO, state, i, beta=BETA))(index)
    assert_same(seen, [1, np.nan])
    assert jnp.isfinite(after.value).sum() == 1
    with pytest.raises(nx.SettingError, match="index -1 lies outside"):
        nx.track(TWO, state, index, beta=BETA)


@pytest.mark.parametrize("gain", [None, "auto"])
def test_a_first_value_that_is_not_finite_is_no_first_value(gain):
    settings = {"gain": gain, "previous": jnp.ones((2, 2))} if gain else {"beta": BETA}
    state = nx.track_init(0.0, n=2, gain=gain)
    g = jnp.ones((2, 2)) if gain else jnp.ones(2)
    with pytest.warns(UserWarning, match="1 of 2 values to track"):
        _, state = nx.track(g.at[1].set(jnp.nan), state, [0, 1], **settings)
    seen, state = nx.track(5 * g, state, [0, 1], **settings)
    assert_same(seen[1], 5)
    if gain:
        assert_same(state.count, [2, 1])
    else:
        assert_same(seen[0], 1 + BETA * 4)


def test_a_row_of_a_table_takes_no_more_than_its_value():
    n = 1000
    size = lambda state: sum(x.nbytes for x in jax.tree.leaves(state)) - state.left_out.nbytes
    value = jnp.zeros((), jnp.float32)
    assert size(nx.track_init(value, n=n)) == 4 * n
    assert size(nx.track_init(value, n=n, gain="auto")) == 32 * n


def test_the_number_of_rows_may_be_one_of_numpy(recwarn):
    assert nx.track_init(0.0, n=np.int64(4)) == nx.track_init(0.0, n=4)
    assert not recwarn


def test_a_memory_is_no_trouble_where_nans_are_hunted():
    with jax.debug_nans(True):
        state = nx.track_init(0.0, n=3)
        for _ in range(2):
            _, state = nx.track(jnp.ones(2), state, [0, 1], beta=BETA)
            _, state = jax.jit(lambda state: nx.track(jnp.ones(1), state, [1], beta=BETA))(state)


def call(g, state=None, index=None, **settings):
    settings = settings or {"beta": BETA}
    return lambda: nx.track(g, state, index, **settings)


TABLE = lambda **options: nx.track_init(0.0, n=5, **options)
TWO = jnp.ones(2)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (call(TWO, gain=None), "either beta=, a number in .0, 1., or gain='auto'"),
        (call(TWO, beta=0.1, gain="auto"), "either beta="),
        (call(TWO, beta=0), "beta must be in .0, 1.; got 0"),
        (call(TWO, gain="best"), "gain must be one of auto; got 'best'"),
        (call(TWO, gain="auto"), "pass previous=, g of the same draws"),
        (call(TWO, index=[0, 1]), "how many rows it has: .* n="),
        (call(TWO, TABLE(), [3, 5]), "index 5 lies outside the 5 rows of the memory, 0 to 4"),
        (call(TWO, TABLE(), [-1, 0]), "index -1 lies outside"),
        (call(TWO, TABLE(), [2, 2]), "index 2 occurs 2 times in one batch: a row moves once a step"),
        (call(jnp.ones(6), TABLE(), list(range(6))), "6 rows in one batch and 5 in the memory"),
        (call(TWO, TABLE(), [0.0, 1.0]), "index must be a vector of whole numbers"),
        (call(TWO, TABLE()), "index= goes with a table"),
        (call(TWO, nx.track_init(TWO), [0, 1]), "index= goes with a table"),
        (
            call(jnp.ones(3), TABLE(), [0, 1]),
            r"g is float64\[3\] and index has 2 numbers: one for every",
        ),
        (call(jnp.ones((2, 3)), TABLE(), [0, 1]), r"g is float64\[2, 3\] .* after an axis of rows"),
        (call(TWO, 0.0), "state must be what nx.track_init made, or .*; got"),
        (call(TWO, nx.track(TWO, None, beta=0.1)), "u, state = nx.track.g, state, ....; got tuple"),
        (call(TWO, beta=lambda t: 0.1), "beta must be one number in .0, 1.; of a schedule"),
        (call(TWO, TABLE(), [0, 1], beta=TWO / 2), "beta must be one number"),
        (lambda: nx.track_init((3,)), "got int.*or give jnp.zeros.shape. where a shape is meant"),
        (call(jnp.ones(3), nx.track_init(TWO)), r"g is float64\[3\] and the memory float64\[2\]"),
        (call((TWO, TWO), nx.track_init(TWO)), "give g the shape of what is tracked"),
        (call(TWO.astype(jnp.float32), nx.track_init(TWO)), "g is float32 and the memory float64"),
        (call(jnp.arange(2)), "arrays of one floating-point dtype; got int64"),
        (call(TWO, previous=jnp.ones(3), beta=0.1), r"previous is float64\[3\] and g float64\[2\]"),
        (call(jnp.ones(1), previous=jnp.ones(1), gain="auto"), "one draw has none"),
        (call(jnp.ones(()), previous=jnp.ones(()), gain="auto"), "after an axis of draws"),
        (call(TWO, nx.track_init(0.0), previous=TWO, gain="auto"), "track_init.example, gain='auto'"),
        (call(TWO, previous=TWO, gain="auto", log=True), "log=True is a moving average"),
        (call(TWO, previous=TWO, beta=0.1, log=True), "log=True is a moving average"),
        (call(TWO, beta=0.1, project=jnp.sum), "project must return what it is given"),
        (lambda: nx.track_init(0.0, n=0), "n must be a whole number of at least 1; got 0"),
        (lambda: nx.track_init(()), "got no array"),
    ],
)
def test_one_sentence_each(call, sentence):
    with pytest.raises(nx.SettingError, match=sentence) as told:
        call()
    assert "\n" not in str(told.value)


def test_another_device_in_one_sentence():
    """In a process that has two."""
    code = """
import jax, nestax as nx
here, there = jax.devices()
for n, index in [(None, None), (3, [0, 1])]:
    g = jax.device_put(jax.numpy.ones((2,) if n else ()), there)
    state = nx.track_init(0.0, n=n)
    nx.track(g, state, index, beta=0.1)
    try:
        nx.track(g, jax.device_put(state, here), index, beta=0.1)
    except nx.SettingError as told:
        print(told)
"""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=True,
    )
    sentence = r"g is on \S+1 and the memory on \S+0: move the state there, with jax.device_put.\n"
    assert re.fullmatch(2 * sentence, done.stdout)
