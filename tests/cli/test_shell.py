"""What the commands share: refusals, defaults from a file, delivery, Ctrl-C."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import nestax as nx
from nestax import cli
from nestax.cli.shell import Group, Outcome, begin, finish, read_config
from nestax.errors import ProblemError, SettingError
from nestax.run.follow import interruptions
from nestax.table import Table

ERRORS = {
    "setting": SettingError("beta must be in (0, 1]; got 2."),
    "problem": ProblemError("returns must be a table."),
    "file": PermissionError(13, "Permission denied", "/secret"),
    "extra": ImportError("figures need matplotlib: pip install 'nestax[plot]'."),
    "bug": ValueError("operands could not be broadcast"),
    "module": ModuleNotFoundError("No module named 'nestax.typo'"),
    "ctrl-c": KeyboardInterrupt(),
}
app = typer.Typer(name="nestax", cls=Group, pretty_exceptions_enable=False)
inner = typer.Typer(cls=Group)
app.add_typer(inner, name="inner")


@app.command()
@inner.command()
def fail(kind: str) -> None:
    raise ERRORS[kind]


@app.command()
def run(
    ctx: typer.Context,
    name: str,
    risk: float = 0.2,
    batch_size: int = 64,
    methods: str = "A,B",
    quick: Annotated[bool, typer.Option("--quick")] = False,
    status: str = "SUCCESS",
    json: Annotated[bool, typer.Option("--json")] = False,
    config: Annotated[Path | None, typer.Option(is_eager=True, callback=read_config)] = None,
    out: Path | None = None,
    overwrite: Annotated[bool, typer.Option("--overwrite")] = False,
) -> None:
    settings = begin(ctx)
    finish(
        ctx,
        Outcome(
            title="A run",
            summary="All is well.",
            tables=[("Numbers", Table(["a", "b"], [[1, 2.5]]))],
            numbers={**settings, "nothing": [float("nan"), np.inf]},
            records={"records": {"x": np.arange(2)}},
            draw=list,
            found={"lr": 0.5},
            status=nx.Status[status],
        ),
    )


@app.command()
def show(
    ctx: typer.Context,
    json: Annotated[bool, typer.Option("--json")] = False,
    out: Path | None = Path("folder"),
    overwrite: Annotated[bool, typer.Option("--overwrite")] = False,
) -> None:
    begin(ctx)
    typer.echo(ctx.params["out"])


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.parametrize("kind", ["setting", "problem", "extra"])
@pytest.mark.parametrize("path", [["fail"], ["inner", "fail"]])
def test_what_nestax_refuses_is_one_sentence(kind, path):
    done = invoke(*path, kind)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr == f"nestax {' '.join(path)}: {ERRORS[kind]}\n"


def test_trouble_with_a_file_names_the_file():
    done = invoke("fail", "file")
    assert done.exit_code == 2
    assert done.stderr == "nestax fail: /secret cannot be used: Permission denied.\n"


@pytest.mark.parametrize("kind", ["bug", "module"])
def test_faults_of_our_own_are_not_hidden(kind):
    assert invoke("fail", kind).exception is ERRORS[kind]


def test_ctrl_c_is_one_line_and_130():
    done = invoke("fail", "ctrl-c")
    assert (done.exit_code, done.stderr) == (130, "nestax fail: interrupted.\n")


# Says Ctrl-C when a module is looked for; what swallows the exception is what extensions do.
INTERRUPTED = """
import os, signal, sys
class Finder:
    def find_spec(name, path, target=None):
        if name == {name!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                raise ImportError("an extension") from None
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder)
sys.argv = ["nestax", "demo"]
from nestax.cli import main
main()
"""


@pytest.mark.parametrize("name", ["typer", "jax", "nestax.cli.demo"])
def test_ctrl_c_while_modules_are_imported_is_the_same(name, tmp_path):
    code = INTERRUPTED.format(name=name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "nestax: interrupted.\n")


def test_a_run_takes_the_place_of_what_the_command_does_at_ctrl_c():
    before = signal.signal(signal.SIGINT, cli._interrupt)
    try:
        with interruptions() as asked:
            signal.raise_signal(signal.SIGINT)
            assert asked()
        assert signal.getsignal(signal.SIGINT) is cli._interrupt
    finally:
        signal.signal(signal.SIGINT, before)


def settings(done) -> dict:
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_file_gives_defaults_and_options_win(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('name = "x"\nrisk = 1\nbatch-size = 8\nmethods = ["C", "D"]\nquick = true\n')
    found = settings(invoke("run", "--config", path, "--json", "--risk", 0.5))
    wanted = {"name": "x", "risk": 0.5, "batch_size": 8, "methods": "C,D", "quick": True}
    assert {key: found[key] for key in wanted} == wanted
    assert settings(invoke("run", "y", "--json"))["risk"] == 0.2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rsk = 1", "run has no setting 'rsk'; did you mean risk?"),
        ("batch_sizes = 1", "did you mean batch-size?"),
        ("zzz = 1", "there are batch-size, json, methods, name"),
        ("[risk]\nhigh = 1", "no setting 'risk'"),
        ("risk = ", "is no TOML file"),
        (b"\xff\xfe", "is no TOML file"),
        ("config = 'other.toml'", "no setting 'config'"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, text, words):
    path = tmp_path / "c.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = invoke("run", "x", "--config", path)
    assert done.exit_code == 2
    assert done.stderr.startswith("nestax run: ")
    assert str(path) in done.stderr
    assert words in done.stderr


def test_a_missing_file_of_defaults_is_named(tmp_path):
    done = invoke("run", "x", "--config", tmp_path / "none.toml")
    assert done.exit_code == 2
    assert "none.toml cannot be used: No such file" in done.stderr


def test_results_go_to_standard_output_and_notes_do_not(tmp_path):
    done = invoke("run", "x", "--out", tmp_path / "run")
    assert done.stdout == "Numbers\n\na  b\n-  ---\n1  2.5\n\nAll is well.\n"
    assert done.stderr == f"Written: {tmp_path / 'run' / 'report.html'}\n"
    assert "\x1b" not in done.output


def test_json_is_one_object_without_what_json_does_not_know(tmp_path):
    found = settings(invoke("run", "x", "--json", "--out", tmp_path / "run"))
    assert found["nothing"] == [None, None]
    assert (found["status"], found["message"]) == ("SUCCESS", nx.Status.SUCCESS.value)


def test_the_folder_says_how_it_was_made(tmp_path):
    invoke("run", "a b", "--out", tmp_path / "run", "--quick")
    about = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert about["command"] == f"nestax run 'a b' --out {tmp_path / 'run'} --quick"
    wanted = {"name": "a b", "risk": 0.2, "batch_size": 64, "methods": "A,B", "quick": True}
    assert about["settings"] == {**wanted, "status": "SUCCESS", "lr": 0.5}


@pytest.mark.parametrize("status", ["NONFINITE", "INTERRUPTED"])
def test_a_run_that_failed_is_written_and_exits_with_1(tmp_path, status):
    done = invoke("run", "x", "--status", status, "--out", tmp_path / "run")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == f"nestax run: {nx.Status[status].value}"
    assert status in (tmp_path / "run" / "report.html").read_text()


def test_a_folder_in_use_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "mine").write_text("")
    done = invoke("run", "x", "--out", tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert invoke("run", "x", "--out", tmp_path / "run").exit_code == 0
    assert invoke("run", "x", "--out", tmp_path / "run").exit_code == 2
    assert invoke("run", "x", "--out", tmp_path / "run", "--overwrite").exit_code == 0


def test_what_was_not_asked_for_may_be_missing(tmp_path, monkeypatch):
    """A report by default needs the extra; without it the command runs all the same."""
    monkeypatch.chdir(tmp_path)
    assert invoke("show").stdout == "folder\n"

    def missing():
        raise ERRORS["extra"]

    monkeypatch.setattr("nestax.report.require", missing)
    done = invoke("show")
    assert (done.exit_code, done.stdout) == (0, "\n")
    assert done.stderr == f"There will be no report: {ERRORS['extra']}\n"
    done = invoke("show", "--out", "mine")
    assert (done.exit_code, done.stderr) == (2, f"nestax show: {ERRORS['extra']}\n")


def test_folders_are_paths_whatever_typer_hands_over():
    ctx = SimpleNamespace(
        params={"out": None, "checkpoint": "some/folder"},
        command=SimpleNamespace(params=[]),
        call_on_close=lambda fn: fn(),
    )
    begin(ctx)
    assert ctx.params["checkpoint"] == Path("some/folder")
