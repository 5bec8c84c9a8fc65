"""Who may import whom, what importing costs, and how long files are."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import nestax

SOURCE = Path(nestax.__file__).parent
#: A module may import only modules that stand before it.
ORDER = [
    "errors", "table", "references", "theory", "trees", "structure", "jacobian", "tracking", "static",
    "checkpoint", "projections", "linear_oracles", "source", "reading", "stream", "blocks", "level",
    "balls", "problem", "step", "steps", "estimator", "chain", "per_block", "matrix_free",
    "restarting", "convexity", "estimators", "registry", "record", "packing", "cost", "loop",
    "feeding", "progress", "drive", "figure", "result", "fingerprint", "keeping", "tuning",
    "minimizing", "staging", "sweeping", "comparing", "evaluating", "checking", "constants",
    "fetching", "cells", "losses", "tilting", "portfolio", "networks", "tasks", "problems", "rating",
    "datasets", "testing", "windows", "sklearn", "contending", "experiments", "report", "cli",
    "__main__",
]  # fmt: skip
FILES = sorted(SOURCE.rglob("*.py"))


def home(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(path: Path) -> list[str]:
    """Modules of nestax that a file imports, as paths below the package."""
    out = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nestax":
            below = node.module.split(".")[1:]
            out += [".".join([*below, a.name]) if not below else ".".join(below) for a in node.names]
    return out


def test_every_module_has_its_place():
    assert {home(path) for path in FILES} - {"__init__"} == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_arrows_point_one_way(path):
    if home(path) in ("__init__", "cli"):
        return
    for name in imported(path):
        target = name.split(".")[0]
        if target not in ORDER:
            continue
        if target == home(path):
            assert path.name == "__init__.py", f"{path.name} imports its sibling {name}"
        else:
            assert ORDER.index(target) < ORDER.index(home(path)), f"{path.name} imports {name}"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_importing_nestax_imports_neither_jax_nor_anything_heavy():
    heavy = "{'jax', 'optax', 'numpy', 'sklearn', 'matplotlib', 'pandas', 'rich'}"
    assert run(f"import sys, nestax; print({heavy} & set(sys.modules))").strip() == "set()"


def test_using_nestax_imports_no_optional_package():
    optional = "{'sklearn', 'matplotlib', 'pandas', 'pooch', 'pyarrow', 'orbax', 'grain', 'typer'}"
    code = f"import sys, nestax; nestax.minimize, nestax.sweep; print({optional} & set(sys.modules))"
    assert run(code).strip() == "set()"


def test_help_does_not_import_jax():
    code = """
import sys
from typer.testing import CliRunner
from nestax.cli import app
assert CliRunner().invoke(app, ["--help"]).exit_code == 0
assert CliRunner().invoke(app, ["--version"]).output.startswith("nestax ")
assert CliRunner().invoke(app, ["dmeo"]).exit_code == 2
print("jax" in sys.modules)
"""
    assert run(code).strip() == "False"


def test_every_public_name_can_be_reached_in_any_order():
    code = "import nestax; [getattr(nestax, n) for n in nestax.__all__]; print(callable(nestax.sweep))"
    assert run(code).strip() == "True"
    assert run("import nestax; nestax.grid; print(callable(nestax.minimize))").strip() == "True"
    with pytest.raises(AttributeError, match="no attribute 'minimise'; did you mean 'minimize'"):
        _ = nestax.minimise


def test_no_module_has_the_name_of_a_public_function():
    modules = {path.stem for path in FILES}
    assert not modules & set(nestax._HOMES)


@pytest.mark.parametrize("path", sorted((SOURCE / "estimators").glob("*.py")), ids=lambda p: p.stem)
def test_a_method_is_one_short_file(path):
    assert len(path.read_text().splitlines()) <= 130
