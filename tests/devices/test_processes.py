"""Several devices and several processes: equal bits, one who decides, and no process left waiting."""

import os
import signal

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


def test_a_process_that_is_killed_ends_the_other_with_a_sentence(tmp_path):
    both = Processes("long", count=2, folder=tmp_path)
    both.wait_for("begun")
    while not list(tmp_path.glob("kept/checkpoint-*")):
        assert both.running[0].poll() is None, both.said(0)
    os.kill(both.running[1].pid, signal.SIGKILL)
    first, second = both.wait(60)
    assert second.code == -signal.SIGKILL
    assert first.code == 1
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
