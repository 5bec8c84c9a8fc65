"""Tables and numbers as people read them: on a terminal, in notebooks, in files."""

import csv
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import nestax as nx
from nestax.datasets import Returns
from nestax.table import Table, as_html, number


@pytest.mark.parametrize(
    ("x", "digits", "words"),
    [
        (2_000_000, 6, "2,000,000"),
        (2e6, 6, "2,000,000"),
        (2e6, 3, "2,000,000"),
        (999.6, 3, "1,000"),
        (1234.5, 6, "1234.5"),
        (0.00012345, 3, "0.000123"),
        (1e20, 6, "1e+20"),
        (float("inf"), 3, "inf"),
        (float("nan"), 3, "nan"),
    ],
)
def test_numbers_are_written_as_people_read_them(x, digits, words):
    assert number(x, digits) == words


def test_a_notebook_shows_tables_with_every_word_escaped():
    shown = as_html("a < b", Table(["name", "size"], [["<script>", 2e6], ["b", 3]]), 5)
    assert "<p style='white-space: pre-wrap'>a &lt; b</p>" in shown
    assert "<td style='text-align: left'>&lt;script&gt;</td>" in shown
    assert "<td style='text-align: right'>2,000,000</td>" in shown
    assert "<script>" not in shown


def test_what_functions_return_shows_itself_in_a_notebook():
    problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(50, 3))
    result = nx.minimize(problem, nx.SMVR(lr=0.1), steps=2_000, batch_size=2)
    sweep = nx.sweep(
        problem,
        lambda s: nx.SMVR(lr=s.lr),
        settings=nx.grid(lr=np.geomspace(1e-3, 1e-2, 12)),
        seeds=2,
        steps=3,
        batch_size=2,
    )
    assert "<td style='text-align: left'>50 rows</td>" in problem._repr_html_()
    assert "with project, linear_oracle" in problem._repr_html_()
    assert "SUCCESS: The run ended as asked." in result._repr_html_()
    assert "<td style='text-align: right'>2,000</td>" in result._repr_html_()
    assert "step=2,000, samples=8,040" in repr(result)
    assert f"{sweep.best('exact_value')['mean']:.6g}" in sweep._repr_html_()
    assert "and 2 other settings" in sweep._repr_html_()
    assert "suggested batch size" in repr(nx.check(problem, draws=32))


def test_cells_of_files_are_no_formulas(tmp_path):
    """A name from somebody's file must not be computed by the program that opens the table."""
    rows = [["=1+1", "-0.5", -0.5], ["@A1", "+x", "plain"]]
    Table(["=name", "a", "b"], rows).to_csv(tmp_path / "table.csv")
    with (tmp_path / "table.csv").open() as file:
        read = list(csv.reader(file))
    assert read == [["'=name", "a", "b"], ["'=1+1", "-0.5", "-0.5"], ["'@A1", "'+x", "plain"]]


@pytest.mark.parametrize("made", ["table", "result", "sweep", "returns"])
def test_without_pandas_the_extra_is_named(monkeypatch, made):
    problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(20, 2))
    things = {
        "table": lambda: Table(["a"], [[1]]),
        "result": lambda: nx.minimize(problem, nx.SMVR(lr=0.1), steps=2, batch_size=2),
        "sweep": lambda: nx.sweep(
            problem,
            lambda s: nx.SMVR(lr=s.lr),
            settings=nx.grid(lr=[0.1]),
            seeds=1,
            steps=2,
            batch_size=2,
        ),
    }
    things["returns"] = lambda: SimpleNamespace(to_frame=Returns(np.ones((2, 1)), ("A",)).frame)
    thing = things[made]()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"needs pandas: pip install 'nestax\[data\]'"):
        thing.to_frame()
