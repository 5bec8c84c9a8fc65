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
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nestax.devices.hosts import Hosts
from nestax.errors import SettingError
from nestax.loop.chunks import Compiled

#: State in pieces of no more bytes than this is gathered and written with all else.
GATHERED_BYTES = 2**26
ENDING = ".shards"
READERS = 8
#: Bytes of a digest.
DIGEST = 32


def in_pieces(compiled: Compiled, hosts: Hosts) -> list[str]:
    """Which of the arrays that are carried every process writes for itself; none if they are small."""
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
    """The folder of the first process; refused if others do not see what lies there."""
    path = Path(hosts.sent(str(path.absolute()).encode()).decode())
    seen = lambda: sorted(p.name for p in path.iterdir()) if path.is_dir() else []
    if hosts.any(json.loads(hosts.sent(json.dumps(seen()).encode())) != seen()):
        raise SettingError(
            f"{path} is not the same folder for all processes, and each writes its share of the state "
            "there: choose one on a disk that they share."
        )
    return path


def name_of(number: int) -> str:
    """The folder of the pieces of a checkpoint."""
    return f"checkpoint-{number:08}{ENDING}"


def save(path: Path, arrays: Iterable[jax.Array], hosts: Hosts) -> dict[str, str]:
    """Writes pieces into a folder of their own, all processes together; the SHA-256 of its files.

    An OSError where that was not possible: in this process alone, or in all.
    """
    here, count = (jax.process_index(), jax.process_count()) if hosts.many else (0, 1)
    try:
        with _checkpointer() as checkpointer:
            checkpointer.save(path, _numbered(arrays), force=True)
        names = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())
        own = _digests(path / name for name in names[here::count])
    except Exception as error:  # Orbax hands on those of everything that it stands on
        raise OSError(str(error).strip().partition("\n")[0].rstrip(".")) from error
    digests = np.zeros((len(names), DIGEST), np.uint8)
    digests[here::count] = np.frombuffer(b"".join(own), np.uint8).reshape(-1, DIGEST)
    whole = np.bitwise_or.reduce(hosts.told(digests))
    return {name: digest.tobytes().hex() for name, digest in zip(names, whole, strict=True)}


def load(path: Path, structs: Iterable[jax.ShapeDtypeStruct]) -> list[jax.Array]:
    """The pieces of arrays that every process needs, at the places that ``structs`` say."""
    wanted = _numbered(structs)
    with _checkpointer() as checkpointer:
        found = checkpointer.restore(path, wanted)
    return [found[name] for name in wanted]


def damage(folder: Path, about: dict[str, Any]) -> str | None:
    """What is not as it was written with the checkpoint that says this about its pieces."""
    try:
        path = folder / about["folder"]
        digests = about["files"]
        found = _digests(path / name for name in digests)
        bad = [
            name for name, digest in zip(digests, found, strict=True) if digest.hex() != digests[name]
        ]
    except OSError as error:
        return f"its pieces cannot be read: {error.strerror}"
    except (KeyError, TypeError):
        return "its header lacks what a checkpoint holds"
    return f"its piece {bad[0]} is damaged" if bad else None


def remove_others(folder: Path, kept: Iterable[str]) -> None:
    """Pieces that belong to no checkpoint, because it is gone or was never complete."""
    kept = set(kept)
    for path in folder.glob(f"checkpoint-*{ENDING}*"):
        if path.name.partition(".")[0] not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _numbered(things: Iterable[Any]) -> dict[str, Any]:
    return {f"{k:06}": x for k, x in enumerate(things)}


def _digests(paths: Iterable[Path]) -> list[bytes]:
    def one(path: Path) -> bytes:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()

    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(one, paths))


def _checkpointer() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError:
        raise SettingError(
            "this run has left its state in pieces, which are read through Orbax: pip install "
            "'nestax[orbax]'."
        ) from None
    return ocp.Checkpointer(ocp.StandardCheckpointHandler())
