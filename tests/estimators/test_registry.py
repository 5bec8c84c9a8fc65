"""The table of methods, references, and the commands that print them."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nestax as nx
from nestax import estimators
from nestax.cli import app
from nestax.estimators import bibliography as references
from nestax.estimators.registry import classes

HOME = Path(inspect.getfile(estimators)).parent


def test_every_file_of_a_method_is_imported_once():
    imports = [
        node.module
        for node in ast.parse((HOME / "__init__.py").read_text()).body
        if isinstance(node, ast.ImportFrom)
    ]
    assert {name.split(".")[-1] for name in imports} == {p.stem for p in HOME.glob("*.py")} - {
        "__init__",
        "registry",
        "bibliography",
        "multilevel",
        "per_block",
    }


def test_every_method_is_in_the_table_and_at_top_level():
    names = nx.methods().column("name")
    assert sorted(names) == sorted(classes())
    assert all(getattr(nx, name) is cls for name, cls in classes().items())
    assert set(names) <= set(nx.__all__)


def test_pages_count_as_the_registry_does():
    root = HOME.parents[2]
    counts = {
        str(page.relative_to(root)): int(number)
        for page in (root / "README.md", *(root / "docs").glob("*.md"))
        for number in re.findall(r"`nx\.methods\(\)` lists (\d+)", page.read_text())
    }
    assert counts == {"README.md": len(classes())}


#: Abstracts: arXiv 1801.03600 has n^(−1/2^K) and n^(−4/(7+K)) for ‖∇F‖², 2008.10526 has ε⁻⁶ and ε⁻⁴.
@pytest.mark.parametrize(
    ("name", "rate", "certainty"),
    [
        ("TSCGD", "ε^-2^(K+1)", "exponents for K > 2 are INFERRED"),
        ("ATSCGD", "ε^-(7+K)/2", "exponents for K > 2 are INFERRED"),
        ("MLNASA", "ε⁻⁶", "as published"),
        ("NLASG", "ε⁻⁴", "as published"),
        ("PMVR", "ε⁻³", 'as published with mode="reuse"; the draws lag by default'),
        ("ProductSMVR", "ε⁻³", "PMVR with averages multiplied and any step; INFERRED"),
        ("AdjointSMVR", "ε⁻³", "an extension of SMVR; INFERRED"),
    ],
)
def test_what_is_said_of_a_method(name, rate, certainty):
    facts = dict(nx.methods(name).rows)
    assert (facts["rate"], facts["certainty"]) == (rate, certainty)


def test_prior_art_is_cited_beside_the_reference(capsys):
    nx.cite("AdjointSMVR")
    entries = capsys.readouterr().out
    assert [line.split("{")[1] for line in entries.splitlines() if line.startswith("@")] == [
        "jiang2022smvr,",
        "gao2024recursive,",
    ]
    assert dict(nx.methods("AdjointSMVR").rows)["reference"] == "jiang2022smvr, gao2024recursive"


def test_one_method_is_a_column_of_the_table():
    everything, one = nx.methods(), nx.methods("nested-spider")
    assert (one.columns, len(one)) == (["name", "NestedSPIDER"], len(everything.columns) - 1)
    row = everything.rows[everything.column("name").index("NestedSPIDER")]
    assert one.column("NestedSPIDER") == row[1:]
    assert str(nx.methods(nx.NestedSPIDER)) == str(one)
    with pytest.raises(nx.SettingError, match="did you mean 'SMVR'"):
        nx.methods("SMRV")


@pytest.mark.parametrize("name", classes())
def test_every_published_method_has_its_reference(name, capsys):
    about = classes()[name].about
    if not about.reference:
        assert name in ("Plain", "Exact")
        with pytest.raises(nx.SettingError, match="nothing to cite"):
            nx.cite(name)
        return
    nx.cite(name)
    entry = capsys.readouterr().out
    assert entry.startswith("@")
    assert f"{{{about.reference}," in entry
    assert all(f"{field}" in entry for field in ("author", "title", "year"))


def test_no_reference_is_left_over():
    used = {key for cls in classes().values() for key in (cls.about.reference, cls.about.also)}
    assert used - {""} == set(references.BIBTEX)


def test_the_page_on_methods_has_the_table():
    page = (HOME.parents[2] / "docs" / "methods.md").read_text()
    assert nx.methods().to_markdown() in page


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["methods"], 0, "NestedSPIDER  any     b, B every q"),
        (["methods", "a-tscgd"], 0, "yang2019tscgd"),
        (["methods", "SMRV"], 2, "did you mean 'SMVR'?"),
        (["cite", "nlasg"], 0, "@article{balasubramanian2022"),
        (["cite", "Plain"], 2, "nothing to cite"),
    ],
)
def test_commands(arguments, code, words):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code
    assert words in result.output
