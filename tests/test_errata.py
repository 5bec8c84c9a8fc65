"""Every erratum that nestax does something about has a test; most live with what they test."""

import ast
from pathlib import Path

import pytest
from tests.support.cases import noisy

import nestax as nx
from nestax.loop.plan import draw_sizes

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "errata.md"


def rows() -> dict[str, str]:
    """What the page says that nestax does, by the number of the erratum."""
    cells = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| E")]
    return {row[0].strip("| "): row[-1].strip("| ") for row in cells}


def marked(path: Path) -> set[str]:
    """Every erratum that a test of this file is marked with."""
    marks = [
        decorator
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.erratum"
    ]
    return {ast.literal_eval(name) for mark in marks for name in mark.args}


def test_every_erratum_has_a_test_unless_there_is_nothing_to_do():
    listed = rows()
    assert list(listed) == [f"E{n}" for n in range(1, len(listed) + 1)]
    tested = set().union(*(marked(path) for path in HERE.rglob("test_*.py")))
    nothing = {name for name, does in listed.items() if does.startswith("Nothing ")}
    assert tested == set(listed) - nothing
    assert nothing == {"E8", "E15", "E21"}


@pytest.mark.erratum("E7", "E24")
def test_a_run_starts_from_ten_batches_and_counts_draws_of_all_levels():
    problem = noisy("three_levels").problem
    sizes, first = draw_sizes(problem, 4, None)
    assert first == tuple(10 * size for size in sizes) == (40, 40, 40)
    run = nx.minimize(problem, nx.SMVR(0.1, lr=0.01), steps=5, batch_size=4, record_every=5)
    assert run.records["samples"][-1] == 3 * (40 + 5 * 4)


@pytest.mark.erratum("E23")
def test_scgd_and_its_accelerated_form_have_their_own_rates():
    table = nx.methods()
    rate = dict(zip(table.column("name"), table.column("rate"), strict=True))
    assert (rate["SCGD"], rate["ASCGD"]) == ("ε⁻⁸", "ε⁻⁷")
