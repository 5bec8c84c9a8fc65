"""How a process compiles, and where it keeps what it has compiled. Settings of JAX; no mathematics."""

import os
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

#: XLA compiles a loop as one piece if a turn of it touches fewer bytes; by default 1 KiB. Loops of small
#: chains do, those of networks do not.
SMALL_LOOP_BYTES = 2**16
SMALL_LOOPS = "xla_cpu_small_while_loop_byte_threshold"
EXTRA_OPTIONS = "--xla_backend_extra_options="
#: Names the folder of compiled programs; empty, nothing is sped up.
FOLDER = "NESTAX_COMPILED"
#: What that folder may hold; the oldest programs go first.
MOST_BYTES = 2**30


def speed_up() -> Path | None:
    """Small loops on a CPU three times as fast, and programs compiled once, not in every process.

    Call it once, before anything is computed; the command line does so by itself::

        import nestax as nx
        nx.speed_up()

    Two settings of the process. XLA compiles small loops as one piece instead of some twenty operations
    a step; it is its own option on a CPU, off by default, and can be set only before JAX starts. And JAX
    keeps compiled programs in the user's cache folder, at most 1 GiB of them. The environment variable
    ``NESTAX_COMPILED`` names another folder; set to nothing, it switches both off. A cache or an option
    of XLA that you have set yourself stays.

    Numbers may differ in the last digits from those without it, as between two versions of XLA.

    Returns:
        The folder in which programs are kept; None if they are not.
    """
    if os.environ.get(FOLDER) == "":
        return None
    _small_loops()
    return _keep_programs()


def _small_loops() -> None:
    flags = os.environ.get("XLA_FLAGS", "")
    if EXTRA_OPTIONS in flags:
        return
    if _has_started():
        warnings.warn(
            "nx.speed_up() came too late for small loops, which JAX compiles as it did when it started: "
            "call it before anything is computed, or made with jax.numpy.",
            stacklevel=3,
        )
        return
    os.environ["XLA_FLAGS"] = f"{flags} {EXTRA_OPTIONS}{SMALL_LOOPS}={SMALL_LOOP_BYTES}".strip()


def _has_started() -> bool:
    if "jax" not in sys.modules:
        return False
    from jax._src import xla_bridge  # nothing public tells

    return xla_bridge.backends_are_initialized()


def _keep_programs() -> Path | None:
    import jax

    theirs = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if theirs:
        return Path(theirs)
    folder = Path(os.environ.get(FOLDER) or user_cache() / "compiled")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _forget_oldest(folder)
    except OSError:
        return None
    if not os.access(folder, os.W_OK):
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


def keeps_programs(folder: Path) -> bool:
    """Whether a program that is compiled now is found in the folder; it is compiled to see that."""
    import jax

    number = time.time()  # which no program had before
    there = set(folder.iterdir())
    jax.jit(lambda x: x + number)(0.0)
    new = set(folder.iterdir()) - there
    for path in new:
        with suppress(OSError):
            path.unlink()
    return bool(new)


def user_cache() -> Path:
    """Where nestax keeps what it can make again for this user."""
    if sys.platform == "win32":
        caches = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        caches = Path.home() / "Library" / "Caches"
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "nestax"


def _forget_oldest(folder: Path) -> None:
    """Leaves the newest programs that fit; JAX bounds its cache only with a further package."""
    files = sorted(((path.stat(), path) for path in folder.iterdir()), key=lambda f: -f[0].st_mtime)
    size = 0
    for facts, path in files:
        size += facts.st_size
        if size > MOST_BYTES:
            with suppress(OSError):  # another process was faster
                path.unlink()
