import os
import subprocess
import sys

# Most tests compile something new and run it for a dozen steps, so compile quickly rather than well.
QUICK = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1"
)


def quick_flags() -> str:
    """The flags, if this version of XLA knows them: it ends the process over one that it does not."""
    wanted = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}".strip()
    code = "import jax; jax.numpy.zeros(1)"
    tried = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"XLA_FLAGS": wanted}, capture_output=True
    )
    return wanted if tried.returncode == 0 else os.environ.get("XLA_FLAGS", "")


if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit the environment
    os.environ["XLA_FLAGS"] = quick_flags()

import jax  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
    """They take memory maps, of which a process has only so many."""
    yield
    jax.clear_caches()


jax.config.update("jax_enable_x64", True)
