"""A progress line between chunks: on a terminal, or in a notebook."""

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import numpy as np

from nestax.stop import WATCHED
from nestax.table import number

COMPILING = "compiling …"
#: What is done with words about a run that has no progress line: nothing, but for the command line.
ALOUD: ContextVar[Callable[[str], None]] = ContextVar("aloud", default=lambda words: None)
#: Runs that take no longer have no line in a notebook, where every line leaves something behind.
QUICK_SECONDS = 1.0


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook; IPython on a terminal is none."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def progress_line(total: int, progress: bool | None, first: bool) -> Any:
    """A context with a function to call with the step reached and the last record.

    Args:
        progress: whether there is a line; None means where somebody can look at one.
        first: whether this process is the one that speaks.
    """
    seen = (sys.stderr.isatty() or in_notebook()) if progress is None else progress
    if not (first and seen):
        ALOUD.get()(COMPILING)
        return nullcontext(lambda step, record: None)
    return _in_notebook(total) if in_notebook() else _on_terminal(total)


@contextmanager
def _on_terminal(total: int) -> Iterator[Callable[..., None]]:
    """A line on standard error."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    parts = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(COMPILING, total=total)

        def show(step: int, record: dict[str, Any]) -> None:
            bar.update(task, completed=step, description=_shown(record))

        yield show


@contextmanager
def _in_notebook(total: int) -> Iterator[Callable[..., None]]:
    """A bar below the cell, which is HTML and needs no widgets; it is gone when the run has ended."""
    from IPython.display import HTML, display  # pyright: ignore[reportMissingImports]

    began = time.perf_counter()
    first = 0
    handle: Any = None

    def show(step: int, record: dict[str, Any]) -> None:
        nonlocal handle, first
        first = first or step  # of a run that goes on, what was done before took no time
        took = time.perf_counter() - began
        if took < QUICK_SECONDS:
            return
        left = f"{took * (total - step) / (step - first):,.0f} s left" if step > first else ""
        words = html.escape("  ".join([f"{step:,} of {total:,} steps", left, _shown(record)]))
        bar = HTML(f"<progress value={step} max={total}></progress> <code>{words}</code>")
        if handle is None:
            handle = display(bar, display_id=True)
        else:
            handle.update(bar)

    try:
        yield show
    finally:
        if handle is not None:
            handle.update(HTML(""))


def _shown(record: dict[str, Any]) -> str:
    """The column of one run that says most about how it goes."""
    name = next((name for name in WATCHED if np.ndim(record.get(name, ())) == 0), None)
    return "" if name is None else f"{name} {number(float(record[name]))}"
