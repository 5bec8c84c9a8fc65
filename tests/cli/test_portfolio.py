"""``nestax portfolio`` and ``nestax compare`` from a file to numbers, against a cone solver."""

import csv
import json

import numpy as np
import pytest
from tests.problems.portfolio.cone import cone_optimum
from typer.testing import CliRunner

import nestax as nx
from nestax.cli import app
from nestax.cli.compare import describe
from nestax.cli.portfolio import allowed_weights, doubt, load, meaning, prepare
from nestax.cli.surface import Market
from nestax.run.sweep import Sweep
from nestax.study.compare import Comparison
from nestax.table import Table

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib").use("Agg")

ASSETS = ["A & B", "C", "<d>", "E", "$f_{$", "G"]
ROWS = nx.datasets.synthetic_returns(200, 6, seed=1)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Returns as fractions; of its columns every name is awkward for some format."""
    path = tmp_path_factory.mktemp("data") / "returns.csv"
    with path.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["date", *ASSETS])
        for k, row in enumerate(ROWS / 100):
            writer.writerow([np.datetime64("2024-01-01") + k, *row.tolist()])
    return path


@pytest.fixture(scope="module")
def run(file, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    arguments = [str(file), "--unit", "fraction", "--json", "--out", str(out), "--batch-size", "16"]
    done = CliRunner().invoke(app, ["portfolio", *arguments])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout), out


def test_weights_are_those_of_a_cone_solver(run):
    """To within 1e-10 in percent of the objective, by the method itself; the solver stops at 1e-8."""
    found, _ = run
    w = np.array([found["weights"][name] for name in ASSETS])
    assert w.min() >= 0
    assert w.sum() == pytest.approx(1, abs=1e-12)
    own = ROWS @ w
    assert found["expected_return"] == pytest.approx(own.mean(), rel=1e-12)
    assert found["deviation"] == pytest.approx(own.std(), rel=1e-12)
    value = -own.mean() + 0.2 * own.std()
    assert found["objective"] == pytest.approx(value, abs=1e-8)  # the problem has δ under its root
    assert -1e-15 < found["gap"] <= 1e-10
    assert found["optimum_error"] <= 1e-13
    assert abs(value - cone_optimum(ROWS)) < 5e-8


def test_the_run_says_what_it_did(run):
    found, out = run
    assert (found["method"], found["seed"], found["batch_size"]) == ("SnapshotSMVR", 0, 16)
    assert (found["rows"], found["first"], found["last"]) == (200, "2024-01-01", "2024-07-18")
    assert (found["status"], found["message"]) == ("SUCCESS", "The gap reached 1e-10.")
    about = json.loads((out / "settings.json").read_text())
    assert about["settings"]["lr"] == found["lr"]
    assert about["settings"]["unit"] == "fraction"
    with (out / "weights.csv").open() as file:
        rows = {row["asset"]: float(row["weight"]) for row in csv.DictReader(file)}
    assert rows == found["weights"]
    with (out / "records.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert int(last["samples"]) == found["samples"]
    assert float(last["gap"]) == pytest.approx(found["gap"], abs=1e-15)
    page = (out / "report.html").read_text()
    for words in (
        "A &amp; B",
        "&lt;d&gt;",
        "200 rows of returns.csv",
        "SnapshotSMVR with learning rate",
    ):
        assert words in page
    assert page.count("<svg") == 2


def test_a_portfolio_stands_beside_equal_weights(run):
    found, out = run
    own = ROWS.mean(axis=1)
    equal = found["equal_weights"]
    assert equal["expected_return"] == pytest.approx(own.mean(), rel=1e-12)
    assert equal["objective"] == pytest.approx(-own.mean() + 0.2 * own.std(), abs=1e-8)
    assert equal["objective"] > found["objective"]
    assert found["rows_per_year"] == 365  # told by the dates
    assert found["yearly_return"] == pytest.approx(365 * found["expected_return"], rel=1e-12)
    assert equal["yearly_deviation"] == pytest.approx(365**0.5 * own.std(), rel=1e-12)
    page = (out / "report.html").read_text()
    unsure = 365 * found["deviation"] / 200**0.5
    assert "on the table: less than 1e-06 percent a year of return" in page
    assert f"the expected return is known to ± {unsure:.2g} percent a year (one standard error)." in page
    of = f"{equal['yearly_return']:.4g} and {equal['yearly_deviation']:.4g}"
    assert f"percent a year, and those of equal weights {of};" in page


def test_a_limit_is_a_box_and_columns_are_left_out_one_by_one(file, tmp_path):
    """Also from a file of settings, where a name is a word and several are a list."""
    (tmp_path / "some.toml").write_text('unit = "fraction"\nhigh = 0.3\ndrop = ["C", "G"]\n')
    (tmp_path / "one.toml").write_text('unit = "fraction"\nhigh = 0.3\ndrop = "C,G"\n')
    typed = ["--unit", "fraction", "--high", "0.3", "--drop", "C", "--drop", "G"]
    found = []
    for words in (typed, ["--config", "some.toml"], ["--config", "one.toml"]):
        words = [str(tmp_path / word) if word.endswith(".toml") else word for word in words]
        done = CliRunner().invoke(app, ["portfolio", str(file), "--json", "--samples", "9000", *words])
        assert done.exit_code == 0, done.output
        found.append(json.loads(done.stdout)["weights"])
    assert found[0] == found[1] == found[2]
    assert list(found[0]) == ["A & B", "<d>", "E", "$f_{$"]
    assert max(found[0].values()) == pytest.approx(0.3, abs=1e-12)


def test_one_limit_has_its_usual_partner():
    table = load("synthetic", Market())
    least = lambda low, high: prepare(table, 0.2, *allowed_weights("simplex", low, high))[2].w
    assert (least(None, 0.2).min(), least(None, 0.2).max()) == (0, pytest.approx(0.2))
    assert least(-0.2, None).min() == pytest.approx(-0.2)
    assert least(-0.01, None).max() <= 1


@pytest.mark.parametrize(
    ("unit", "deviation", "other"),
    [("fraction", 1296.0, "percent"), ("percent", 0.13, "fraction"), ("percent", 13.0, None)],
)
def test_a_unit_that_can_hardly_be_is_doubted(unit, deviation, other, capsys):
    doubt(unit, {"yearly_deviation": deviation})
    told = capsys.readouterr().err
    assert (told == "") if other is None else f"needs --unit {other}." in told
    doubt(unit, {"deviation": deviation})  # without dates nothing is known
    doubt(None, {"yearly_deviation": deviation})  # of prices neither
    assert capsys.readouterr().err == ""


def test_without_dates_the_gap_is_told_by_the_row():
    numbers = {"gap": 2e-3, "rows_per_year": None, "deviation": 3.0, "rows": 900}
    words = meaning(numbers)
    assert "on the table: 0.002 percent a row of return" in words
    assert "known to ± 0.1 percent a row (" in words


def test_weights_that_mean_nothing_are_a_failure(file, tmp_path):
    """Steps so long that the projection overflows; the page says so on top."""
    arguments = ["--unit", "fraction", "--batch-size", "16", "--lr", "1e308", "--out", tmp_path / "run"]
    done = CliRunner().invoke(app, ["portfolio", str(file), *map(str, arguments)])
    assert done.exit_code == 1
    assert "nestax portfolio: The weights do not add up to one" in done.stderr
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.index("NONFINITE: The weights") < page.index('class="summary"')


def test_the_learning_rate_is_that_of_the_scikit_learn_estimator(file):
    """From curvature and noise for plain gradient steps, and as published for others; no search."""
    exact = nx.problems.exact_portfolio(ROWS, risk=0.2)
    points = (np.full(6, 1 / 6), exact.least().w)

    def typed(method):
        words = ["--unit", "fraction", "--method", method, "--samples", "2000", "--batch-size", "16"]
        done = CliRunner().invoke(app, ["portfolio", str(file), *words, "--json"])
        assert done.exit_code == 0, done.output
        assert "learning rates" not in done.stderr
        return json.loads(done.stdout)["lr"]

    assert typed("smvr") == pytest.approx(min(exact.learning_rate(w, 16, fading=False) for w in points))
    assert typed("SnapshotSMVR") == pytest.approx(min(exact.learning_rate(w, 16) for w in points))
    assert typed("smvr") < typed("SnapshotSMVR")
    assert typed("nlasg") is None


def comparison(refused):
    """Two methods, three runs of two records; one run has diverged."""
    samples = np.array([10, 110])
    status = np.full((1, 3), nx.Status.SUCCESS)
    lost = status.copy()
    lost[0, 1] = nx.Status.NONFINITE
    records = lambda end: {
        "step": np.array([0, 5]),
        "samples": samples,
        "gap": np.array([[[0.1, end]] * 3]),
        "grad_norm": np.array([[[0.2, end]] * 3]),
    }
    runs = {
        name: Sweep({"lr": np.array([0.1])}, np.zeros((1, 3, 2)), records(end), which)
        for name, end, which in (("Plain", 1e-3, lost), ("Snap", -1e-18, status))
    }
    columns = ["method", "lr", "steps", "samples", "gap", "± std", "grad_norm", "diverged"]
    rows = [
        ["Snap", 0.1, 5, 110, -1e-18, 1e-18, 1e-9, 0],
        ["Plain", 0.1, 5, 110, np.inf, np.nan, 0.1, 1],
    ]
    return Comparison(Table(columns, rows), runs, {}, refused, "gap")


def test_a_comparison_in_words_tables_and_records():
    facts = {"title": "Methods", "setting": "200 rows", "optimum": 0.1, "found": {"tried": [0.1, 1.0]}}
    found = describe(comparison({"SSD": "level 'utility' is not convex."}), **facts)
    assert found.summary.startswith(
        "With 110 samples Snap comes to less than 1e-16 above the least value"
    )
    shown, left_out = (table for _, table in found.tables)
    assert shown.column("gap") == ["< 1e-16", np.inf]
    assert left_out.rows == [["SSD", "level 'utility' is not convex."]]
    assert [row["method"] for row in found.numbers["methods"]] == ["Snap", "Plain"]
    records = found.records["records"]
    assert records["method"].tolist() == ["Plain"] * 6 + ["Snap"] * 6
    assert records["run"].tolist() == [0, 0, 1, 1, 2, 2] * 2
    assert records["samples"].tolist() == [10, 110] * 6
    ((name, caption, figure),) = found.draw()
    assert name == "comparison"
    assert "200 rows" in caption
    assert "3 runs" in caption
    assert len(figure.axes) == 2


def test_a_comparison_of_nothing_says_so():
    nothing = Comparison(Table(["gap", "± std"], []), {}, {}, {"SSD": "no."}, "gap")
    found = describe(nothing, title="", setting="", optimum=0.0, found={})
    assert found.summary == "None of the methods applies."
    assert found.draw() == []


def test_methods_that_do_not_exist_are_refused_before_anything_runs():
    done = CliRunner().invoke(app, ["compare", "--methods", "Plain,SMVRR"])
    assert done.exit_code == 2
    assert done.stderr == "nestax compare: no method is called 'SMVRR'; did you mean 'SMVR'?\n"


@pytest.mark.slow
def test_compare_and_demo_leave_reports(file, tmp_path):
    arguments = ["--data", str(file), "--unit", "fraction", "--samples", "4000", "--seeds", "2"]
    arguments += ["--methods", "Plain,smvr,SSD", "--tune-seeds", "1", "--out", str(tmp_path / "c")]
    done = CliRunner().invoke(app, ["compare", *arguments, "--json"])
    assert done.stderr.count("nestax compare: compiling …\n") == 1  # of all its runs
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {row["method"] for row in found["methods"]} == {"Plain", "SMVR"}
    assert set(found["refused"]) == {"SSD"}
    assert found["optimum"] == pytest.approx(cone_optimum(ROWS), abs=5e-8)
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "d"), "--seeds", "2"])
    assert done.exit_code == 0, done.output
    assert "SnapshotSMVR comes to less than 1e-16" in done.stdout
    assert "Weights in percent that SnapshotSMVR found, mean ± std of 2 runs" in done.stdout
    with (tmp_path / "d" / "weights.csv").open() as file:
        weights = list(csv.DictReader(file))
    assert all(abs(float(w["found"]) - float(w["exact"])) < 0.02 for w in weights)
    assert sum(float(w["found"]) for w in weights) == pytest.approx(100, abs=0.1)
    for folder in ("c", "d"):
        assert (tmp_path / folder / "comparison.svg").exists()
        assert "<svg" in (tmp_path / folder / "report.html").read_text()
