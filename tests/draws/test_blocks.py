"""Blocks: which are visited, what they add up to, what a step costs, and what is refused."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.blocked import B, M, blocked, drive_blocks
from tests.support.cases import NumpyLevel
from tests.support.compare import assert_same, flat
from tests.support.compiled import steps_memory
from tests.support.drive import BATCH

import nestax as nx
from nestax.chain.blocks import mean_over_blocks
from nestax.devices.mesh import line_of, shard_source
from nestax.devices.rows import Sharded
from nestax.draws.blocks import subset
from nestax.loop.plan import Meter
from nestax.parts.estimator import draw_batches
from nestax.run.prepare import Budget, prepare

KEY = jax.random.key(0)


# Which blocks, which rows


def test_subsets_are_uniform_and_never_repeat():
    """All 15 pairs of 6, and traced sizes; the 99.9 % quantile of χ² with 14 degrees is 36.1."""
    draws = 6000
    pairs = jax.vmap(lambda k: subset(k, 6, 2))(jax.random.split(KEY, draws))
    pairs = np.sort(np.asarray(pairs), axis=1)
    assert (pairs[:, 0] < pairs[:, 1]).all()
    counts = [np.sum((pairs == pair).all(axis=1)) for pair in itertools.combinations(range(6), 2)]
    expected = draws / 15
    assert np.sum((np.asarray(counts) - expected) ** 2 / expected) < 36.1
    assert sum(counts) == draws
    everything = jax.vmap(lambda k, n: subset(k, n, 4))(jax.random.split(KEY, 3), jnp.asarray([4, 5, 9]))
    assert all(len(set(row)) == 4 for row in np.asarray(everything).tolist())
    assert set(np.asarray(everything)[0].tolist()) == set(range(4))


def test_levels_and_passes_visit_the_same_blocks_with_draws_of_their_own():
    problem = blocked().problem
    steps = [draw_batches(problem, ("value", "grad"), KEY, step, (BATCH,) * 3) for step in range(8)]
    seen = set()
    for batches in steps:
        visits = [visit for batch in batches for visit in batch.values()]
        assert all(np.array_equal(v.blocks, visits[0].blocks) for v in visits)
        assert len(set(visits[0].blocks.tolist())) == B
        seen |= set(visits[0].blocks.tolist())
        rows = {np.asarray(visit.index).tobytes() for visit in visits}
        assert len(rows) == len(visits)
    assert seen == set(range(M))


# F and its gradient


def exact(case, w):
    """F and ∇F by a loop over blocks, levels and rows."""
    values, grads = [], []
    for m in range(M):
        x, jacs = w, []
        for i, level in enumerate(case.levels):
            rows = [
                jax.tree.leaves(jax.tree.map(lambda r, k=k: np.asarray(r[k]), case.rows[i][m]))
                for k in range(len(jax.tree.leaves(case.rows[i][m])[0]))
            ]
            jacs.append(level.J(x, rows))
            x = level.f(x, rows)
        adjoint = np.ones(1)
        for J in reversed(jacs):
            adjoint = J.T @ adjoint
        values.append(x[0])
        grads.append(adjoint)
    return np.mean(values), np.mean(grads, axis=0)


def test_exact_value_and_gradient():
    """Over blocks in groups (5 of them, 2 at a time), side by side, and in NumPy."""
    case = blocked()
    w = case.problem.w0 + 0.1
    value, grad = exact(case, np.asarray(w))
    for problem in (case.problem, case.problem.every_block()):
        got, slope = eqx.filter_jit(problem.value_and_grad)(w)
        assert_same(got, value)
        assert_same(flat(slope), grad)
        assert_same(eqx.filter_jit(problem.value)(w), value)
    each = [case.problem.block(m).value(w) for m in range(M)]
    assert_same(np.mean(each), value)


def test_blocks_are_averaged_as_many_at_a_time_as_a_step_visits():
    widths = []

    @jax.custom_batching.custom_vmap
    def fn(block):
        return 1.0 * block

    @fn.def_vmap
    def _side_by_side(width, _, block):
        widths.append(width)
        return 1.0 * block, True

    assert mean_over_blocks(nx.Blocks(np.ones((5, 3)), visit=2), fn) == 2.0
    assert set(widths) == {2}


def test_blocks_go_to_their_devices_and_their_lengths_to_all():
    over = Sharded(line_of(1, "blocks"), "blocks", "blocks")
    there = shard_source(nx.Blocks([np.arange(3.0), np.arange(2.0)], visit=1), over, {})
    assert there.data.shape == (2, 3)
    assert there.data.sharding == over.split
    assert there.counts.sharding == over.everywhere


def ragged():
    """Blocks of 3, 5, 4, 6 and 3 rows."""
    case, sizes = blocked(), [3, 5, 4, 6, 3]
    rows = [
        [jax.tree.map(lambda x, n=n: x[:n], block) for block, n in zip(level, sizes, strict=True)]
        for level in case.rows
    ]
    levels = [
        nx.Level(level.fn, nx.Blocks(own, visit=B), name=level.name)
        for level, own in zip(case.problem.levels, rows, strict=True)
    ]
    known = tuple(NumpyLevel(level.value, level.jac) for level in case.levels)
    return case._replace(problem=nx.Problem(levels, case.problem.w0), levels=known, rows=rows), sizes


def test_blocks_of_different_lengths():
    """Padding has no weight, is never drawn, and is counted nowhere."""
    case, sizes = ragged()
    w = case.problem.w0
    value, grad = exact(case, np.asarray(w))
    got, slope = eqx.filter_jit(case.problem.value_and_grad)(w)
    assert_same(got, value)
    assert_same(flat(slope), grad)
    assert case.problem.blocks.size == sum(sizes)
    batches = draw_batches(case.problem, ("value",), KEY, 0, (200,) * 3, every_block=True)
    most = np.asarray(batches[0]["value"].index).max(axis=1)
    assert most.tolist() == [n - 1 for n in sizes]
    with pytest.raises(nx.ProblemError, match="blocks of different lengths cannot be seen side by side"):
        case.problem.every_block()


def test_a_block_has_no_closed_form_of_all():
    problem = blocked().problem
    known = nx.Problem(problem.levels, problem.w0, exact=lambda w: 7.0 + 0 * w.sum(), optimum=-1.0)
    block = known.block(1)
    assert block.exact is None
    assert block.optimum is None
    assert float(known.value(known.w0)) == 7.0
    assert_same(block.value(known.w0), problem.block(1).value(known.w0))


# Tables


def test_a_block_draws_as_it_did_among_the_others():
    """Different rows, at most as many as there are; or any."""
    lengths = [np.arange(5.0), np.arange(10.0, 14.0)]
    for data, least in ((np.arange(10.0).reshape(2, 5), 5), (lengths, 4)):
        own = nx.Blocks(data, visit=1, replace=False).block(1)
        assert own.most == least
        for step in range(20):
            draws = np.asarray(own.draw(KEY, jnp.asarray(step), 4).draws)
            assert len(set(draws.tolist())) == 4
            assert set(draws.tolist()) <= set(np.asarray(data[1]).tolist())
        with pytest.raises(nx.ProblemError, match=f"of {least + 1} different rows needs"):
            own.draw(KEY, jnp.asarray(0), least + 1)
    assert nx.Blocks(data, visit=1).block(1).most is None


def test_without_noise_all_trackers_are_exact():
    """Every row of every visited block: values and gradients are those of F, whichever the method."""
    problem = blocked("two_levels", visit=M, replace=False).problem
    sizes = (problem.blocks.rows,) * 2
    for estimator in (nx.PerBlock(nx.SMVR(0.3)), nx.BlockSMVR(0.3)):

        @eqx.filter_jit
        def run(problem, estimator=estimator):
            draw = lambda step: draw_batches(problem, estimator, KEY, step, sizes, every_block=True)
            _, state = estimator.init(problem, problem.w0, draw(0))
            w = problem.w0 + 0.1
            estimate, state = estimator.update(problem, w, draw(1), state)
            return estimate, problem.value_and_grad(w)

        estimate, (value, grad) = run(problem)
        assert_same(estimate.value, value)
        assert_same(flat(estimate.grad), flat(grad))


def test_a_visited_block_is_exact_whenever_its_last_visit_was():
    """Few blocks a step, moving weights, no noise: STORM reaches back to the last visit of the block."""
    problem = blocked("two_levels", replace=False).problem
    sizes, estimator = (problem.blocks.rows,) * 2, nx.PerBlock(nx.SCSC(0.3))
    first = draw_batches(problem, estimator, KEY, 0, sizes, every_block=True)
    _, state = eqx.filter_jit(estimator.init)(problem, problem.w0, first)
    update = eqx.filter_jit(estimator.update)
    values_in = eqx.filter_jit(lambda m, w: problem.block(m).level_values(w))
    for step in range(1, 7):
        w = problem.w0 + 0.1 * step
        batches = draw_batches(problem, estimator, KEY, step, sizes)
        _, state = update(problem, w, batches, state)
        for m in batches[0]["value"].blocks:
            for tracked, value in zip(state.value, values_in(m, w), strict=True):
                assert_same(tracked[m], value)
            assert_same(state.w[m], w)


def test_samples_are_counted():
    """The start visits all M blocks, or B without memory; a step visits B."""
    problem, sizes = blocked().problem, (BATCH,) * 3
    for estimator, passes, start in (
        (nx.PerBlock(nx.SCSC(0.3)), 3, M),
        (nx.BlockSMVR(0.3), 5, M),
        (nx.Plain(), 3, B),
    ):
        meter = Meter(problem, estimator, sizes, sizes)
        assert meter.start.samples == passes * start * BATCH
        assert meter.per_step.samples == passes * B * BATCH


def test_tables_can_be_stored_in_half_precision():
    case = blocked("two_levels", outer=False)
    estimator = nx.PerBlock(nx.SCSC(0.3), store="bfloat16")
    run = drive_blocks(case, estimator)
    exactly = drive_blocks(case, nx.PerBlock(nx.SCSC(0.3)))
    table = run[2][-1]
    assert {str(x.dtype) for x in jax.tree.leaves(table)} == {"bfloat16", "int32"}
    assert all(np.isfinite(np.asarray(x, float)).all() for x in jax.tree.leaves(table))
    off = np.abs(flat(run[0][-1]) - flat(exactly[0][-1])).max()
    assert 0 < off < 0.05
    assert run[1][-1].grad.dtype == np.float64


def test_runs_do_not_depend_on_chunks_and_lanes_agree_with_runs():
    problem, method = blocked("two_levels", outer=False).problem, nx.PerBlock(nx.SCSC(0.3))
    settings = {"batch_size": BATCH, "record": ["value"], "progress": False}
    run = lambda **more: nx.minimize(problem, method, optax.sgd(0.05), **settings, **more)
    whole, parts = run(steps=12, record_every=12), run(steps=12, record_every=3)
    assert_same(flat(whole.w), flat(parts.w))
    half = run(steps=6, record_every=3)
    assert_same(flat(run(steps=6, record_every=3, start=half.carry).w), flat(parts.w))
    lanes = nx.sweep(
        problem,
        lambda s: (nx.PerBlock(nx.SCSC(s.beta)), optax.sgd(s.lr)),
        settings=nx.grid(beta=[0.3, 0.9], lr=[0.05]),
        seeds=2,
        steps=12,
        record_every=3,
        **settings,
    )
    assert_same(lanes.records["value"][0, 0], parts.records["value"])
    assert np.ptp(lanes.records["value"][:, :, -1]) > 0


def temporary_bytes(blocks: int, estimator) -> int:
    """What the compiled steps take beside arguments and results, for 64 entries of w."""
    rows = jnp.zeros((blocks, 2))
    problem = nx.Problem(
        [
            nx.Level(lambda w, x: jnp.sin(w) + x, nx.Blocks(rows, visit=4), name="wave"),
            nx.Level(lambda u: u @ u, name="square"),
        ],
        w0=jnp.ones(64),
    )
    method = nx.Method(estimator, optax.sgd(0.1))
    budget = Budget(steps=4, batch_size=2, record_every=4, record=["value"])
    compiled = prepare(problem, method, budget, KEY).compiled
    return steps_memory(compiled).temp_size_in_bytes


@pytest.mark.parametrize(
    "estimator",
    [nx.PerBlock(nx.AdjointSMVR(0.3, mode="fresh")), nx.MSVR(0.3, 0.3), nx.BlockSMVR(0.3)],
    ids=lambda e: type(e).__name__,
)
def test_no_step_copies_the_table(estimator):
    """A copy of one array of the table would be 15 MB in the larger case."""
    few, many = temporary_bytes(300, estimator), temporary_bytes(30_000, estimator)
    assert many < few + 1e6


# What is refused, and what works on all blocks


def two(source, other):
    fn = lambda x, r: x + r
    return [nx.Level(fn, source, name="a"), nx.Level(lambda x, r: jnp.sum(x) * r, other, name="b")]


ROWS = np.ones((4, 3))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: nx.Blocks(ROWS, visit=5), "visit must be at most the number of blocks, 4; got 5"),
        (lambda: nx.Blocks(ROWS, visit=0), "visit must be a whole number of at least 1"),
        (lambda: nx.Blocks((ROWS, ROWS[:, :2]), visit=1), r"common leading axes .blocks, rows."),
        (lambda: nx.Blocks(np.ones(4), visit=1), r"common leading axes .blocks, rows."),
        (lambda: nx.Blocks([], visit=1), "needs at least one block"),
        (lambda: nx.Blocks([ROWS, np.ones((2, 5))], visit=1), "rows of one structure and shape"),
        (
            lambda: nx.Blocks(np.where(np.arange(12).reshape(4, 3) == 7, np.nan, 1.0), visit=1),
            "row 1 of block 2 holds NaN or infinity",
        ),
        (lambda: nx.Blocks([ROWS, np.full((2, 3), np.inf)], visit=1), "block 1: .*row 0"),
        (
            lambda: nx.Problem(two(nx.Blocks(ROWS, visit=2), nx.Blocks(ROWS, visit=1)), jnp.ones(())),
            "same number of blocks and of visits .* got 'a' 4, visiting 2, 'b' 4, visiting 1",
        ),
        (
            lambda: nx.Problem(two(nx.Blocks(ROWS, visit=2), ROWS[0]), jnp.ones(())),
            "'a' 4, visiting 2, 'b' none",
        ),
        (lambda: nx.PerBlock(nx.PerBlock(nx.SMVR())), "takes an estimator for chains without blocks"),
        (lambda: nx.PerBlock(nx.MSVR()), "takes an estimator for chains without blocks"),
        (lambda: nx.PerBlock(nx.SMVR(), lr=0.1), "set lr on the estimator inside"),
        (lambda: nx.PerBlock(nx.SMVR(), store="int8"), "store must be one of float32, bfloat16"),
        (
            lambda: nx.PerBlock(nx.SMVR()).check(blocked().problem.block(0)),
            "needs levels with nx.Blocks as data, and this chain has none: use nx.SMVR alone",
        ),
        (lambda: nx.PerBlock(nx.Exact()).check(blocked().problem), "looks at the whole population"),
        (lambda: nx.PerBlock(nx.COVER()).check(blocked().problem), "two levels and this chain has 3"),
        (
            lambda: nx.PerBlock(nx.SCSC(0.3)).init(
                blocked().problem,
                blocked().problem.w0,
                draw_batches(blocked().problem, ("value",), KEY, 0, (2,) * 3),
            ),
            "visits all of them: draw_batches",
        ),
        (
            lambda: draw_batches(blocked(replace=False).problem, ("value",), KEY, 0, (99,) * 3),
            "a batch of 99 different rows needs blocks of at least 99; the smallest has 40",
        ),
        (lambda: nx.theory.estimate_constants(blocked().problem), "are those of one chain"),
        (lambda: nx.minimize(blocked().problem, samples=10_000), "for chains without blocks only"),
        (lambda: nx.evaluate(ragged()[0].problem, np.ones(4)), "needs blocks of one length"),
    ],
)
def test_refusals(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()


def test_methods_without_blocks_run_on_all_of_them():
    """``minimize`` with a method that knows no blocks: M samples a draw, and the same F."""
    problem = blocked("two_levels").problem
    result = nx.minimize(problem, nx.SCSC(0.3), optax.sgd(0.01), steps=3, batch_size=2, progress=False)
    assert result.records["samples"][-1] - result.records["samples"][-2] == 2 * M * 2
    assert_same(result.records["exact_value"][-1], problem.value(result.w))


def test_check_and_evaluate():
    problem = blocked("two_levels", outer=False).problem
    w = problem.w0 + 0.05
    report = nx.check(problem, w=w, draws=40)
    assert max(level.gradient_error for level in report.levels) < 1e-6
    assert [level.name for level in report.levels] == [level.name for level in problem.levels]
    assert not any("only the first" in sentence for sentence in report.advice)
    assert "of 5 blocks only the first was looked at, by itself." in nx.check(ragged()[0].problem).advice
    interval = nx.evaluate(problem, w)
    assert_same(interval.value, problem.value(w))
    # Blocks are independent samples: the variances of their means add up.
    each = [nx.evaluate(problem.block(m), w).stderr for m in range(M)]
    assert np.isclose(interval.stderr, np.sqrt(np.sum(np.square(each))) / M, rtol=0.3)
