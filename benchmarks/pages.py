"""Tables of pages are written by the scripts that measure them."""

from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def fill(page: str, parts: dict[str, str]) -> None:
    """Replaces what a page of docs/ has between <!-- name: begin --> and <!-- name: end -->."""
    path = DOCS / page
    text = path.read_text()
    for name, part in parts.items():
        begin = f"<!-- {name}: begin -->"
        end = f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{part}\n{end}{rest.split(end)[1]}"
    path.write_text(text)
