"""Where a run is kept, as it is asked for."""

import dataclasses
from pathlib import Path
from typing import Any

from nestax.checkpoints.keeper import Keeper, NoKeeper
from nestax.devices.hosts import Hosts
from nestax.errors import SettingError


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A folder in which a run is kept, so that it can go on after an interruption.

    Args:
        folder: of this run alone.
        every: seconds between checkpoints; one is written at the end in any case.
        resume: go on with the run in that folder, to the same bits as if it had never stopped; begin one
            if the folder holds none. The number of steps may have grown, where no schedule depends on
            it.
    """

    folder: str | Path
    every: float = 60.0
    resume: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | Path):
            raise SettingError(
                "checkpoint must be a folder, or nx.Checkpoint(folder, every=60, resume=True); got "
                f"{self.folder!r}."
            )


def as_checkpoint(checkpoint: Any) -> Checkpoint | None:
    """What ``checkpoint=`` means: nothing, a folder, or a ``Checkpoint``."""
    return checkpoint if isinstance(checkpoint, Checkpoint | None) else Checkpoint(checkpoint)


def keeper_of(checkpoint: Any, hosts: Hosts) -> Keeper | NoKeeper:
    """What keeps a run there."""
    kept = as_checkpoint(checkpoint)
    return NoKeeper() if kept is None else Keeper(kept.folder, kept.every, kept.resume, hosts)
