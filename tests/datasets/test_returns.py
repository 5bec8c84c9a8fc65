"""Reading somebody's returns: what is understood, and the one sentence about what is not."""

import gzip
import re
import zipfile

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nestax as nx
from nestax.datasets import read_returns

VALUES = [[0.1, -0.2], [0.1, 3.0], [-5.0, 4.0]]
DAYS = np.array(["2020-01-02", "2020-01-03", "2020-01-06"], "datetime64[D]")


def table(form="%Y-%m-%d", name="date"):
    days = [day.strftime(form) for day in DAYS.tolist()]
    return "\n".join(
        [f"{name},a,b", f"{days[0]},0.1,-0.2", f"{days[1]},1e-1,+3", f"{days[2]},-5, 4", ""]
    )


@pytest.fixture
def write(tmp_path):
    def written(content, name="r.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


def same(returns, values=VALUES, days=DAYS, assets=("a", "b")):
    np.testing.assert_array_equal(returns.values, values)
    assert returns.assets == assets
    assert (returns.dates is None) == (days is None)
    if days is not None:
        assert returns.dates.dtype == "datetime64[D]"
        np.testing.assert_array_equal(returns.dates, days)
    return True


@pytest.mark.parametrize(
    "content",
    [
        table(),
        table("%Y%m%d"),
        table("%Y/%m/%d", name=""),
        table(name="when"),
        table("%Y-%m-%dT00:00:00Z"),
        table("%Y-%m-%d 00:00:00.000"),
        "\ufeff" + table().replace("\n", "\r\n"),
        table().replace("\n", "\n\n").replace("date,a,b", ' Date ,"a",b '),
        gzip.compress(table().encode(), mtime=0),
    ],
)
def test_a_table_may_be_written_in_several_ways(write, content):
    assert same(read_returns(write(content, "no_suffix"), unit="percent"))


def test_units_and_prices(write):
    path = write(table())
    fraction = read_returns(path, unit="fraction")
    np.testing.assert_array_equal(fraction.values, 100 * np.array(VALUES))
    prices = read_returns(write("date,a,b\n202001,100,50\n202002,110,25\n202003,99,50\n"), kind="prices")
    np.testing.assert_allclose(prices.values, [[10, -50], [-10, 100]], rtol=1e-14)
    assert prices.dates.astype(str).tolist() == ["2020-02-01", "2020-03-01"]  # of the later price


def test_dates_may_be_absent(write):
    undated = "a,b\n0.1,-0.2\n0.1,3\n-5,4\n"
    assert same(read_returns(write(undated), unit="percent"), days=None)
    numbered = write("a,b\n20200102,0.5\n20200103,0.7\n20200106,0.6\n")
    prices = read_returns(numbered, kind="prices", dates=False)  # dear shares, not days
    assert prices.assets == ("a", "b")
    with pytest.raises(nx.ProblemError, match="dates that cannot be read at line 2, column 'a'"):
        read_returns(write("a,b,c\n1,2,3\n4,5,7\n"), unit="percent", dates=True)


def test_shares_may_be_named_by_digits_beside_dates(write):
    assert same(
        read_returns(write(table().replace("a,b", "7203,005930")), unit="percent"),
        assets=("7203", "005930"),
    )


def test_returns_are_an_array_and_a_frame(write):
    returns = read_returns(write(table()), unit="percent")
    assert np.asarray(returns) is returns.values
    assert np.array(returns) is not returns.values
    assert np.asarray(returns, np.float32).dtype == np.float32
    assert jnp.asarray(returns).shape == returns.shape == (3, 2)
    assert len(returns) == 3
    assert repr(returns) == "Returns(3 rows × 2 assets in percent, 2020-01-02 to 2020-01-06: a, b)"
    assert nx.problems.mean_deviation(returns).w0.shape == (2,)
    frame = returns.frame()
    assert frame.loc["2020-01-06", "b"] == 4
    assert isinstance(frame.index, pd.DatetimeIndex)


def test_parquet_is_read_as_pandas_wrote_it(write, tmp_path):
    frame = pd.DataFrame(VALUES, columns=["a", "b"], index=pd.DatetimeIndex(DAYS))
    for name in (None, "date"):  # the index is stored behind the columns, under a name of its own
        frame.rename_axis(name).to_parquet(tmp_path / "index.parquet")
        assert same(read_returns(tmp_path / "index.parquet", unit="percent"))
    frame.reset_index(drop=True).to_parquet(tmp_path / "plain")
    assert same(read_returns(tmp_path / "plain", unit="percent"), days=None)
    dated = pa.table({"t": pa.array(DAYS), "a": [0.1, 0.1, None], "b": [-1, 3, 4]})
    pq.write_table(dated, tmp_path / "hole.parquet")
    with pytest.raises(nx.ProblemError, match=r"missing cells at row 3, column 'a' \(''\)"):
        read_returns(tmp_path / "hole.parquet", unit="percent")
    pq.write_table(pa.table({"a": [[1.0]], "b": [1.0]}), tmp_path / "nested.parquet")
    with pytest.raises(nx.ProblemError, match="no Parquet table of numbers"):
        read_returns(tmp_path / "nested.parquet", unit="percent")
    with pytest.raises(nx.ProblemError, match="no Parquet table of numbers"):
        read_returns(write(b"PAR1 and nothing else"), unit="percent")


def test_parquet_gives_the_same_bits(tmp_path):
    values = np.random.default_rng(0).standard_t(3, (200, 3)) * 10.0 ** np.arange(-8, 1, 4)
    pd.DataFrame(values, columns=["a", "b", "c"]).to_parquet(tmp_path / "r.parquet")
    np.testing.assert_array_equal(read_returns(tmp_path / "r.parquet", unit="percent").values, values)


def without(package, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)


def test_optional_packages_are_named_when_missing(write, monkeypatch):
    returns = read_returns(write(table()), unit="percent")
    without("pandas", monkeypatch)
    with pytest.raises(ImportError, match="frame needs pandas"):
        returns.frame()
    without("pyarrow", monkeypatch)
    with pytest.raises(nx.ProblemError, match=r"Parquet file: pip install 'nestax\[data\]'"):
        read_returns(write(b"PAR1"), unit="percent")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, 'say what the returns are in: --unit percent, .* unit="percent", unit="fraction" or'),
        ({"unit": "bp"}, "unit must be one of percent, fraction; got 'bp'"),
        ({"unit": ""}, "unit must be one of percent, fraction; got ''"),
        ({"kind": "yields"}, "kind must be one of returns, prices; got 'yields'"),
        ({"kind": "prices", "unit": "percent"}, "prices have none; got 'percent'"),
    ],
)
def test_settings_are_asked_for(write, settings, sentence):
    with pytest.raises(nx.SettingError, match=sentence):
        read_returns(write(table()), **settings)


HEAD = "date,a,b\n2020-01-02,1,2\n"
BAD = {
    "empty": ("", "is empty"),
    "blank": (" \n\n , \n", "is empty"),
    "only names": ("date,a,b\n", "names but no rows"),
    "ragged": (HEAD + "2020-01-03,3\n", "ragged: the first line has 3 cells, but line 3 has 2."),
    "text": (HEAD + "2020-01-03,x,4%\n", "line 3, column 'a' ('x'); line 3, column 'b' ('4%'): correct"),
    "thousands": (
        HEAD + '2020-01-03,"1,000",2\n',
        "text where numbers belong at line 3, column 'a' ('1,000')",
    ),
    "underscores": (
        HEAD + "2020-01-03,1_000,2\n",
        "text where numbers belong at line 3, column 'a' ('1_000')",
    ),
    "NaN column": ("a,b\nNaN,2\nNA,3\n", "has no number in column 'a': leave it out"),
    "missing": (
        HEAD + "\n2020-01-03,,nan\n",
        "missing cells at line 4, column 'a' (''); line 4, column 'b'",
    ),
    "same date": (HEAD + "2020-01-03,1,1\n20200102,4,5\n", "occurred before at line 4, column 'date'"),
    "not sorted": (HEAD + "2020-01-01,3,4\n", "line 2 is 2020-01-02 and line 3 is 2020-01-01; put"),
    "no date": (HEAD + "2020-02-30,3,4\n", "cannot be read at line 3, column 'date' ('2020-02-30')"),
    "hours": (HEAD + "2020-01-02 09:30,3,4\n", "dates that cannot be read"),
    "one asset": ("date,a\n2020-01-02,1\n2020-01-03,2\n", "fewer than 2 assets"),
    "one row": (HEAD, "fewer than 2 rows"),
    "constant": (HEAD + "2020-01-03,1,3\n", "never changes in column 'a': leave it out"),
    "1e300": (
        HEAD + "2020-01-03,1e300,3\n",
        "a million percent or more at line 3, column 'a' ('1e300')",
    ),
    "infinite": (HEAD + "2020-01-03,-inf,3\n", "a million percent or more at line 3"),
    "semicolons": (HEAD.replace(",", ";"), "separated by semicolons: commas are needed"),
    "decimal commas": ("d;a;b\n2020-01-02;1,5;2,5\n", "separated by semicolons"),
    "tabs": (HEAD.replace(",", "\t"), "separated by tabs"),
    "spaces": (HEAD.replace(",", " "), "separated by spaces"),
    "no names": (
        "2020-01-02,1,2\n2020-01-03,3,4\n",
        "has numbers for names, '1'; '2': the first line must name the columns",
    ),
    "only numbers": ("1,2\n3,4\n5,7\n", "has numbers for names, '1'; '2'"),
    "one name twice": ("a,b,a\n1,2,3\n2,3,4\n", "has 2 columns named 'a'"),
    "no name": ("date,a,\n2020-01-02,1,2\n", "has a column without a name"),
    "pandas index": (",a,b\n0,1,2\n1,2,3\n", "dates that cannot be read at line 2, column '' ('0')"),
    "open quote": (HEAD + '2020-01-03,"3,4\n', "no CSV file: line 3, unexpected end of data"),
    "huge line": ("a," + "b" * 200_000, "no CSV file: line 1, field larger than field limit"),
    "huge name": ("a," + "b" * 100_000 + "\n1,2\n1,x\n", f"column '{'b' * 20}…' ('x')"),
    "UTF-16": (HEAD.encode("utf-16"), "is UTF-16 text: save it as UTF-8"),
    "UTF-16 unmarked": (HEAD.encode("utf-16-le"), "line 1 holds a NUL byte"),
    "Latin-1": ((HEAD + "2020-01-03,é,1").encode("latin-1"), "line 3 holds the byte 0xe9"),
    "NUL": (HEAD + "2020-01-03,\0,1", "line 3 holds a NUL byte"),
    "half a gzip": (gzip.compress(HEAD.encode())[:-9], "is a damaged archive"),
    "half a zip": (b"PK\x03\x04 and more", "is a damaged archive"),
}


@pytest.mark.parametrize("name", BAD)
def test_one_sentence_for_a_bad_file(write, name):
    content, sentence = BAD[name]
    path = write(content)
    with pytest.raises(nx.ProblemError, match=re.escape(sentence)) as error:
        read_returns(path, unit="percent")
    message = str(error.value)
    assert str(path) in message
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) - len(str(path)) < 300


def test_bad_cells_are_counted(write):
    rows = "".join(f"x{k},{k}\n" for k in range(1_234))
    mixed = "".join(f"{k if k % 3 else 'x'},{k}\n" for k in range(30))
    with pytest.raises(nx.ProblemError, match=r"line 14, column 'a' \('x'\) and 5 more: correct the"):
        read_returns(write("a,b\n" + mixed), unit="percent")
    with pytest.raises(nx.ProblemError, match=r"line 6 has 3 and 1,229 more\."):
        read_returns(write("a,b\n" + rows.replace(",", ",1,")), unit="percent")
    with pytest.raises(nx.ProblemError, match="never changes in column 'a'; column 'b': leave them out"):
        read_returns(write("a,b,c\n1,2,3\n1,2,4\n"), unit="percent")


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ("0", r"prices that are not positive at line 3, column 'a' \('0'\)"),
        ("-3", "prices that are not positive"),
        ("1e-300", r"a million percent or more at line 4, column 'a' \('1'\)"),
        ("1e300", r"a million percent or more at line 3, column 'a' \('1e300'\)"),
        ("inf", "infinite prices at line 3"),
    ],
)
def test_bad_prices(write, cell, sentence):
    with pytest.raises(nx.ProblemError, match=sentence):
        read_returns(write(f"a,b\n1,2\n{cell},3\n1,2\n"), kind="prices")


def test_an_overflow_is_refused_without_a_warning(write):
    with pytest.raises(nx.ProblemError, match="a million percent"):
        read_returns(write("a,b\n1,2\n1e308,3\n"), unit="fraction")
    with pytest.raises(nx.ProblemError, match="fewer than 2 rows of returns"):
        read_returns(write("a,b\n1,2\n2,3\n"), kind="prices")


def test_what_is_no_file(tmp_path):
    with pytest.raises(nx.ProblemError, match=r"there is no file .*none\.csv\."):
        read_returns(tmp_path / "none.csv", unit="percent")
    with pytest.raises(nx.ProblemError, match="is a folder; give the name of a file in it"):
        read_returns(tmp_path, unit="percent")
    with pytest.raises(nx.ProblemError, match="cannot be read"):
        read_returns("a\0b", unit="percent")


def test_archives_and_workbooks(tmp_path):
    path = tmp_path / "r.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("folder/r.csv", table())
    assert same(read_returns(path, unit="percent"))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other.csv", table())
    with pytest.raises(nx.ProblemError, match="holds 2 files instead of one"):
        read_returns(path, unit="percent")


# Several faults, columns to leave out


def test_all_faults_are_told_at_once(write):
    """Each with its places, fewer of them than if it were alone; nothing that follows from others."""
    rows = [
        "date,a,b,c,name,d,a",
        "2020-01-02,1,2,,Ann,5,1",
        "2020-01-03,x,2,,Bob,5,2",
        "2020-02-30,1e9,,,Cem,5,3",
        "2020-01-03,y,2,,Dan,5,4",
        "2020-01-01,z,1,,Eve,5,5",
        "2020-01-07,3,4",
    ]
    with pytest.raises(nx.ProblemError) as error:
        read_returns(write("\n".join(rows)), unit="percent")
    told = str(error.value)
    faults = [
        "(1) it is ragged: the first line has 7 cells, but line 7 has 3;",
        "(2) it has 2 columns named 'a': rename them;",
        "(3) it holds dates that cannot be read at line 4, column 'date' ('2020-02-30'): write",
        "(4) it holds dates that occurred before at line 5, column 'date' ('2020-01-03'): keep one row",
        "(5) it is not sorted by date: line 3 is 2020-01-03 and line 6 is 2020-01-01; put the oldest",
        "(6) it holds words instead of numbers in column 'a' (such as 'x'); column 'name' (such as",
        ": leave them out (--drop a,name, or drop= in Python)",
        "(7) it has no number in column 'c': leave it out (--drop c,",
        "(8) it holds missing cells at line 4, column 'b' (''): fill them in",
        "(9) it never changes in column 'd': leave it out (--drop d,",
        "(10) it holds returns of a million percent or more at line 4, column 'a' ('1e9'): correct",
    ]
    assert "r.csv has 10 faults: (1) it is ragged" in told
    places = [told.index(words) for words in faults]
    assert places == sorted(places)
    assert len(told) < 1_500


def test_columns_can_be_left_out(write):
    text = table().replace(",", ",note 1,", 1)
    rows = text.splitlines()
    named = "\n".join([rows[0], *(row.replace(",", ",words,", 1) for row in rows[1:])])
    with pytest.raises(nx.ProblemError, match=r"numbers in column 'note 1' .*--drop 'note 1', or drop="):
        read_returns(write(named), unit="percent")
    for drop in ("note 1", ["note 1"]):
        assert same(read_returns(write(named), unit="percent", drop=drop))
    with pytest.raises(nx.ProblemError, match=r"has no column 'note'; did you mean 'note 1'\?"):
        read_returns(write(named), unit="percent", drop="note")


def test_words_above_a_table_are_not_called_spaces(write):
    """A title over an ordinary table is not the library's layout, and commas do separate its cells."""
    with pytest.raises(nx.ProblemError, match="ragged: the first line has 1 cells, but line 2 has 3"):
        read_returns(write("My returns of two\n" + table()), unit="percent")


# Excel


def workbook(path, **sheets):
    pytest.importorskip("openpyxl", reason="EXCEL NOT CHECKED: pip install openpyxl")
    with pd.ExcelWriter(path) as writer:
        for name, frame in sheets.items():
            frame.to_excel(writer, sheet_name=name)
    return path


def test_a_workbook_with_one_sheet_is_read(tmp_path):
    frame = pd.DataFrame(VALUES, columns=["a", "b"], index=pd.DatetimeIndex(DAYS, name="date"))
    path = workbook(tmp_path / "r.xlsx", first=frame, empty=pd.DataFrame())
    assert same(read_returns(path, unit="percent"))
    (tmp_path / "packed").write_bytes(gzip.compress(path.read_bytes()))
    assert same(read_returns(tmp_path / "packed", unit="percent"))
    frame.iloc[1, 0] = np.nan
    path = workbook(tmp_path / "hole.xlsx", first=frame)
    with pytest.raises(nx.ProblemError, match=r"missing cells at row 3, column 'a' \(''\)"):
        read_returns(path, unit="percent")
    path = workbook(tmp_path / "two.xlsx", first=frame, second=frame)
    with pytest.raises(nx.ProblemError, match="holds 2 sheets, first, second: save the one that counts"):
        read_returns(path, unit="percent")
    path.write_bytes(path.read_bytes()[:-300] + b"x" * 300)
    with pytest.raises(nx.ProblemError, match="is a damaged"):
        read_returns(path, unit="percent")


def test_a_workbook_needs_packages(tmp_path, monkeypatch):
    path = tmp_path / "r.xlsx"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("xl/workbook.xml", "")
    without("pandas", monkeypatch)
    with pytest.raises(
        nx.ProblemError, match="Excel workbook: pip install pandas openpyxl to read it, or"
    ):
        read_returns(path, unit="percent")
    path.write_bytes(b"\xd0\xcf\x11\xe0 of 1997")
    with pytest.raises(
        nx.ProblemError, match="Excel workbook: pip install pandas xlrd to read it, or save"
    ):
        read_returns(path, unit="percent")
    with pytest.raises(nx.ProblemError, match="is an Excel workbook: save it as CSV"):
        nx.datasets.libsvm(path)


@pytest.mark.parametrize("kind", ["returns", "prices"])
def test_rows_with_a_missing_cell_are_left_out_if_asked_for(write, kind):
    """Of prices the next return spans the row that is gone; words are refused as ever."""
    path = write(
        "date,a,b\n2020-01-02,1,2\n2020-01-03,2, \n2020-01-06,4,1\n"
        ",5,3\n2020-01-07,2,NA\n2020-01-08,8,2\n"
    )
    more = {"unit": "percent"} if kind == "returns" else {"kind": "prices"}
    with pytest.raises(nx.ProblemError, match=r"or rows \(--drop-missing; drop_missing=True in"):
        read_returns(path, **more)
    returns = read_returns(path, drop_missing=True, **more)
    assert returns.dropped == 3
    values = [[1, 2], [4, 1], [8, 2]] if kind == "returns" else [[300, -50], [100, 100]]
    days = np.array(["2020-01-02", "2020-01-06", "2020-01-08"], "datetime64[D]")
    same(returns, values, days[-len(values) :])
    path = write("a,b\n1,\n,2\n")
    with pytest.raises(nx.ProblemError, match="has no row without a missing cell"):
        read_returns(path, unit="percent", drop_missing=True)
    path = write("a,b\n1,2\nx,2\n3,1\n")
    with pytest.raises(nx.ProblemError, match="text where numbers belong at line 3"):
        read_returns(path, unit="percent", drop_missing=True)


@pytest.mark.parametrize(
    ("step", "rows", "each"),
    [(1, 300, 365), (7, 60, 52), (30.4375, 40, 12), (1.45, 400, 252), (3, 99, None)],
)
def test_dates_tell_how_many_rows_a_year_has(step, rows, each):
    days = np.datetime64("2020-01-01") + (np.arange(rows) * step).astype(int)
    table = nx.datasets.Returns(np.zeros((rows, 1)), ("A",), days)
    assert table.rows_per_year == (pytest.approx(365.25 / 3, rel=1e-3) if each is None else each)
    assert nx.datasets.Returns(np.zeros((rows, 1)), ("A",)).rows_per_year is None
    assert nx.datasets.Returns(np.zeros((5, 1)), ("A",), days[[0] * 5]).rows_per_year is None
