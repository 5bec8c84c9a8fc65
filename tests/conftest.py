import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

# Whoever started the tests may have had Ctrl-C ignored, as nohup and background jobs do.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Most tests compile something new and run it for a dozen steps, so compile quickly rather than well.
# Those about bits run once more on programs as users have them.
AS_USERS = "NESTAX_TESTS_AS_USERS"
QUICK = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1"
)

#: Programs that tests have compiled, for all processes of the tests, one after the other or side by
#: side: what a program is found by has the flags and the versions in it.
COMPILED = Path(__file__).parent.parent / ".pytest_cache" / "compiled"
#: How many bytes of them are taken over from earlier tests.
MOST_BYTES = 2**29

#: Memory maps after which compiled programs are forgotten; Linux allows a process 65,530.
ROOM = 25_000


def quick_flags() -> str:
    """The flags, if this version of XLA knows them: it ends the process over one that it does not."""
    wanted = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}".strip()
    code = "import jax; jax.numpy.zeros(1)"
    tried = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"XLA_FLAGS": wanted}, capture_output=True
    )
    return wanted if tried.returncode == 0 else os.environ.get("XLA_FLAGS", "")


if "PYTEST_XDIST_WORKER" not in os.environ and AS_USERS not in os.environ:  # workers inherit them
    os.environ["XLA_FLAGS"] = quick_flags()

# Tests compile for themselves, and keep nothing in anybody's home.
os.environ["NESTAX_COMPILED"] = ""
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # before JAX is imported, and for processes of tests
    if COMPILED.exists() and sum(file.stat().st_size for file in COMPILED.iterdir()) > MOST_BYTES:
        shutil.rmtree(COMPILED, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(COMPILED)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
    """Where there is no room for more: many modules compile the same small things."""
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or len(maps.read_text().splitlines()) > ROOM:
        jax.clear_caches()
        gc.collect()


jax.config.update("jax_enable_x64", True)

# Tracing makes many objects of which few are garbage: looking for it took 7 % of the time, and seconds
# where many programs are kept. They are looked through where those are forgotten.
gc.set_threshold(100_000, 20, 20)
