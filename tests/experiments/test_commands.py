"""What is typed after ``python -m experiments``; each experiment's own file tests its command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nestax.table import Table

from experiments import commands
from experiments.rates import Rates

ROOT = Path(__file__).parent.parent.parent
RATES = Rates(
    "convex",
    Table(
        ["levels", "method", "exponent", "low", "high", "claimed", "lr"],
        [[2, "SMVR", 2.0, 1.9, 2.1, "–", 0.5]],
    ),
    Table(
        ["levels", "method", "steps", "samples", "error", "standard error"],
        [[2, "SMVR", 64, 128, 0.1, 0.01], [2, "SMVR", 128, 256, 0.05, 0.01]],
    ),
)


def typed(*words):
    return CliRunner().invoke(commands.app, words)


def test_the_folder_is_a_program():
    told = subprocess.run(
        [sys.executable, "-m", "experiments", "rates", "--levels", "two"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert told.returncode == 2
    sentence = "levels must be whole numbers, such as 1,2,3; got 'two'."
    assert told.stderr.splitlines()[-1] == f"python -m experiments rates: {sentence}"


def test_all_experiments_are_listed():
    told = typed("--help").output
    assert all(name in told for name in ("portfolio", "term", "maml", "rates"))


def test_rates_are_printed_and_written(tmp_path, monkeypatch):
    asked = []

    def measured(*given, **named):
        asked.append((given, named))
        return RATES

    monkeypatch.setattr(commands, "measure_rates", measured)
    words = ["rates", "--family", "convex", "--methods", "SMVR", "--levels", "2, 3", "--seeds", "4"]
    cells = tmp_path / "cells"
    done = typed(*words, "--cells", str(cells), "--json", "--out", str(tmp_path / "out"))
    assert done.exit_code == 0
    assert asked == [
        (("convex", ["SMVR"], [2, 3]), {"longest": 2**18, "seeds": 4, "cells": cells}),
    ]
    assert json.loads(done.stdout)["exponents"][0]["exponent"] == 2.0
    for name in ("report.html", "rates.png", "exponents.csv", "points.csv"):
        assert (tmp_path / "out" / name).stat().st_size > 50
    kept = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert kept["settings"]["levels"] == "2, 3"
    assert kept["command"].startswith("experiments rates --family convex --methods SMVR --levels '2, 3'")
    assert "2.00 (1.90–2.10)" in RATES.plot().axes[0].get_legend_handles_labels()[1][0]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["rates", "--longest", "100"], "longest must be at least 16384 steps; got 100."),
        (["rates", "--methods", "Adam"], "methods must be one of SMVR"),
        (["term", "--only", "HIV"], "only: no data set is called 'HIV'"),
    ],
)
def test_wrong_settings_get_one_sentence(words, sentence):
    done = typed(*words)
    assert done.exit_code == 2
    assert sentence in done.output
