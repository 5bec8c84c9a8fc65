"""A run on disk: its last two checkpoints, and a file of records that only grows. No mathematics.

A checkpoint is a safetensors file: the state as tensors, everything else as JSON in its header. It is
written beside its place, flushed to the disk and renamed, and the one before it is kept. Records are
appended to a file of their own in frames, and a checkpoint says how much of that file belongs to it.
Every byte of both is covered by SHA-256. Nothing is unpickled and nothing is executed.
"""

import hashlib
import json
import os
import re
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nestax.errors import SettingError

NAME = re.compile(r"checkpoint-([0-9]{8})\.safetensors")
RECORDS = "records.log"
#: What a file is called until it is whole.
UNFINISHED = ".unfinished"
#: The digest lies inside the header that it covers; it is computed with zeros in its place.
BLANK = b"0" * 64
DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')
#: A frame of records: the length of its content, SHA-256 of (digest before, length, content), content.
LENGTH = 8
FIRST_DIGEST = bytes(32)
HEAD = LENGTH + len(FIRST_DIGEST)


class DamagedError(Exception):
    """A file is not what was written; the text says how."""


class Files:
    """Everything that is done to files, in one place, so that tests can make each of them fail."""

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def open(self, path: Path, mode: str) -> Any:
        return path.open(mode, buffering=0)

    def write(self, file: Any, data: Any) -> int:
        """May write only a part, as the operating system may; returns how much."""
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


class Checkpoint(NamedTuple):
    """What was found in a folder.

    tensors: the state by name.
    about: everything else, as it was given to ``Folder.save``.
    records: columns of all records so far.
    """

    tensors: dict[str, np.ndarray]
    about: dict[str, Any]
    records: dict[str, np.ndarray]


class Folder:
    """The folder of one run."""

    def __init__(self, path: str | Path, files: Files | None = None):
        self.path = Path(path)
        self.files = files or Files()
        self.number = 0
        self.end = 0
        self.digest = FIRST_DIGEST

    def checkpoints(self) -> list[Path]:
        """Every checkpoint in the folder, the newest first."""
        if not self.path.is_dir():
            return []
        return sorted((p for p in self.path.iterdir() if NAME.fullmatch(p.name)), reverse=True)

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None if there is none at all."""
        there = self.checkpoints()
        why = {}
        for path in there:
            try:
                found = self._load(path)
            except (DamagedError, OSError) as error:
                why[path.name] = str(error)
                continue
            if why:
                told = "; ".join(f"{name}: {words}" for name, words in why.items())
                warnings.warn(f"{self.path}: {told}. Going on from {path.name}.", stacklevel=4)
            self.number = int(path.stem.rpartition("-")[2])
            self.end, self.digest = self._place(found.about)
            return found
        if not there:
            return None
        told = "; ".join(f"{name}: {words}" for name, words in why.items())
        raise SettingError(
            f"{self.path} holds no checkpoint that is whole ({told}): restore the folder from a "
            "copy, or begin again in another one."
        )

    def _load(self, path: Path) -> Checkpoint:
        tensors, about = decode(self.files.read(path))
        return Checkpoint(tensors, about, self._records(*self._place(about)))

    def _place(self, about: dict[str, Any]) -> tuple[int, bytes]:
        """Where the records of a checkpoint end, and the digest there."""
        try:
            return int(about["records"]["bytes"]), bytes.fromhex(about["records"]["digest"])
        except (KeyError, TypeError, ValueError, OverflowError):
            raise DamagedError("its header lacks what a checkpoint holds") from None

    def _records(self, end: int, digest: bytes) -> dict[str, np.ndarray]:
        if end < HEAD:
            raise DamagedError("it has no records")
        blob = self.files.read(self.path / RECORDS)
        if len(blob) < end:
            raise DamagedError(f"{RECORDS} is cut short")
        frames, last = unframed(memoryview(blob)[:end])
        if last != digest:
            raise DamagedError(f"{RECORDS} belongs to another checkpoint")
        names = frames[0].keys()
        if any(frame.keys() != names for frame in frames):
            raise DamagedError(f"{RECORDS} has frames of different columns")
        return {name: np.concatenate([frame[name] for frame in frames]) for name in names}

    def save(
        self, tensors: dict[str, np.ndarray], about: dict[str, Any], records: dict[str, np.ndarray]
    ) -> None:
        """Appends the new ``records``, writes a checkpoint; an OSError leaves the last one as it is."""
        if records:
            self._append(_pack(records, {}))
        place = {"bytes": self.end, "digest": self.digest.hex()}
        path = self._checkpoint(self.number + 1)
        self.write(path, encode(tensors, about | {"records": place}))
        self.number += 1
        for old in self.checkpoints()[2:]:
            with suppress(OSError):  # it is in nobody's way
                self.files.remove(old)

    def _checkpoint(self, number: int) -> Path:
        return self.path / f"checkpoint-{number:08}.safetensors"

    def write(self, path: Path, parts: list[Any]) -> None:
        """A whole file or none: written beside its place, flushed, renamed."""
        working = path.with_name(path.name + UNFINISHED)
        try:
            with self.files.open(working, "wb") as file:
                self._pour(file, parts)
            self.files.rename(working, path)
        except OSError:
            with suppress(OSError):
                self.files.remove(working)
            raise
        self.files.fsync_folder(self.path)

    def _append(self, content: bytes) -> None:
        """One frame, after what belongs to the last checkpoint; left-overs of a killed run go."""
        path = self.path / RECORDS
        digest = _chained(self.digest, content)
        new = not path.exists()
        with self.files.open(path, "wb" if new else "r+b") as file:
            file.seek(self.end)
            self._pour(file, [_length(content), digest, content])
            file.truncate()
        if new:
            self.files.fsync_folder(self.path)
        self.end = self.end + HEAD + len(content)
        self.digest = digest

    def _pour(self, file: Any, parts: list[Any]) -> None:
        for part in parts:
            rest = memoryview(part)
            while len(rest):
                rest = rest[self.files.write(file, rest) :]
        self.files.fsync(file)


# The two formats


def encode(tensors: dict[str, np.ndarray], about: dict[str, Any]) -> list[Any]:
    """A safetensors file in parts, with its own digest in the header."""
    blob = _pack(tensors, {"nestax": json.dumps(about), "sha256": BLANK.decode()})
    found = DIGEST.search(blob)
    assert found is not None
    view = memoryview(blob)
    first, last = found.span(1)
    return [view[:first], hashlib.sha256(blob).hexdigest().encode(), view[last:]]


def decode(blob: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors and JSON of a checkpoint; nothing is looked at before the digest is right."""
    size = int.from_bytes(blob[:LENGTH], "little")
    if len(blob) < LENGTH + size:
        raise DamagedError("it is cut short")
    found = list(DIGEST.finditer(blob, LENGTH, LENGTH + size))
    if len(found) != 1:
        raise DamagedError("it has no checksum")
    view = memoryview(blob)
    first, last = found[0].span(1)
    digest = hashlib.sha256(view[:first])
    digest.update(BLANK)
    digest.update(view[last:])
    if digest.hexdigest().encode() != found[0].group(1):
        raise DamagedError("its checksum is wrong")
    try:
        about = json.loads(json.loads(blob[LENGTH : LENGTH + size])["__metadata__"]["nestax"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DamagedError("its header is no header of a checkpoint") from None
    if not isinstance(about, dict):
        raise DamagedError("its header is no header of a checkpoint")
    return _unpack(blob), about


def unframed(blob: memoryview) -> tuple[list[dict[str, np.ndarray]], bytes]:
    """The columns of every frame, and the last digest."""
    frames = []
    digest = FIRST_DIGEST
    at = 0
    while at < len(blob):
        size = int.from_bytes(blob[at : at + LENGTH], "little")
        content = blob[at + HEAD : at + HEAD + size]
        before = digest
        digest = bytes(blob[at + LENGTH : at + HEAD])
        if len(content) < size or digest != _chained(before, content):
            raise DamagedError(f"{RECORDS} is damaged in the frame that begins at byte {at:,}")
        frames.append(_unpack(bytes(content)))
        at += HEAD + size
    return frames, digest


def _chained(before: bytes, content: Any) -> bytes:
    digest = hashlib.sha256(before + _length(content))
    digest.update(content)
    return digest.digest()


def _length(content: Any) -> bytes:
    return len(content).to_bytes(LENGTH, "little")


def _pack(tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    from safetensors.numpy import save

    return save({name: np.array(x, order="C") for name, x in tensors.items()}, metadata)


def _unpack(blob: bytes) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return load(blob)
    except (SafetensorError, ValueError, KeyError, TypeError):
        raise DamagedError("its tensors cannot be read") from None
