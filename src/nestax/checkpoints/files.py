"""Arrays and facts in one file: written beside its name and renamed, with one checksum. No mathematics.

A file is in the format of safetensors: groups of arrays as tensors, everything else as JSON in the
header, with SHA-256 of all of it. Nothing is unpickled and nothing is executed. Checkpoints, what is
noted beside them, and results are such files.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nestax.errors import SettingError
from nestax.trees import as_host, from_host

#: The version of how a file is laid out; no other is read.
FORMAT = "1"
OTHER_VERSION = "{} was written by another version of nestax: use that version."
#: What a file is called until it is whole.
UNFINISHED = ".unfinished"
#: What reading a header can lead to that somebody has made up.
MADE_UP = (KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)

Groups = Mapping[str, Mapping[str, Any]]


class DamagedError(Exception):
    """A file is not what was written; the text says how."""


class OtherFormatError(DamagedError):
    """Another version of nestax wrote a file."""


class Files:
    """Does everything that is done to files, so that tests can make each of it fail."""

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def open(self, path: Path, mode: str) -> Any:
        return path.open(mode, buffering=0)

    def write(self, file: Any, data: Any) -> int:
        """Writes some of the data, as the operating system may; returns how many bytes."""
        return file.write(data)

    def fsync(self, file: Any) -> None:
        os.fsync(file.fileno())

    def rename(self, old: Path, new: Path) -> None:
        old.replace(new)

    def fsync_folder(self, folder: Path) -> None:
        """Makes names last; systems that cannot open a folder have no need of it."""
        if os.name != "posix":
            return
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def lock(self, folder: Path) -> int | None:
        """Holds a folder for this process until ``unlock``; None where locks are not known."""
        try:
            import fcntl
        except ImportError:
            return None
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise SettingError(
                f"another process is writing to {folder}: wait for it, or choose another folder."
            ) from None
        except OSError:  # some network drives have no locks
            os.close(handle)
            return None
        return handle

    def unlock(self, handle: int) -> None:
        os.close(handle)

    def is_at(self, path: Path, handle: int) -> bool:
        """Tells whether what is held still lies at ``path``, and no other folder of that name."""
        return os.path.samestat(os.fstat(handle), path.stat())


class Contents(NamedTuple):
    """What a file holds: arrays by group and name, in the order they were given, and facts as JSON."""

    groups: dict[str, dict[str, Any]]
    facts: dict[str, Any]


def save(path: Path, groups: Groups, facts: Mapping[str, Any], files: Files | None = None) -> None:
    """Writes arrays and facts into a file, whole or not at all."""
    write(path, pack(groups, facts), files or Files())


def write(path: Path, blob: bytes, files: Files) -> None:
    """Writes bytes beside a name and renames them, so that an error leaves what was there."""
    rest = memoryview(blob)
    working = path.with_name(path.name + UNFINISHED)
    try:
        with files.open(working, "wb") as file:
            while rest:
                rest = rest[files.write(file, rest) :]
            files.fsync(file)
        files.rename(working, path)
    except OSError:
        with suppress(OSError):
            files.remove(working)
        raise
    files.fsync_folder(path.parent)


def load(path: Path, files: Files | None = None) -> Contents:
    """Reads what ``save`` has written; a ``DamagedError`` if it is anything else."""
    return unpack((files or Files()).read(path))


def pack(groups: Groups, facts: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a file."""
    from safetensors.numpy import save

    tensors = {}
    kinds = {}
    for group, arrays in groups.items():
        for name, x in arrays.items():
            host, kinds[f"{group}/{name}"] = as_host(x)
            tensors[f"{group}/{name}"] = np.asarray(host, order="C")
    text = json.dumps({"arrays": kinds, "facts": facts})
    return save(tensors, {"format": FORMAT, "nestax": text, "sha256": checksum(text, tensors)})


def unpack(blob: bytes) -> Contents:
    """Returns what the bytes of a file hold; nothing is believed before the checksum is right."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        size = int.from_bytes(blob[:8], "little")
        header = json.loads(blob[8 : 8 + size])["__metadata__"]
        text = header["nestax"]
        if header.get("format") != FORMAT:
            raise OtherFormatError("another version of nestax wrote it")
        about = json.loads(text)
        named = load(blob)
        tensors = {name: named.pop(name) for name in about["arrays"]}
        if named or header["sha256"] != checksum(text, tensors):
            raise DamagedError("its checksum is wrong")
        groups: dict[str, dict[str, Any]] = {}
        for path, kind in about["arrays"].items():
            group, _, name = path.partition("/")
            groups.setdefault(group, {})[name] = from_host(tensors[path], kind)
        return Contents(groups, dict(about["facts"]))
    except (SafetensorError, *MADE_UP):
        raise DamagedError("it is cut short or damaged") from None


def checksum(text: str, tensors: Mapping[str, np.ndarray]) -> str:
    """Returns SHA-256 of the facts and of every tensor, with its name, dtype and shape."""
    digest = hashlib.sha256(text.encode())
    for name, x in tensors.items():
        digest.update(f"{name} {x.dtype.str} {x.shape}".encode())
        digest.update(x.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
