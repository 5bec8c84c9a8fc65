"""The table of methods, references, and the commands that print them."""

import ast
import inspect
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
        "per_block",
    }


def test_every_method_is_in_the_table_and_at_top_level():
    names = nx.methods().column("name")
    assert sorted(names) == sorted(classes())
    assert all(getattr(nx, name) is cls for name, cls in classes().items())
    assert set(names) <= set(nx.__all__)
    assert len(names) >= 31


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
    assert {cls.about.reference for cls in classes().values()} - {""} == set(references.BIBTEX)


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
