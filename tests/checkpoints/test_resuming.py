"""A run that stops and goes on is the run that never stopped, or it is refused with the difference."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.asked import asked

import nestax as nx
from nestax.checkpoints import files as checkpoint
from nestax.checkpoints import keeper as keeping
from nestax.checkpoints.files import Files
from nestax.checkpoints.fingerprint import Fingerprint
from nestax.checkpoints.folder import Folder
from nestax.loop import chunks as drive
from nestax.run import tune
from nestax.run.record import Book
from nestax.trees import as_host


@pytest.fixture(scope="module")
def problem():
    return nx.problems.mean_deviation(nx.datasets.synthetic_returns(300, 5), delta=1e-2, optimum=0.0)


@pytest.fixture(autouse=True)
def _one_stride_a_chunk(monkeypatch):
    monkeypatch.setattr(drive, "CHUNK_SECONDS", 0.0)
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def run(problem, estimator=None, optimizer=None, steps=60, **changes):
    settings = {"batch_size": 2, "record_every": 10, "seed": 3} | changes
    return nx.minimize(
        problem,
        estimator or nx.SMVR(beta=0.3),
        optimizer or optax.adam(0.01),
        steps=steps,
        **asked(**settings),
    )


def stop_at(step):
    return lambda record: record["step"] >= step


def assert_equal_runs(one, other):
    """The same bits in the weights, in every record, and in everything that is carried."""
    assert list(one.records) == list(other.records)
    for name, column in one.records.items():
        assert column.dtype == other.records[name].dtype
        np.testing.assert_array_equal(column, other.records[name])
    bits = lambda tree: [as_host(x)[0].tobytes() for x in jax.tree.leaves(tree)]
    assert bits(one.w) == bits(other.w)
    if isinstance(one, nx.Result):
        assert bits(one.carry.lane) == bits(other.carry.lane)
        assert (one.carry.step, one.carry.cost) == (other.carry.step, other.carry.cost)
        assert (one.status, one.message) == (other.status, other.message)
    else:
        assert (one.status == other.status).all()


@pytest.mark.parametrize(
    ("estimator", "changes"),
    [
        (nx.SMVR(beta=lambda count, horizon: 1 / (1 + count / horizon), radius=3.0), {}),
        pytest.param(nx.SnapshotSMVR(period=7), {"output": "average"}, marks=pytest.mark.slow),
        pytest.param(nx.AdjointSMVR(), {"steps": 57, "patience": 50}, marks=pytest.mark.slow),
    ],
    ids=["schedule", "snapshots", "matrix-free"],
)
def test_resumed_is_uninterrupted_bit_for_bit(problem, tmp_path, estimator, changes):
    whole = run(problem, estimator, **changes)
    first = run(problem, estimator, checkpoint=tmp_path / "run", callback=stop_at(20), **changes)
    assert first.carry.step == 20
    resume = {"checkpoint": tmp_path / "run", "resume": True} | changes
    second = run(problem, estimator, callback=stop_at(40), checkpoint_every=0, **resume)
    assert second.carry.step == 40
    assert_equal_runs(run(problem, estimator, **resume), whole)
    before = sorted(p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir())
    assert_equal_runs(run(problem, estimator, **resume), whole)  # at once
    assert sorted(p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()) == before


@pytest.fixture
def _parts_of_one_step(monkeypatch):
    monkeypatch.setattr(drive, "PART_SECONDS", 0.0)
    monkeypatch.setattr(drive, "PART_SHARE", np.inf)


@pytest.mark.usefixtures("_parts_of_one_step")
def test_a_long_stride_is_visited_within_stopped_and_resumed(problem, tmp_path, monkeypatch):
    """As one of minutes is: checkpoints and signals do not wait for a record."""
    visited = []
    visit = keeping.Keeper.visit

    def visit_and_stop(self, at, *rest):
        visited.append(at.step)
        if at.step == 27:
            signal.raise_signal(signal.SIGTERM)
        return visit(self, at, *rest)

    monkeypatch.setattr(keeping.Keeper, "visit", visit_and_stop)
    part = run(problem, checkpoint=tmp_path, record_every=20)
    assert visited == list(range(1, 28))
    assert part.status is nx.Status.INTERRUPTED
    assert (part.carry.step, part.records["step"].tolist()) == (27, [0, 20])
    rest = run(problem, checkpoint=tmp_path, record_every=20, resume=True)
    monkeypatch.undo()
    assert_equal_runs(rest, run(problem, record_every=20))


@pytest.mark.usefixtures("_parts_of_one_step")
def test_a_run_out_of_time_ends_within_a_stride_with_a_record(problem):
    result = run(problem, steps=10_000_000, record_every=10_000_000, seconds=0.2, patience=3)
    assert result.message == "Stopped after 0.2 seconds."
    assert result.records["step"].tolist() == [0, result.carry.step]
    assert 0 < result.carry.step < 10_000_000


def test_a_resumed_run_neither_starts_nor_observes_again(problem, tmp_path, monkeypatch):
    run(problem, checkpoint=tmp_path, callback=stop_at(30))
    refuse = lambda *args: pytest.fail("the start was made again")
    monkeypatch.setattr(drive.Compiled, "start", refuse)
    monkeypatch.setattr(drive.Compiled, "observe", refuse)
    assert run(problem, checkpoint=tmp_path, resume=True).carry.step == 60


def test_a_sweep_goes_on_with_every_lane(problem, tmp_path, monkeypatch):
    def sweep(**rest):
        return nx.sweep(
            problem,
            lambda s: (nx.SMVR(beta=s.beta), optax.sgd(s.lr)),
            seeds=[4, 9],
            steps=45,
            settings={"beta": np.array([0.1, 0.7]), "lr": np.array([0.05, 1e200])},
            batch_size=2,
            record_every=10,
            **asked(**rest),
        )

    whole = sweep()
    assert whole.status[:, 0].tolist() == [nx.Status.SUCCESS, nx.Status.NONFINITE]
    assert np.isfinite(whole.w).all()
    visit = keeping.Keeper.visit

    def visit_and_stop(self, at, *rest):
        if at.step == 20:
            signal.raise_signal(signal.SIGTERM)
        return visit(self, at, *rest)

    monkeypatch.setattr(keeping.Keeper, "visit", visit_and_stop)
    part = sweep(checkpoint=tmp_path)
    assert part.interrupted
    assert part.records["step"][-1] == 20
    assert part.status[:, 0].tolist() == [nx.Status.INTERRUPTED, nx.Status.NONFINITE]
    assert part.finite.tolist() == [[True, True], [False, False]]
    assert part.message in repr(part)
    assert set(part.to_frame()["status"]) == {"INTERRUPTED", "NONFINITE"}
    with pytest.raises(KeyboardInterrupt):
        part.whole()
    assert_equal_runs(sweep(checkpoint=tmp_path, resume=True), whole)
    assert_equal_runs(sweep(checkpoint=tmp_path, resume=True).whole(), whole)
    with pytest.raises(nx.SettingError, match=r"settings\['lr'\] was .*0.05.* and is .*0.06"):
        nx.sweep(
            problem,
            lambda s: (nx.SMVR(beta=s.beta), optax.sgd(s.lr)),
            seeds=[4, 9],
            steps=45,
            settings={"beta": np.array([0.1, 0.7]), "lr": np.array([0.06, 1e200])},
            batch_size=2,
            record_every=10,
            checkpoint=nx.Checkpoint(tmp_path, resume=True),
        )


@pytest.mark.slow
def test_a_search_for_settings_is_not_repeated(problem, tmp_path, monkeypatch):
    solve = lambda **rest: nx.minimize(
        problem, samples=9_000, batch_size=2, record_every=10, seed=3, **asked(**rest)
    )
    whole = solve()
    solve(checkpoint=tmp_path, callback=stop_at(20))
    note = bytearray((tmp_path / "search.safetensors").read_bytes())
    monkeypatch.setattr(tune, "autotune", lambda *a, **k: pytest.fail("searched again"))
    assert_equal_runs(solve(checkpoint=tmp_path, resume=True), whole)
    monkeypatch.undo()
    note[note.index(b"lr") + 6] ^= 1
    (tmp_path / "search.safetensors").write_bytes(note)  # damaged: it searches
    assert_equal_runs(solve(checkpoint=tmp_path, resume=True), whole)


def test_stages_go_on(problem, tmp_path):
    stages = [nx.theory.Stage(lr=0.05, beta=0.3, steps=20), nx.theory.Stage(lr=0.02, beta=0.1, steps=30)]
    solve = lambda **rest: nx.solve_stages(
        problem, stages, batch_size=2, record_every=10, **asked(**rest)
    )
    whole = solve()
    solve(checkpoint=tmp_path, callback=stop_at(20))
    assert_equal_runs(solve(checkpoint=tmp_path, resume=True), whole)


def test_keys_and_short_floats_in_the_carry_go_on(tmp_path):
    """An optimiser that draws noise carries a typed key; bfloat16 is no dtype of NumPy's."""
    rows = jnp.asarray(np.linspace(0.5, 1.5, 20), jnp.bfloat16)
    level = nx.Level(lambda w, r: (r * w - 1) ** 2, rows, name="square")
    short = nx.Problem([level], jnp.asarray(3.0, jnp.bfloat16))
    noisy = optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(1)), optax.sgd(0.1))
    whole = run(short, nx.Plain(), noisy)
    half = run(short, nx.Plain(), noisy, checkpoint=tmp_path, callback=stop_at(30))
    half.save(tmp_path / "half")
    rest = run(short, nx.Plain(), noisy, steps=30, start=nx.load(tmp_path / "half").carry)
    np.testing.assert_array_equal(rest.w, whole.w)
    assert_equal_runs(run(short, nx.Plain(), noisy, checkpoint=tmp_path, resume=True), whole)


def test_more_steps_are_allowed_where_no_schedule_depends_on_them(problem, tmp_path):
    run(problem, steps=25, checkpoint=tmp_path)
    longer = run(problem, steps=38, checkpoint=tmp_path, resume=True)
    assert_equal_runs(longer, run(problem, steps=38))  # the record of step 25 is gone
    assert_equal_runs(run(problem, steps=60, checkpoint=tmp_path, resume=True), run(problem, steps=60))
    with pytest.raises(nx.SettingError, match="60 steps already: ask for at least as many; got 5"):
        run(problem, steps=5, checkpoint=tmp_path, resume=True)
    falling = nx.SMVR(beta=lambda count, horizon: 1 / (1 + count / horizon))
    run(problem, falling, steps=20, checkpoint=tmp_path / "other")
    with pytest.raises(nx.SettingError, match=r"holds another run: steps was 20 and is 30\. Repeat"):
        run(problem, falling, steps=30, checkpoint=tmp_path / "other", resume=True)


def test_stopping_rules_hold_across_a_stop(problem, tmp_path):
    rules = {"estimator": nx.Plain(), "steps": 400, "record_every": 1, "record": ["exact_value"]}
    whole = run(problem, patience=5, **rules)
    assert "No new best" in whole.message
    late = whole.carry.step - 2
    run(problem, checkpoint=tmp_path, callback=stop_at(late), patience=5, **rules)
    resume = lambda: run(problem, checkpoint=tmp_path, resume=True, patience=5, **rules)
    assert_equal_runs(resume(), whole)
    assert_equal_runs(resume(), whole)
    goal = float(run(problem, nx.Exact(), steps=30).records["gap"][2])
    whole = run(problem, nx.Exact(), target_gap=goal)
    kept = {"checkpoint": tmp_path / "gap", "target_gap": goal}
    run(problem, nx.Exact(), callback=stop_at(10), **kept)
    assert_equal_runs(run(problem, nx.Exact(), resume=True, **kept), whole)
    assert_equal_runs(run(problem, nx.Exact(), resume=True, **kept), whole)


DATA = np.random.default_rng(1).normal(size=(30, 2))
SHIFT = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


def small(data=DATA, power=2, shift=SHIFT, w0=(1.0, 2.0)):
    return nx.Problem(
        [
            nx.Level(lambda w, r: r @ w + jnp.asarray(shift).sum(), data, name="inner"),
            nx.Level(lambda u: jnp.abs(u) ** power, name="outer"),
        ],
        jnp.asarray(w0),
    )


DIFFERENT = {
    "data": ({"problem": small(DATA + 1e-15)}, r"data of level 'inner' was float64\[30, 2\] with SHA"),
    "function": ({"problem": small(power=3)}, "a function, or a number inside .* has changed: in the"),
    "closure": (
        {"problem": small(shift=SHIFT + 1e-12)},
        r"array 1 that functions have closed over was float64\[6\] with SHA.* and is",
    ),
    "start": (
        {"problem": small(w0=(1.0, 2.5))},
        r"w0 was float64 \[1.0, 2.0\] and is .*2.5",
    ),
    "beta": (
        {"estimator": nx.SMVR(beta=0.4)},
        r"estimator\.beta was float64 0\.3 and is .*0\.4\.",
    ),
    "method": ({"estimator": nx.Plain()}, r"estimator\.beta was float64 0.3 and is not there"),
    "rate": (
        {"optimizer": optax.sgd(0.2)},
        r"number 1 of the optimizer was float64 -0\.1 and is float64 -0\.2",
    ),
    "batch": ({"batch_size": 3}, "batch_size of level 'inner' was 2 and is 3"),
    "first batch": ({"init_batch_size": 7}, "init_batch_size of level 'inner' was 20 and is 7"),
    "seed": ({"seed": 4}, "seed was 3 and is 4"),
    "records": ({"record_every": 5}, "record_every was 10 and is 5"),
    "columns": ({"record": ["value"]}, "columns was .*'exact_value'.* and is"),
    "output": ({"output": "average"}, "output was last and is average"),
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun") / "run"
    run(small(), optimizer=optax.sgd(0.1), steps=20, checkpoint=folder)
    return folder


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_run_is_refused_with_the_difference(begun, name):
    changes, words = DIFFERENT[name]
    settings = {"problem": small(), "optimizer": optax.sgd(0.1), "steps": 20} | changes
    with pytest.raises(nx.SettingError, match=words) as told:
        run(checkpoint=begun, resume=True, **settings)
    assert str(told.value).endswith("Repeat the call that began it, or choose another folder.")
    assert "\n" not in str(told.value)


def test_another_process_makes_the_same_fingerprint(begun):
    """And restores onto another number of devices."""
    code = f"""
import jax, sys
jax.config.update("jax_enable_x64", True)
sys.path.insert(0, {os.path.dirname(__file__)!r})
import test_resuming as t
assert len(jax.devices()) == 4
result = t.run(t.small(), optimizer=t.optax.sgd(0.1), steps=20, checkpoint={str(begun)!r}, resume=True)
print(result.w.tolist())
"""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    whole = run(small(), optimizer=optax.sgd(0.1), steps=20)
    assert json.loads(done.stdout) == np.asarray(whole.w).tolist()


def test_versions_are_told_and_not_compared(begun, monkeypatch):
    again = lambda **more: run(
        small(), optimizer=optax.sgd(0.1), steps=20, checkpoint=begun, resume=True, **more
    )
    now = keeping.made_with()
    monkeypatch.setattr(keeping, "made_with", lambda: now | {"optax": "99"})
    again()
    with pytest.raises(nx.SettingError, match=f"Versions have changed: optax {now['optax']} → 99"):
        again(seed=4)
    monkeypatch.setattr(keeping, "made_with", lambda: now | {"device": "gpu"})
    with pytest.warns(UserWarning, match="was begun on cpu and goes on on gpu: the last digits"):
        again()


def test_a_program_in_other_words_goes_on_where_versions_have_changed(tmp_path, monkeypatch):
    now = keeping.made_with()
    begin = lambda **more: run(small(), optimizer=optax.sgd(0.1), steps=20, **more)
    again = lambda: begin(checkpoint=tmp_path, resume=True)
    whole = begin()
    begin(checkpoint=tmp_path, callback=stop_at(10))
    usual = keeping.fingerprint

    def in_other_words(*args):
        parts, program = usual(*args)
        text = program.replace("stablehlo.add", "stablehlo.plus", 1)
        return Fingerprint(parts | {"program": hashlib.sha256(text.encode()).hexdigest()}, text)

    monkeypatch.setattr(keeping, "fingerprint", in_other_words)
    with pytest.raises(nx.SettingError, match=r"a function, or a number inside .* has changed: in the"):
        again()
    monkeypatch.setattr(keeping, "made_with", lambda: now | {"jax": "99"})
    with pytest.warns(
        UserWarning, match=rf"other versions \(jax {now['jax']} → 99\).*stablehlo.plus"
    ) as told:
        assert_equal_runs(again(), whole)
    assert told[0].filename == __file__
    again()  # which is now its text


def test_where_a_run_may_be_kept(problem, tmp_path):
    run(problem, steps=10, checkpoint=tmp_path / "a" / "b", resume=True)  # nothing there: begins
    with pytest.raises(
        nx.SettingError,
        match=r"a run already: go on with it by nx.Checkpoint\(",
    ):
        run(problem, steps=10, checkpoint=tmp_path / "a" / "b")
    with pytest.raises(nx.SettingError, match=r"nx.Checkpoint\(folder, .*; got True"):
        run(problem, steps=10, checkpoint=True)
    with pytest.raises(nx.SettingError, match="every must be at least 0 seconds; got -1"):
        run(problem, steps=10, checkpoint=tmp_path / "c", checkpoint_every=-1)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(nx.SettingError, match=r"cannot keep a run in .*file: .*; choose another"):
        run(problem, steps=10, checkpoint=tmp_path / "file")
    held = Files().lock(tmp_path / "a")
    with pytest.raises(nx.SettingError, match="another process is writing"):
        run(problem, steps=10, checkpoint=tmp_path / "a")
    Files().unlock(held)


@pytest.mark.parametrize("damage", ["cut", "weights", "records", "facts"])
def test_a_damaged_newest_falls_back_and_still_ends_at_the_same_bits(problem, tmp_path, damage):
    run(problem, checkpoint=tmp_path, checkpoint_every=0, callback=stop_at(40))
    newest, before = Folder(tmp_path).checkpoints()
    blob = bytearray(newest.read_bytes())
    if damage == "cut":
        del blob[-3:]
    elif damage == "facts":
        blob[blob.index(b"program") + 1] ^= 1
    else:
        group = "carry" if damage == "weights" else "records"
        header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
        name = next(name for name in header if name.startswith(f"{group}/"))
        blob[8 + int.from_bytes(blob[:8], "little") + header[name]["data_offsets"][0]] ^= 4
    newest.write_bytes(blob)
    why = "it is cut short or damaged" if damage == "cut" else "its checksum is wrong"
    with pytest.warns(UserWarning, match=f"{newest.name}: {why}. Going on from {before.name}") as told:
        rest = run(problem, checkpoint=tmp_path, resume=True)
    assert told[0].filename == __file__
    assert_equal_runs(rest, run(problem))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", nx.ConvergenceWarning)
        assert_equal_runs(run(problem, checkpoint=tmp_path, resume=True), rest)


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("operation", ["write", "fsync", "rename", "open"])
def test_a_full_disk_ends_the_run_with_a_sentence(problem, tmp_path, monkeypatch, operation):
    calls, usual = [], getattr(checkpoint.Files, operation)

    def full(self, *args):
        calls.append(args)
        if len(calls) > 9:
            raise FULL
        return usual(self, *args)

    monkeypatch.setattr(checkpoint.Files, operation, full)
    result = run(problem, checkpoint=tmp_path, checkpoint_every=0, steps=200)
    assert result.status is nx.Status.INTERRUPTED
    assert result.message.startswith(f"The run was stopped. Its checkpoint in {tmp_path} could not be ")
    assert "written: No space left on device; the last good one is of step " in result.message
    assert np.array_equal(result.w, run(problem, steps=result.carry.step).w)
    monkeypatch.undo()
    assert_equal_runs(run(problem, checkpoint=tmp_path, resume=True, steps=200), run(problem, steps=200))


def test_a_folder_that_vanishes_ends_the_run_with_a_sentence(problem, tmp_path):
    gone = lambda record: shutil.rmtree(tmp_path / "run") if record["step"] == 30 else None
    result = run(problem, checkpoint=tmp_path / "run", checkpoint_every=0, callback=gone)
    assert (result.status, result.carry.step) == (nx.Status.INTERRUPTED, 30)
    assert "could not be written: No such file or directory; the last good one is of" in result.message
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_replaced_is_left_to_the_other_run(problem, tmp_path):
    """``rm -rf`` and a new start, while the first run goes on."""
    pytest.importorskip("fcntl")

    def replace(record):
        if record["step"] == 30:
            shutil.rmtree(tmp_path / "run")
            run(problem, checkpoint=tmp_path / "run", seed=4)

    result = run(problem, checkpoint=tmp_path / "run", checkpoint_every=0, callback=replace)
    assert (result.status, result.carry.step) == (nx.Status.INTERRUPTED, 30)
    assert "could not be written: another folder has taken its place" in result.message
    other = run(problem, checkpoint=tmp_path / "run", resume=True, seed=4)
    assert_equal_runs(other, run(problem, seed=4))


def test_checkpoints_that_are_deleted_meanwhile_are_whole_again(problem, tmp_path):
    def delete(record):
        if record["step"] == 30:
            for path in tmp_path.iterdir():
                path.unlink()

    first = run(problem, checkpoint=tmp_path, checkpoint_every=0, callback=delete)
    assert_equal_runs(first, run(problem))
    assert_equal_runs(run(problem, checkpoint=tmp_path, resume=True), run(problem))


def test_two_ctrl_c_inside_a_save_lose_no_record_and_write_none_twice(problem, tmp_path, monkeypatch):
    usual, calls = checkpoint.Files.fsync, []

    def impatient(self, file):
        usual(self, file)
        calls.append(file)
        if len(calls) in (4, 5):
            raise KeyboardInterrupt  # what a second Ctrl-C does

    monkeypatch.setattr(checkpoint.Files, "fsync", impatient)
    with contextlib.suppress(KeyboardInterrupt):
        run(problem, checkpoint=tmp_path, checkpoint_every=0)
    assert len(calls) >= 5
    rest = run(problem, checkpoint=tmp_path, resume=True)
    assert_equal_runs(rest, run(problem))


def test_a_disk_that_is_full_from_the_start_or_at_the_end(problem, tmp_path, monkeypatch):
    def full(self, *args):
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Files, "write", full)
        with pytest.raises(nx.SettingError, match=r"cannot keep a run in .*: No space left on device;"):
            run(problem, checkpoint=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "save", full)
        with pytest.warns(UserWarning, match="could not be written: No space left on device"):
            result = run(problem, checkpoint=tmp_path)
    assert result.status is nx.Status.SUCCESS
    assert "could not be written" in result.message
    assert_equal_runs(run(problem, checkpoint=tmp_path, resume=True), run(problem))


@pytest.mark.filterwarnings("ignore::nestax.ConvergenceWarning")
def test_a_failed_number_is_never_written(tmp_path):
    rows = jnp.asarray(np.linspace(0.5, 1.5, 20))
    burst = lambda w0: nx.Problem(
        [nx.Level(lambda w, r: r * w, rows, name="scale"), nx.Level(lambda u: jnp.exp(u * u))],
        jnp.asarray(w0),
    )
    go = lambda w0=1.0, **rest: run(
        burst(w0), nx.Plain(), optax.sgd(-0.1), steps=200, record_every=5, **rest
    )
    whole = go()
    assert whole.status is nx.Status.NONFINITE
    assert_equal_runs(go(checkpoint=tmp_path / "run", checkpoint_every=0), whole)
    for path in Folder(tmp_path / "run").checkpoints():
        groups, facts = checkpoint.load(path)
        assert all(np.isfinite(x).all() for arrays in groups.values() for x in arrays.values())
    assert facts["status"] in ("NONFINITE", None)
    assert_equal_runs(go(checkpoint=tmp_path / "run", resume=True), whole)
    bad = go(40.0, checkpoint=tmp_path / "bad")
    assert bad.status is nx.Status.NONFINITE
    assert not Folder(tmp_path / "bad").checkpoints()


def test_a_continued_run_can_be_kept(problem, tmp_path):
    half = run(problem, steps=30)
    whole = run(problem, steps=30, start=half.carry)
    run(problem, steps=30, start=half.carry, checkpoint=tmp_path, callback=stop_at(40))
    kept = {"checkpoint": tmp_path, "resume": True}
    assert_equal_runs(run(problem, steps=30, start=half.carry, **kept), whole)
    with pytest.raises(nx.SettingError, match=r"start was .* and is not there"):
        run(problem, steps=60, **kept)


def test_a_random_output_is_kept_with_what_it_was_drawn_from(problem, tmp_path):
    whole = run(problem, output="random")
    run(problem, output="random", checkpoint=tmp_path, callback=stop_at(10))
    kept = {"output": "random", "checkpoint": tmp_path, "resume": True}
    assert_equal_runs(run(problem, **kept), whole)
    with pytest.raises(nx.SettingError, match="steps was 60 and is 70"):
        run(problem, steps=70, **kept)


HOSTILE = {
    "step": "12",
    "status": "FINE",
    "message": None,
    "fingerprint": [],
    "made with": None,
}


@pytest.mark.parametrize("field", [*HOSTILE, "tensor", "shape", "lost", "no columns", "no records"])
def test_a_checkpoint_of_anybodys_making_is_one_sentence(begun, tmp_path, field):
    """Its checksum and its fingerprint are right, and what it says is not."""
    groups, facts = Folder(begun).load()
    if field == "tensor":
        del groups["carry"]["carry.w"]
    elif field == "shape":
        groups["carry"]["carry.w"] = np.zeros(3)
    elif field == "lost":
        groups["lanes"]["finite"] = np.asarray(False)
    elif field == "no columns":
        groups["records"] = {"step": groups["records"]["step"]}
    elif field == "no records":
        del groups["records"]
    else:
        facts[field] = HOSTILE[field]
    Folder(tmp_path).save(groups, facts)
    with pytest.raises(nx.SettingError, match="does not fit its own") as told:
        run(small(), optimizer=optax.sgd(0.1), steps=20, checkpoint=tmp_path, resume=True)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("of", ["file", "checkpoint"])
def test_a_folder_of_another_version_is_refused_in_one_sentence(begun, tmp_path, monkeypatch, of):
    groups, facts = Folder(begun).load()
    assert facts["format"] == keeping.FORMAT
    if of == "file":
        monkeypatch.setattr(checkpoint, "FORMAT", "0")
    Folder(tmp_path).save(groups, facts | ({"format": 5} if of == "checkpoint" else {}))
    monkeypatch.undo()
    with pytest.raises(nx.SettingError, match="was written by another version of nestax: use that"):
        run(small(), optimizer=optax.sgd(0.1), steps=20, checkpoint=tmp_path, resume=True)


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_finishes_the_chunk_and_writes(problem, tmp_path, number):
    def interrupt(record):
        if record["step"] == 20:
            signal.raise_signal(number)

    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, usual)  # whoever runs the tests may ignore it: nohup does
    try:
        result = run(problem, checkpoint=tmp_path, callback=interrupt)
        assert signal.getsignal(number) is usual
    finally:
        signal.signal(number, before)
    assert (result.status, result.carry.step) == (nx.Status.INTERRUPTED, 20)
    assert result.message == nx.Status.INTERRUPTED.value
    assert result.to_frame().attrs["status"] == "INTERRUPTED"
    assert_equal_runs(run(problem, checkpoint=tmp_path, resume=True), run(problem))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_stops_at_once(problem, tmp_path, monkeypatch, number):
    def twice(record):
        if record["step"] < 10:
            return
        signal.raise_signal(number)
        signal.raise_signal(number)
        pytest.fail("nothing more is done")

    result = run(problem, checkpoint=tmp_path, callback=twice)
    assert (result.status, result.carry.step) == (nx.Status.INTERRUPTED, 10)
    # In the middle of a chunk: the records of what is not done are not there.
    add = Book.add

    def add_and_stop(self, chunk, k):
        add(self, chunk, k)
        if self.step == 40:
            raise KeyboardInterrupt

    monkeypatch.setattr(Book, "add", add_and_stop)
    result = run(problem)
    assert (result.status, result.carry.step, result.records["step"][-1]) == (
        nx.Status.INTERRUPTED,
        30,
        30,
    )


def test_handlers_of_ones_own_and_other_threads_are_left_alone(problem):
    seen, mine = [], lambda number, frame: None
    before = signal.signal(signal.SIGTERM, mine)
    look = lambda record: seen.append([signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)])
    run(problem, steps=10, callback=look)
    assert seen[0][0] is mine
    assert seen[0][1] is not signal.default_int_handler
    signal.signal(signal.SIGTERM, before)
    seen.clear()
    thread = threading.Thread(target=lambda: run(problem, steps=10, callback=look))
    thread.start()
    thread.join()
    assert seen == [[before, signal.default_int_handler]] * 2  # records 0 and 10


def test_a_signal_at_the_last_chunk_changes_nothing(problem):
    last = lambda record: signal.raise_signal(signal.SIGTERM) if record["step"] == 60 else None
    assert run(problem, callback=last).status is nx.Status.SUCCESS


def test_an_error_in_a_callback_frees_the_folder(problem, tmp_path):
    def fail(record):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(problem, checkpoint=tmp_path, callback=fail, checkpoint_every=0)
    assert_equal_runs(run(problem, checkpoint=tmp_path, resume=True), run(problem))
