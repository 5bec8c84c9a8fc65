"""Several devices and several processes: equal bits, one who decides, and no process left waiting."""

import os
import signal
import time

import pytest
from tests.support.processes import Processes


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_processes_compute_what_as_many_devices_do(count):
    alone = Processes("few_bits", devices=count).wait(300)[0].out[str(count)]
    assert len(alone) == 3
    for process in Processes("few_bits", count=count).wait(300):
        assert process.code == 0, process.words
        assert process.out == {str(count): alone}


def test_clocks_memory_callbacks_and_files_are_those_of_the_first_process(tmp_path):
    first, second = Processes("together", count=2, folder=tmp_path).wait()
    assert first.code == second.code == 0, first.words + second.words
    assert first.out.pop("seen") == 7
    assert second.out.pop("seen") == 0
    assert first.out == second.out
    assert first.out["stopped"] == "Stopped by the callback."
    assert first.out["step"] == 60
    assert first.out["files"] == ["kept"]
    assert first.out["late"] == ["Stopped", "after"]


@pytest.mark.slow
def test_a_full_pass_gathers_sums_and_no_rows():
    out = Processes("gather", devices=2).wait()[0].out
    assert out["gathered"] <= 1024
    assert out["memory"] <= 1.2
    assert out["memory of blocks"] <= 1.2


@pytest.mark.slow
def test_a_run_goes_on_on_another_number_of_devices(tmp_path):
    moved = Processes("moved", devices=2, folder=tmp_path).wait(300)[0].out
    assert moved == {"lanes": True, "rows": True, "blocks": True}


@pytest.mark.slow
def test_bits_are_those_of_one_device():
    out = Processes("bits", devices=4).wait(600)[0].out
    assert out["1"] == out["2"] == out["4"]
    assert len(out["1"]) == 9


@pytest.mark.parametrize(("task", "code"), [("long", 1), ("caught", 7)])
def test_a_process_that_is_killed_ends_the_other_with_a_sentence(tmp_path, task, code):
    both = Processes(task, count=2, folder=tmp_path)
    both.wait_for("begun")
    while not list(tmp_path.glob("kept/checkpoint-*")):
        assert both.running[0].poll() is None, both.said(0)
    os.kill(both.running[1].pid, signal.SIGKILL)
    first, second = both.wait(15)  # less than the time of a heartbeat
    assert second.code == -signal.SIGKILL
    assert first.code == code
    assert "another process of this run has ended, and this one ends with it" in first.words
    assert "holds the state of step" in first.words


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_sigterm_at_any_process_ends_all_of_them(number, tmp_path):
    both = Processes("long", count=2, folder=tmp_path)
    both.wait_for("begun")
    while not list(tmp_path.glob("kept/checkpoint-*")):
        assert both.running[0].poll() is None, both.said(0)
    os.kill(both.running[number].pid, signal.SIGTERM)
    for process in both.wait(60):
        assert process.code == 0, process.words
        assert "interrupted" in process.out["message"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("wrong", "process 1 has other data, settings or seeds than process 0"),
        ("failing", "the callback fails"),
    ],
)
def test_an_error_ends_all_processes(task, words):
    for process in Processes(task, count=2).wait(60):
        assert process.code == 1
        assert words in process.words


def test_two_processes_that_read_a_share_each_see_the_rows_of_one(tmp_path):
    whole = Processes("streams", folder=tmp_path / "one").wait()[0].out
    both = Processes("streams", count=2, folder=tmp_path / "two").wait()
    told = whole.pop("told")
    assert whole.pop("resumed") == whole["state"]
    for process in both:
        assert process.code == 0, process.words
        assert process.out.pop("resumed") == whole["state"]
        ended, failed = process.out.pop("told")
        assert process.out == whole
        assert "in process 0: the iterator ended after 100 rows." in ended
        assert "in process 1: the iterator failed at row 75 with OSError: the disk is gone." in failed
    assert "the iterator ended after 200 rows." in told[0]
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["kept"]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_files_bad_rows_and_sweeps_of_several_processes(count, tmp_path):
    whole = Processes("more_streams", folder=tmp_path).wait()[0].out
    assert whole.pop("warned") == whole.pop("refused") == ""
    weights = whole.pop("weights")
    assert "row 70 holds an entry that is NaN" in whole.pop("bad")
    first, *others = Processes("more_streams", count=count, folder=tmp_path).wait()
    assert "give every process its share" in first.out["warned"]
    for process in (first, *others):
        assert process.code == 0, process.words
        assert process.out["warned"] == "" or process is first
        assert "row 70 holds an entry that is NaN" in process.out["bad"]
        assert "leave devices out" in process.out["refused"]
        assert process.out["weights"] == pytest.approx(weights, rel=1e-4)
        assert all(process.out[name] == digest for name, digest in whole.items())


def until_it_waits(folder):
    both = Processes("waiting", count=2, folder=folder)
    until = time.perf_counter() + 120
    while not (folder / "waiting").exists():
        assert time.perf_counter() < until, both.said(0) + both.said(1)
        assert both.running[0].poll() is both.running[1].poll() is None, both.said(0) + both.said(1)
        time.sleep(0.02)
    return both


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_sigterm_while_one_process_waits_for_rows_ends_both_with_a_checkpoint(number, tmp_path):
    both = until_it_waits(tmp_path)
    os.kill(both.running[number].pid, signal.SIGTERM)
    for process in both.wait(60):
        assert process.code == 0, process.words
        assert "interrupted" in process.out["message"]
        assert 0 < process.out["step"] < 40
    resumed = Processes("waiting", count=2, folder=tmp_path, COME="1").wait()
    whole = Processes("waiting", count=2, folder=tmp_path / "whole", COME="1").wait()
    assert resumed[0].out["step"] == resumed[1].out["step"] == 40
    assert {process.out["digest"] for process in (*resumed, *whole)} == {whole[0].out["digest"]}


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_waits_for_rows_ends_the_other(tmp_path):
    both = until_it_waits(tmp_path)
    os.kill(both.running[1].pid, signal.SIGKILL)
    first, _ = both.wait(60)
    assert first.code == 1
    assert "another process of this run has ended, and this one ends with it" in first.words


@pytest.mark.slow
def test_a_run_on_an_array_goes_on_in_another_number_of_processes(tmp_path):
    half, _ = Processes("array_moves", count=2, folder=tmp_path / "moved").wait()
    moved, whole = (
        Processes("array_moves", folder=tmp_path / name).wait()[0] for name in ("moved", "whole")
    )
    assert half.code == 0, half.words
    assert moved.code == 0, moved.words
    assert moved.out == whole.out != half.out


@pytest.mark.slow
def test_a_run_on_iterators_goes_on_in_as_many_processes_only(tmp_path):
    both = until_it_waits(tmp_path)
    os.kill(both.running[0].pid, signal.SIGINT)
    both.wait(60)
    (alone,) = Processes("waiting", folder=tmp_path).wait()
    assert alone.code == 1
    assert "number of processes that read level 'mean' was 2 and is 1" in alone.words
