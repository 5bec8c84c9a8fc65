"""Industry returns: the file as the library has it, the compact copy, and where they are looked for."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

import nestax as nx
from nestax.datasets import industry
from nestax.datasets.fetching import DATA_SETS

NAMES = ",".join(f"Ind{k:02d}" for k in range(10))


def row(day, *start):
    """A line as the library writes it: padded numbers with two decimals."""
    numbers = [*start, *np.arange(len(start), 10) / 4 - 1]
    return ",".join([day, *(f"{x:7.2f}" for x in numbers)])


ORIGINAL = "\r\n".join(
    [
        "This file was created by a program using the 202605 database.",
        "It contains value- and equal-weighted returns for 10 industry portfolios.",
        "",
        "Missing data are indicated by -99.99 or -999.",
        "",
        "  Average Value Weighted Returns -- Daily",
        "," + NAMES.replace("Ind07", "Ind07 "),
        row("19260701", 0.5, -2),
        row("19260702", -99.99),
        row("19260706", 1.5, 2),
        row("19260707", 2.5, -999),
        row("19260708", 3.5, 2),
        "",
        "  Average Equal Weighted Returns -- Daily",
        "," + NAMES,
        row("19260701", 7, 7),
        row("19260702", 8, 8),
        "",
        "Copyright 2026 Eugene F. Fama and Kenneth R. French",
        "",
    ]
)
COMPACT = "\n".join(
    ["date," + NAMES, row("19260701", 0.5, -2).replace(" ", ""), row("19260702", -99.99)]
)


def archive(text):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("10_Industry_Portfolios_Daily.csv", text)
    return out.getvalue()


def test_the_original_is_downloaded_once(machine):
    source = DATA_SETS["industry10"]
    machine.web[source.urls[0]] = archive(ORIGINAL)
    returns = industry(10)
    assert (machine.cache / "10_Industry_Portfolios_daily_CSV.zip").exists()
    machine.web.clear()
    for again in (returns, industry(10), industry(10, path=machine.cache)):
        np.testing.assert_array_equal(again.values[:, 0], [0.5, 1.5, 3.5])
        np.testing.assert_array_equal(again.values[0, 1:], [-2, *np.arange(2, 10) / 4 - 1])
        assert again.dates.astype(str).tolist() == ["1926-07-01", "1926-07-06", "1926-07-08"]
        assert again.assets == tuple(NAMES.split(","))
        assert again.dropped == 2
    assert "3 rows × 10 assets in percent, 1926-07-01 to 1926-07-08, 2 rows dropped" in repr(returns)


def test_rows_are_the_first(machine, tmp_path):
    (tmp_path / "unpacked.csv").write_text(ORIGINAL)
    returns = industry(10, path=tmp_path / "unpacked.csv", rows=2)
    assert len(returns) == len(returns.dates) == 2
    with pytest.raises(nx.SettingError, match=r"rows must be at most 3, which .* holds; got 4"):
        industry(10, path=tmp_path / "unpacked.csv", rows=4)
    with pytest.raises(nx.SettingError, match="rows must be a whole number of at least 1"):
        industry(10, path=tmp_path / "unpacked.csv", rows=0)


def test_a_folder_of_copies_comes_first(machine, tmp_path, monkeypatch):
    machine.web[DATA_SETS["industry10"].urls[0]] = archive(ORIGINAL)
    industry(10)
    folder = tmp_path / "copies"
    folder.mkdir()
    (folder / "industry10_daily.csv.gz").write_text(COMPACT)
    monkeypatch.setenv("NESTAX_DATA", str(folder))
    assert (len(industry(10)), industry(10).dropped) == (1, 1)
    (folder / "industry10_daily.csv.gz").unlink()
    assert len(industry(10)) == 3
    with pytest.raises(
        nx.ProblemError, match="copies holds no copy of industry10: it needs industry10_daily"
    ):
        industry(10, path=folder)


def test_one_sentence_for_what_is_no_industry_file(machine, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(ORIGINAL.replace("Daily", "Monthly"))
    with pytest.raises(
        nx.ProblemError, match="holds no table 'Average Value Weighted Returns -- Daily'"
    ):
        industry(10, path=path)
    path.write_text(ORIGINAL)
    with pytest.raises(nx.ProblemError, match="holds 10 industries instead of 12"):
        industry(12, path=path)
    path.write_text(ORIGINAL.replace("   1.50", "    abc"))
    with pytest.raises(nx.ProblemError, match=r"text where numbers belong at line 10, column 'Ind00'"):
        industry(10, path=path)
    path.write_text(ORIGINAL.replace("   1.50", "  1e300"))
    with pytest.raises(nx.ProblemError, match=r"a million percent or more at line 10"):
        industry(10, path=path)
    path.write_text("date," + NAMES + "\n" + row("19260701", -99.99))
    with pytest.raises(
        nx.ProblemError, match=r"has no row in which every return is known, mostly for Ind00: leave"
    ):
        industry(10, path=path)
    path.write_text(ORIGINAL[: ORIGINAL.index("19260701")])
    with pytest.raises(nx.ProblemError, match="holds no table 'Average Value"):
        industry(10, path=path)
    path.write_text("Average Value Weighted Returns -- Daily")
    with pytest.raises(nx.ProblemError, match="holds no table"):
        industry(10, path=path)
    with pytest.raises(nx.SettingError, match="count must be one of 10, 12, 17, 30; got 11"):
        industry(11)


FOLDER = os.environ.get("NESTAX_DATA")


@pytest.mark.data
@pytest.mark.skipif(
    FOLDER is None or not (Path(FOLDER) / "industry30_daily.csv.gz").exists(),
    reason="REAL DATA NOT CHECKED: set NESTAX_DATA to the folder of industry30_daily.csv.gz",
)
@pytest.mark.parametrize("count", [10, 12, 17, 30])
def test_the_sample_of_the_paper(count):
    returns = industry(count, rows=25_105)
    plain = np.loadtxt(Path(FOLDER) / f"industry{count}_daily.csv.gz", delimiter=",", skiprows=1)[
        :25_105
    ]
    np.testing.assert_array_equal(returns.values, plain[:, 1:])
    assert [str(returns.dates[k]) for k in (0, -1)] == ["1926-07-01", "2021-10-29"]
    assert returns.dropped == 0
