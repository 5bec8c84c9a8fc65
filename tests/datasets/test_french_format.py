"""Files in the layout of the Kenneth R. French data library, with numbers that are made up."""

import numpy as np
import pytest

import nestax as nx
from nestax.datasets import read_returns
from nestax.datasets.french_format import french_tables

TOP = """This file was created by A_PROGRAM using the 202601 database, and holds value-weighted returns.

Missing data are indicated by -99.99 or -999.


"""
MONTHLY = """  Average Value Weighted Returns -- Monthly
,Food ,Cars,Ships
192607,   1.45,  15.55,   4.69
192608,   3.97,   3.68,   2.81
192609, -99.99,   4.80,   1.15
192610,  -1.24,  -8.23,-999
192611,   5.20,  -0.19,   4.37

  Average Equal Weighted Returns -- Monthly
,Food ,Cars,Ships
192607,   9.45,   9.55,   9.69
192608,   8.97,   8.68,   8.81

  Average Value Weighted Returns -- Annual
,Food ,Cars,Ships
  1927,  29.47,  -2.04,  -4.54
  1928,  35.39,   4.22,  -6.17

Copyright 2026 Eugene F. Fama and Kenneth R. French
"""
VALUES = [[1.45, 15.55, 4.69], [3.97, 3.68, 2.81], [5.20, -0.19, 4.37]]


def written(tmp_path, text):
    path = tmp_path / "library.csv"
    path.write_bytes(text.replace("\n", "\r\n").encode())
    return path


def spaced(text):
    """As the library's files of plain text have it: cells padded to a width, without commas."""
    return "\n".join(
        "".join(f"{cell.strip():>9}" for cell in line.split(",")) if "," in line else line
        for line in text.split("\n")
    )


@pytest.mark.parametrize("body", [MONTHLY, spaced(MONTHLY)], ids=["commas", "spaces"])
def test_the_first_table_is_read_without_rows_that_are_unknown(tmp_path, body):
    returns = read_returns(written(tmp_path, TOP + body))
    np.testing.assert_array_equal(returns.values, VALUES)
    assert returns.assets == ("Food", "Cars", "Ships")
    assert returns.dates.astype(str).tolist() == ["1926-07-01", "1926-08-01", "1926-11-01"]
    assert (returns.dropped, returns.table) == (2, "Average Value Weighted Returns -- Monthly")


def test_every_table_is_found_and_years_are_dates(tmp_path):
    assert [(table.title[-24:], table.first) for table in french_tables(TOP + MONTHLY)] == [
        ("ghted Returns -- Monthly", 7),
        ("ghted Returns -- Monthly", 15),
        ("ighted Returns -- Annual", 20),
    ]
    annual = TOP + MONTHLY[MONTHLY.index("  Average Value Weighted Returns -- Annual") :]
    returns = read_returns(written(tmp_path, annual))
    assert returns.dates.astype(str).tolist() == ["1927-01-01", "1928-01-01"]
    np.testing.assert_array_equal(returns.values[:, 0], [29.47, 35.39])


def test_factors_without_a_title(tmp_path):
    text = TOP + ",Mkt-RF,SMB,HML\n20200102,1.0,2.0,3.0\n20200103,2.0,1.0,0.0\n\n Annual: January\n"
    returns = read_returns(written(tmp_path, text), unit="percent")
    assert (returns.assets, returns.table, len(returns)) == (("Mkt-RF", "SMB", "HML"), "", 2)


def test_faults_have_the_lines_of_the_file(tmp_path):
    text = TOP + MONTHLY.replace("   3.68", "   oops").replace("192611", "1926x1")
    with pytest.raises(nx.ProblemError) as error:
        read_returns(written(tmp_path, text))
    assert "cannot be read at line 12, column '' ('1926x1')" in str(error.value)
    assert "text where numbers belong at line 9, column 'Cars' ('oops')" in str(error.value)


def test_its_unit_is_known(tmp_path):
    path = written(tmp_path, TOP + MONTHLY)
    for settings in ({"unit": "fraction"}, {"kind": "prices"}):
        with pytest.raises(
            nx.SettingError, match="is returns in percent: leave out --unit and --prices"
        ):
            read_returns(path, **settings)
    body = MONTHLY[: MONTHLY.index("Copyright")]  # no word of the library left: the layout tells no unit
    path = written(tmp_path, "Returns of mine\n\n" + body)
    with pytest.raises(nx.SettingError, match="say what the returns are in"):
        read_returns(path)
    np.testing.assert_allclose(read_returns(path, unit="fraction").values, 100 * np.array(VALUES))


def test_columns_that_are_mostly_unknown_can_be_left_out(tmp_path):
    path = written(
        tmp_path,
        TOP + MONTHLY.replace("1.45", "-99.99").replace("3.97", "-999").replace("5.20", "-99.99"),
    )
    with pytest.raises(
        nx.ProblemError,
        match=r"no row in which every return is known, mostly for Food: .*--drop Food,",
    ):
        read_returns(path)
    assert read_returns(path, drop="Food").dropped == 1


def test_an_ordinary_table_is_not_taken_for_one(tmp_path):
    """Without words above the names, a return of −99.99 percent is a return."""
    path = written(tmp_path, ",a,b\n20200102,-99.99,2\n20200103,1,3\n")
    assert french_tables(path.read_text()) == []
    assert read_returns(path, unit="percent").values[0, 0] == -99.99
