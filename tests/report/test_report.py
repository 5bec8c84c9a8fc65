"""Run folders and their page: complete or not there at all, self-contained, safe to open."""

import csv
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import nestax as nx
from nestax.errors import SettingError
from nestax.report import check_folder, write_run
from nestax.table import Table

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib").use("Agg")

from nestax.figures import plot_curves, plot_weights  # noqa: E402

FILES = {
    "curve.png",
    "curve.svg",
    "environment.json",
    "records.csv",
    "report.html",
    "settings.json",
    "weights.csv",
    "weights.png",
    "weights.svg",
}
GAPS = [0.1, 1 / 3, 1e-17]
VOID = {"meta", "path", "use", "br"}


class Page(HTMLParser):
    """Tags that are open, ids, references to other places, and the text outside of style."""

    def __init__(self, source: str):
        super().__init__()
        self.open, self.ids, self.places, self.words, self.tags = [], [], [], [], set()
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        facts = dict(attrs)
        self.ids += [facts["id"]] if "id" in facts else []
        self.places += [v for k, v in attrs if k in ("src", "href", "xlink:href", "action", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data.strip())


def facts(**changes):
    return {
        "title": "A <title> & more",
        "summary": "The gap is 1e-3.",
        "command": "nestax portfolio 'a file.csv' --risk 0.2",
        "settings": {"risk": 0.2, "seed": 7, "batch_size": 64, "lr": None, "size": np.int64(3)},
        "tables": [("A <caption>", Table(["name", "number"], [["<i>x</i>", 0.25], ["y", 1_000]]))],
        **changes,
    }


def figures():
    curves = {"a & b": np.array([[1e-1, 1e-3, -1e-18]]), "<c>": np.array([[1e-1, 1e-2, 1e-3]])}
    curve = plot_curves(np.arange(3), curves, "gap", unit="percent")
    weights = plot_weights(["$a_{$", "--><script>"], np.array([0.3, 0.7]))
    return [("curve", 'Gap of "two" methods', curve), ("weights", "Weights", weights)]


RECORDS = {
    "records": {"step": np.arange(3), "gap": np.array(GAPS), "level": np.eye(3)[:, :2]},
    "weights": Table(["asset", "weight"], [["a", 0.3]]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "new" / "run"
    assert write_run(out, **facts(figures=figures(), records=RECORDS)) == out / "report.html"
    return out


@pytest.fixture(scope="module")
def page(folder):
    return Page((folder / "report.html").read_text())


def test_a_run_is_a_folder_of_these_files(folder):
    assert {path.name for path in folder.iterdir()} == FILES
    about = json.loads((folder / "settings.json").read_text())
    assert about["settings"] == {"risk": 0.2, "seed": 7, "batch_size": 64, "lr": None, "size": 3}
    assert about["command"] == "nestax portfolio 'a file.csv' --risk 0.2"
    assert (about["status"], about["message"]) == ("SUCCESS", nx.Status.SUCCESS.value)
    made = json.loads((folder / "environment.json").read_text())
    assert made["nestax"] == nx.__version__
    assert made["precision"] == "float64"
    assert set(made) >= {"jax", "numpy", "python", "device", "cores", "made"}


def test_records_lose_no_digit_and_levels_become_columns(folder):
    with (folder / "records.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["step", "gap", "level[0]", "level[1]"]
    assert [int(row["step"]) for row in rows] == [0, 1, 2]
    assert [float(row["gap"]) for row in rows] == GAPS
    assert (folder / "weights.csv").read_text().splitlines() == ["asset,weight", "a,0.3"]


def test_the_page_is_whole_and_needs_nothing_else(folder, page):
    assert page.open == []
    assert not page.tags & {"script", "link", "img", "iframe", "object", "foreignobject"}
    assert all(place.startswith("#") for place in page.places)
    assert len(page.ids) == len(set(page.ids)), "two figures share the name of a part"
    assert {place[1:] for place in page.places} <= set(page.ids)
    source = (folder / "report.html").read_text()
    assert "@import" not in source
    assert "url(" not in source.replace("url(#", "")
    assert source.count("<svg") == 2
    namespaces = set(re.findall(r"https?://[^\s\"'<>]+", source))
    assert all(place.startswith("http://www.w3.org/") for place in namespaces)


def test_words_of_the_user_are_words_on_the_page(page):
    text = " ".join(page.words)
    for words in ("A <title> & more", "A <caption>", "<i>x</i>", 'Gap of "two" methods'):
        assert words in text
    for words in ("The gap is 1e-3.", "nestax portfolio 'a file.csv' --risk 0.2", "batch size", "1,000"):
        assert words in text
    assert not page.tags & {"i", "c", "caption"}


def test_figures_take_the_colours_of_the_page(folder):
    source = (folder / "report.html").read_text()
    inline = source[source.index("<svg") : source.rindex("</svg>")]
    assert "#000000" not in inline
    assert "#ffffff" not in inline
    assert "prefers-color-scheme: dark" in source
    assert "@media print" in source
    assert (folder / "weights.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("status", [nx.Status.NONFINITE, nx.Status.INTERRUPTED])
def test_a_run_that_failed_says_so_on_top(tmp_path, status):
    write_run(tmp_path, **facts(status=status, message="Lower the <rate>."))
    source = (tmp_path / "report.html").read_text()
    alarm = source.index(f"{status.name}: Lower the &lt;rate&gt;.")
    assert source.index("<h1>") < alarm < source.index("The gap is 1e-3.")
    assert json.loads((tmp_path / "settings.json").read_text())["status"] == status.name


def test_a_success_raises_no_alarm(folder):
    assert 'class="alarm"' not in (folder / "report.html").read_text()


def test_nothing_is_written_over_unless_asked_for(tmp_path):
    short = facts(records={"old": {"x": np.ones(2)}})
    write_run(tmp_path / "run", **short)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(
        SettingError, match=r"holds a run already: choose another folder, or .*--overwrite"
    ):
        write_run(tmp_path / "run", **short)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    write_run(tmp_path / "run", **facts(), overwrite=True)
    assert not (tmp_path / "run" / "old.csv").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_files_that_no_run_wrote_are_never_touched(tmp_path, overwrite):
    run = tmp_path / "run"
    write_run(run, **facts())
    (run / "thesis.tex").write_text("years of work")
    with pytest.raises(SettingError, match=r"run holds thesis\.tex, which no run wrote"):
        write_run(run, **facts(), overwrite=overwrite)
    assert (run / "thesis.tex").read_text() == "years of work"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "settings.json").write_text('{"editor": "mine"}')
    with pytest.raises(SettingError, match="which no run wrote"):
        check_folder(tmp_path / "other", overwrite)


class Broken:
    def savefig(self, *args, **kwargs):
        raise RuntimeError("no ink")


@pytest.mark.parametrize("there", [False, True])
def test_a_failure_on_the_way_leaves_no_trace(tmp_path, there):
    """Neither files nor, unless they were there before, folders."""
    if there:
        (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(RuntimeError, match="no ink"):
        write_run(tmp_path / "a" / "b", **facts(figures=[("curve", "", Broken())]))
    assert [path.name for path in tmp_path.rglob("*")] == (["a", "b"] if there else [])


def test_a_failure_leaves_the_earlier_run_as_it_was(tmp_path):
    write_run(tmp_path, **facts())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RuntimeError, match="no ink"):
        write_run(tmp_path, **facts(figures=[("curve", "", Broken())]), overwrite=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_folder_one_stands_in_will_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".nestax-killed").mkdir()  # by a run that was killed while it wrote
    write_run(".", **facts())
    assert (tmp_path / "report.html").exists()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(SettingError, match=r"cannot write to .*: .*file is a file, not a folder"):
            check_folder(folder)


@pytest.mark.parametrize("name", ["report", "a/b", "../a", ""])
def test_names_that_are_no_names_of_files_are_refused(tmp_path, name):
    records = {name: {"x": np.ones(2)}, "report": {"x": np.ones(2)}} if name == "report" else {name: {}}
    figures = [("report", "", Broken()), ("report", "", Broken())] if name == "report" else []
    with pytest.raises(SettingError, match="need plain names that differ"):
        write_run(tmp_path / "run", **facts(figures=figures, records=records))


def test_bars_show_the_largest_weights_and_sum_up_the_rest():
    weights = np.concatenate([np.linspace(0.04, 0.01, 30), np.zeros(5)])
    weights = weights / weights.sum()
    axis = plot_weights([f"asset {k}" for k in range(35)], weights).axes[0]
    labels = [text.get_text() for text in axis.get_yticklabels()]
    lengths = [bar.get_width() for bar in axis.patches]
    assert labels[:2] == ["asset 0", "asset 1"]
    assert labels[-1] == "11 others"
    assert len(labels) == 25
    assert lengths[0] == pytest.approx(100 * weights[0])
    assert sum(lengths) == pytest.approx(100)


def test_gaps_lost_in_rounding_do_not_break_the_band():
    lanes = np.array([[1e-2, 1e-9, -1e-18, 0.0], [2e-2, 2e-9, 3e-15, 1e-17]])
    axis = plot_curves(np.arange(4), {"method": lanes}, "gap").axes[0]
    assert axis.get_yscale() == "log"
    assert axis.get_title() == "method"
    assert (axis.lines[0].get_ydata() >= 1e-16).all()
    corners = axis.collections[0].get_paths()[0].vertices
    assert (corners[:, 1] > 0).all()


def test_what_is_not_set_is_a_dash(tmp_path):
    write_run(tmp_path, **facts(settings={"target": None, "drop": [], "columns": ["a", "b"]}))
    source = (tmp_path / "report.html").read_text()
    assert source.count("<td>–</td>") == 2
    assert "<td>a, b</td>" in source
