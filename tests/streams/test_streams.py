"""Rows fed from the host: which ones a step sees, whatever they come from and however a run is cut."""

import itertools
import os
import signal
import sys
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.asked import asked

import nestax as nx
from nestax.checkpoints.folder import Folder
from nestax.loop import chunks as drive
from nestax.programs import TRACES
from nestax.streams import feed as feeding
from nestax.streams.shares import Share

ROWS = np.random.default_rng(3).normal(size=(97, 3))
STEPS, BATCH, FIRST, RATE = 40, 3, 4, 0.05


class Loader:
    """An iterator over batches of five rows with a state of its own, as Grain's have."""

    def __init__(self, rows, kind=dict):
        self.rows, self.kind, self.at, self.read, self.set = rows, kind, 0, [], []

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= len(self.rows):
            raise StopIteration
        self.read.append(self.at)
        self.at += 5
        return self.rows[self.at - 5 : self.at]

    def get_state(self):
        return {"at": self.at} if self.kind is dict else bytes([self.at % 256, self.at // 256])

    def set_state(self, state):
        self.set.append(state)
        self.at = state["at"] if self.kind is dict else state[0] + 256 * state[1]


def odd_batches(rows):
    """Batches of one, two, three, … rows."""
    start = 0
    for size in range(1, 1_000):
        if start >= len(rows):
            return
        yield rows[start : start + size]
        start += size


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    np.save(folder / "rows.npy", ROWS)
    columns = {f"c{k}": ROWS[:, k] for k in range(3)} | {"name": ["x"] * len(ROWS)}
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=20)
    return folder


def cycled(times=10):
    return np.concatenate([ROWS] * times)


MAKERS = {
    "array": lambda place: nx.Stream(ROWS),
    "memory-mapped": lambda place: nx.Stream(np.load(place / "rows.npy", mmap_mode="r")),
    "Parquet": lambda place: nx.Stream(place / "rows.parquet", columns=["c0", "c1", "c2"]),
    "rows": lambda place: nx.Stream(iter(cycled())),
    "batches": lambda place: nx.Stream(odd_batches(cycled()), batches=True),
    "state": lambda place: nx.Stream(Loader(cycled()), batches=True),
    "state in bytes": lambda place: nx.Stream(Loader(cycled(), bytes), batches=True),
}


def loss(w, r):
    return (r @ w - 1.0) ** 2 / 2


def problem(data):
    return nx.Problem([nx.Level(loss, data, name="loss")], jnp.zeros(3))


def run(data, steps=STEPS, **changes):
    settings = {"batch_size": BATCH, "init_batch_size": FIRST, "record_every": 5} | changes
    method = settings.pop("method", nx.Plain())
    return nx.minimize(problem(data), method, optax.sgd(RATE), steps=steps, **asked(**settings))


def by_hand(steps=STEPS):
    """Gradient descent in NumPy: the start sees rows 0 to 3, a step the three after those before."""
    rows, w = cycled(), np.zeros(3)
    gradient = lambda r: r.T @ (r @ w - 1) / len(r)
    g = gradient(rows[:FIRST])
    for t in range(steps):
        w = w - RATE * g
        g = gradient(rows[FIRST + BATCH * t : FIRST + BATCH * (t + 1)])
    return w


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(drive, "CHUNK_SECONDS", 0.0)
    monkeypatch.setattr("os.fsync", lambda handle: None)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Portions of two strides, so that there are several; one shape for all tests."""
    monkeypatch.setattr(feeding, "PORTION_STEPS", 10)


def stop_at(step):
    return lambda record: record["step"] >= step


def same(one, other):
    assert one.records.keys() == other.records.keys()
    for name, column in one.records.items():
        np.testing.assert_array_equal(column, other.records[name])
    np.testing.assert_array_equal(one.w, other.w)
    assert (one.status, one.message, one.carry.step, one.carry.rows) == (
        other.status,
        other.message,
        other.carry.step,
        other.carry.rows,
    )


# Which rows


@pytest.mark.parametrize("maker", MAKERS)
def test_a_step_sees_the_rows_after_those_of_the_step_before(place, maker):
    result = run(MAKERS[maker](place))
    np.testing.assert_allclose(result.w, by_hand(), rtol=1e-12)
    assert result.status is nx.Status.SUCCESS
    assert result.carry.rows == (FIRST + BATCH * STEPS,)
    assert result.records["samples"][-1] == FIRST + BATCH * STEPS
    same(result, run(nx.Stream(ROWS)))


@pytest.mark.parametrize("most", [1, 3, 7, 10_000])
def test_how_a_run_is_cut_changes_no_bit(place, monkeypatch, most):
    whole = run(nx.Stream(ROWS))
    monkeypatch.setattr(feeding, "PORTION_STEPS", most)
    same(run(nx.Stream(ROWS)), whole)
    same(run(MAKERS["batches"](place)), whole)


def test_equal_streams_are_compiled_once(place):
    run(nx.Stream(ROWS))
    before = dict(TRACES)
    run(MAKERS["Parquet"](place))
    run(nx.Stream(ROWS + 1.0))
    assert before == TRACES


@pytest.mark.parametrize(
    ("estimator", "first", "refresh"),
    [
        (nx.SMVR(beta=0.1), FIRST, None),
        (nx.AdjointSMVR(beta=0.1), FIRST, None),
        (nx.NestedSPIDER(period=4, restart_batch=6), 6, 6),
    ],
    ids=["SMVR", "two passes", "restarts"],
)
def test_no_row_is_seen_twice_by_levels_passes_and_restarts(estimator, first, refresh):
    """Two levels on one stream of numbers 0, 1, 2, …: what they draw is 0, 1, 2, … again."""
    stream = nx.Stream(np.arange(10_000.0))
    levels = [nx.Level(lambda w, r: r * w, stream, name="a"), nx.Level(lambda u, r: r * u, stream)]
    two = nx.Problem(levels, jnp.ones(()))
    sizes = (2, 3)
    courses = feeding.courses_of(two, estimator, sizes, (first, first))
    feed = feeding.Feed(two, courses, 4, 4, 30)
    seen = []
    for step in range(20):
        fed = feeding.with_streams(two, feed.sources(step))
        fresh = refresh is not None and step % 4 == 0
        each = (first, first) if step == 0 or fresh else sizes
        batches = nx.draw_batches(fed, estimator, jax.random.key(0), step, each)
        seen += [np.asarray(b.draws) for level in batches for b in level.values()]
    seen = np.concatenate(seen)
    np.testing.assert_array_equal(seen, np.arange(len(seen)))
    assert feed.rows_after(19) == (len(seen),)
    assert feed.courses[0].fitting(0, 20, len(seen)) == 20
    assert feed.courses[0].fitting(0, 20, len(seen) - 1) == 19


@pytest.mark.filterwarnings("ignore::nestax.ConvergenceWarning")
def test_restarts_and_two_levels_run_and_are_cut_at_will(monkeypatch):
    def result():
        stream = nx.Stream(ROWS)
        base = nx.problems.mean_deviation(ROWS, delta=1e-2).with_data(mean=stream, variance=stream)
        return nx.minimize(
            base,
            nx.NestedSPIDER(period=4, restart_batch=9, lr=0.01),
            steps=18,
            batch_size=2,
            record_every=6,
        )

    whole = result()
    monkeypatch.setattr(feeding, "PORTION_STEPS", 5)
    same(result(), whole)
    assert whole.records["samples"][-1] == whole.carry.rows[0]


@pytest.mark.filterwarnings("ignore::nestax.ConvergenceWarning")
def test_trees_of_rows_and_numbers_of_other_kinds():
    data = {"x": ROWS.astype(np.float32), "k": np.arange(97)}
    level = nx.Level(lambda w, d: (d["x"] @ w - d["k"]) ** 2, nx.Stream(data), name="loss")
    tree = nx.Problem([level], jnp.zeros(3))
    assert level.source.example()["k"].dtype == int
    assert tree.levels[0].source.rows["x"].dtype == jnp.float64
    assert "stream" in repr(tree)
    assert not tree.finite
    iterator = ({"x": x, "k": k} for x, k in zip(data["x"], data["k"], strict=True))
    go = lambda p: nx.minimize(p, nx.Plain(), optax.sgd(1e-4), steps=5, batch_size=2)
    one, other = go(tree), go(tree.with_data(loss=nx.Stream(iterator)))
    np.testing.assert_array_equal(one.w, other.w)


# Going on


@pytest.mark.parametrize("maker", MAKERS)
def test_resumed_is_uninterrupted_bit_for_bit(place, tmp_path, maker):
    whole = run(MAKERS[maker](place))
    kept = {"checkpoint": tmp_path, "checkpoint_every": 0}
    run(MAKERS[maker](place), callback=stop_at(15), **kept)
    stream = MAKERS[maker](place)
    same(run(stream, resume=True, **kept), whole)
    loader = getattr(stream.reader, "items", None)
    if isinstance(loader, Loader):  # went to its place, and did not read its way there
        assert len(loader.set) == 1
        assert 5 < loader.read[1] <= FIRST + BATCH * 15 < loader.read[1] + 5


def test_a_stream_that_was_stopped_can_be_used_again(tmp_path):
    """Also an iterator, from where it was: what was read ahead is not lost."""
    whole = run(nx.Stream(ROWS))
    stream = nx.Stream(iter(cycled()))
    half = run(stream, callback=stop_at(20))
    rest = run(stream, steps=20, start=half.carry)
    np.testing.assert_array_equal(rest.w, whole.w)
    half.save(tmp_path / "half")
    assert nx.load(tmp_path / "half").carry.rows == half.carry.rows == (FIRST + 20 * BATCH,)
    # Another batch size takes the rows that follow.
    other = run(nx.Stream(ROWS), steps=2, start=half.carry, batch_size=5)
    assert other.carry.rows == (FIRST + 20 * BATCH + 10,)
    with pytest.raises(nx.ProblemError, match="cannot go back to row 0: make a new"):
        run(stream)


def test_another_stream_is_refused_and_so_is_a_place_of_anybodys_making(place, tmp_path):
    kept = {"checkpoint": tmp_path / "a", "checkpoint_every": 0}
    run(nx.Stream(ROWS), callback=stop_at(10), **kept)
    with pytest.raises(nx.SettingError, match=r"stream of level 'loss' was 97 rows .* and is 97 rows"):
        run(nx.Stream(ROWS + 1e-9), resume=True, **kept)
    found = Folder(tmp_path / "a").load()
    for number, places in enumerate((None, [], [{"row": 3}], [{"row": 34, "item": "x"}], [7])):
        facts = found.facts | {"stream": places}
        folder = tmp_path / f"hostile {number}"
        folder.mkdir()
        Folder(folder).save(found.groups, facts)
        with pytest.raises(nx.SettingError, match="does not fit its own fingerprint"):
            run(nx.Stream(ROWS), checkpoint=folder, resume=True)
    kept = {"checkpoint": tmp_path / "b", "checkpoint_every": 0}
    run(MAKERS["state"](place), callback=stop_at(10), **kept)
    loader = Loader(cycled())
    loader.set_state = lambda state: 1 / 0
    with pytest.raises(nx.ProblemError, match="refused the state of the run: ZeroDivisionError: div"):
        run(nx.Stream(loader, batches=True), resume=True, **kept)


def test_rows_that_differ_in_the_middle_are_told_apart():
    rows = np.random.default_rng(0).normal(size=(10_000, 2))
    other = rows.copy()
    other[5_000] += 1.0
    one, two, three = (nx.Stream(x).reader.about for x in (rows, other, rows.copy()))
    assert one == three != two
    assert "10,000 rows" in one
    assert one.endswith("at 5 places")


def test_a_shorter_iterator_cannot_go_on(tmp_path):
    kept = {"checkpoint": tmp_path, "checkpoint_every": 0}
    run(nx.Stream(iter(cycled())), callback=stop_at(30), **kept)
    with pytest.raises(nx.ProblemError, match=r"ended after 50 rows\. The run had read 94 rows:"):
        run(nx.Stream(iter(cycled()[:50])), resume=True, **kept)


def test_a_run_that_waits_for_rows_obeys_a_signal(tmp_path):
    whole = run(nx.Stream(ROWS))  # compiles, so that the next run soon has nothing to do but wait
    over = threading.Event()
    waited = []

    def waiting():
        yield from cycled()[:61]
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
        waited.append(not over.wait(5))

    kept = {"checkpoint": tmp_path, "checkpoint_every": 0}
    part = run(nx.Stream(waiting()), **kept)
    assert part.status is nx.Status.INTERRUPTED
    assert not waited  # the row that never came
    over.set()
    same(run(nx.Stream(iter(cycled())), resume=True, **kept), whole)


@pytest.mark.parametrize("every", [5, 1_000])
def test_a_run_that_waits_for_rows_keeps_its_time(monkeypatch, every):
    """With a stride that the rows end in the middle of, too."""
    monkeypatch.setattr(drive, "PART_SECONDS", 0.0)
    over = threading.Event()

    def waiting():
        yield from cycled()[:61]
        over.wait(30)
        yield from cycled()[61:]

    stream = nx.Stream(waiting())
    begin = time.perf_counter()
    part = run(stream, seconds=2, record_every=every)
    assert 2 < time.perf_counter() - begin < 12
    assert (part.status, part.message) == (nx.Status.SUCCESS, "Stopped after 2 seconds.")
    assert 0 < part.carry.step == part.records["step"][-1] < STEPS
    over.set()
    left = STEPS - part.carry.step
    np.testing.assert_array_equal(run(stream, left, start=part.carry).w, run(nx.Stream(ROWS)).w)


def test_a_start_without_rows_ends_with_a_sentence_when_the_time_is_over():
    over = threading.Event()

    def waiting():
        yield ROWS[0]
        over.wait(30)

    begin = time.perf_counter()
    with pytest.raises(nx.SettingError, match=r"seconds\. Until then its streams did not give"):
        run(nx.Stream(waiting()), seconds=0.5)
    assert time.perf_counter() - begin < 20
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(KeyboardInterrupt):
        run(nx.Stream(waiting()))
    over.set()


def test_a_carry_that_is_overwritten_is_returned_where_no_rows_follow_the_start(monkeypatch):
    monkeypatch.setattr(drive, "LARGE_BYTES", 0)
    monkeypatch.setattr(drive, "free_memory", lambda: (1e3, "the test"))
    part = run(nx.Stream(iter(ROWS[: FIRST + 1])))
    assert part.status is nx.Status.INTERRUPTED
    assert part.carry.step == 0
    np.testing.assert_array_equal(part.w, np.zeros(3))
    np.testing.assert_array_equal(jax.tree.leaves(part.carry.lane)[0].shape, (3,))
    jax.block_until_ready(part.carry.lane)


# The end


def ends(words, **changes):
    """A result that was stopped by its data after the 19 steps that 61 rows are enough for."""
    result = run(**changes)
    assert result.status is nx.Status.INTERRUPTED
    assert words in result.message
    assert result.message.startswith("The run was stopped: level 'loss': ")
    assert "\n" not in result.message
    assert result.carry.step == result.records["step"][-1] == 19
    np.testing.assert_allclose(result.w, by_hand(19), rtol=1e-12)
    return result


def failing():
    yield from ROWS[:63]
    raise OSError("the cable is out\nsomewhere")


def spoilt(row, value):
    rows = cycled()
    rows[row] = value
    return rows


@pytest.mark.parametrize("most", [10, 7, 19])
def test_an_iterator_that_ends_stops_the_run_with_a_sentence(tmp_path, monkeypatch, most):
    monkeypatch.setattr(feeding, "PORTION_STEPS", most)
    kept = {"checkpoint": tmp_path, "checkpoint_every": 0}
    ends("the iterator ended after 61 rows.", data=nx.Stream(iter(ROWS[:61])), **kept)
    # With more rows it goes on.
    same(run(nx.Stream(iter(cycled())), resume=True, **kept), run(nx.Stream(ROWS)))


def test_whatever_is_wrong_with_a_row_stops_the_run_before_it():
    ends("failed at row 63 with OSError: the cable is out.", data=nx.Stream(failing()))
    ends("row 62 holds an entry that is NaN or infinite", data=nx.Stream(spoilt(62, np.nan)))
    ends("row 62 holds an entry that is NaN", data=nx.Stream(iter(spoilt(62, -np.inf))))
    shorter = [*ROWS[:62], ROWS[0][:2], *ROWS]
    told = "gave at row 62 what is no row: rows were float64[3] and this one is float64[2]."
    ends(told, data=nx.Stream(iter(shorter)))
    for other in (ROWS[0].astype(complex), {"a": ROWS[0]}, "abc", None):
        ends("gave at row 62 what is no row: ", data=nx.Stream(iter([*ROWS[:62], other, *ROWS])))


def test_a_sweep_ends_with_its_rows_and_has_one_seed():
    go = lambda data, **more: nx.sweep(
        problem(data),
        lambda s: (nx.Plain(), optax.sgd(s.lr)),
        settings=nx.grid(lr=[RATE, 0.01]),
        **({"seeds": 1, "steps": STEPS} | more),
        batch_size=BATCH,
        init_batch_size=FIRST,
        record_every=5,
    )
    whole = go(nx.Stream(ROWS))
    np.testing.assert_allclose(whole.w[0, 0], by_hand(), rtol=1e-12)
    part = go(nx.Stream(iter(ROWS[:61])))
    assert part.interrupted
    assert "the iterator ended after 61 rows" in part.message
    assert part.records["step"][-1] == 19
    with pytest.raises(nx.SettingError, match=r"the same rows to every seed.*: use seeds=1"):
        go(nx.Stream(ROWS), seeds=2)


def test_a_bad_step_is_found_in_rows_that_cannot_be_read_again(monkeypatch):
    """The portion is replayed to find the last finite state, though the stride is longer than it."""
    rows = cycled()
    rows[70:] *= 1e200
    for source in (nx.Stream(rows), nx.Stream(iter(rows))):
        with pytest.warns(nx.ConvergenceWarning, match="became infinite or NaN at step"):
            result = run(source, record_every=40, record=["value"])
        assert result.status is nx.Status.NONFINITE
        # Rows 70 to 72 are of step 22 (FIRST + 3·22 = 70): its gradient overflows two steps later.
        assert np.isfinite(result.w).all()
        assert 22 <= result.carry.step <= 24
        assert "became infinite or NaN at step" in result.message


def test_a_rule_inside_a_chunk_goes_back_to_its_record(place, monkeypatch):
    monkeypatch.setattr(drive, "CHUNK_SECONDS", 10.0)
    results = [
        run(source, steps=400, record_every=1, patience=3, record=["value"])
        for source in (nx.Stream(ROWS), MAKERS["rows"](place))
    ]
    assert "No new best" in results[0].message
    same(*results)


# Reading ahead


def test_the_next_rows_are_read_in_a_thread_and_not_too_far_ahead():
    read, seen = [], []

    def rows():
        for number, row in enumerate(cycled()):
            read.append((number, threading.current_thread().name))
            yield row

    def look(record):
        seen.append((int(record["step"]), len(read)))

    result = run(nx.Stream(rows()), callback=look)
    assert "nestax-stream" in {name for _, name in read}
    most = max(count - (FIRST + BATCH * step) for step, count in seen)
    assert most <= BATCH * 2 * 10  # the rest of this portion, and the next one
    assert len(read) == result.carry.rows[0]  # nothing that the run has no use for


def test_a_slow_source_is_handed_over_in_small_portions(monkeypatch):
    """What has come is computed with, long before a whole portion is there."""
    monkeypatch.setattr(feeding, "PORTION_STEPS", 10_000)
    whole = run(nx.Stream(ROWS))
    monkeypatch.setattr(feeding, "PORTION_SECONDS", 0.0)  # every source is slow
    read, seen = [], []

    def rows():
        for row in cycled():
            read.append(row)
            yield row

    same(run(nx.Stream(rows()), callback=lambda record: seen.append(len(read))), whole)
    assert seen[0] <= FIRST + BATCH * 5 * 2  # the stride that is done, and the next one


def test_a_thread_that_fails_says_so_where_its_rows_are_asked_for(monkeypatch):
    stream = nx.Stream(ROWS)
    usual = stream.reader._part

    def gone(number, first, last):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("no such thing")
        return usual(number, first, last)

    monkeypatch.setattr(stream.reader, "_part", gone)
    with pytest.raises(RuntimeError, match="no such thing"):
        run(stream)


# Everything else


def test_populations_are_evaluated_in_passes(place, monkeypatch):
    monkeypatch.setattr(sys.modules["nestax.study.evaluate"], "PORTION_BYTES", 24 * 30)
    base = nx.problems.mean_deviation(ROWS, delta=1e-2)
    whole = nx.evaluate(base.with_data(mean=ROWS, variance=ROWS), base.w0)
    stream = MAKERS["memory-mapped"](place)
    shared = nx.evaluate(base.with_data(mean=stream, variance=stream), base.w0)
    np.testing.assert_allclose(
        [shared.value, shared.stderr, shared.low], [whole.value, whole.stderr, whole.low], rtol=1e-12
    )
    # One level in memory, the other not: two samples.
    other = ROWS[::-1] * 1.1
    mixed = nx.evaluate(base.with_data(mean=other, variance=stream), base.w0)
    both = nx.evaluate(base.with_data(mean=other, variance=ROWS), base.w0)
    np.testing.assert_allclose([mixed.value, mixed.stderr], [both.value, both.stderr], rtol=1e-12)
    some = nx.evaluate(base.with_data(mean=stream, variance=stream), base.w0, draws=20)
    same_rows = base.with_data(mean=ROWS[:20], variance=ROWS[20:40])
    assert abs(some.value - nx.evaluate(same_rows, base.w0).value) < 1e-12
    with pytest.raises(nx.ProblemError, match=r"can be read only once.*draws=\.\.\."):
        nx.evaluate(problem(MAKERS["rows"](place)), jnp.zeros(3))
    with pytest.raises(nx.ProblemError, match="row 40 holds an entry that is NaN"):
        nx.evaluate(problem(nx.Stream(spoilt(40, np.nan))), jnp.zeros(3))


def test_a_stream_can_be_checked(place):
    report = nx.check(problem(MAKERS["rows"](place)), draws=50)
    assert report.ok
    assert report.levels[0].jac_noise > 0
    # SSD looks at its levels before it begins.
    result = nx.minimize(problem(MAKERS["rows"](place)), nx.SSD(), steps=3, batch_size=2)
    assert result.carry.step == 3


REFUSED = {
    "population": (lambda: run(nx.Stream(ROWS), method=nx.SnapshotSMVR()), "a Stream does not have"),
    "restarts": (
        lambda: run(nx.Stream(ROWS), method=nx.SPIDER(restart_batch="population")),
        "a Stream has no population at hand",
    ),
    "exact": (lambda: run(nx.Stream(ROWS), record=["exact_value"]), "a Stream has none"),
    "settings": (
        lambda: nx.minimize(problem(nx.Stream(ROWS)), samples=10_000),
        "a Stream has none: give",
    ),
    "few": (lambda: run(nx.Stream(ROWS[:2])), "has 2 rows and one step takes 3: lower"),
    "few items": (lambda: run(nx.Stream(iter(ROWS[:2]))), "after 2 rows. That is not enough"),
    "twice": (
        lambda: nx.minimize(
            nx.problems.mean_deviation(ROWS).with_data(mean=nx.Stream(ROWS), variance=nx.Stream(ROWS)),
            nx.SMVR(beta=0.1),
            optax.sgd(0.1),
            steps=3,
        ),
        "levels 'mean' and 'variance' read the same rows in the same order",
    ),
    "outside": (
        lambda: nx.draw_batches(problem(nx.Stream(ROWS)), ("value",), jax.random.key(0), 0, (1,)),
        "a Stream has no rows at hand here",
    ),
    "nothing": (lambda: nx.Stream(iter([])), "the iterator ended after 0 rows"),
    "empty": (lambda: nx.Stream(ROWS[:0]), "data is empty"),
    "number": (lambda: nx.Stream(3.0), "one row per draw; got a single number"),
    "no array": (lambda: nx.Stream({}), "data holds no array"),
    "lengths": (lambda: nx.Stream((ROWS, ROWS[:5])), r"got lengths \[5, 97\]"),
    "words": (lambda: nx.Stream(np.array(["a", "b"])), "rows must hold numbers; got <U1"),
    "first row": (lambda: nx.Stream(spoilt(0, np.nan)), "row 0 holds an entry that is NaN"),
    "columns": (lambda: nx.Stream(ROWS, columns=["a"]), "columns= is for Parquet files"),
    "batches": (lambda: nx.Stream(ROWS, batches=True), "batches= is for iterators"),
    "ragged": (lambda: nx.Stream(iter([(ROWS, ROWS[:5])]), batches=True), "one common leading axis"),
    "files": (
        lambda: nx.Stream(["a.parquet", "b.parquet"]),
        "a Stream reads one file: write the rows of all",
    ),
    "no table": (
        lambda: nx.problems.mean_deviation(nx.Stream(ROWS)),
        r"returns must be a table, not nx.Stream: .* problem.with_data\(mean=stream, ...\)",
    ),
    "unsaid batches": (
        lambda: nx.problems.mean_deviation(ROWS).with_data(mean=nx.Stream(iter([ROWS, ROWS]))),
        "level 'mean' have one axis more than its rows before: .* batches=True",
    ),
    "missing": (lambda: nx.Stream("missing.parquet"), "there is no file missing.parquet"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_in_one_sentence(name):
    make, words = REFUSED[name]
    with pytest.raises((nx.ProblemError, nx.SettingError), match=words) as told:
        make()
    assert "\n" not in str(told.value)
    assert str(told.value).endswith(".")


def write(path, **columns):
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def test_parquet_files_that_do_not_hold_numbers(place, tmp_path):
    refused = lambda words: pytest.raises(nx.ProblemError, match=words)
    with refused(r"holds more than numbers in 'name' \(string\): name the columns to read, columns="):
        nx.Stream(place / "rows.parquet")
    with refused(r"has no column 'c9'; there are c0, c1, c2, name"):
        nx.Stream(place / "rows.parquet", columns=["c0", "c9"])
    with refused("has nothing in column 'b' of row 1: fill it"):
        nx.Stream(write(tmp_path / "a", a=[1.0, 2.0, 3.0], b=[1.0, None, 2.0]))
    with refused("data is empty"):
        nx.Stream(write(tmp_path / "b", a=pa.array([], pa.float64())))
    with refused("is an array: pass np.load"):
        nx.Stream(place / "rows.npy")
    (tmp_path / "r.csv.gz").write_bytes(b"a,b")
    with refused(r"r.csv.gz is text, .*pd.read_csv\('.*r.csv.gz', chunksize=10_000\)\), batches=True"):
        nx.Stream(tmp_path / "r.csv.gz")
    (tmp_path / "c").write_bytes(b"PAR1 and nothing more PAR1")
    with refused("is no Parquet file, or it is damaged"):
        nx.Stream(tmp_path / "c")
    later = nx.Stream(write(tmp_path / "d", a=[1, 2, 3, 4, None, 6]))
    rows, why = later.reader.read(0, 6)
    assert len(rows) == 4
    assert why.endswith("d has nothing in column 'a' of row 4: fill it, or leave the row out.")
    single = nx.Stream(write(tmp_path / "e", a=np.float32([1, 2, 3]), b=np.float32([4, 5, 6])))
    assert single.reader.one.dtype == np.float32
    np.testing.assert_array_equal(single.reader.read(1, 4).rows, [[2, 5], [3, 6], [1, 4], [2, 5]])


def test_numbers_so_large_that_their_sum_is_not_one_are_numbers():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", nx.ConvergenceWarning)
        assert nx.Stream(np.full((9, 2), 1.7e308)).reader.read(0, 9).why is None


# Rows that several processes read together


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_shares_of_processes_joined_are_all_rows_in_their_order(processes, own):
    held = 20  # room in each of them
    for first, count in itertools.product(range(12), (0, 1, 2, 3, 7, 16)):
        joined = np.full(processes * held, -1)
        for number in range(processes):
            share = Share(number, processes, own)
            start, many = share.rows(first, count)
            assert many <= share.most(count)
            local = np.arange(start, start + many)
            rows = local * processes + number if own else local
            joined[number * held : number * held + many] = rows
            assert [first + share.offset(first, count, k) for k in range(many)] == rows.tolist()
        index = Share(0, processes, own).indices(first, count, held)
        assert joined[index].tolist() == list(range(first, first + count))


# Loaders with a state


def test_a_loader_whose_batches_end_where_a_portion_does_goes_on(tmp_path):
    batches = {"batch_size": 5, "init_batch_size": 5}
    stream = lambda: nx.Stream(Loader(cycled()), batches=True)
    read_on = lambda record: time.sleep(0.02) or record["step"] >= 15
    run(stream(), checkpoint=tmp_path, callback=read_on, **batches)
    same(run(stream(), checkpoint=tmp_path, resume=True, **batches), run(stream(), **batches))


def test_a_checkpoint_does_not_wait_for_a_loader_that_waits(tmp_path):
    waits = threading.Event()
    come = threading.Event()

    class Slow(Loader):
        def __next__(self):
            if self.at >= 60 and not come.is_set():
                waits.set()
                come.wait(60)
            return super().__next__()

    def ask():
        waits.wait(60)
        os.kill(os.getpid(), signal.SIGTERM)
        seconds.append(-time.perf_counter())

    seconds = []
    asking = threading.Thread(target=ask)
    asking.start()
    stopped = run(nx.Stream(Slow(cycled()), batches=True), checkpoint=tmp_path)
    seconds.append(time.perf_counter())
    come.set()
    asking.join()
    assert stopped.status is nx.Status.INTERRUPTED
    assert sum(seconds) < 20
    assert 0 < stopped.carry.step < STEPS
    resumed = run(nx.Stream(Loader(cycled()), batches=True), checkpoint=tmp_path, resume=True)
    same(resumed, run(nx.Stream(Loader(cycled()), batches=True)))
