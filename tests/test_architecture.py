"""Who may import whom, what importing costs, and how long the file of a method is."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nestax

SOURCE = Path(nestax.__file__).parent
#: The house. A place imports only from places before it, and freely within itself.
HOUSE = [
    "version",
    "compiling",
    "errors",
    "stop",
    "trees",
    "convolutions",
    "programs",
    "table",
    "figures",
    "projections",
    "linear_oracles",
    "draws",
    "chain",
    "problems",
    "parts",
    "losses",
    "theory",
    "steps",
    "estimators",
    "devices",
    "streams",
    "loop",
    "checkpoints",
    "run",
    "study",
    "testing",
    "datasets",
    "sklearn",
    "equinox",
    "nnx",
    "torch",
    "report",
    "cli",
    "names",
]
#: Here one file is one method or one step rule, which knows none of its siblings.
APART = ("estimators", "steps")
#: Modules of those places that list what is there.
LISTS = ("__init__", "registry")
FILES = sorted(SOURCE.rglob("*.py"))


def home(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(code: str) -> set[str]:
    """Modules of nestax that a file imports, wherever in it, as paths below the package."""
    out = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            out |= (
                {f"{node.module}.{a.name}" for a in node.names}
                if node.module == "nestax"
                else {node.module}
            )
    return {name.removeprefix("nestax").lstrip(".") for name in out if name.split(".")[0] == "nestax"}


def forbidden(place: str, module: str, code: str) -> list[str]:
    """What a module of some place imports and should not."""
    known = HOUSE[: HOUSE.index(place)]
    wrong = []
    for name in imported(code):
        target, _, rest = name.partition(".")
        sibling = target == place and place in APART and module not in LISTS and rest
        if (target != place and target not in known) or sibling:
            wrong.append(name or "nestax itself")
    return wrong


def test_every_file_has_its_place():
    assert {home(path) for path in FILES} == {*HOUSE, "__init__", "__main__"}


def test_nothing_in_the_library_imports_what_lies_beside_it():
    beside = re.compile(r"^\s*(from|import) (experiments|benchmarks|tests)\b", re.M)
    assert not [path for path in FILES if beside.search(path.read_text())]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_arrows_point_one_way(path):
    if home(path) in HOUSE:  # the rest only hands names on
        assert not forbidden(home(path), path.stem, path.read_text())


@pytest.mark.parametrize(
    ("place", "module", "code"),
    [
        ("estimators", "smvr", "from nestax.checkpoints.folder import Folder"),
        ("estimators", "smvr", "from nestax.estimators.scsc import SCSC"),
        ("loop", "step", "def f():\n    import nestax.run.minimize"),
        ("cli", "demo", "def f():\n    import nestax as nx"),
        ("chain", "problem", "from nestax import names"),
        ("draws", "source", "from nestax.devices.rows import Sharded"),
        ("chain", "level", "from nestax.devices.rows import Sharded"),
        ("parts", "tables", "from nestax.devices.rows import Sharded"),
    ],
)
def test_a_forbidden_import_is_seen(place, module, code):
    assert forbidden(place, module, code)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_importing_nestax_imports_neither_jax_nor_anything_heavy():
    heavy = "{'jax', 'optax', 'numpy', 'sklearn', 'matplotlib', 'pandas', 'rich'}"
    assert run(f"import sys, nestax; print({heavy} & set(sys.modules))").strip() == "set()"


def test_using_nestax_imports_no_optional_package():
    optional = (
        "{'sklearn', 'matplotlib', 'pandas', 'pooch', 'pyarrow', 'orbax', 'grain', 'flax', 'torch'}"
    )
    code = f"import sys, nestax; nestax.minimize, nestax.sweep; print({optional} & set(sys.modules))"
    assert run(code).strip() == "set()"


@pytest.mark.parametrize(
    ("package", "module", "sentence"),
    [
        ("torch", "torch", "nestax.torch needs PyTorch: pip install 'nestax[torch]'."),
        ("flax", "nnx", "nestax.nnx needs Flax: pip install 'nestax[flax]'."),
    ],
)
def test_a_missing_package_is_named(package, module, sentence):
    code = f"import sys; sys.modules[{package!r}] = None\nimport nestax\ntry:\n    nestax.{module}"
    assert run(f"{code}\nexcept ImportError as error:\n    print(error)").strip() == sentence


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


def test_importing_starts_no_device():
    """A process that has imported nestax can still be forked, and x64 can still be switched on."""
    code = """
import pkgutil
import nestax
from jax._src import xla_bridge
for name in nestax.__all__:
    getattr(nestax, name)
for package in (nestax.steps, nestax.problems, nestax.datasets, nestax.estimators):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        __import__(module.name)
print(list(xla_bridge._backends))
"""
    assert run(code).strip() == "[]"


def test_every_public_name_can_be_reached_in_any_order():
    code = "import nestax; [getattr(nestax, n) for n in nestax.__all__]; print(callable(nestax.sweep))"
    assert run(code).strip() == "True"
    assert run("import nestax; nestax.grid; print(callable(nestax.minimize))").strip() == "True"
    assert run("from nestax import minimize, trees; print(callable(minimize))").strip() == "True"
    with pytest.raises(AttributeError, match="no attribute 'minimise'; did you mean 'minimize'"):
        _ = nestax.minimise


@pytest.mark.parametrize("module", ["chain.level", "parts.estimator", "run.minimize", "cli", "names"])
def test_any_module_can_be_the_first(module):
    run(f"import nestax.{module}")


@pytest.mark.parametrize("path", sorted((SOURCE / "estimators").glob("*.py")), ids=lambda p: p.stem)
def test_a_method_is_one_short_file(path):
    if path.stem != "bibliography":
        assert len(path.read_text().splitlines()) <= 140
