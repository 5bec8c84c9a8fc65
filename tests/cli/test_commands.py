"""The commands that compute nothing: lists, citations, data, doctor; and how all of them look."""

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nestax as nx
from nestax.cli import app


def invoke(*arguments, **facts):
    return CliRunner().invoke(app, list(arguments), **facts)


def test_one_method_or_all_of_them():
    every = invoke("methods")
    assert every.exit_code == 0
    assert all(name in every.stdout for name in ("SMVR", "NLASG", "NestedSPIDER"))
    one = invoke("methods", "nested-spider")
    assert "NestedSPIDER" in one.stdout


def test_a_citation():
    assert "@" in invoke("cite", "SMVR").stdout


@pytest.mark.parametrize("command", ["methods", "cite"])
def test_a_method_that_is_not_there(command):
    done = invoke(command, "SMVRR")
    assert done.exit_code == 2
    assert done.stderr == f"nestax {command}: no method is called 'SMVRR'; did you mean 'SMVR'?\n"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A data folder with one made-up copy, and an empty cache."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "industry10_daily.csv.gz").write_text("")
    monkeypatch.setenv("NESTAX_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("nestax.datasets.fetching.cache", lambda: tmp_path / "cache")
    return tmp_path


def test_data_sets_and_where_they_lie(folders):
    copy = str(folders / "data" / "industry10_daily.csv.gz")
    rows = {row["name"]: row for row in json.loads(invoke("data", "list", "--json").stdout)}
    assert rows["industry10"]["local copy"] == copy
    assert rows["industry30"]["local copy"] == "–"
    assert copy in invoke("data", "list").stdout
    assert invoke("data", "fetch", "industry10").stdout == f"{copy}\n"
    done = invoke("data", "fetch", "industry1O")
    assert done.exit_code == 2
    assert done.stderr.startswith("nestax data fetch: no data set is called 'industry1O'; did you mean")


def test_the_doctor_tells_what_is_there(folders, monkeypatch):
    done = invoke("doctor", "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["nestax"] == nx.__version__
    assert found["precision"] == "float64"
    assert found["data folder"] == f"{folders / 'data'} (1 file)"
    assert found["cache folder"] == f"{folders / 'cache'} (does not exist)"
    assert found["data sets"] == "industry10"
    assert not any("float32" in warning for warning in found["warnings"])
    plain = invoke("doctor")
    assert "industry10" in plain.stdout
    assert plain.stderr.splitlines() == found["warnings"]


def test_the_doctor_warns_of_what_is_slow_or_missing(folders, monkeypatch):
    from nestax.cli import doctor

    bare = {"device": "cpu", "precision": "float32", "cores": 1, "made": "now"}
    monkeypatch.setattr(doctor, "environment", lambda: bare)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("NESTAX_DATA", str(folders / "none"))
    found = json.loads(invoke("doctor", "--json").stdout)
    words = " ".join(found["warnings"])
    for expected in ("No GPU", "float32", "One processor core", "nestax[plot]", "nestax[sklearn]"):
        assert expected in words
    assert found["extras"] == "none"
    assert "does not exist" in found["data folder"]
    monkeypatch.delenv("NESTAX_DATA")
    assert "NESTAX_DATA is not set" in json.loads(invoke("doctor", "--json").stdout)["data folder"]


def test_the_doctor_knows_every_extra():
    from nestax.cli import doctor

    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    extras = set(tomllib.loads(text)["project"]["optional-dependencies"])
    assert set(doctor.EXTRAS) == extras - {"all"}


def test_the_doctor_says_where_programs_are_not_kept(folders, monkeypatch):
    from nestax.cli import doctor

    monkeypatch.setattr(doctor, "speed_up", lambda: None)
    assert json.loads(invoke("doctor", "--json").stdout)["compiled once"].startswith("no: NESTAX_COMP")
    monkeypatch.setattr(doctor, "speed_up", lambda: folders)
    assert json.loads(invoke("doctor", "--json").stdout)["compiled once"].endswith("gets no files")
    monkeypatch.setattr(doctor, "keeps_programs", lambda folder: True)
    assert json.loads(invoke("doctor", "--json").stdout)["compiled once"] == "yes, it works"


def test_help_has_examples_and_completion():
    words = invoke("--help").stdout
    assert "nestax portfolio returns.csv --unit percent --out result" in words
    assert "--install-completion" in words


@pytest.mark.parametrize("arguments", [["--help"], ["portfolio", "--help"], ["dmeo"], ["methods", "x"]])
def test_no_colour_where_nobody_looks(arguments):
    assert "\x1b" not in invoke(*arguments).output
    assert "\x1b[3" not in invoke(*arguments, env={"NO_COLOR": "1"}).output


def test_a_wrong_choice_is_told_without_the_words_of_a_checker():
    done = CliRunner().invoke(app, ["portfolio", "synthetic", "--unit", "pct"])
    assert done.exit_code == 2
    assert "'pct' is not one of 'percent', 'fraction'" in " ".join(done.stderr.split())
    assert "Value error" not in done.stderr


def test_a_command_that_is_not_there():
    done = invoke("portfolo")
    assert done.exit_code == 2
    assert "portfolio" in done.output
