"""A progress line between chunks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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
        task = bar.add_task("", total=total)

        def show(step: int, **columns: Any) -> None:
            words = "  ".join(f"{k} {v:.6g}" for k, v in columns.items())
            bar.update(task, completed=step, description=words)

        yield show
