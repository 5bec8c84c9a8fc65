"""A run gives the same bits however it is cut, and stops where it should."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.asked import asked

import nestax as nx
from nestax.loop import chunks as drive


@pytest.fixture(scope="module")
def problem():
    return nx.problems.mean_deviation(nx.datasets.synthetic_returns(300, 5), delta=1e-2)


def run(problem, estimator=None, steps=60, **changes):
    settings = {"batch_size": 2, "record_every": 10, "seed": 3} | changes
    return nx.minimize(
        problem, estimator or nx.SMVR(beta=0.3), optax.adam(0.01), steps=steps, **asked(**settings)
    )


ESTIMATORS = [
    nx.SMVR(beta=0.3, radius=3.0),
    nx.AdjointSMVR(),
    nx.ProductSMVR(mode="fresh"),
    nx.SnapshotSMVR(period=7),
    nx.Plain(),
    nx.Exact(),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_chunked_is_unchunked_bit_for_bit(problem, estimator, monkeypatch):
    whole = run(problem, estimator)
    monkeypatch.setattr(drive, "CHUNK_SECONDS", 0.0)  # one stride per visit of the host
    pieces = run(problem, estimator)
    np.testing.assert_array_equal(whole.w, pieces.w)
    for name, column in whole.records.items():
        np.testing.assert_array_equal(column, pieces.records[name])


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_continuing_is_going_on_bit_for_bit(problem, estimator):
    whole = run(problem, estimator, steps=60)
    half = run(problem, estimator, steps=30)
    rest = run(problem, estimator, steps=30, start=half.carry)
    np.testing.assert_array_equal(whole.w, rest.w)
    for name, column in whole.records.items():
        both = np.concatenate([half.records[name], rest.records[name][1:]])
        np.testing.assert_array_equal(column, both)


def test_continuing_from_a_file_is_going_on(problem, tmp_path):
    half = run(problem, steps=30)
    half.save(tmp_path / "half.safetensors")
    loaded = nx.load(tmp_path / "half.safetensors")
    assert loaded.status is nx.Status.SUCCESS
    np.testing.assert_array_equal(loaded.records["value"], half.records["value"])
    rest = run(problem, steps=30, start=loaded.carry)
    np.testing.assert_array_equal(rest.w, run(problem, steps=60).w)


def test_a_carry_of_another_method_is_refused(problem):
    half = run(problem, steps=30)
    with pytest.raises(nx.SettingError, match="another problem, method or output"):
        run(problem, nx.AdjointSMVR(), steps=30, start=half.carry)


def test_how_often_one_records_changes_nothing_else(problem):
    np.testing.assert_array_equal(run(problem, record_every=1).w, run(problem, record_every=25).w)


def test_a_last_stride_may_be_shorter(problem):
    result = run(problem, steps=25)
    assert result.records["step"].tolist() == [0, 10, 20, 25]
    np.testing.assert_array_equal(result.w, run(problem, steps=25, record_every=25).w)


@pytest.mark.parametrize("seed", [-1, 2**32, 2**70, 0.5])
def test_a_seed_that_would_be_cut_off_is_refused(problem, seed):
    """Without x64 the seeds 5 and 5 + 2³² would be one run."""
    words = re.escape(f"from 0 to 4,294,967,295; got {seed}.")
    with pytest.raises(nx.SettingError, match=words):
        run(problem, seed=seed)
    with pytest.raises(nx.SettingError, match=r"seeds? must be .*whole number"):
        nx.sweep(
            problem,
            lambda s: (nx.SMVR(), optax.sgd(s.lr)),
            settings=nx.grid(lr=[0.1]),
            seeds=[seed],
            steps=3,
        )


@pytest.mark.parametrize("long", [{"steps": 2**31}, {"steps": None, "samples": 2**40}])
def test_more_steps_than_can_be_counted_are_refused(problem, long):
    with pytest.raises(nx.SettingError, match="at most 2,147,483,647 steps; got "):
        run(problem, **long)


def test_equal_seeds_give_equal_results_and_other_seeds_others(problem):
    np.testing.assert_array_equal(run(problem).w, run(problem).w)
    assert not np.array_equal(run(problem).w, run(problem, seed=4).w)


@pytest.mark.erratum("E10")
def test_the_random_output_is_an_iterate_with_the_trackers_that_belong_to_it(problem):
    result = run(problem, output="random")
    stopped = result.carry.step
    assert 0 <= stopped < 60
    alone = run(problem, steps=max(stopped, 1))
    np.testing.assert_array_equal(result.w, alone.w)
    for mine, theirs in zip(
        jax.tree.leaves(result.carry.lane.state),
        jax.tree.leaves(alone.carry.lane.state),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.filterwarnings("ignore::nestax.ConvergenceWarning")
def test_the_random_output_is_uniform_over_the_steps(problem):
    stops = [
        run(problem, steps=4, output="random", seed=s, record=["value"]).carry.step for s in range(40)
    ]
    assert set(stops) == {0, 1, 2, 3}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("output", ["average", "weighted"])
def test_the_average_of_narrow_weights_does_not_stop_to_move(output, dtype):
    """Weights go from 0 to 1 at once, and the average after them for a thousand steps."""
    level = nx.Level(lambda w, x: x * (w - 1) ** 2 / 2, jnp.ones(2, dtype))
    problem = nx.Problem([level], jnp.zeros((), dtype))
    result = nx.minimize(problem, nx.Plain(), optax.sgd(0.1), steps=1_000, output=output, batch_size=1)
    wide = problem.replace(levels=[level.replace(data=jnp.ones(2))], w0=0.0)
    whole = nx.minimize(wide, nx.Plain(), optax.sgd(0.1), steps=1_000, output=output, batch_size=1)
    assert result.w.dtype == dtype
    np.testing.assert_allclose(float(result.w), float(whole.w), rtol=2 * float(jnp.finfo(dtype).eps))


def test_the_average_output_is_the_mean_of_all_iterates(problem):
    average = run(problem, steps=12, record_every=1, output="average").w
    at = run(problem, steps=1, record_every=1)
    iterates = [problem.w0, at.w]
    for _ in range(11):
        at = run(problem, steps=1, record_every=1, start=at.carry)
        iterates.append(at.w)
    np.testing.assert_allclose(average, np.mean(iterates, axis=0), rtol=1e-12)


@pytest.mark.erratum("E24")
def test_a_budget_of_samples_is_kept(problem):
    result = nx.minimize(problem, nx.SMVR(), optax.sgd(0.01), samples=500, batch_size=3)
    spent = result.records["samples"][-1]
    assert spent <= 500 < spent + 2 * 3
    assert result.records["samples"][0] == 2 * 30


def test_an_optimum_can_be_a_target_and_the_stop_does_not_depend_on_chunks(problem, monkeypatch):
    known = nx.Problem(
        problem.levels, problem.w0, project=problem.feasible, exact=problem.exact, optimum=0.0
    )
    goal = 0.5 * (run(known, nx.Exact(), steps=60).records["gap"][[0, -1]]).sum()
    stop = lambda: run(known, nx.Exact(), steps=60, record_every=1, target_gap=float(goal))
    first = stop()
    monkeypatch.setattr(drive, "CHUNK_SECONDS", 0.0)
    second = stop()
    assert "gap reached" in first.message
    assert first.records["gap"][-1] <= goal < first.records["gap"][-2]
    assert first.carry.step == second.carry.step < 60
    np.testing.assert_array_equal(first.w, second.w)


def test_patience_stops_after_records_without_a_new_best(problem):
    result = run(problem, nx.Plain(), steps=400, record_every=1, patience=5, record=["exact_value"])
    values = result.records["exact_value"]
    assert "No new best" in result.message
    assert len(values) - 1 - int(np.argmin(values)) == 5


def test_a_callback_sees_records_and_can_stop(problem, monkeypatch):
    monkeypatch.setattr(drive, "CHUNK_SECONDS", 0.0)
    seen = []

    def after_twenty(record):
        seen.append(record["step"])
        return record["step"] >= 20

    result = run(problem, callback=after_twenty)
    assert seen == [0, 10, 20]
    assert result.carry.step == 20
    assert result.message == "Stopped by the callback."


def test_seconds_stop_the_run(problem):
    result = run(problem, steps=100_000_000, record_every=1000, seconds=1e-9)
    assert result.carry.step < 100_000_000
    assert "seconds" in result.message


def test_ctrl_c_returns_what_there_is(problem, monkeypatch):
    monkeypatch.setattr(drive, "CHUNK_SECONDS", 0.0)

    def interrupt(record):
        if record["step"] == 10:
            raise KeyboardInterrupt

    result = run(problem, callback=interrupt)
    assert result.status is nx.Status.INTERRUPTED
    assert result.carry.step == 10
    np.testing.assert_array_equal(result.w, run(problem, steps=10).w)


def exploding(dtype=jnp.float64):
    rows = jnp.asarray(np.linspace(0.5, 1.5, 20), dtype)
    return nx.Problem(
        [
            nx.Level(lambda w, r: r * w, rows, name="scale"),
            nx.Level(lambda u: jnp.exp(u * u), name="burst"),
        ],
        w0=jnp.asarray(1.0, dtype),
    )


def explode():
    with pytest.warns(nx.ConvergenceWarning, match="level 'burst' became infinite or NaN"):
        return nx.minimize(
            exploding(), nx.SMVR(), optax.sgd(-0.1), steps=1000, batch_size=4, record_every=40
        )


def test_non_finite_values_stop_the_run_and_name_level_and_steps():
    result = explode()
    assert result.status is nx.Status.NONFINITE
    assert "level 'burst'" in result.message
    step = int(result.message.split("at step ")[1].split(" ")[0].replace(",", ""))
    assert result.carry.step == step - 1
    low = (step - 1) // 40 * 40
    assert f"at step {step:,}, after the record of step {low:,};" in result.message
    assert np.isfinite(result.w)
    assert all(np.isfinite(c).all() for c in result.records.values())


def test_the_step_after_the_last_finite_state_is_the_bad_one():
    carry = explode().carry
    with pytest.warns(nx.ConvergenceWarning, match="level 'burst'"):
        again = nx.minimize(exploding(), nx.SMVR(), optax.sgd(-0.1), steps=1, batch_size=4, start=carry)
    assert again.status is nx.Status.NONFINITE


def walled(w0=1.0):
    """F(w) = −w, and infinite from 5 on, which no draw shows; a metric that means nothing."""
    return nx.Problem(
        [nx.Level(lambda w, r: r * w, jnp.ones(4), name="scale"), nx.Level(lambda u: -u, name="minus")],
        jnp.asarray(w0),
        exact=lambda w: jnp.where(w < 5, -w, jnp.inf),
        metrics={"nothing": lambda w: jnp.nan * w},
    )


def walk(w0=1.0, **rest):
    """A step adds 1/8."""
    return nx.minimize(walled(w0), nx.Plain(), optax.sgd(1 / 8), steps=60, record_every=10, **rest)


def test_an_infinite_exact_value_stops_the_run_before_it():
    with pytest.warns(nx.ConvergenceWarning, match="The exact value became infinite or NaN at step 32"):
        result = walk()
    assert result.status is nx.Status.NONFINITE
    assert result.message.startswith(
        "The exact value became infinite or NaN at step 32, after the record of step 30; "
    )
    assert (result.carry.step, float(result.w)) == (31, 1 + 31 / 8)
    np.testing.assert_array_equal(result.records["exact_value"], -1 - np.arange(0, 31, 10) / 8)
    # What nobody asked for is not known; and some columns may be NaN.
    blind = walk(record=["value", "jac_error", "nothing"])
    assert blind.status is nx.Status.SUCCESS
    assert np.isnan(blind.records["nothing"]).all()
    assert np.isnan(blind.records["jac_error"]).all()


def test_a_start_that_is_not_finite_is_named():
    with pytest.warns(nx.ConvergenceWarning, match="choose another w0"):
        result = walk(6.0)
    assert result.message.startswith(
        "The exact value is infinite or NaN at the start: choose another w0"
    )
    assert (result.status, result.carry.step) == (nx.Status.NONFINITE, 0)


def test_a_lane_with_an_infinite_exact_value_has_diverged():
    lanes = nx.sweep(
        walled(),
        lambda s: (nx.Plain(), optax.sgd(s.lr)),
        settings=nx.grid(lr=[1 / 8, 1 / 80]),
        seeds=1,
        steps=60,
        record_every=10,
    )
    assert lanes.status[:, 0].tolist() == [nx.Status.NONFINITE, nx.Status.SUCCESS]


def test_schedules_see_count_and_horizon():
    seen = nx.SMVR(beta=lambda count, horizon: 1.0 - count / (2.0 * horizon))
    problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(50, 3))
    result = run(problem, seen, steps=8, record_every=8)
    by_hand = run(problem, nx.SMVR(beta=lambda count: 1.0 - count / 16.0), steps=8, record_every=8)
    np.testing.assert_array_equal(result.w, by_hand.w)


def test_a_penalty_is_exact_and_part_of_everything():
    base = nx.problems.mean_deviation(nx.datasets.synthetic_returns(50, 3), delta=1e-2)
    penalty = lambda w: 3.0 * jnp.sum((w - 0.2) ** 2)
    problem = nx.Problem(base.levels, base.w0, penalty=penalty)
    value, grad = problem.value_and_grad(base.w0)
    plain_value, plain_grad = nx.Problem(base.levels, base.w0).value_and_grad(base.w0)
    np.testing.assert_allclose(value, plain_value + penalty(base.w0), rtol=1e-13)
    np.testing.assert_allclose(grad, plain_grad + 6.0 * (base.w0 - 0.2), rtol=1e-12)
    result = nx.minimize(problem, nx.Exact(), optax.sgd(0.05), steps=400, record=["grad_norm"])
    assert result.records["grad_norm"][-1] < 1e-10
