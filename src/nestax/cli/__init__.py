"""The command line: what can be typed stands in ``surface``, what it does in a file per command."""

import functools
import os
import signal
from types import FrameType
from typing import Any


def main() -> None:
    """Runs the command ``nestax``."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    from nestax.cli.surface import app

    app()


@functools.wraps(signal.default_int_handler)  # which a run replaces by its own
def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, but while modules are imported it ends the process.

    Many of them are of other packages, which swallow the exception, tell it as another one, or crash.
    """
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os.write(2, b"nestax: interrupted.\n")
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt


def __getattr__(name: str) -> Any:
    """``app``, which is imported only when it is asked for: ``main`` is there before it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nestax.cli.surface import app

    return app
