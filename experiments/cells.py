"""What is kept of an experiment in a folder, and found again after a stop."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import nestax as nx

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Held = TypeVar("Held", bound="DataclassInstance")


def kept_in(cells: Path | None, name: str) -> dict[str, Any]:
    """What a sweep is told to be kept in a folder of that name, and found again."""
    return {} if cells is None else {"checkpoint": nx.Checkpoint(cells / name, resume=True)}


def keep(file: Path | None, held: Held, default: Callable[[Any], Any] | None = None) -> Held:
    """Writes a dataclass as JSON, whole or not at all, and returns it.

    ``default`` turns what JSON does not know into what it does.
    """
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(dataclasses.asdict(held), default=default))
        unfinished.replace(file)
    return held
