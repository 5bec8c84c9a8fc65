"""The folder of a run: what may be written to, and all files of a run at once or none."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nestax.errors import SettingError

#: The file that lists what a run wrote; nothing else is ever overwritten.
LISTING = "settings.json"
#: Files are made in a hidden folder of this beginning, next to where they will lie.
WORKING = ".nestax-"


def check_folder(folder: str | Path, overwrite: bool = False) -> Path:
    """Refuses a folder that a run may not be written to; call it before a long run.

    A folder that is missing or empty will do; with ``overwrite`` also one that holds an earlier run and
    nothing else.
    """
    folder = Path(folder)
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise SettingError(f"cannot write to {folder}: {there} is a file, not a folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SettingError(f"cannot write to {folder}: permission denied, choose another folder.")
    names = _names(folder)
    foreign = sorted(names - _written(folder))
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise SettingError(
            f"{folder} holds {foreign[0]}{more}, which no run wrote: choose another folder."
        )
    if names and not overwrite:
        raise SettingError(
            f"{folder} holds a run already: choose another folder, or replace the run in it with "
            "--overwrite (overwrite=True in Python)."
        )
    return folder


@contextmanager
def whole_folder(folder: str | Path, overwrite: bool) -> Iterator[Path]:
    """A working folder whose files move to ``folder`` at the end; an error on the way leaves no trace.

    It lies inside ``folder``: the folder above may belong to others, or to another disk.
    """
    folder = check_folder(folder, overwrite)
    missing = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    working = Path(tempfile.mkdtemp(prefix=WORKING, dir=folder))
    try:
        yield working
        for name in _names(folder):
            (folder / name).unlink()
        for path in working.iterdir():
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(working)
        for path in missing:
            with suppress(OSError):  # it holds the run
                path.rmdir()


def _names(folder: Path) -> set[str]:
    """What lies in a folder; left-overs of a run that was killed while writing do not count."""
    if not folder.exists():
        return set()
    return {path.name for path in folder.iterdir() if not path.name.startswith(WORKING)}


def _written(folder: Path) -> set[str]:
    """What the run in this folder wrote, as it says itself."""
    try:
        about = json.loads((folder / LISTING).read_text(encoding="utf-8"))
        return set(about["files"]) if "nestax" in about else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()
