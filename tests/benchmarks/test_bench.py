"""What ``bench.py`` and ``gpu.py`` say about kept results, exit with, and write: made-up sections."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
#: Instead of a section that is measured one that takes the given time, and kept results of its own.
BENCH = """
import sys
from pathlib import Path
import bench, script

bench.KEPT = script.KEPT = Path.cwd()
rows = {"kernel": 1.0, "nestax SMVR": float(sys.argv.pop(1))}
costs = {name: {"cpu": cpu, "wall": cpu} for name, cpu in rows.items()}
bench.SECTIONS = {"made-up": lambda: {"µs": costs}}
bench.main()
"""
GPU = """
import json, sys
from pathlib import Path
import gpu

gpu.KEPT = Path.cwd()
print(json.dumps(gpu.judge(json.loads(sys.argv.pop(1)))))
"""


def run(code: str, folder: Path, *words: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "NESTAX_ONE_THREAD": "1"},
        capture_output=True,
        text=True,
    )


def test_a_slower_row_is_named_and_only_keeping_writes(tmp_path):
    kept = tmp_path / "cpu.json"
    assert run(BENCH, tmp_path, "2.0").returncode == 0
    assert not kept.exists()

    assert run(BENCH, tmp_path, "2.0", "--keep").returncode == 0
    before = kept.read_text()
    assert json.loads(before)["made-up"]["µs"]["nestax SMVR"]["cpu"] == 2.0
    assert run(BENCH, tmp_path, "2.0").returncode == 0

    slower = run(BENCH, tmp_path, "3.0")
    assert slower.returncode == 1
    assert "slower: µs, nestax SMVR ÷ kernel is 3 and was 2, 1.50 times" in slower.stdout
    assert kept.read_text() == before

    assert run(BENCH, tmp_path, "3.0", "--keep").returncode == 0
    assert json.loads(kept.read_text())["made-up"]["µs"]["nestax SMVR"]["cpu"] == 3.0


def test_files_elsewhere_leave_the_kept_ones_alone(tmp_path):
    assert run(BENCH, tmp_path, "2.0", "--out", "elsewhere").returncode == 0
    assert (tmp_path / "elsewhere" / "cpu.json").is_file()
    assert not (tmp_path / "cpu.json").exists()


@pytest.mark.parametrize(("device", "slower"), [("NVIDIA H200", True), ("cpu", False)])
def test_nanoseconds_are_compared_on_the_same_device_only(device, slower, tmp_path):
    case = {"estimator": "SMVR", "seeds": 400, "project": True, "ahead": 64}
    report = lambda device, cost: {"device": device, "cases": [case | {"nanoseconds": cost}]}
    (tmp_path / "gpu.json").write_text(json.dumps(report("NVIDIA H200", 1.0)))
    done = run(GPU, tmp_path, json.dumps(report(device, 2.0)))
    lines, found = json.loads(done.stdout)
    assert found == slower
    row = "estimator SMVR, seeds 400, project True, ahead 64"
    there = f"slower: {row} is 2 and was 1, 2.00 times"
    assert lines[-1] == (there if slower else "not compared: the kept numbers are those of NVIDIA H200")
