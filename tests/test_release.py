"""What files outside of the package repeat from pyproject.toml, and what `.ci/release` refuses."""

import importlib.machinery
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import nestax

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECIPE = (ROOT / "packaging/conda/recipe.yaml").read_text()


@pytest.fixture
def release(monkeypatch, tmp_path):
    """The script `.ci/release`, which has no ending, in a project of its own."""
    loader = importlib.machinery.SourceFileLoader("release", str(ROOT / ".ci/release"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("release", loader))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "CITATION.cff").write_text("version: 0.2.0\n")
    (tmp_path / "README.md").write_text("$ pip install nestax\n")
    return module


def test_versions_agree():
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    packed = re.search(r'^  version: "(.+)"$', RECIPE, re.M)
    shown = re.search(r"^  version = \{(.+)\},$", (ROOT / "docs/citing.md").read_text(), re.M)
    assert cited[1] == packed[1] == shown[1] == nestax.__version__


def test_days_agree():
    """The last release of the changelog is the version of the code, on the day that is cited."""
    cited = re.search(r"^date-released: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    last = re.search(r"^## (\d\S+) – (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert last.groups() == (nestax.__version__, cited[1])


def test_the_recipe_asks_for_what_the_wheel_asks_for():
    lines = RECIPE.partition("\n  run:\n")[2].partition("\ntests:")[0].split("\n")
    found = {line.strip(" -").replace(" ", "") for line in lines if line.strip()}
    assert found == {*PROJECT["dependencies"], f"python{PROJECT['requires-python']}"}


def test_the_matrix_tries_every_python_that_is_promised():
    named = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if ":: 3." in name]
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert re.search(r"python: \[(.+)\]", workflow)[1] == ", ".join(f'"{name}"' for name in named)


@pytest.mark.parametrize(
    ("top", "tag", "sentence"),
    [
        ("0.2.0 – 2026-01-05", "v0.3.0", "the tag is v0.3.0"),
        ("Unreleased", "v0.2.0", "must begin with `## 0.2.0"),
        ("0.1.0 – 2026-01-05", "v0.2.0", "must begin with `## 0.2.0"),
        ("0.2.0 – 9999-01-05", "v0.2.0", "still to come"),
    ],
)
def test_a_release_that_is_not_ready(release, top, tag, sentence):
    (release.ROOT / "CHANGELOG.md").write_text(f"# Changelog\n\n## {top}\n")
    with pytest.raises(SystemExit, match=sentence):
        release.check_versions("0.2.0", tag)


def test_a_release_that_is_ready(release):
    (release.ROOT / "CHANGELOG.md").write_text("# Changelog\n\n## 0.2.0 – 2026-01-05\n")
    release.check_versions("0.2.0", "v0.2.0")
    (release.ROOT / "README.md").write_text("It is not on PyPI yet.\n")
    with pytest.raises(SystemExit, match=r"README\.md says that nestax is not"):
        release.check_versions("0.2.0", "v0.2.0")
    with pytest.raises(SystemExit, match="CITATION"):
        release.check_versions("0.2.1", None)


@pytest.mark.parametrize("name", ["demo/report.html", "nestax/__pycache__/x.pyc", ".venv/bin/python"])
def test_what_no_release_carries(release, tmp_path, name):
    with pytest.raises(SystemExit, match="belongs to no release"):
        release.check_names(tmp_path / "nestax.whl", ["nestax/py.typed", name], ("nestax/py.typed",))
