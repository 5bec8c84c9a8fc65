"""Tables of pages are written by the scripts that measure them."""

import shutil
from pathlib import Path

from script import folder

DOCS = Path(__file__).parent.parent / "docs"


def page(name: str) -> Path:
    """Where a page or picture of docs/ is to be written: there, or in the folder for all files."""
    instead = folder()
    if instead is None:
        return DOCS / name
    path = instead / "docs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() and (DOCS / name).exists():
        shutil.copyfile(DOCS / name, path)
    return path


def fill(name: str, parts: dict[str, str]) -> None:
    """Replaces what a page of docs/ has between <!-- part: begin --> and <!-- part: end -->."""
    path = page(name)
    text = path.read_text()
    for part, table in parts.items():
        begin = f"<!-- {part}: begin -->"
        end = f"<!-- {part}: end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"
    path.write_text(text)
