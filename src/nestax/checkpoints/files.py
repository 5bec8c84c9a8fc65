"""A run on disk: its last two checkpoints, and a file of records that only grows. No mathematics.

A checkpoint is a safetensors file: the state as tensors, everything else as JSON in its header. It is
written beside its place, flushed to the disk and renamed, and the one before it is kept. Records are
appended to a file of their own in frames, and a checkpoint says how much of that file belongs to it.
Every byte of both is covered by SHA-256. Nothing is unpickled and nothing is executed.

State that lies in pieces on many devices is in a folder beside the checkpoint (``sharded.py``).

A checkpoint holds the last record too: where the file of records is damaged, the run goes on without
those that are lost.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from nestax.checkpoints import sharded
from nestax.errors import SettingError, warn

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
#: How the names of the tensors begin that are the last record.
LAST = "last record: "


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

    def is_at(self, path: Path, handle: int) -> bool:
        """Whether what is held is still what lies at ``path``, and no other folder of that name."""
        return os.path.samestat(os.fstat(handle), path.stat())


class Checkpoint(NamedTuple):
    """What was found in a folder.

    tensors: the state by name.
    about: everything else, as it was given to ``Folder.save``.
    records: columns of all records so far.
    """

    tensors: dict[str, np.ndarray]
    about: dict[str, Any]
    records: dict[str, np.ndarray]


class Place(NamedTuple):
    """How far a folder has come; it moves on in one assignment, when all that belongs to it is written.

    number: of the last checkpoint.
    end, digest: how much of the file of records belongs to it, and the digest there.
    rows: how many records are in there.
    last: the last one, a row of every column.
    """

    number: int = 0
    end: int = 0
    digest: bytes = FIRST_DIGEST
    rows: int = 0
    last: Mapping[str, np.ndarray] = MappingProxyType({})


class Folder:
    """The folder of one run.

    place: how far it has come.
    lock: what ``Files.lock`` has returned, while it is held.
    """

    def __init__(self, path: str | Path, files: Files | None = None):
        self.path = Path(path)
        self.files = files or Files()
        self.place = Place()
        self.lock: int | None = None

    def checkpoints(self) -> list[Path]:
        """Every checkpoint in the folder, the newest first."""
        if not self.path.is_dir():
            return []
        return sorted((p for p in self.path.iterdir() if NAME.fullmatch(p.name)), reverse=True)

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None if there is none at all.

        If no one's records are whole, the newest whose state is, with what is left of its records.
        """
        there = self.checkpoints()
        why = {}
        without_records = []
        for path in there:
            try:
                tensors, about, place = self._state(path)
            except (DamagedError, OSError) as error:
                why[path.name] = str(error)
                continue
            try:
                records = self._records(place.end, place.digest)
            except (DamagedError, OSError) as error:
                why[path.name] = str(error)
                without_records.append((path, tensors, about, place))
                continue
            self._tell(why, f"Going on from {path.name}.")
            self.place = place._replace(rows=_length_of(records))
            return Checkpoint(tensors, about, records)
        for path, tensors, about, place in without_records:
            if not place.last:
                continue
            self._tell(why, f"Going on from {path.name} without the records that are lost.")
            self.place = Place(place.number, last=place.last)  # what is left is written anew
            return Checkpoint(tensors, about, self._left(place.last))
        if not there:
            return None
        raise SettingError(
            f"{self.path} holds no checkpoint that is whole ({_told(why)}): restore the folder from a "
            "copy, or begin again in another one."
        )

    def _tell(self, why: dict[str, str], what: str) -> None:
        if why:
            warn(f"{self.path}: {_told(why)}. {what}")

    def _state(self, path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any], Place]:
        """A checkpoint without its records."""
        everything, about = decode(self.files.read(path))
        pieces = about.get("pieces")
        wrong = pieces and sharded.damage(self.path, pieces)
        if wrong:
            raise DamagedError(wrong)
        tensors = {name: x for name, x in everything.items() if not name.startswith(LAST)}
        last = {name.removeprefix(LAST): x for name, x in everything.items() if name not in tensors}
        try:
            end = int(about["records"]["bytes"])
            digest = bytes.fromhex(about["records"]["digest"])
        except (KeyError, TypeError, ValueError, OverflowError):
            raise DamagedError("its header lacks what a checkpoint holds") from None
        if end < HEAD or any(x.shape[:1] != (1,) for x in last.values()):
            raise DamagedError("it has no records")
        return tensors, about, Place(int(path.stem.rpartition("-")[2]), end, digest, last=last)

    def _records(self, end: int, digest: bytes) -> dict[str, np.ndarray]:
        blob = self.files.read(self.path / RECORDS)
        if len(blob) < end:
            raise DamagedError(f"{RECORDS} is cut short")
        columns = []
        last = FIRST_DIGEST
        for frame in unframed(memoryview(blob)[:end]):
            if frame.columns is None:
                where = f"in the frame that begins at byte {frame.begin:,}"
                raise DamagedError(f"{RECORDS} is damaged {where}")
            columns.append(frame.columns)
            last = frame.digest
        if last != digest:
            raise DamagedError(f"{RECORDS} belongs to another checkpoint")
        if any(frame.keys() != columns[0].keys() for frame in columns):
            raise DamagedError(f"{RECORDS} has frames of different columns")
        return _joined(columns)

    def _left(self, last: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The records of all frames that are whole, and the last one, which may be there twice."""
        try:
            blob = self.files.read(self.path / RECORDS)
        except OSError:
            blob = b""
        frames = [frame.columns for frame in unframed(memoryview(blob)) if frame.columns is not None]
        alike = lambda x: {name: (a.dtype, a.shape[1:]) for name, a in x.items()}
        return _joined([*(frame for frame in frames if alike(frame) == alike(last)), last])

    def look(self) -> None:
        """Before a save: an OSError if another folder has taken the place of the one that is held.

        If records have been deleted while the run goes on, all are to be written again.
        """
        if self.lock is not None and not self.files.is_at(self.path, self.lock):
            raise OSError(errno.ESTALE, "another folder has taken its place")
        log = self.path / RECORDS
        if (log.stat().st_size if log.exists() else 0) < self.place.end:
            self.place = Place(self.place.number, last=self.place.last)

    def save(
        self, tensors: dict[str, np.ndarray], about: dict[str, Any], records: dict[str, np.ndarray]
    ) -> None:
        """Appends the new ``records``, writes a checkpoint.

        Whatever ends it before that is complete, an OSError or Ctrl-C, leaves the place as it was, and
        the next call begins there.
        """
        place = self._append(records) if records else self.place
        place = place._replace(number=place.number + 1)
        last = {LAST + name: x for name, x in place.last.items()}
        about = about | {"records": {"bytes": place.end, "digest": place.digest.hex()}}
        self.write(self._checkpoint(place.number), encode(tensors | last, about))
        self.place = place
        for old in self.checkpoints()[2:]:
            with suppress(OSError):  # it is in nobody's way
                self.files.remove(old)
        sharded.remove_others(self.path, [path.stem for path in self.checkpoints()])

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

    def _append(self, records: dict[str, np.ndarray]) -> Place:
        """One frame, after what belongs to the last checkpoint; left-overs of a killed run go."""
        before = self.place
        content = _pack(records, {})
        digest = _chained(before.digest, content)
        frame = [_length(content), digest, content]
        path = self.path / RECORDS
        if not before.end:  # what lies there may be all that is left of damaged records
            self.write(path, frame)
        else:
            with self.files.open(path, "r+b") as file:
                file.seek(before.end)
                self._pour(file, frame)
                file.truncate()
        return Place(
            before.number,
            before.end + HEAD + len(content),
            digest,
            before.rows + _length_of(records),
            {name: column[-1:] for name, column in records.items()},
        )

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


class Frame(NamedTuple):
    """A frame as it was found: where it begins, its columns unless it is damaged, its digest."""

    begin: int
    columns: dict[str, np.ndarray] | None
    digest: bytes


def unframed(blob: memoryview) -> Iterator[Frame]:
    """Every frame. After one that is damaged those that follow are found again, unless its length is.

    The next one is compared with the digest as it is written and as it ought to be, for either may be
    what is damaged.
    """
    before = {FIRST_DIGEST}
    at = 0
    while at < len(blob):
        size = int.from_bytes(blob[at : at + LENGTH], "little")
        digest = bytes(blob[at + LENGTH : at + HEAD])
        content = blob[at + HEAD : at + HEAD + size]
        if len(content) < size:
            yield Frame(at, None, digest)
            return
        right = {_chained(digest, content) for digest in before}
        whole = digest in right
        columns = None
        with suppress(DamagedError):
            columns = _unpack(bytes(content)) if whole else None
        yield Frame(at, columns, digest)
        before = {digest} if whole else {digest, *right}
        at += HEAD + size


def _joined(frames: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    try:
        return {name: np.concatenate([frame[name] for frame in frames]) for name in frames[0]}
    except ValueError:
        raise DamagedError(f"{RECORDS} has frames of different shapes") from None


def _length_of(columns: dict[str, np.ndarray]) -> int:
    return len(next(iter(columns.values()), ()))


def _told(why: dict[str, str]) -> str:
    return "; ".join(f"{name}: {words}" for name, words in why.items())


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
