"""One self-contained page: style and figures inside, nothing to load, no script."""

import importlib.resources
import io
import re
from typing import Any

from nestax.table import Table, cell_text, is_number

#: What is black or white in a figure takes the colours of the page, light or dark.
INK = "#000000"
PAPER = "#ffffff"


def require() -> Any:
    """Jinja, or a sentence on how to get it."""
    try:
        import jinja2
        import matplotlib as _  # noqa: F401
    except ImportError:
        raise ImportError("a report needs matplotlib and jinja2: pip install 'nestax[plot]'.") from None
    return jinja2


def render(**facts: Any) -> str:
    """Renders the page; every word that is not a figure is escaped."""
    jinja2 = require()
    source = importlib.resources.files("nestax.report").joinpath("page.html").read_text(encoding="utf-8")
    space = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    space.filters |= {"word": _shown, "numeric": _numeric}
    return space.from_string(source).render(**facts)


def as_svg(figure: Any) -> str:
    """Returns a matplotlib figure as SVG text, the same for the same figure."""
    import matplotlib

    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": "nestax"}):
        figure.savefig(out, format="svg", metadata=nothing)
    return out.getvalue()


def inline(name: str, svg: str) -> Any:
    """SVG text as a part of a page: its own names for its parts, the page's colours, any width."""
    from markupsafe import Markup  # Jinja's own

    svg = svg[svg.index("<svg") :]
    prefix = re.sub(r"\W+", "-", name)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    svg = svg.replace(INK, "currentColor").replace(PAPER, "var(--paper)")
    # Its size is left to the page; the view box keeps the shape.
    svg = re.sub(r'^(<svg[^>]*?) width="[^"]*"', r"\1", svg, flags=re.S)
    svg = re.sub(r'^(<svg[^>]*?) height="[^"]*"', r"\1", svg, flags=re.S)
    return Markup(svg)


def _shown(x: Any) -> str:
    if x is None or (isinstance(x, list | tuple) and not x):
        return "–"
    if isinstance(x, bool):
        return "yes" if x else "no"
    if isinstance(x, dict):
        return ", ".join(f"{key} {_shown(value)}" for key, value in x.items())
    if isinstance(x, list | tuple):
        return ", ".join(map(_shown, x))
    return cell_text(x)


def _numeric(table: Table, k: int) -> bool:
    """Whether a column of a table holds numbers, or words for numbers alone: it is aligned right."""
    cells = [row[k] for row in table.rows]
    return any(isinstance(x, int | float) for x in cells) or all(map(is_number, cells))
