"""Every table of results in the docs stands where a program writes it, and says what that wrote."""

import importlib
import json
import math
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BENCHMARKS = ROOT / "benchmarks"
RESULTS = (
    "rates",
    "comparison",
    "portfolios",
    "tilted-results",
    "meta-learning",
    "paper-claims",
    "memory",
    "tracked-results",
    "speed",
)
MARKER = re.compile(r"<!-- (.+): (begin|end) -->")
#: What is measured; a whole number may be one of levels.
MEASURED = re.compile(r"[-+]?[\d,]*(\.\d+|\d+(?=e|%| %| ±| s| ms))(e[-+]?\d+)?( ± .*)?( ?%| s| ms)?")


def tables_outside(text: str) -> list[str]:
    """First lines of tables that no program writes. One with an empty head states what was chosen."""
    found = []
    inside = None
    before = ""
    for line in text.splitlines():
        marker = MARKER.fullmatch(line)
        if marker:
            name, end = marker.groups()
            assert (inside is None) == (end == "begin"), line
            assert end == "begin" or name == inside, line
            inside = name if end == "begin" else None
        first = line.startswith("|") and not before.startswith("|")
        if first and inside is None and line.strip("| "):
            found.append(line)
        before = line
    assert inside is None
    return found


@pytest.mark.parametrize("name", RESULTS)
def test_programs_write_the_tables_of_results(name):
    text = (ROOT / "docs" / f"{name}.md").read_text()
    assert tables_outside(text) == []
    programs = [path.read_text() for path in BENCHMARKS.glob("*.py")]
    assert any(f'"{name}.md"' in program for program in programs)


def test_a_table_without_markers_is_found():
    text = "| | |\n|---|---|\n| rows | all |\n\n<!-- a: begin -->\n| x |\n<!-- a: end -->\n"
    assert tables_outside(text) == []
    assert tables_outside(f"{text}\n| method | gap |\n|---|---|\n") == ["| method | gap |"]
    with pytest.raises(AssertionError):
        tables_outside(text.replace("a: end", "b: end"))


def measured_outside(text: str) -> list[str]:
    """Rows with a measured number that no program writes."""
    parts = re.split(r"<!-- .+: (?:begin|end) -->\n|^```.*\n", text, flags=re.M)
    rows = [line for part in parts[::2] for line in part.splitlines() if line.startswith("|")]
    cells = lambda row: [cell.strip(" *") for cell in row.strip("|").split(" | ")]
    return [row for row in rows if any(map(MEASURED.fullmatch, cells(row)))]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *(ROOT / "docs").glob("*.md")], ids=lambda p: p.stem
)
def test_no_other_page_has_measured_numbers_of_its_own(page):
    assert measured_outside(page.read_text()) == []


@pytest.mark.parametrize(
    "cell", ["0.5", "1,234.5", "3e-2", "75.5 %", "+4.02 ± 0.69", "**1.5e-4 ± 3e-5**", "12 s"]
)
def test_a_measured_number_is_found(cell):
    chosen = "| rows | 1,000 |\n| levels | 2 |\n"
    kept = f"<!-- a: begin -->\n| a | {cell} |\n<!-- a: end -->\n```text\n| a | {cell} |\n```\n"
    assert measured_outside(chosen + kept) == []
    assert measured_outside(f"{kept}{chosen}| a | {cell} |\n") == [f"| a | {cell} |"]


@pytest.fixture
def program(monkeypatch):
    """Imports a program of the folder, as Python does that is given its file."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["program"])
    return importlib.import_module


def on_page(page: str, part: str) -> str:
    text = (ROOT / "docs" / page).read_text()
    return text.split(f"<!-- {part}: begin -->\n")[1].split(f"\n<!-- {part}: end -->")[0]


def kept(name: str) -> dict:
    return json.loads((BENCHMARKS / "results" / name).read_text())


def test_the_page_of_rates_shows_what_is_kept(program):
    complexity = program("complexity")
    cells = complexity.read(BENCHMARKS / "results" / "complexity.json")
    for family in ("symmetric", "asymmetric", complexity.ZERO):
        assert on_page("rates.md", family) == complexity.table(cells, family)


def test_only_a_search_that_ended_short_of_an_accuracy_says_where_it_stopped(program):
    complexity = program("complexity")
    point = lambda samples, steps: complexity.Point(0.2, samples, (1.0,), 1, 1, True, 0.25, steps)
    assert complexity.stop(point(math.inf, 0)) == "0.25 at ε = 0.2"
    assert complexity.stop(point(math.inf, 16)) == complexity.stop(point(100.0, 16)) == "–"
    assert complexity.beside([point(math.inf, 16)], {0.2: point(50.0, 16)}) == "–"
    assert complexity.beside([point(100.0, 16)], {0.2: point(50.0, 16)}) == "2 (1 to 1) at 0.2"


def test_the_page_of_portfolios_shows_what_is_kept(program):
    figures = program("portfolio_figures")
    for name, table in figures.tables(kept("portfolio_figures.json")).items():
        assert on_page("portfolios.md", name) == table.to_markdown()


def test_the_page_of_estimators_shows_what_is_kept(program):
    table = program("portfolio_estimator").table(kept("portfolio_estimator.json"))
    assert on_page("scikit-learn.md", "portfolio") == table.to_markdown()


def test_the_page_of_speed_shows_what_is_kept(program):
    tables = program("speed_tables").tables(kept("cpu.json"), kept("gpu.json"))
    for name, table in tables.items():
        assert on_page("speed.md", name) == table.to_markdown()


def test_the_noise_of_tilted_classifiers_is_what_is_kept(program):
    assert on_page("tilted-results.md", "noise") == program("tilted_noise").page().to_markdown()
