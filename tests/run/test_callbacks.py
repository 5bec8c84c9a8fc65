"""A callback is called at every record, with its weights, and stops a run exactly where it says."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.asked import asked

import nestax as nx
from nestax.loop import chunks as drive
from nestax.run.record import Book

ROWS = nx.datasets.synthetic_returns(300, 5)


@pytest.fixture(scope="module")
def problem():
    return nx.problems.mean_deviation(ROWS, delta=1e-2)


def run(problem, **changes):
    settings = {"steps": 60, "batch_size": 2, "record_every": 3, "seed": 3} | changes
    return nx.minimize(problem, nx.SMVR(beta=0.3), optax.adam(0.01), **asked(**settings))


def same(one, other):
    np.testing.assert_array_equal(one.w, other.w)
    assert one.records.keys() == other.records.keys()
    for name, column in one.records.items():
        np.testing.assert_array_equal(column, other.records[name])


def test_a_column_that_is_not_there_is_told_with_those_that_are(problem):
    with pytest.raises(nx.SettingError, match=r"no column 'loss'; it has step, .*exact_value"):
        run(problem, callback=lambda record: record["loss"] < 1)


@pytest.mark.parametrize("reads", ["nothing", "weights", "some weights"])
def test_every_record_is_shown_with_its_weights_and_changes_nothing(problem, reads):
    seen = []
    weights = {}

    def look(record):
        seen.append(dict(record))
        assert len(record.records["step"]) == len(seen)
        if reads == "weights" or (reads == "some weights" and len(seen) in (9, 12)):
            weights[record["step"]] = record.w

    result = run(problem, callback=look)
    same(result, run(problem))
    assert [record["step"] for record in seen] == result.records["step"].tolist()
    for name, column in result.records.items():
        np.testing.assert_array_equal(column, [record[name] for record in seen])
    assert len(weights) == {"nothing": 0, "weights": 21, "some weights": 2}[reads]
    for step, w in weights.items():
        expected = run(problem, steps=step).w if step else problem.w0
        np.testing.assert_array_equal(w, expected)


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("step", [0, 3, 30, 60])
def test_a_stop_is_exactly_at_that_record(problem, step, reads):
    result = run(problem, callback=lambda r: (r.w is not None or not reads) and r["step"] >= step)
    assert result.carry.step == step == result.records["step"][-1]
    assert result.message == "Stopped by the callback."
    assert result.status is nx.Status.SUCCESS
    if step:
        same(result, run(problem, steps=step))


def test_the_weights_are_those_that_the_run_returns(problem):
    seen = []
    result = run(problem, output="average", callback=lambda record: seen.append(record.w))
    np.testing.assert_array_equal(seen[-1], result.w)
    assert not np.array_equal(seen[-1], result.carry.lane.w)


def test_weights_are_there_inside_the_callback_and_stay_if_they_were_read(problem):
    kept = []

    def look(record):
        kept.append(record)
        return record["step"] == 3 and record.w is None

    run(problem, steps=6, callback=look)
    assert kept[1].w.shape == (5,)
    with pytest.raises(nx.SettingError, match=r"read record\.w inside"):
        _ = kept[2].w
    assert kept[1].records["step"].tolist() == [0, 3]


def test_a_record_as_numbers(problem):
    seen = []
    columns = ["exact_value", "value_error"]
    run(problem, steps=3, record=columns, callback=lambda record: seen.append(record.numbers()))
    assert {"step", "samples", "exact_value", "value_error/0", "value_error/2"} <= seen[1].keys()
    assert all(type(x) is float for x in seen[1].values())
    assert seen[1]["step"] == 3.0


@pytest.mark.parametrize("answer", [3, "stop", np.ones(2, bool)])
def test_an_answer_that_is_none_is_refused_at_the_start(problem, answer):
    with pytest.raises(nx.SettingError, match="returns True to stop the run"):
        run(problem, callback=lambda record: answer)


def test_truth_of_any_kind_stops(problem):
    for true in (np.bool_(True), jnp.asarray(True)):
        assert run(problem, callback=lambda record, true=true: true).carry.step == 0


@pytest.mark.parametrize("callback", [3, lambda: True, lambda record, w: True])
def test_what_is_no_function_of_one_record_is_refused(problem, callback):
    with pytest.raises(nx.SettingError, match="callback must be a function of one record, such as"):
        run(problem, callback=callback)


def test_a_method_and_a_function_of_c_are_callbacks(problem):
    run(problem, steps=3, callback=[].append)
    run(problem, steps=3, callback=print)


def test_a_resumed_run_shows_the_records_that_follow(problem, tmp_path):
    seen = []

    def look(record):
        seen.append(record["step"])
        return record["step"] == 30

    run(problem, checkpoint=tmp_path, callback=look)
    resumed = run(problem, checkpoint=tmp_path, resume=True, callback=look)
    assert seen == list(range(0, 61, 3))
    same(resumed, run(problem))


def test_records_before_a_failure_are_shown():
    rows = jnp.asarray(np.linspace(0.5, 1.5, 20))
    levels = [nx.Level(lambda w, r: r * w, rows), nx.Level(lambda u: jnp.exp(u * u))]
    seen = []
    with pytest.warns(nx.ConvergenceWarning):
        result = nx.minimize(
            nx.Problem(levels, jnp.asarray(1.0)),
            nx.SMVR(),
            optax.sgd(-0.1),
            steps=1000,
            batch_size=4,
            record_every=1,
            callback=lambda record: seen.append(record["step"]),
        )
    assert result.status is nx.Status.NONFINITE
    assert seen == result.records["step"].tolist()


def test_a_callback_where_a_chunk_overwrites_its_carry(problem, monkeypatch):
    monkeypatch.setattr(drive, "LARGE_BYTES", 0)
    kept = []
    result = run(problem, callback=lambda record: kept.append(record.w) or record["step"] == 30)
    np.testing.assert_array_equal(kept[5], run(problem, steps=15).w)
    np.testing.assert_array_equal(result.w, kept[-1])
    assert result.carry.step == 30


def test_a_stream_shows_its_records_too(problem):
    weights = {}

    def look(record):
        if record["step"] in (24, 27):
            weights[record["step"]] = record.w
        return record["step"] == 45

    def streamed(**changes):
        rows = nx.Stream(ROWS)
        return run(problem.with_data(mean=rows, variance=rows), record=["value"], **changes)

    result = streamed(callback=look)
    assert result.carry.step == 45
    for step, w in (*weights.items(), (45, result.w)):
        np.testing.assert_array_equal(w, streamed(steps=step).w)


# Sweeps


def sweep(problem, **changes):
    return nx.sweep(
        problem,
        lambda s: (nx.SMVR(beta=s.beta), optax.adam(0.01)),
        settings=nx.grid(beta=[0.3, 0.5, 0.7]),
        seeds=2,
        **({"steps": 30, "batch_size": 2, "record_every": 3} | changes),
    )


def test_the_callback_of_a_sweep_sees_all_lanes_and_stops_all(problem):
    seen = []

    def look(record):
        seen.append((record["step"], record["value"].shape, record.w.shape, record.numbers()))
        return record["step"] == 15

    stopped = sweep(problem, callback=look)
    short = sweep(problem, steps=15)
    assert [step for step, *_ in seen] == [0, 3, 6, 9, 12, 15]
    assert seen[0][1:3] == ((3, 2), (3, 2, 5))
    assert seen[-1][3]["value/2/1"] == stopped.records["value"][2, 1, -1]
    np.testing.assert_array_equal(stopped.w, short.w)
    assert stopped.ended is nx.Status.SUCCESS
    assert stopped.message == "Stopped by the callback."
    assert (stopped.status == nx.Status.SUCCESS).all()
    with pytest.raises(nx.SettingError, match="callback must be a function"):
        sweep(problem, callback=[])


# Rows held out


def test_held_out_values_are_recorded_and_change_nothing(problem):
    test = problem.with_data(mean=ROWS[:40], variance=ROWS[:40])
    weights = []
    watched = problem.replace(metrics={"held_out": test.value})
    result = run(watched, callback=lambda record: weights.append(record.w))
    expected = [test.value(w) for w in weights]
    np.testing.assert_allclose(result.records.pop("held_out"), expected, rtol=1e-12)
    same(result, run(problem))


def shaky():
    """A run that first finds the held-out optimum at 1 and then walks away from it, to 3."""
    levels = [nx.Level(lambda w, r: w - r, np.full(4, 3.0), name="off"), nx.Level(lambda u: u * u)]
    problem = nx.Problem(levels, jnp.asarray(0.0))
    return problem, problem.with_data(off=np.full(4, 1.0))


def test_patience_watches_what_is_held_out():
    problem, test = shaky()
    values = []
    stop = nx.minimize(
        problem.replace(metrics={"held_out": test.value}),
        nx.Plain(),
        optax.sgd(0.02),
        steps=200,
        record_every=2,
        stop=nx.stop.Patience(4),
        callback=lambda record: values.append(record["held_out"]),
    )
    best = int(np.argmin(values))
    assert len(values) - 1 - best == 4
    assert abs(values[best]) < 0.02
    assert stop.records["exact_value"].argmin() == len(values) - 1  # which would have gone on
    step = stop.records["step"][best]
    assert stop.message == f"No new best held_out in 4 records: the best is that of step {step}."


def test_held_out_rows_are_part_of_a_checkpoint(tmp_path):
    problem, test = shaky()

    def go(folder=None, test=test, **changes):
        kept = {} if folder is None else {"checkpoint": folder, "resume": True}
        watched = problem.replace(metrics={"held_out": test.value})
        settings = {"steps": 200, "record_every": 2, "patience": 4} | changes
        return nx.minimize(watched, nx.Plain(), optax.sgd(0.02), **asked(**kept, **settings))

    go(tmp_path, callback=lambda record: record["step"] == 20)
    with pytest.raises(nx.SettingError, match="another"):
        go(tmp_path, test=problem.with_data(off=np.full(4, 1.5)))
    same(go(tmp_path), go())


def test_patience_needs_something_to_watch(problem):
    with pytest.raises(nx.SettingError, match="add 'value' to record, or 'held_out'"):
        run(problem, record=["grad_norm"], patience=3)


def test_patience_takes_no_longer_for_many_records():
    """The best so far is kept, not looked for: 4,000 records, each looked at once."""
    looked = []

    class Counted(float):
        def __lt__(self, other):
            looked.append(1)
            return float(self) < other

    book = Book(None, [], True)  # pyright: ignore[reportArgumentType]
    for step in range(4_000):
        book.rows.append({"step": step, "value": Counted(-step)})
        assert book.least("value") == (step, 0)
    assert len(looked) == 4_000


class Failures(nx.stop.Rule):
    """Ends a run after so many records that were no better than the one before."""

    def __init__(self, most):
        self.most = most

    @property
    def columns(self):
        return ("grad_norm",)

    def __call__(self, record):
        column = record.records["grad_norm"]
        failures = int((np.diff(column) >= 0).sum())
        return f"{failures} failures." if failures >= self.most else None


def test_a_rule_of_ones_own_says_what_it_looks_at_and_why_it_ended(problem):
    result = run(problem, stop=[nx.stop.Seconds(600), Failures(2)], record=["value"])
    failures = np.diff(result.records["grad_norm"]) >= 0
    assert failures.sum() == 2
    assert failures[-1]
    assert result.message == "2 failures."
    assert result.status is nx.Status.SUCCESS


def test_a_function_of_a_record_is_a_rule(problem):
    def late(record):
        return record["step"] >= 9

    assert run(problem, stop=late).message == "Stopped by late."
    assert run(problem, stop=[late]).carry.step == 9
    seen = []
    told = run(problem, stop=lambda record: seen.append(record["step"]) or "Enough.")
    assert (told.message, told.carry.step, seen) == ("Enough.", 3, [3])  # not asked at the start
    with pytest.raises(nx.SettingError, match="a stop returns True to stop the run"):
        run(problem, stop=lambda record: 3)
