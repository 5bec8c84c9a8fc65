"""Every program of benchmarks/ runs in small, and leaves the repository as it was."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BENCHMARKS = ROOT / "benchmarks"
PROGRAMS = [path for path in sorted(BENCHMARKS.glob("*.py")) if "__main__" in path.read_text()]
#: Packages that a program needs and that the tests do without.
NEEDS = {"torch_loop": "torch"}
#: What the machine with a GPU lacks of the packages that tests run with.
ABSENT_THERE = ("cvxpy", "jinja2", "numba", "pandas", "pooch", "pyarrow", "safetensors")
SECONDS = 300

small = pytest.mark.small


def installed(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"NOT RUN: {package} is not installed")


def marks_of(path: Path) -> list[pytest.MarkDecorator]:
    return [installed(NEEDS[path.stem])] if path.stem in NEEDS else []


def written() -> dict[Path, tuple[int, int]]:
    """The files that programs write in full, with size and time."""
    files = [*(ROOT / "docs").rglob("*"), *BENCHMARKS.rglob("*")]
    return {
        file: (file.stat().st_size, file.stat().st_mtime_ns)
        for file in files
        if file.is_file() and "__pycache__" not in file.parts
    }


def run(folder: Path, path: Path, *words: str, **more: str) -> None:
    """A program with --small, in an empty folder and without real data."""
    environment = {k: v for k, v in os.environ.items() if k != "NESTAX_DATA"}
    before = written()
    process = subprocess.Popen(
        [sys.executable, str(path), "--small", *words],
        cwd=folder,
        env=environment | {"TMPDIR": str(folder)} | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # itself and what it has started
        told, _ = process.communicate()
        pytest.fail(f"{path.name} --small takes longer than {SECONDS} seconds:\n{told}")
    assert process.returncode == 0, told
    after = written()
    changed = {str(file) for file in {*before, *after} if before.get(file) != after.get(file)}
    assert not changed, f"{path.name} --small has written into the repository"
    assert not list(folder.glob("nestax-small-*")), "the folder for results is still there"


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_every_program_has_a_small_mode(path):
    """Asked before it is run: in full it would write tables, after hours."""
    assert re.search(r"^from script import|--small", path.read_text(), re.M)


@small
@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=marks_of(path), id=path.stem) for path in PROGRAMS]
)
def test_a_program_runs_in_small(path, tmp_path):
    test_every_program_has_a_small_mode(path)
    run(tmp_path, path)


@small
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["contrastive", "SCSC"], id="blocks"),
        pytest.param(["Cox, 2 rows", "Plain"], id="Cox"),
        pytest.param(
            ["tilted, pooled", "average precision", "Plain"],
            id="data",
            marks=[
                pytest.mark.data,
                pytest.mark.skipif(
                    "NESTAX_DATA" not in os.environ, reason="REAL DATA NOT CHECKED: set NESTAX_DATA"
                ),
            ],
        ),
    ],
)
def test_other_problems_of_the_memory_page(words, tmp_path):
    real = {"NESTAX_DATA": os.environ["NESTAX_DATA"]} if "NESTAX_DATA" in os.environ else {}
    run(tmp_path, BENCHMARKS / "memory.py", *words, **real)


@small
def test_files_go_where_they_are_sent(tmp_path):
    run(tmp_path, BENCHMARKS / "block_corrections.py", "--out", "elsewhere")
    assert (tmp_path / "elsewhere" / "block_corrections.csv").is_file()
    page = (tmp_path / "elsewhere" / "docs" / "blocks.md").read_text()
    assert page != (ROOT / "docs" / "blocks.md").read_text()


def test_the_gpu_benchmark_imports_nothing_that_is_missing_there():
    code = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({ABSENT_THERE}))
sys.path.insert(0, {str(BENCHMARKS)!r})
names = runpy.run_path({str(BENCHMARKS / "gpu.py")!r})
names["nx"].sweep
"""
    subprocess.run([sys.executable, "-c", code], check=True)
