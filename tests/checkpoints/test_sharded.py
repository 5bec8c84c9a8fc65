"""State in pieces: each process writes its own, and a checkpoint is whole or does not count."""

import os
import signal
import time

import pytest
from tests.support.processes import Processes

from nestax.checkpoints.folder import Folder

NEEDS_ORBAX = "needs Orbax"
TWO = ["checkpoint-00000003.safetensors", "checkpoint-00000003.shards"]


def test_pieces_go_on_on_other_devices_and_are_never_believed_when_damaged(tmp_path):
    pytest.importorskip("orbax.checkpoint", reason=NEEDS_ORBAX)
    ended = Processes("pieces", devices=4, folder=tmp_path).wait()[0]
    assert ended.code == 0, ended.words
    out = ended.out
    assert out["kept"][-2:] == TWO
    assert len(out["kept"]) == 4
    assert out["again"] == out["one device"] == out["gathered"] == out["damaged"] == out["whole"]
    assert len(out["files"]) == 4
    assert "its piece" in out["told"]
    assert "is damaged. Going on from checkpoint-00000002" in out["told"]
    assert "pip install 'nestax[orbax]'" in out["without"]


@pytest.mark.slow
def test_pieces_of_two_processes_go_on_in_one_and_the_other_way_round(tmp_path):
    pytest.importorskip("orbax.checkpoint", reason=NEEDS_ORBAX)
    digests = set()
    for before, after in [(2, 1), (1, 2), (2, 2)]:
        folder = tmp_path / f"{before}{after}"
        folder.mkdir()
        for task, count in [("stopped_in_pieces", before), ("resumed_from_pieces", after)]:
            ended = Processes(task, count=count, devices=2 // count, folder=folder).wait()
            assert all(process.code == 0 for process in ended), ended
        digests |= {process.out[name] for process in ended for name in ("again", "whole")}
        assert all(len(process.out["files"]) == 4 for process in ended)
    assert len(digests) == 1


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_tables_of_blocks_and_weights_go_on(count, tmp_path):
    pytest.importorskip("orbax.checkpoint", reason=NEEDS_ORBAX)
    for process in Processes("tables_and_weights", count, 2 // count, tmp_path).wait():
        assert process.code == 0, process.words
        assert process.out == {"blocks": True, "weights": True}


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("moment", [0.0, 0.1, 0.2, 0.3])
def test_a_process_killed_while_pieces_are_written_leaves_a_run_that_goes_on(number, moment, tmp_path):
    pytest.importorskip("orbax.checkpoint", reason=NEEDS_ORBAX)
    both = Processes("long_in_pieces", count=2, folder=tmp_path)
    both.wait_for("begun")
    unfinished = lambda: list(tmp_path.glob("kept/checkpoint-*.shards*tmp*"))
    while not list(tmp_path.glob("kept/checkpoint-*2.safetensors")) or not unfinished():
        assert both.running[0].poll() is None, both.said(0)
    time.sleep(moment)
    os.kill(both.running[number].pid, signal.SIGKILL)
    ended = both.wait(60)
    assert ended[number].code == -signal.SIGKILL
    assert ended[1 - number].code != 0
    assert "ended" in ended[1 - number].words or "died" in ended[1 - number].words
    step = Folder(tmp_path / "kept").load().facts["step"]
    for process in Processes("ended", count=2, folder=tmp_path, REACH=str(step + 1_000)).wait():
        assert process.code == 0, process.words
        assert process.out["resumed"] == process.out["whole"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "words"),
    [
        (
            "without_orbax",
            "lies in 2 processes, each of which writes its share of a checkpoint through Orbax",
        ),
        ("apart", "is not the same folder for all processes"),
    ],
)
def test_what_pieces_need_is_said_before_the_run(task, words, tmp_path):
    for process in Processes(task, count=2, folder=tmp_path).wait(60):
        assert process.code == 1
        assert words in process.words
