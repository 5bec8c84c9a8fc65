"""State that lies in pieces on many devices: every process writes and reads its own, through Orbax.

The pieces of a checkpoint are in a folder beside it, which is written first. The checkpoint holds the
SHA-256 of every file in there, so that pieces without it count for nothing, and those that are not the
ones it was written with make it a damaged one. No mathematics.
"""

import hashlib
import importlib.util
import json
import math
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nestax.checkpoints.files import DamagedError
from nestax.devices.hosts import Hosts
from nestax.errors import SettingError
from nestax.loop.chunks import Compiled

#: State in pieces of no more bytes than this is gathered and written with all else.
GATHERED_BYTES = 2**26
ENDING = ".shards"
READERS = 8
DIGEST_BYTES = 32


def in_pieces(compiled: Compiled, hosts: Hosts) -> list[str]:
    """Lists the arrays of the carry that every process writes for itself; none if they are small."""
    names = []
    size = 0
    for (name, (shape, dtype)), place in zip(
        compiled.carried().items(), compiled.shardings or (), strict=False
    ):
        if not place.is_fully_replicated and not dtype.startswith("key"):
            names.append(name)
            size += math.prod(shape) * jnp.dtype(dtype).itemsize
    if size <= GATHERED_BYTES:
        return []
    if not hosts.any(importlib.util.find_spec("orbax") is None):
        return names
    if hosts.many:
        raise SettingError(
            f"the state of this run, {size / 2**20:,.0f} MiB, lies in {jax.process_count()} processes, "
            "each of which writes its share of a checkpoint through Orbax: pip install 'nestax[orbax]' "
            "for all of them."
        )
    return []  # it is in the memory of this host already


def path_for_all(path: Path, hosts: Hosts) -> Path:
    """Returns the folder of the first process; refuses one whose files other processes do not see."""
    path = Path(hosts.sent(str(path.absolute()).encode()).decode())
    names = sorted(p.name for p in path.iterdir()) if path.is_dir() else []
    if hosts.any(json.loads(hosts.sent(json.dumps(names).encode())) != names):
        raise SettingError(
            f"{path} is not the same folder for all processes, and each writes its share of the state "
            "there: choose one on a disk that they share."
        )
    return path


def name_of(number: int) -> str:
    """Returns what the folder of the pieces of a checkpoint is called."""
    return f"checkpoint-{number:08}{ENDING}"


def save(path: Path, arrays: Mapping[str, jax.Array], hosts: Hosts) -> dict[str, Any]:
    """Writes pieces into a folder of their own, all processes together.

    Returns what the checkpoint is to hold: the names of the arrays, and SHA-256 of every file. Raises an
    OSError where that was not possible: in this process alone, or in all.
    """
    process, count = (jax.process_index(), jax.process_count()) if hosts.many else (0, 1)
    try:
        with _checkpointer() as checkpointer:
            checkpointer.save(path, _numbered(arrays.values()), force=True)
        files = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())
        share = _digests(path / file for file in files[process::count])
    except Exception as error:  # Orbax hands on those of everything that it stands on
        raise OSError(str(error).strip().partition("\n")[0].rstrip(".")) from error
    digests = np.zeros((len(files), DIGEST_BYTES), np.uint8)
    digests[process::count] = np.frombuffer(b"".join(share), np.uint8).reshape(-1, DIGEST_BYTES)
    digests = np.bitwise_or.reduce(hosts.told(digests))
    hexes = {file: digest.tobytes().hex() for file, digest in zip(files, digests, strict=True)}
    return {"names": list(arrays), "files": hexes}


def load(path: Path, structs: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Reads the pieces of arrays that every process needs, with the shardings that ``structs`` have."""
    numbered = _numbered(structs.values())
    with _checkpointer() as checkpointer:
        arrays = checkpointer.restore(path, numbered)
    return dict(zip(structs, map(arrays.get, numbered), strict=True))


def verify(path: Path, pieces: Any) -> None:
    """Raises a ``DamagedError`` unless the files are those that a checkpoint was written with."""
    if pieces is None:
        return
    try:
        digests = pieces["files"]
        now = _digests(path / file for file in digests)
    except OSError as error:
        raise DamagedError(f"its pieces cannot be read: {error.strerror}") from None
    except (KeyError, TypeError):
        raise DamagedError("its header lacks what a checkpoint holds") from None
    for file, digest in zip(digests, now, strict=True):
        if digest.hex() != digests[file]:
            raise DamagedError(f"its piece {file} is damaged")


def remove_others(folder: Path, checkpoints: Iterable[str]) -> None:
    """Removes pieces whose checkpoint is gone or was never complete."""
    kept = set(checkpoints)
    for path in folder.glob(f"checkpoint-*{ENDING}*"):
        if path.name.partition(".")[0] not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _numbered(arrays: Iterable[Any]) -> dict[str, Any]:
    return {f"{k:06}": x for k, x in enumerate(arrays)}


def _digests(paths: Iterable[Path]) -> list[bytes]:
    def digest(path: Path) -> bytes:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()

    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(digest, paths))


def _checkpointer() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError:
        raise SettingError(
            "this run has left its state in pieces, which are read through Orbax: pip install "
            "'nestax[orbax]'."
        ) from None
    return ocp.Checkpointer(ocp.StandardCheckpointHandler())
