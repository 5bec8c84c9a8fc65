"""Every block of Python in the README and the docs runs, in order, in an empty folder."""

import re
import sys
import textwrap
import types
from pathlib import Path

import jax
import pytest

import nestax

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))  # folders in there are written by `make docs`
PAGES = [README, *DOCS]


def marks_of(page: Path) -> list[pytest.MarkDecorator]:
    """Equal bits are a promise about programs as users compile them, and about no others."""
    return [pytest.mark.page, *[pytest.mark.bits] * ("array_equal" in page.read_text())]


def run_blocks(page: Path, space: dict, mark: str = "") -> int:
    """Runs the blocks of Python with that mark behind the word, in order; how many there are."""
    text = page.read_text()
    blocks = list(re.finditer(rf"^```python{mark}\n(.*?)^```", text, re.M | re.S))
    with jax.enable_x64(False):  # as a reader has it
        for match in blocks:
            line = text[: match.start()].count("\n") + 1
            exec(compile("\n" * line + match.group(1), str(page), "exec"), space)
    return len(blocks)


@pytest.mark.parametrize(
    "page",
    [README, *(pytest.param(page, marks=marks_of(page)) for page in DOCS)],
    ids=lambda p: p.stem,
)
def test_code_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_blocks(page, {"__name__": "__docs__"})
    if page == README:  # prints the number it promises
        assert capsys.readouterr().out.splitlines()[:2] == ["F(w) = 0.1108", "F*   = 0.1108"]


@pytest.mark.page
def test_code_of_the_start_page_runs(capsys):
    text = (ROOT / "docs" / "index.rst").read_text()
    block = re.search(r"code-block:: python\n\n((?: +.*\n|\n)+?)\n   \.\. grid-item", text)[1]
    with jax.enable_x64(False):
        exec(compile(textwrap.dedent(block), "index.rst", "exec"), {})
    assert capsys.readouterr().out.startswith("[")


@pytest.mark.parametrize("package", ["torch", "flax"])
def test_code_of_a_framework_runs(package, tmp_path, monkeypatch):
    """Blocks marked with the name of a package; ``make test-torch`` runs them."""
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    assert sum(run_blocks(page, {"__name__": "__docs__"}, f" {package}") for page in PAGES)


class Logger(types.ModuleType):
    """Any of the loggers, as far as a record reaches it: plain numbers, and a step."""

    def __init__(self, name: str):
        super().__init__(name)
        self.steps = []
        self.init = self.start_run = self.SummaryWriter = lambda *args, **named: self
        self.log = self.log_metrics = self._log
        self.add_scalar = lambda name, number, step: self._log({name: number}, step)
        self.finish = self.close = lambda: None

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        return None

    def _log(self, numbers, step):
        assert all(type(name) is str for name in numbers)
        assert all(type(number) is float for number in numbers.values())
        assert type(step) is int
        self.steps.append(step)


@pytest.mark.page
def test_recipes_for_loggers(tmp_path, monkeypatch):
    """Without the loggers: what they would be given."""
    names = ("wandb", "mlflow", "trackio", "tensorboardX")
    loggers = {name: Logger(name) for name in names}
    for name, logger in loggers.items():
        monkeypatch.setitem(sys.modules, name, logger)
    monkeypatch.chdir(tmp_path)
    assert run_blocks(ROOT / "docs" / "running.md", {}, f"(?: (?:{'|'.join(names)}))?") > len(names)
    for logger in loggers.values():
        assert sorted({*logger.steps}) == list(range(0, 501, 50))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_pages_import_public_names_only(page):
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))
    for module, names in re.findall(r"^\s*from (nestax[\w.]*) import (.*)$", code, re.M):
        home = nestax if module == "nestax" else getattr(nestax, module.removeprefix("nestax."))
        assert module.count(".") <= 1, module
        assert module == "nestax" or module.split(".")[1] in nestax.__all__, module
        assert all(hasattr(home, name.strip()) for name in names.split(",")), names
    assert not re.findall(r"^\s*import nestax\.", code, re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
