"""What the site is made of: every page in its place, every example with its figure, links that lead on.

``make docs`` builds it, with warnings as errors; this is what can be told without Sphinx.
"""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import nestax

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("site_pages", DOCS / "site_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Pages


def test_every_page_has_one_line_in_the_index(site):
    named = [page.path for section in site.read_index(DOCS) for page in section.pages]
    assert sorted(path for path in named if "/" not in path) == sorted(
        page.name for page in DOCS.glob("*.md") if page.name != "index.md"
    )
    assert len(set(named)) == len(named)


def test_every_section_is_in_the_navigation(site):
    entries = re.findall(
        r"^   .+ <(?:sections/)?([\w-]+)(?:/index)?>$", (DOCS / "index.rst").read_text(), re.M
    )
    names = [section.name for section in site.read_index(DOCS)]
    assert [{"faq": "questions"}.get(entry, entry) for entry in entries] == names


def test_the_gallery_is_a_link_to_its_folder(site):
    text = site.llms_text(DOCS)
    assert text.startswith("# nestax\n\n> nestax minimises chains of expectations")
    for section in site.read_index(DOCS):
        assert f"\n## {section.title}\n" in text
        assert all(f"[{page.title}](" in text and page.words in text for page in section.pages)
    assert "(gallery/index.html)" in text
    assert "(_sources/project/contributing.md.txt)" in text


@pytest.mark.parametrize(
    ("above", "link", "becomes"),
    [
        ("../", "[a](concepts.md)", "[a](concepts.md)"),
        ("../", "[a](../CONTRIBUTING.md#tests)", "[a](/project/contributing.md#tests)"),
        (
            "../",
            "[a](../src/nestax/loop/step.py)",
            "[a](https://github.com/nestax/nestax/blob/main/src/nestax/loop/step.py)",
        ),
        ("../", "[a](../examples/plot_bias.py)", "[a](/gallery/plot_bias.rst)"),
        ("./", "[a](docs/concepts.md#trackers)", "[a](/concepts.md#trackers)"),
        ("./", "[a](SECURITY.md)", "[a](/project/security.md)"),
        ("./", "[a](#tests) [b](https://x.org)", "[a](#tests) [b](https://x.org)"),
    ],
)
def test_links_stay_in_the_site_where_they_can(site, above, link, becomes):
    assert site.with_links(link, above) == becomes


def test_a_link_that_leads_nowhere_is_told(site, tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="top"><a href="b.html#x"></a><a href="#top"></a><a href="c.html"></a>'
    )
    (tmp_path / "b.html").write_text('<a id="x" href="https://x.org"></a><a href="a.html#nowhere"></a>')
    assert site.broken_links(tmp_path) == [
        "a.html links to c.html, which is not there.",
        "b.html links to a.html#nowhere, and there is no such place.",
    ]


# Names and commands


def read(site, text, value=None):
    lines = text.split("\n")
    site.read_docstring(None, "class", "x", value, None, lines)
    return "\n".join(lines)


def test_docstrings_are_read_as_they_are_meant(site):
    assert read(site, "One |x| of *two*, `a*b`.") == r"One \|x\| of \*two\*, `a*b`."
    assert (
        read(site, "A line.\n\n    u = f(x)\n    v = 2*u")
        == "A line.\n\n::\n\n    u = f(x)\n    v = 2*u"
    )
    assert read(site, "A line.\n\nw, z: weights.\nn: rows,\n    or none.") == (
        "A line.\n\nHolds:\n    w, z: weights.\n    n: rows,\n        or none."
    )
    assert read(site, "A line.\n\nReference: Cox, 1972.") == "A line.\n\nReference: Cox, 1972."


def test_every_name_and_every_method_gets_a_page(site, tmp_path):
    (tmp_path / "reference").mkdir()
    (tmp_path / "method").mkdir()
    methods = site.write_methods(tmp_path)
    pages = {page.stem for page in (tmp_path / "method").iterdir()}
    assert pages >= set(nestax.methods().column("name"))
    listed = site.write_names_of_top(tmp_path)
    for name in nestax.__all__:
        known = name in pages or f"nestax.{name}\n" in listed or name in ("COLUMNS", *site.MODULES)
        assert known, name
    assert "/method/SMVR" in methods
    smvr = (tmp_path / "method" / "SMVR.rst").read_text()
    assert ":cite:`jiang2022smvr`" in smvr
    assert "@inproceedings{jiang2022smvr" in smvr


def test_every_command_gets_a_page_with_its_settings(site):
    from nestax.cli import app

    commands = dict(site.commands_of(app, ("nestax",)))
    assert {("nestax", "demo"), ("nestax", "data", "fetch")} <= set(commands)
    text = site.command_text("nestax portfolio", commands["nestax", "portfolio"])
    assert "$ nestax portfolio RETURNS [OPTIONS]" in text
    assert "``simplex`` or ``box`` or ``budget``" in text
    assert "a whole number from 1" in text
    assert "``--overwrite``" in text
    assert "   * - ``--seed``\n     - a whole number\n     - ``0``" in text


# Examples


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_a_title_a_figure_and_an_end(script):
    text = script.read_text()
    title, line, blank = ast.get_docstring(ast.parse(text), clean=False).strip("\n").split("\n")[:3]
    assert len(line) == len(title)
    assert set(line) == {"="}
    assert blank == ""
    assert f"# sphinx_gallery_thumbnail_path = 'images/gallery/{script.stem}.png'\n" in text
    assert "# **What was learned.**" in text.rsplit("# %%", 1)[1]
    kept = DOCS / "images" / "gallery" / script.stem
    assert kept.with_suffix(".png").stat().st_size < 300_000
    assert kept.with_suffix(".txt").exists()


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_uses_names_that_there_are(script):
    """Running them is what ``make gallery`` does; a name that has moved is found here."""
    used = {
        ast.unparse(node)
        for node in ast.walk(ast.parse(script.read_text()))
        if isinstance(node, ast.Attribute)
    }
    for name in sorted(each for each in used if re.fullmatch(r"nx(\.\w+)+", each)):
        value = nestax
        for part in name.split(".")[1:]:
            if part in ("nnx", "torch"):
                break
            value = getattr(value, part)


def test_there_are_no_kept_figures_of_other_examples():
    kept = {path.stem for path in (DOCS / "images" / "gallery").iterdir()}
    assert kept == {script.stem for script in EXAMPLES}


def test_the_gallery_has_a_place_for_every_example(site):
    assert site.place_in_gallery("plot_bias.py") == 0
    assert sorted(site.GALLERY) == [path.stem.removeprefix("plot_") for path in EXAMPLES]
