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
    assert (done.exit_code, done.stdout) == (130, "")  # half a comparison is no result
    assert done.stderr.endswith(
        f"nestax compare: interrupted. Go on with it by nestax resume {tmp_path / 'kept'}.\n"
    )
    assert json.loads(invoke("resume", tmp_path / "kept").stdout) == json.loads(whole.stdout)


def test_a_command_is_shown_before_it_is_repeated(tmp_path, monkeypatch):
    """Somebody else may have written it; the report goes to the folder that is named now."""
    monkeypatch.chdir(tmp_path)
    kept, out = tmp_path / "kept", tmp_path / "report"
    invoke(*PORTFOLIO, "--lr", "0.1", "--json", "--checkpoint", kept)
    line = json.loads((kept / "command.json").read_text())
    assert line["folder"] == str(tmp_path)
    line["arguments"][line["arguments"].index("--lr")] = "--lr\x1b[2K"
    (kept / "command.json").write_text(json.dumps(line))
    done = invoke("resume", kept, "--out", out)
    shown, refused = done.stderr.split("\n", 1)
    assert "\x1b" not in shown
    words = ["'--lr\\x1b[2K' 0.1 --json", f"--checkpoint {kept} --resume --overwrite --out {out}"]
    assert all(word in shown for word in words)
    assert shown.startswith(f"In {tmp_path}: nestax {' '.join(PORTFOLIO)}")
    assert "No such option" in refused


def test_what_cannot_be_resumed_is_one_sentence(tmp_path):
    done = invoke("resume", tmp_path)
    assert done.exit_code == 2
    assert "holds no run of a nestax command" in done.stderr
    words = f"nestax resume: {tmp_path / 'command.json'} is damaged: type the command again"
    wrong = [{"arguments": ["demo"]}, {"arguments": ["demo", 1], "folder": "/"}]
    for text in ["", "[]", "[" * 100_000, "\x00", *map(json.dumps, wrong)]:
        (tmp_path / "command.json").write_text(text)
        done = invoke("resume", tmp_path)
        assert done.exit_code == 2
        assert done.stderr == f"{words}, with --resume.\n"
    done = invoke(*PORTFOLIO, "--resume")
    assert done.exit_code == 2
    assert "--resume needs the folder of the run" in done.stderr
