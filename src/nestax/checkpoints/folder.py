"""The folder of one run: its last checkpoint and the one before it, a file each. No mathematics.

State that lies in pieces on many devices is in a folder beside its checkpoint (``sharded.py``).
"""

import errno
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nestax.checkpoints import sharded
from nestax.checkpoints.files import (
    OTHER_VERSION,
    Contents,
    DamagedError,
    Files,
    Groups,
    OtherFormatError,
    load,
    save,
)
from nestax.errors import SettingError, warn

NAME = re.compile(r"checkpoint-([0-9]{8})\.safetensors")
ENDING = ".safetensors"
#: The last checkpoint and the one before it.
KEPT = 2


class Folder:
    """Keeps the last two checkpoints of a run, and notes beside them.

    number: of the last checkpoint; it moves on when the next one is whole.
    lock: what ``Files.lock`` has returned, while it is held.
    """

    def __init__(self, path: str | Path, files: Files | None = None):
        self.path = Path(path)
        self.files = files or Files()
        self.number = 0
        self.lock: int | None = None

    def checkpoints(self) -> list[Path]:
        """Lists every checkpoint in the folder, the newest first."""
        if not self.path.is_dir():
            return []
        return sorted((p for p in self.path.iterdir() if NAME.fullmatch(p.name)), reverse=True)

    def load(self) -> Contents | None:
        """Reads the newest checkpoint that is whole, with a warning if it is not the last one.

        Returns None if there is none at all.
        """
        paths = self.checkpoints()
        errors: dict[str, Exception] = {}
        for path in paths:
            try:
                contents = load(path, self.files)
                sharded.verify(self.path / (path.stem + sharded.ENDING), contents.facts.get("pieces"))
            except (DamagedError, OSError) as error:
                errors[path.name] = error
                continue
            if errors:
                warn(f"{self.path}: {_joined(errors)}. Going on from {path.name}.")
            self.number = int(path.stem.rpartition("-")[2])
            return contents
        if any(isinstance(error, OtherFormatError) for error in errors.values()):
            raise SettingError(OTHER_VERSION.format(self.path))
        if paths:
            raise SettingError(
                f"{self.path} holds no checkpoint that is whole ({_joined(errors)}): restore the folder "
                "from a copy, or begin again in another one."
            )
        return None

    def look(self) -> None:
        """Raises an OSError if the folder is gone, or another has taken its name while it was held."""
        if self.lock is not None and not self.files.is_at(self.path, self.lock):
            raise OSError(errno.ESTALE, "another folder has taken its place")

    def save(self, groups: Groups, facts: Mapping[str, Any]) -> None:
        """Writes the next checkpoint, and removes those before the last two.

        Whatever ends it earlier, an OSError or Ctrl-C, leaves the last one as it was.
        """
        self.look()
        save(self.path / f"checkpoint-{self.number + 1:08}{ENDING}", groups, facts, self.files)
        self.number += 1
        for old in self.checkpoints()[KEPT:]:
            with suppress(OSError):  # it is in nobody's way
                self.files.remove(old)
        sharded.remove_others(self.path, [path.stem for path in self.checkpoints()])

    def note(self, name: str, facts: Mapping[str, Any]) -> None:
        """Writes facts down beside the checkpoints."""
        save(self.path / (name + ENDING), {}, facts, self.files)

    def noted(self, name: str) -> dict[str, Any] | None:
        """Reads what was noted; None if it is not there, or damaged."""
        try:
            return load(self.path / (name + ENDING), self.files).facts
        except (DamagedError, OSError):
            return None


def _joined(errors: Mapping[str, Exception]) -> str:
    return "; ".join(f"{name}: {error}" for name, error in errors.items())
