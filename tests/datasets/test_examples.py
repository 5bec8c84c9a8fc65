"""Reading examples with classes: columns to leave out, and files in LIBSVM's format."""

import gzip

import numpy as np
import pandas as pd
import pytest

import nestax as nx
from nestax.datasets import read_examples

TABLE = "a,b,name,y\n1,2,Ann,x\n3,4,Bob,z\n"
LINES = "-1 1:0.5 3:2\n+1 2:1e-1\n"


@pytest.fixture
def write(tmp_path):
    def written(content, name="examples"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


def parquet(path):
    pd.DataFrame({"y": ["x", "z"], "a": [1, 3], "b": [2.0, 4.0]}).to_parquet(path)
    return path


def excel(path):
    pytest.importorskip("openpyxl", reason="EXCEL NOT CHECKED: pip install openpyxl")
    pd.DataFrame({"y": ["x", "z"], "a": [1, 3], "b": [2.0, 4.0]}).to_excel(path, index=False)
    return path


@pytest.mark.parametrize("make", [parquet, excel])
def test_other_tables(make, tmp_path):
    found = read_examples(make(tmp_path / "file"), "y")
    np.testing.assert_array_equal(found.X, [[1, 2], [3, 4]])
    assert (found.y.tolist(), found.features) == (["x", "z"], ("a", "b"))


def test_columns_can_be_left_out(write):
    path = write(TABLE)
    with pytest.raises(
        nx.ProblemError,
        match=r"words instead of numbers in column 'name' \(such as 'Ann'\): .*--drop",
    ):
        read_examples(path, "y")
    for drop in ("name", ["name"]):
        found = read_examples(path, "y", drop=drop)
        np.testing.assert_array_equal(found.X, [[1, 2], [3, 4]])
    assert read_examples(path, "y", groups="name").groups.tolist() == ["Ann", "Bob"]
    with pytest.raises(nx.ProblemError, match="has no column 'nam'; did you mean 'name'"):
        read_examples(path, "y", drop="nam")
    # A file to compare on may lack what was left out of the other.
    assert len(read_examples(write("b,y,a\n1,x,2\n"), "y", features=("a", "b"), drop="name")) == 1


def test_all_faults_are_told_at_once(write):
    path = write("a,b,c,name,y\n1,,1e200,Ann,x\n2,3,1,Bob,\n5,q,2,Cem,z\n")
    with pytest.raises(nx.ProblemError) as error:
        read_examples(path, "y")
    told = str(error.value)
    faults = [
        "(1) it holds missing cells at line 3, column 'y'",
        "(2) it holds words instead of numbers in column 'name'",
        "(3) it holds text where numbers belong at line 4, column 'b' ('q')",
        "(4) it holds missing cells at line 2, column 'b'",
        "(5) it holds numbers that are too large to compute with at line 2, column 'c' ('1e200')",
    ]
    assert "has 5 faults" in told
    places = [told.index(words) for words in faults]
    assert places == sorted(places)


def test_a_file_without_names_is_told_so(write):
    with pytest.raises(nx.ProblemError, match="its first line holds numbers and must name the columns"):
        read_examples(write("0.5,1,2\n3,4,1\n"), "6")


def test_a_target_must_be_named_but_in_libsvm_files(write):
    with pytest.raises(nx.SettingError, match=r"needs the name of the column .* there are a, b, name"):
        read_examples(write(TABLE))
    for settings in ({"target": "y"}, {"groups": "y"}):
        with pytest.raises(nx.SettingError, match=r"is in LIBSVM's format, .*: leave out --target and"):
            read_examples(write(LINES), **settings)


@pytest.mark.parametrize("pack", [str.encode, lambda text: gzip.compress(text.encode())])
def test_libsvm_files(write, pack):
    found = read_examples(write(pack(LINES)))
    np.testing.assert_array_equal(found.X, [[0.5, 0, 2], [0, 0.1, 0]])
    assert (found.y.tolist(), found.features) == (["-1", "1"], ("1", "2", "3"))
    assert found.lines.tolist() == [1, 2]
    found = read_examples(write(pack(LINES)), drop="2")
    np.testing.assert_array_equal(found.X, [[0.5, 2], [0, 0]])
    with pytest.raises(nx.ProblemError, match="has no column '4'; there are 1 to 3"):
        read_examples(write(pack(LINES)), drop=["4"])


def test_a_libsvm_file_may_have_other_features_than_were_learnt_from(write):
    found = read_examples(write(LINES), features=("1", "3", "5"))
    np.testing.assert_array_equal(found.X, [[0.5, 2, 0], [0, 0, 0]])


def test_a_libsvm_file_of_numbers_too_large(write):
    with pytest.raises(nx.ProblemError, match="too large to compute with"):
        read_examples(write("1 1:1e200\n2 1:1\n"))
