"""What exists, where it is looked for, and what is said when it cannot be had."""

import sys

import pytest

import nestax as nx
from nestax.datasets.fetching import DATA_SETS, locate

from experiments.cleavage import HIV1

AUSTRALIAN = DATA_SETS["australian"]


def test_the_table_says_what_exists_and_where(machine, tmp_path, monkeypatch):
    table = nx.datasets.available()
    assert table.column("name") == list(DATA_SETS)
    assert len(table) == 8
    assert set(table.column("local copy")) == {"–"}
    industry = dict(zip(table.columns, table.rows[0], strict=True))
    assert (industry["columns"], industry["rows"] > 25_105) == (10, True)
    assert "not redistributable" in industry["terms"]
    assert industry["home"].startswith("https://mba.tuck.dartmouth.edu/")
    (tmp_path / "australian_scale.libsvm.gz").touch()
    monkeypatch.setenv("NESTAX_DATA", str(tmp_path))
    where = dict(zip(table.column("name"), nx.datasets.available().column("local copy"), strict=True))
    assert where["australian"] == str(tmp_path / "australian_scale.libsvm.gz")
    assert where["svmguide1"] == "–"
    monkeypatch.setenv("NESTAX_DATA", str(tmp_path / "typo"))
    with pytest.raises(nx.ProblemError, match=r"NESTAX_DATA names no folder: .*typo\."):
        nx.datasets.available()


def test_fetching_downloads_into_the_cache(machine):
    machine.web[AUSTRALIAN.urls[0]] = b"1 1:2\n"
    (path,) = nx.datasets.fetch("australian")
    assert path == machine.cache / "australian_scale"
    assert path.read_bytes() == b"1 1:2\n"
    machine.web.clear()
    assert nx.datasets.fetch("australian") == [path]
    assert nx.datasets.available().column("local copy")[4] == str(path)


def test_one_sentence_without_a_network(machine):
    with pytest.raises(nx.ProblemError) as error:
        locate(HIV1)
    message = str(error.value)
    assert (
        "cannot be downloaded (ConnectionError): set NESTAX_DATA to a folder with hiv1_1625.csv.gz"
        in message
    )
    assert "or put hiv+1+protease+cleavage.zip from https://archive.ics.uci.edu/" in message
    assert message.count(". ") == 0


def test_one_sentence_without_pooch(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(
        nx.ProblemError, match=r"no copy of australian: pip install 'nestax\[data\]' to download"
    ):
        locate(AUSTRALIAN)
    assert set(nx.datasets.available().column("local copy")) == {"–"}


@pytest.mark.parametrize("name", ["australian", "industry10"])
def test_a_web_page_is_not_kept(machine, name):
    source = DATA_SETS[name]
    machine.web[source.urls[0]] = b"<html>please log in</html>"
    with pytest.raises(
        nx.ProblemError, match=f"did not send {name} but something else: set NESTAX_DATA"
    ):
        nx.datasets.fetch(name)
    assert not (machine.cache / source.originals[0]).exists()


def test_a_typo_is_answered_with_a_name(machine):
    with pytest.raises(
        nx.SettingError, match="no data set is called 'industry-10'; did you mean 'industry10'"
    ):
        nx.datasets.fetch("industry-10")
    with pytest.raises(nx.SettingError, match="there are industry10, industry12"):
        nx.datasets.fetch("omelette")
