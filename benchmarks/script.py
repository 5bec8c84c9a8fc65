"""What all programs of this folder share: tiny sizes to try them with, and where their files go.

    --small        tiny sizes: all of the code in some seconds, and numbers that mean nothing
    --out FOLDER   results are looked for and written there, and filled copies of pages in its docs/

With --small alone files go to a folder that is deleted at the end.
"""

import argparse
import atexit
import functools
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Sizes = TypeVar("Sizes")
Things = TypeVar("Things")

KEPT = Path(__file__).parent / "results"
#: `experiments` is found beside this folder, wherever a program is started.
sys.path.append(str(Path(__file__).resolve().parent.parent))

COMMON = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
COMMON.add_argument("--small", action="store_true", help="tiny sizes, to see that everything runs")
COMMON.add_argument(
    "--out", type=Path, metavar="FOLDER", help="for all files, instead of the repository"
)
#: Read before a script reads its own arguments, because its sizes are constants.
GIVEN = COMMON.parse_known_args()[0]
SMALL: bool = GIVEN.small


def size(full: Sizes, small: Sizes) -> Sizes:
    """What a constant is, and what it is with --small."""
    return small if SMALL else full


def few(things: dict[str, Things], small: int = 2) -> dict[str, Things]:
    """All of them, or with --small the first ones."""
    return dict(list(things.items())[: small if SMALL else None])


def parser(description: str | None) -> argparse.ArgumentParser:
    """Knows the common arguments; a script adds its own."""
    plain = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=description, parents=[COMMON], formatter_class=plain)


@functools.cache
def folder() -> Path | None:
    """Where files go instead of the repository."""
    if GIVEN.out is not None or not SMALL:
        return GIVEN.out
    path = Path(tempfile.mkdtemp(prefix="nestax-small-"))
    atexit.register(shutil.rmtree, path)
    return path


def results(name: str) -> Path:
    """Where a file or folder of results lies that this script writes."""
    path = (folder() or KEPT) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def in_parts(
    description: str | None,
    name: str,
    check: Callable[[], dict[str, Any]],
    measure: Callable[[], dict[str, Any]],
    write: Callable[[dict[str, Any]], None],
) -> None:
    """A comparison with another package: held against it, measured, and written into a page.

    With --only one of the three, because the package may be missing on the machine that measures. What
    is kept in the file has "checked" and "cells".
    """
    options = parser(description)
    options.add_argument("--only", choices=("check", "measure", "write"), help="one of the three parts")
    only = options.parse_args().only
    path = results(name)
    kept = json.loads(path.read_text()) if path.exists() else {}
    if only in (None, "check") and not SMALL:
        kept["checked"] = check()
        print(kept["checked"], flush=True)
    if only in (None, "measure"):
        kept["cells"] = measure()
    path.write_text(json.dumps(kept))
    if only in (None, "write"):
        write(kept)
