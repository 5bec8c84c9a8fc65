"""``nestax new``: a script to begin with. It runs as it is, and its comments say what to change."""

import importlib.resources
import shlex
from pathlib import Path

from nestax.cli.shell import note
from nestax.errors import SettingError

#: The script, beside this file; a test runs it.
SCRIPT = "problem.txt"


def write_script(path: Path, overwrite: bool) -> None:
    """Writes the script, and says how to run it."""
    if path.suffix == "":
        path = path.with_suffix(".py")
    if path.exists() and not overwrite:
        raise SettingError(f"{path} is there already: name another file, or pass --overwrite.")
    text = importlib.resources.files("nestax.cli").joinpath(SCRIPT).read_text(encoding="utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    note(f"Written: {path}. Run it: python {shlex.quote(str(path))}")
