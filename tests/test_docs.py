"""Every block of Python in the README and the docs runs, in order, in an empty folder."""

import re
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_code_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    space: dict = {"__name__": "__docs__"}
    with jax.enable_x64(False):  # as a reader has it
        for match in re.finditer(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
            line = page.read_text()[: match.start()].count("\n") + 1
            code = "\n" * line + match.group(1)
            exec(compile(code, str(page), "exec"), space)
    if page.stem == "README":  # prints the number it promises
        assert capsys.readouterr().out.splitlines()[:2] == ["F(w) = 0.1108", "F*   = 0.1108"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
