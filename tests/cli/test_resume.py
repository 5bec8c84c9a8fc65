"""``--checkpoint`` and ``nestax resume``: a command that is stopped goes on to the same numbers."""

import json
import signal

import pytest
from typer.testing import CliRunner

from nestax.checkpoints.keeper import Keeper
from nestax.cli import app
from nestax.loop import chunks as drive

PORTFOLIO = ["portfolio", "synthetic", "--method", "NLASG", "--samples", "9000", "--batch-size", "8"]


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def stops_after(monkeypatch):
    """Sends SIGTERM after so many visits of the host."""

    def at(count):
        visits, usual = [0], Keeper.visit

        def visit(self, *args, **flags):
            visits[0] += 1
            if visits[0] == count:
                signal.raise_signal(signal.SIGTERM)
            return usual(self, *args, **flags)

        monkeypatch.setattr(drive, "CHUNK_SECONDS", 0.0)
        monkeypatch.setattr(Keeper, "visit", visit)

    return at


def test_a_portfolio_goes_on_where_it_was_stopped(tmp_path, stops_after, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    whole = json.loads(invoke(*PORTFOLIO, "--lr", "0.1", "--json").stdout)
    stops_after(20)
    kept = [*PORTFOLIO, "--lr", "0.1", "--json", "--checkpoint", "kept", "--out", "report"]
    done = invoke(*kept)
    assert done.exit_code == 1
    assert done.stderr.endswith("the last complete chunk. Go on with it by nestax resume kept.\n")
    part = json.loads(done.stdout)
    assert part["status"] == "INTERRUPTED"
    assert part["steps"] < whole["steps"]
    page = (tmp_path / "report" / "report.html").read_text()
    assert page.index("The run was interrupted") < page.index("<h2")  # on top
    assert json.loads((tmp_path / "report" / "settings.json").read_text())["status"] == "INTERRUPTED"
    refused = invoke(*kept)
    assert refused.exit_code == 2
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = invoke("resume", tmp_path / "kept")
    assert (done.exit_code, json.loads(done.stdout)) == (0, whole)
    assert f"nestax portfolio: going on from step {part['steps']:,} of" in done.stderr
    assert "interrupted" not in (tmp_path / "report" / "report.html").read_text()


@pytest.mark.slow
def test_a_comparison_goes_on_where_it_was_stopped(tmp_path, stops_after):
    compare = [
        "compare",
        "--methods",
        "Plain",
        "--samples",
        2_000,
        "--seeds",
        2,
        "--tune-seeds",
        2,
        "--json",
    ]
    whole = invoke(*compare)
    stops_after(30)
    done = invoke(*compare, "--checkpoint", tmp_path / "kept")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.endswith(
        f"nestax compare: interrupted. Go on with it by nestax resume {tmp_path / 'kept'}.\n"
    )
    assert json.loads(invoke("resume", tmp_path / "kept").stdout) == json.loads(whole.stdout)


def test_a_folder_of_somebody_else_writes_below_itself_only(tmp_path, stops_after, monkeypatch):
    """Its command may name any folder of mine; one that I began myself writes where I said."""
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs"))
    out = tmp_path / "mine" / "report"
    kept = tmp_path / "kept"
    stops_after(20)
    invoke(*PORTFOLIO, "--lr", "0.1", "--checkpoint", kept, "--out", out)
    assert out.exists()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    page = (out / "report.html").read_text()
    done = invoke("resume", kept)
    assert done.exit_code == 0
    assert done.stderr.startswith(f"{kept} was not begun by you on this machine, so its report goes to")
    assert (out / "report.html").read_text() == page
    assert (kept / "report" / "report.html").exists()
    assert invoke("resume", kept, "--out", out).exit_code == 0
    assert (out / "report.html").read_text() != page


def test_what_cannot_be_resumed_is_one_sentence(tmp_path):
    done = invoke("resume", tmp_path)
    assert done.exit_code == 2
    assert "holds no run of a nestax command" in done.stderr
    command = {"arguments": ["demo"], "folder": "/"}
    words = f"nestax resume: {tmp_path / 'command.json'} is damaged: type the command again"
    for text in ["", "[]", "[" * 100_000, json.dumps({"command": command, "sha256": "0"}), "\x00"]:
        (tmp_path / "command.json").write_text(text)
        done = invoke("resume", tmp_path)
        assert done.exit_code == 2
        assert done.stderr == f"{words}, with --resume.\n"
    done = invoke(*PORTFOLIO, "--resume")
    assert done.exit_code == 2
    assert "--resume needs the folder of the run" in done.stderr
