"""A progress line between chunks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

COMPILING = "compiling …"
#: What is done with words about a run that has no progress line: nothing, but for the command line.
ALOUD: ContextVar[Callable[[str], None]] = ContextVar("aloud", default=lambda words: None)


@contextmanager
def progress_line(total: int) -> Iterator[Callable[..., None]]:
    """A line on standard error, and a function to call with the step reached and what else to show."""
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

        def show(step: int, **columns: Any) -> None:
            words = "  ".join(f"{k} {v:.6g}" for k, v in columns.items())
            bar.update(task, completed=step, description=words)

        yield show
