"""A progress line between chunks, on a terminal only."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Progress(Protocol):
    def __call__(self, step: int, **columns: Any) -> None: ...


@contextmanager
def progress_line(total: int, enabled: bool | None) -> Iterator[Progress]:
    """A function to call with the step reached; silent where standard error is no terminal."""
    if enabled is None:
        enabled = sys.stderr.isatty()
    if not enabled:
        yield lambda step, **columns: None
        return
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
