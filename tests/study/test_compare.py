"""Comparisons: equal budgets, separate seeds for tuning, methods that do not apply."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nestax as nx
from nestax.study.compare import tabulate

FACTS = {"samples": 6_000, "batch_size": 4, "seeds": 3, "tune_seeds": 2, "progress": False}
METHODS = {
    "SCSC": "scsc",
    "spider": nx.NestedSPIDER(period=10, restart_batch=40),
    "SMVR + Adam": lambda s: (nx.SMVR(s.beta), optax.adam(s.lr)),
    "STORM": nx.STORM,
}


@pytest.fixture(scope="module")
def result():
    problem = nx.problems.convex_chain(levels=2)
    return nx.compare(problem, METHODS, tune=nx.grid(lr=[0.03, 0.3], beta=[0.1, 0.5]), **FACTS)


def test_every_method_gets_the_same_samples(result):
    """As many steps as the budget pays for, and not one more."""
    for name, run in result.runs.items():
        per_step = {"spider": 40 * 2}.get(name, 8)
        assert FACTS["samples"] - per_step < run.records["samples"][-1] <= FACTS["samples"], name
    steps = dict(zip(result.table.column("method"), result.table.column("steps"), strict=True))
    assert steps["spider"] < 0.8 * steps["SCSC"] == 0.8 * steps["SMVR + Adam"]


def test_a_method_ignores_what_it_does_not_have(result):
    assert set(result.tuning["spider"].settings) == {"lr"}
    assert result.tuning["spider"].status.shape == (2, 2)
    assert result.tuning["SCSC"].status.shape == (4, 2)
    rows = {row[0]: row for row in result.table.rows}
    assert rows["spider"][2] == "–"


def test_the_best_of_the_tuning_seeds_is_what_is_run(result):
    for name, run in result.runs.items():
        tuning = result.tuning[name]
        ends = tuning.records["gap"][:, :, -20:].mean(axis=(1, 2))
        best = int(np.argmin(ends))
        for key, values in run.settings.items():
            assert values[0] == tuning.settings[key][best]


def ended(*gaps, lost=()):
    """Runs of ten records that end with these gaps, one for every seed."""
    status = np.full((1, len(gaps)), nx.Status.SUCCESS)
    status[0, list(lost)] = nx.Status.NONFINITE
    curve = np.repeat(np.asarray(gaps)[None, :, None], 10, axis=2)
    records = {"step": np.arange(10), "samples": 4 * np.arange(10), "gap": curve}
    return nx.Sweep({"lr": np.asarray([0.1])}, None, records, status)


def test_differences_are_those_of_runs_with_equal_seeds():
    runs = {
        "far": ended(3.0, 5.0, 7.0),
        "near": ended(1.0, 2.0, 6.0),
        "lost": ended(1.0, 1, 1, lost=[1]),
    }
    table = tabulate(runs, ["lr", "beta"], "gap")
    assert table.column("method") == ["near", "far", "lost"]
    assert table.column("above the first") == ["–", 2.0, np.inf]
    first, error, none = table.column("± error")
    assert first == "–"
    assert error == pytest.approx(1 / 3**0.5)  # of 2, 3 and 1
    assert np.isnan(none)
    assert table.column("beta") == ["–"] * 3
    assert table.column("diverged") == [0, 0, 1]
    assert tabulate({}, ["lr"], "gap").rows == []


def test_one_run_has_no_error():
    table = tabulate({"near": ended(1.0), "far": ended(3.0)}, ["lr"], "gap")
    assert table.rows[1][-4] == 2
    assert np.isnan(table.rows[1][-3])


def test_reported_runs_are_those_of_plain_sweeps(result):
    """With the seeds 0, 1, 2, and not those that chose the setting."""
    chosen = {key: values[0] for key, values in result.runs["SCSC"].settings.items()}
    problem = nx.problems.convex_chain(levels=2)
    single = nx.minimize(problem, nx.SCSC(**chosen), samples=6_000, batch_size=4, seed=1, record=["gap"])
    np.testing.assert_allclose(
        single.records["gap"], result.runs["SCSC"].records["gap"][0, 1], rtol=1e-6
    )


@pytest.mark.parametrize(("seeds", "sweeps"), [(3, 2), (4, 2), (9, 4), ([5, 3, 8], 2)])
def test_reported_runs_are_the_same_whether_or_not_they_share_a_program(seeds, sweeps, monkeypatch):
    """As lanes beside copies of themselves, in several sweeps, in any order: a seed is a seed."""
    problem = nx.problems.convex_chain(levels=2)
    facts = FACTS | {"seeds": seeds, "tune": nx.grid(lr=[0.03, 0.3]), "samples": 1_000}
    made = []
    counted = lambda *args, **named: made.append(1) or nx.sweep(*args, **named)
    monkeypatch.setattr(sys.modules["nestax.study.compare"], "sweep", counted)
    shared = nx.compare(problem, "SCSC", **facts)
    assert len(made) == sweeps
    monkeypatch.setattr(sys.modules["nestax.study.compare"], "UNEQUAL", 0)
    apart = nx.compare(problem, "SCSC", **facts)
    assert len(made) == sweeps + 2
    for part in ("tuning", "runs"):
        one, other = getattr(shared, part)["SCSC"], getattr(apart, part)["SCSC"]
        assert list(one.records) == list(other.records)
        for name, column in one.records.items():
            assert column.shape == other.records[name].shape
            np.testing.assert_allclose(column, other.records[name], rtol=1e-9)
        np.testing.assert_allclose(one.w, other.w, rtol=1e-9)
        np.testing.assert_array_equal(one.status, other.status)
        np.testing.assert_array_equal(one.settings["lr"], other.settings["lr"])


def test_the_table_is_ranked_and_printed(result):
    gaps = result.table.column("gap")
    assert gaps == sorted(gaps)
    text = str(result)
    assert "STORM was left out. STORM is made for one level and this chain has 2: use SMVR" in text
    assert text.splitlines()[0].split()[:3] == ["method", "lr", "beta"]
    assert result.table.to_markdown().count("\n") == 4
    assert list(result.table.to_frame()["method"]) == result.table.column("method")


def test_the_figure_has_two_panels(result, tmp_path):
    figure = result.plot(tmp_path / "compare.png")
    assert [axis.get_ylabel()[:4] for axis in figure.axes] == ["F(w)", "grad"]
    assert (tmp_path / "compare.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("methods", "changes", "sentence"),
    [
        (["SMRV"], {}, "no method is called 'SMRV'; did you mean 'SMVR'"),
        ([], {}, "at least one method"),
        ([optax.sgd(0.1)], {}, "compare takes names, classes or estimators"),
        (["SMVR"], {"tune": nx.grid(tau=[0.1])}, "SMVR has none of the settings tau: add lr"),
        ([nx.SMVR(0.1), nx.SMVR(0.5)], {}, "two methods have one name: pass a dictionary"),
        (["SMVR"], {"tune": [0.1]}, r"tune must be a grid such as nx.grid"),
        (["SMVR"], {"tune": nx.grid(lr=[-1.0])}, "SMVR: lr must be positive"),
        (["SMVR"], {"samples": 10}, "SMVR: samples=10 does not pay for one step"),
        ({"mine": lambda s: nx.SMVR(s.beta)}, {}, "mine: no setting is called 'beta'; there are lr"),
        (["SMVR"], {"seeds": 0}, "seeds must be a whole number of at least 1"),
    ],
)
def test_bad_comparisons_get_one_sentence(methods, changes, sentence):
    with pytest.raises(nx.SettingError, match=sentence):
        nx.compare(nx.problems.convex_chain(levels=2), methods, **(FACTS | changes))


def test_simulators_are_compared_by_what_is_tracked():
    sampler = nx.Sampler(lambda key: jax.random.normal(key, (2,)))
    problem = nx.Problem([nx.Level(lambda w, x: jnp.sum((w - x) ** 2), sampler)], w0=np.ones(2))
    result = nx.compare(problem, "SMVR", samples=400, batch_size=4, seeds=2, tune_seeds=1)
    assert result.column == "value"
    assert np.isnan(result.table.column("grad_norm")[0])


def test_a_run_that_was_not_finite_for_a_while_is_reported(tmp_path):
    """As in minimize, whether or not it recovers by the end; the figure leaves it out."""
    rows = np.random.default_rng(0).normal(size=(50, 2))
    levels = [
        nx.Level(lambda w, r: (r @ w, w), rows),
        nx.Level(lambda u: jnp.where(jnp.abs(u[1][0] - 0.5) < 0.02, jnp.nan, u[0]) + u[1] @ u[1]),
    ]
    problem = nx.Problem(levels, w0=np.ones(2))
    facts = {"steps": 200, "batch_size": 1, "record": ["value"], "record_every": 1}
    with pytest.warns(nx.ConvergenceWarning, match="became infinite or NaN"):
        single = nx.minimize(problem, nx.Plain(lr=0.01), **facts)
    runs = nx.sweep(problem, lambda s: nx.Plain(lr=s.lr), settings=nx.grid(lr=[0.01]), seeds=1, **facts)
    assert single.status is nx.Status.NONFINITE
    assert runs.status[0, 0] is nx.Status.NONFINITE
    assert "became infinite or NaN" in repr(single)
