"""The experiments of the paper, in small; and what is claimed about them, on real data."""

import dataclasses
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.problems.portfolio.cone import cone_optimum
from typer.testing import CliRunner

import nestax as nx
from nestax.loop import chunks
from nestax.run.prepare import as_method
from nestax.run.sweep import Point
from nestax.study.compare import FIRST_TUNING_SEED

from experiments import commands, portfolio
from experiments.portfolio import reproduce_portfolio

FOLDER = os.environ.get("NESTAX_DATA")
real = pytest.mark.skipif(
    FOLDER is None or not (Path(FOLDER) / "industry30_daily.csv.gz").exists(),
    reason="REAL DATA NOT CHECKED: set NESTAX_DATA to the folder of industry30_daily.csv.gz",
)
RATES = (0.05, 0.2)


@pytest.fixture(scope="module")
def result():
    """A market of five assets; the methods of the paper are all SMVR here, which compiles once."""
    smvr, snapshots = (portfolio.CONTENDERS[name] for name in ("SMVR", "SnapshotSMVR"))
    few = dict.fromkeys(portfolio.OF_THE_PAPER, smvr._replace(values=(0.1, 0.3)))
    few["SnapshotSMVR"] = snapshots._replace(values=(0.01,))
    markets = {"small": nx.datasets.synthetic_returns(640, 5)}
    lines = []
    out = reproduce_portfolio(
        markets, contenders=few, seeds=3, tune_seeds=2, batch_size=16, rates=RATES, tell=lines.append
    )
    assert [line.split()[:2] for line in lines] == [["small", name] for name in few]
    return out


@pytest.mark.slow
def test_sweeps_that_are_kept_are_found_again(tmp_path, monkeypatch):
    smvr = portfolio.CONTENDERS["SMVR"]._replace(values=(0.1,))
    settings = {"seeds": 2, "tune_seeds": 2, "batch_size": 16, "rates": RATES[:2], "passes": 2}
    markets = {"small": nx.datasets.synthetic_returns(320, 5)}
    again = lambda **more: reproduce_portfolio(markets, contenders={"SMVR": smvr}, **settings, **more)
    first = again(cells=tmp_path)
    monkeypatch.setattr(chunks.Compiled, "advance", lambda *a: pytest.fail("computed again"))
    second = again(cells=tmp_path)
    assert str(second.details()) == str(first.details())  # seconds included
    assert str(second.radii()) == str(first.radii())


@pytest.mark.parametrize("name", portfolio.CONTENDERS)
def test_a_learning_rate_is_the_length_of_a_step(name):
    """That of A-TSCGD falls: ten times as much at first. As printed, NLASG's is multiplied by τ."""
    contender = portfolio.CONTENDERS[name]
    problem = portfolio.portfolio_problem(nx.datasets.synthetic_returns(200, 4))
    built = contender.build(Point(lr=0.02, **{contender.knob: contender.values[1]}))
    built = built if isinstance(built, tuple) else (built,)
    method = as_method(problem, *built)
    method.check(problem)
    grad = jnp.asarray([0.1, -0.2, 0.2, -0.1]) / 100
    w, _ = method.step.update(problem, problem.w0, grad, {}, method.step.init(problem.w0))
    length = {"A-TSCGD": 0.2, portfolio.AS_PRINTED: 0.5 * 0.02}.get(name, 0.02)
    np.testing.assert_allclose(w, problem.w0 - length * grad, rtol=1e-12)


def test_reported_runs_are_not_those_that_chose_the_setting(result):
    trial = result.trials["small"]["NLASG"]
    run = nx.sweep(
        result.problems["small"],
        portfolio.CONTENDERS["SMVR"].build,
        settings=nx.grid(lr=RATES, beta=(0.1, 0.3)),
        seeds=[FIRST_TUNING_SEED, FIRST_TUNING_SEED + 1, 0, 1, 2],
        samples=6 * 1_280,
        batch_size=16,
        record_every=2,
        record=["gap"],
    )
    gap = run.records["gap"]
    best = int(np.argmin(gap[:, :2, -round(0.2 * gap.shape[2]) :].mean(axis=(1, 2))))
    assert trial.setting == {k: v[best] for k, v in run.settings.items()}
    np.testing.assert_allclose(trial.gap, gap[best, 2:], rtol=1e-9)


def test_everything_is_compared_at_the_same_budget(result):
    for trial in result.trials["small"].values():
        assert 5.5 * 1_280 < trial.samples[trial.end] <= 6 * 1_280
    snapshots = result.trials["small"]["SnapshotSMVR"]
    assert 11.5 * 1_280 < snapshots.samples[-1] <= 12 * 1_280
    assert snapshots.within(12 * 1_280).max() < 1e-5 < snapshots.within(2 * 1_280).max()


def test_the_tables_agree_with_the_curves(result):
    mean, spread, mapping = result.trials["small"]["SMVR"].result()
    gaps, details, curves = result.gaps(), result.details(), result.curves()
    assert gaps.rows[gaps.column("method").index("SMVR")] == ["SMVR", f"{mean:.1e} ± {spread:.0e}"]
    row = dict(zip(details.columns, details.rows[details.column("method").index("SMVR")], strict=True))
    assert (row["market"], row["gap"], row["gradient mapping"]) == ("small", mean, mapping)
    last = [row for row in curves.rows if row[:2] == ["small", "SMVR"]][-1]
    assert last[curves.columns.index("gap_mean")] == pytest.approx(mean, rel=1e-12)
    assert result.epochs().columns == ["market", *(f"{k} passes" for k in (2, 4, 6, 8, 10, 12))]
    total = dict(zip(result.seconds().column("method"), result.seconds().column("run s"), strict=True))
    assert total.pop("together") == pytest.approx(sum(total.values()))


def test_differences_are_those_of_the_same_runs(result):
    trials = result.trials["small"]
    shifted = np.asarray([1e-4, 2e-4, 3e-4])
    lost = np.asarray([0.0, np.inf, 0.0])
    changed = {
        "NLASG": dataclasses.replace(trials["SMVR"], gap=trials["SMVR"].gap + shifted[:, None]),
        "SCSC": dataclasses.replace(trials["SMVR"], gap=trials["SMVR"].gap + lost[:, None]),
    }
    table = dataclasses.replace(result, trials={"small": trials | changed}).differences()
    rows = dict(table.rows)
    assert "SMVR" not in rows
    assert rows["NLASG"] == "+2.00 ± 0.58"
    assert rows["SCSC"] == "diverged"


def test_decimals_and_percent_are_the_same_portfolio():
    returns = nx.datasets.synthetic_returns(200, 4)
    percent, decimal = (portfolio.portfolio_problem(returns / unit, unit) for unit in (1.0, 100.0))
    w = jnp.asarray([0.7, 0.1, 0.1, 0.1])
    np.testing.assert_allclose(decimal.value(w), percent.value(w) / 100, rtol=1e-12)
    np.testing.assert_allclose(decimal.optimum, percent.optimum / 100, rtol=1e-9)
    floor = lambda problem: float(jax.tree.leaves(problem.levels[1].project((0.0, -1.0)))[1])
    assert floor(percent) == pytest.approx(1e4 * floor(decimal)) == portfolio.LEAST_VARIANCE


@pytest.mark.slow
def test_reported_seeds_may_be_named(result):
    smvr = {"SMVR": portfolio.CONTENDERS["SMVR"]._replace(values=(0.1, 0.3))}
    found = reproduce_portfolio(
        {"small": nx.datasets.synthetic_returns(640, 5)},
        contenders=smvr,
        seeds=[2, 0],
        tune_seeds=2,
        batch_size=16,
        rates=RATES,
    )
    np.testing.assert_allclose(
        found.trials["small"]["SMVR"].gap, result.trials["small"]["NLASG"].gap[[2, 0]], rtol=1e-9
    )


def test_findings_compare_smvr_with_the_best_of_the_others(result):
    trials = result.trials["small"]
    worse = dataclasses.replace(trials["SMVR"], gap=2 * trials["SMVR"].gap)
    (finding,) = result.findings()
    assert "of the 5 methods of the paper, with 1.00 times the gap of" in finding
    (finding,) = dataclasses.replace(result, trials={"small": trials | {"SMVR": worse}}).findings()
    assert finding.startswith("small: SMVR is not first of the 5 methods of the paper, with 2.00 times")
    for name in portfolio.OF_THE_PAPER[:-1]:
        trials = trials | {name: worse}
    (finding,) = dataclasses.replace(result, trials={"small": trials}).findings()
    assert finding.startswith("small: SMVR is first of the 5 methods of the paper, with 0.50 times")


def test_a_run_that_diverged_is_infinitely_far(result):
    trial = result.trials["small"]["SMVR"]
    lost = dataclasses.replace(trial, gap=np.where(np.arange(3)[:, None] == 1, np.inf, trial.gap))
    mean, spread, _ = lost.result()
    assert mean == np.inf
    assert np.isnan(spread)
    kept = dataclasses.replace(result, trials={"small": {"SMVR": lost}}).plot_methods().axes[0].lines[0]
    np.testing.assert_allclose(kept.get_ydata(), trial.gap[[0, 2], : trial.end + 1].mean(axis=0))


def test_balls_are_active_where_the_true_jacobian_does_not_fit(result):
    radii, norms = result.radii(), result.norms()
    rows = [dict(zip(radii.columns, row, strict=True)) for row in radii.rows]
    assert len(rows) == 2 * 7
    assert [row["lr"] / rows[0]["lr"] for row in rows[:7]] == [1, 1, 1, 1, 1, 2, 2]
    true = [row[norms.columns.index("variance, spectral")] for row in norms.rows]
    assert min(true) > 0.5
    for row in rows:
        assert row["active at mean"] == row["active at utility"] == 0
        assert row["radius"] != "none" or row["active at variance"] == 0


def test_the_figures_have_a_row_per_measure(result):
    methods, radii = result.plot_methods(), result.plot_radii()
    for figure, low in ((methods, "gradient mapping"), (radii, "F(w) − F*, spectral ball")):
        assert [axis.get_title() for axis in figure.axes] == ["small", ""]
        assert figure.axes[1].get_ylabel() == low
        assert {axis.get_yscale() for axis in figure.axes} == {"log"}
        (legend,) = figure.legends
        assert len(legend.get_texts()) == len(figure.axes[0].lines)


def test_the_command_writes_a_report(result, tmp_path, monkeypatch):
    asked = []

    def found(markets, *, seeds, tune_seeds, cells, tell):
        asked.append((list(markets), seeds, tune_seeds))
        return result

    monkeypatch.setattr(commands, "reproduce_portfolio", found)
    monkeypatch.setattr("nestax.datasets.fetching.cache", lambda: None)
    monkeypatch.setenv("NESTAX_DATA", str(tmp_path))  # holds no copy
    out = tmp_path / "out"
    done = CliRunner().invoke(commands.app, ["portfolio", "--seeds", "4", "--out", str(out)])
    assert done.exit_code == 0
    assert asked == [(["made-up"], 4, 3)]
    assert "so the returns are made up" in done.output
    assert result.findings()[0] in done.output
    assert json.loads((out / "settings.json").read_text())["settings"]["tune_seeds"] == 3
    for name in (
        "report.html",
        "figure-1.png",
        "figure-2.svg",
        "methods.csv",
        "radii.csv",
        "curves.csv",
    ):
        assert (out / name).stat().st_size > 200

    loaded = []
    monkeypatch.setattr("nestax.datasets.industry", lambda count, rows: loaded.append((count, rows)))
    done = CliRunner().invoke(commands.app, ["portfolio", "--full", "--json"])
    assert loaded == [(10, 25_105), (12, 25_105), (17, 25_105), (30, 25_105)]
    assert asked[1] == ([f"Industry-{count}" for count, _ in loaded], 20, 8)
    numbers = json.loads(done.stdout)
    assert CliRunner().invoke(commands.app, ["portfolio", "--industries", "30, 12"]).exit_code == 0
    assert asked[2] == (["Industry-30", "Industry-12"], 5, 3)
    done = CliRunner().invoke(commands.app, ["portfolio", "--industries", "10,11"])
    assert done.exit_code == 2
    assert "industries must be some of 10, 12, 17, 30; got '11'." in done.output
    assert [row["method"] for row in numbers["methods"]] == list(result.trials["small"])
    assert len(numbers["radii"]) == 14


@real
@pytest.mark.data
@pytest.mark.parametrize("count", portfolio.INDUSTRIES)
def test_real_optima_are_those_of_a_cone_solver(count):
    returns = nx.datasets.industry(count, rows=portfolio.ROWS).values
    value = portfolio.best_portfolio(returns).value
    assert -1e-12 < cone_optimum(returns) - value < 1e-10


@real
@pytest.mark.data
@pytest.mark.slow
def test_snapshots_reach_1e_11_on_thirty_industries():
    """2e-8 within 8 passes per level and 1e-11 within 12, on average over the runs that are reported."""
    problem = portfolio.portfolio_problem(nx.datasets.industry(30, rows=portfolio.ROWS))
    once = 2 * portfolio.ROWS
    runs = nx.sweep(
        problem,
        portfolio.CONTENDERS["SnapshotSMVR"].build,
        settings=nx.grid(lr=[0.1], beta=[0.01]),
        seeds=20,
        samples=12 * once,
        batch_size=64,
        record_every=24,
        record=["gap"],
    )
    drawn, gap = runs.records["samples"], runs.records["gap"][0].mean(axis=0)
    assert gap[drawn <= 8 * once][-1] < 2e-8
    assert gap[drawn <= 12 * once][-1] < 1e-11
