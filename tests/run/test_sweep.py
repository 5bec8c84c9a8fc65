"""Sweeps: lanes equal single runs, compile once, and copy no data."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.compiled import steps_memory

import nestax as nx
from nestax.loop import chunks
from nestax.programs import TRACES
from nestax.run.prepare import Budget, prepare
from nestax.run.sweep import Built


@pytest.fixture(scope="module")
def problem():
    return nx.problems.mean_deviation(nx.datasets.synthetic_returns(300, 5), delta=1e-2)


def smvr(s):
    return nx.SMVR(beta=s.beta), optax.sgd(s.lr)


def new_traces(before):
    """How often each program was traced since."""
    return {name: n - before.get(name, 0) for name, n in TRACES.items() if n > before.get(name, 0)}


def test_a_grid_is_every_combination_the_last_name_fastest():
    grid = nx.grid(a=[1, 2], b=[3, 4, 5])
    assert grid["a"].tolist() == [1, 1, 1, 2, 2, 2]
    assert grid["b"].tolist() == [3, 4, 5, 3, 4, 5]


def test_a_table_has_seeds_of_their_own_for_every_setting(problem):
    settings = {"beta": np.array([0.1, 0.7]), "lr": np.array([0.01, 0.05])}
    facts = {"settings": settings, "steps": 30, "batch_size": 3}
    table = nx.sweep(problem, smvr, seeds=[[0, 4, 2], [4, 4, 7]], **facts)
    grid = nx.sweep(problem, smvr, seeds=[0, 2, 4, 7], **facts)
    assert table.status.shape == (2, 3)
    for name in ("value", "exact_value"):
        own = grid.records[name]
        expected = [own[0, [0, 2, 1]], own[1, [2, 2, 3]]]
        np.testing.assert_allclose(table.records[name], expected, rtol=1e-9)


def test_the_largest_seed_is_that_of_a_single_run(problem):
    facts = {"steps": 5, "batch_size": 2, "record_every": 5}
    lanes = nx.sweep(
        problem, smvr, settings=nx.grid(beta=[0.1], lr=[0.1]), seeds=[2**32 - 1, 0], **facts
    )
    alone = nx.minimize(problem, nx.SMVR(beta=0.1), optax.sgd(0.1), seed=2**32 - 1, **facts)
    np.testing.assert_allclose(lanes.w[0, 0], alone.w, rtol=1e-12)
    assert not np.array_equal(lanes.w[0, 0], lanes.w[0, 1])


@pytest.mark.parametrize("seeds", [[[0, 1]], [0.5], [], [[[0]], [[1]]]])
def test_seeds_that_are_none_are_refused(problem, seeds):
    with pytest.raises(nx.SettingError, match="seeds must be whole numbers: how many"):
        nx.sweep(problem, smvr, settings=nx.grid(beta=[0.1, 0.7], lr=[0.1]), seeds=seeds, steps=3)


@pytest.mark.parametrize(
    "build",
    [
        smvr,
        pytest.param(lambda s: (nx.AdjointSMVR(s.beta), optax.adam(s.lr)), marks=pytest.mark.slow),
        lambda s: (nx.SnapshotSMVR(beta=s.beta, period=9), optax.sgd(s.lr)),
    ],
)
def test_every_lane_is_the_run_it_stands_for(problem, build):
    settings = {"beta": np.array([0.1, 0.7]), "lr": np.array([0.01, 0.05])}
    lanes = nx.sweep(
        problem, build, settings=settings, seeds=[3, 8], steps=40, batch_size=2, record_every=20
    )
    for row in range(2):
        for column, seed in enumerate([3, 8]):
            one = {name: float(values[row]) for name, values in settings.items()}
            _, method = Built(build)(problem, one)
            alone = nx.minimize(problem, method, steps=40, batch_size=2, seed=seed, record_every=20)
            np.testing.assert_allclose(lanes.w[row, column], alone.w, rtol=1e-9)
            for name in ("value", "exact_value", "grad_norm"):
                np.testing.assert_allclose(
                    lanes.records[name][row, column], alone.records[name], rtol=1e-7
                )
            np.testing.assert_array_equal(lanes.records["samples"], alone.records["samples"])


def test_one_trace_for_420_lanes_and_none_for_a_second_call():
    problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(120, 4))
    settings = nx.grid(beta=[0.1, 0.5, 0.9], lr=[0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])

    def sweep(seeds, settings):
        before = dict(TRACES)
        out = nx.sweep(
            problem,
            lambda s: (nx.SMVR(beta=s.beta), optax.sgd(s.lr)),
            settings=settings,
            seeds=seeds,
            steps=8,
            batch_size=1,
        )
        return out, new_traces(before)

    out, traces = sweep(20, settings)
    assert out.records["exact_value"].shape == (21, 20, 9)
    assert traces == {"start": 1, "advance": 1}
    _, traces = sweep(range(20, 40), {k: v * 0.5 for k, v in settings.items()})
    assert traces == {}


def test_a_second_run_of_equal_shapes_never_traces(problem):
    run = lambda seed, steps: nx.minimize(
        problem,
        nx.SMVR(beta=0.1 + seed / 10),
        optax.sgd(0.05),
        steps=steps,
        seed=seed,
        record_every=10,
    )
    run(0, 20)
    before = dict(TRACES)
    run(1, 20)
    run(2, 55)
    assert before == TRACES


def test_equal_problems_on_other_data_never_trace():
    make = lambda seed: nx.problems.mean_deviation(nx.datasets.synthetic_returns(80, 4, seed=seed))
    run = lambda seed: nx.minimize(make(seed), nx.SMVR(), optax.sgd(0.05), steps=10)
    run(0)
    before = dict(TRACES)
    run(1)
    assert before == TRACES


def test_temporary_memory_at_420_lanes_is_below_data_and_carries():
    returns = nx.datasets.synthetic_returns(25_105, 30).astype(np.float32)
    problem = nx.problems.mean_deviation(returns)
    settings = nx.grid(beta=[0.1, 0.5, 0.9], lr=[0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
    compiled = prepare(
        problem,
        nx.Method(nx.SMVR(beta=0.1), optax.sgd(0.1)),
        Budget(steps=200, batch_size=1, record_every=200, record=["value", "exact_value", "grad_norm"]),
        jax.vmap(jax.random.key)(np.arange(20)),
        grid=(Built(smvr), {name: jax.numpy.asarray(v) for name, v in settings.items()}),
    ).compiled
    size = lambda tree: sum(x.nbytes for x in jax.tree.leaves(tree))
    memory = steps_memory(compiled).temp_size_in_bytes
    assert memory < size(problem.levels[0].source) + size(compiled.start().carry)


def test_numbers_inside_levels_can_be_swept(problem):
    plain = nx.Problem(problem.levels, problem.w0, project=problem.feasible)
    build = lambda s: (plain.with_args(utility=(s.risk, 1e-2)), nx.Exact(), optax.sgd(0.1))
    lanes = nx.sweep(plain, build, settings=nx.grid(risk=[0.0, 2.0]), seeds=1, steps=30)
    calm = nx.minimize(plain.with_args(utility=(2.0, 1e-2)), nx.Exact(), optax.sgd(0.1), steps=30)
    np.testing.assert_allclose(lanes.w[1, 0], calm.w, rtol=1e-9)
    assert not np.allclose(lanes.w[0, 0], lanes.w[1, 0])


def test_a_diverging_lane_does_not_stop_the_others(problem):
    free = nx.Problem(problem.levels, problem.w0)
    lanes = nx.sweep(
        free, smvr, settings=nx.grid(beta=[0.5], lr=[1e200, 0.01]), seeds=2, steps=20, batch_size=2
    )
    assert lanes.status[0].tolist() == [nx.Status.NONFINITE] * 2
    assert lanes.status[1].tolist() == [nx.Status.SUCCESS] * 2
    best = lanes.best("exact_value")
    assert best["lr"] == 0.01
    assert best["index"] == 1
    np.testing.assert_allclose(best["mean"], lanes.records["exact_value"][1, :, -1].mean())


def lost_lanes(problem, steps=300, **changes):
    """Lanes that leave for infinity in the middle of strides, one by one; and one that stays."""
    rates = np.array([1e200, 1e80, 1e60, 1e40, 0.01])
    settings = {"beta": np.full(5, 0.5), "lr": rates}
    options = {"batch_size": 2, "record_every": 140} | changes
    free = nx.Problem(problem.levels, problem.w0)
    return free, nx.sweep(free, smvr, settings=settings, seeds=2, steps=steps, **options)


@pytest.mark.filterwarnings("ignore::nestax.errors.ConvergenceWarning")
def test_a_lane_that_diverged_has_its_last_finite_weights(problem):
    before = dict(TRACES)
    free, lanes = lost_lanes(problem)
    assert new_traces(before) == {"start": 1, "advance": 1}
    assert np.isfinite(lanes.w).all()
    lengths = set()
    for row, lr in enumerate(lanes.settings["lr"]):
        for seed in range(2):
            alone = nx.minimize(
                free, nx.SMVR(0.5), optax.sgd(lr), steps=300, batch_size=2, record_every=140, seed=seed
            )
            assert alone.status is lanes.status[row, seed]
            np.testing.assert_allclose(lanes.w[row, seed], alone.w, rtol=1e-9)
            lengths.add(alone.carry.step)
            if alone.carry.step:  # to the bit, it is where a shorter sweep ends
                _, shorter = lost_lanes(problem, alone.carry.step)
                assert shorter.finite[row, seed]
                np.testing.assert_array_equal(shorter.w[row, seed], lanes.w[row, seed])
    assert len(lengths) > 4


def test_where_lanes_are_lost_nothing_depends_on_the_chunks(problem, monkeypatch):
    _, whole = lost_lanes(problem)
    monkeypatch.setattr(chunks, "CHUNK_SECONDS", 0.0)
    monkeypatch.setattr(chunks, "PART_SECONDS", 0.0)
    _, parts = lost_lanes(problem)
    np.testing.assert_array_equal(whole.w, parts.w)
    _, looked_at = lost_lanes(problem, callback=lambda record: False)
    np.testing.assert_array_equal(whole.w, looked_at.w)
    assert np.isfinite(whole.w).all()


def test_where_nothing_is_lost_nothing_is_computed_again(problem, monkeypatch):
    calls = []
    advance = chunks.Compiled.advance
    monkeypatch.setattr(
        chunks.Compiled, "advance", lambda self, *args: calls.append(args) or advance(self, *args)
    )
    lanes = nx.sweep(
        problem, smvr, settings=nx.grid(beta=[0.5], lr=[0.1, 0.2]), seeds=2, steps=300, record_every=10
    )
    assert lanes.finite.all()
    assert sum(strides * length for _, strides, length in calls) == 300


def test_a_lane_that_is_not_finite_at_its_start_has_its_first_weights(problem):
    plain = nx.problems.mean_variance(nx.datasets.synthetic_returns(300, 5))
    name = next(level.name for level in plain.levels if level.args)
    lanes = nx.sweep(
        plain,
        lambda s: (plain.with_args(**{name: (s.number,)}), nx.Plain(), optax.sgd(0.1)),
        settings={"number": np.array([1.0, np.nan])},
        seeds=1,
        steps=5,
    )
    assert lanes.finite.tolist() == [[True], [False]]
    np.testing.assert_array_equal(lanes.w[1, 0], plain.w0)


def test_where_the_carry_is_overwritten_the_weights_of_the_last_chunk_are_left(problem, monkeypatch):
    monkeypatch.setattr(chunks, "LARGE_BYTES", 0)
    _, lanes = lost_lanes(problem)
    assert np.isfinite(lanes.w).all()
    assert not lanes.finite[:-1].any()


def test_where_every_setting_diverged_none_is_best(problem):
    _, lanes = lost_lanes(problem)
    assert lanes.best("exact_value")["lr"] == 0.01
    free = nx.Problem(problem.levels, problem.w0)
    lost = nx.sweep(free, smvr, settings=nx.grid(beta=[0.5], lr=[1e200, 1e201]), seeds=2, steps=20)
    with pytest.raises(
        nx.SettingError, match="no setting has a finite mean of 'exact_value' over its"
    ) as told:
        lost.best("exact_value")
    assert "4 of 4 lanes diverged" in str(told.value)


def test_a_setting_whose_column_is_nan_is_not_the_best(problem):
    odd = problem.replace(metrics={"odd": lambda w: jnp.where(abs(w[0] - 0.2) > 1e-3, jnp.nan, 1.0)})
    settings = {"beta": np.full(2, 0.5), "lr": np.array([0.5, 1e-6])}
    lanes = nx.sweep(odd, smvr, settings=settings, seeds=1, steps=50, record=["odd"])
    assert np.isnan(lanes.records["odd"][:, 0, -1]).tolist() == [True, False]
    assert lanes.best("odd")["index"] == 1


def test_a_frame_has_a_row_per_setting_seed_and_record(problem):
    lanes = nx.sweep(
        problem,
        smvr,
        settings=nx.grid(beta=[0.1, 0.5], lr=[0.01]),
        seeds=3,
        steps=4,
        record_every=2,
    )
    frame = lanes.to_frame()
    assert len(frame) == 2 * 3 * 3
    picked = frame[(frame.beta == 0.5) & (frame.seed == 2) & (frame.step == 4)]
    assert picked.exact_value.item() == lanes.records["exact_value"][1, 2, -1]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"settings": {"beta": [0.1, 0.2], "lr": [0.1]}}, "columns of one length"),
        ({"settings": nx.grid(beta=[0.1, 1.5], lr=[0.1])}, r"beta must be in \(0, 1\]"),
        ({"seeds": 0}, "seeds must be a whole number of at least 1"),
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"build": lambda s: "SMVR"}, "build must return"),
    ],
)
def test_bad_sweeps_get_one_sentence(problem, changes, sentence):
    good = {"build": smvr, "settings": nx.grid(beta=[0.1], lr=[0.1]), "seeds": 1, "steps": 2}
    with pytest.raises(nx.SettingError, match=sentence):
        nx.sweep(problem, **(good | changes))


def test_a_misspelt_setting_is_named_with_the_right_ones(problem):
    with pytest.raises(AttributeError, match="no setting is called 'bta'; there are beta, lr"):
        nx.sweep(
            problem,
            lambda s: (nx.SMVR(beta=s.bta), optax.sgd(s.lr)),
            settings=nx.grid(beta=[0.1], lr=[0.1]),
            seeds=1,
            steps=2,
        )
