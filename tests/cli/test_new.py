"""``nestax new``: what it writes runs, and replaces nothing."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from nestax.cli import app


def new(*arguments):
    return CliRunner().invoke(app, ["new", *map(str, arguments)])


def test_a_script_is_written_and_none_replaced(tmp_path):
    path = tmp_path / "mine" / "problem.py"
    done = new(path)
    assert done.exit_code == 0
    assert done.stderr == f"Written: {path}. Run it: python {path}\n"
    written = path.read_text()
    compile(written, str(path), "exec")
    path.write_text("mine")
    done = new(path)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"nestax new: {path} is there already: name another file")
    assert path.read_text() == "mine"
    assert new(tmp_path / "mine" / "problem", "--overwrite").exit_code == 0  # a script all the same
    assert path.read_text() == written


@pytest.mark.slow
def test_the_script_runs(tmp_path):
    new(tmp_path / "problem.py")
    done = subprocess.run(
        [sys.executable, "problem.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "nothing wrong was found" in done.stdout
    assert "SUCCESS" in done.stdout
    assert done.stderr == ""
