"""``nx.speed_up``: what it sets in a process of its own, and what it leaves alone."""

import json
import os
import subprocess
import sys

import pytest

from nestax import compiling

REPORT = """
import json, os, sys, warnings
{before}
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from nestax.compiling import speed_up
    folder = speed_up()
import jax
if {compute}:
    jax.jit(lambda x: x * 2)(1.0).block_until_ready()
    from nestax.compiling import keeps_programs
    assert folder is None or keeps_programs(folder)
print(json.dumps({{
    "folder": folder and str(folder), "kept": jax.config.jax_compilation_cache_dir,
    "flags": os.environ.get("XLA_FLAGS", ""), "told": [str(w.message) for w in told],
}}))
"""


#: What tests set for themselves.
SET = ("XLA_FLAGS", "NESTAX_COMPILED", "JAX_COMPILATION_CACHE_DIR")


def in_a_process(before="", compute=False, **variables):
    usual = {k: v for k, v in os.environ.items() if k not in SET}
    code = REPORT.format(before=before, compute=compute)
    done = subprocess.run(
        [sys.executable, "-c", code], env=usual | variables, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_programs_are_kept_and_small_loops_are_one_piece(tmp_path):
    seen = in_a_process(compute=True, XDG_CACHE_HOME=str(tmp_path), HOME=str(tmp_path))
    assert seen["folder"] == seen["kept"]
    assert f"{compiling.SMALL_LOOPS}={compiling.SMALL_LOOP_BYTES}" in seen["flags"]
    assert seen["told"] == []
    assert list(tmp_path.rglob("*nestax*/compiled/*"))  # a program


def test_another_folder_can_be_named(tmp_path):
    assert in_a_process(NESTAX_COMPILED=str(tmp_path / "here"))["kept"] == str(tmp_path / "here")


def test_it_can_be_switched_off(tmp_path):
    seen = in_a_process(NESTAX_COMPILED="", HOME=str(tmp_path))
    assert seen == {"folder": None, "kept": None, "flags": "", "told": []}


def test_what_the_user_has_set_stays(tmp_path):
    own = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=7"
    seen = in_a_process(XLA_FLAGS=own, JAX_COMPILATION_CACHE_DIR=str(tmp_path))
    assert seen["flags"] == own
    assert seen["folder"] == seen["kept"] == str(tmp_path)
    other = "--xla_cpu_multi_thread_eigen=false"
    seen = in_a_process(XLA_FLAGS=other, NESTAX_COMPILED=str(tmp_path))
    assert seen["flags"].startswith(f"{other} --xla_backend_extra_options")


def test_a_call_that_comes_too_late_says_so(tmp_path):
    seen = in_a_process("import jax; jax.numpy.zeros(1)", NESTAX_COMPILED=str(tmp_path))
    assert "came too late for small loops" in seen["told"][0]
    assert seen["flags"] == ""
    assert seen["kept"] == str(tmp_path)


def test_a_folder_that_cannot_be_used_changes_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    seen = in_a_process(compute=True, NESTAX_COMPILED=str(tmp_path / "file"))
    assert seen["folder"] is None
    assert seen["kept"] is None


def test_the_oldest_programs_are_forgotten(tmp_path, monkeypatch):
    for age, name in enumerate(("new", "middle", "old")):
        path = tmp_path / name
        path.write_bytes(b"x" * 40)
        os.utime(path, (1e9 - age, 1e9 - age))
    monkeypatch.setattr(compiling, "MOST_BYTES", 100)
    compiling._forget_oldest(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["middle", "new"]


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_folder_without_permission_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("NESTAX_COMPILED", str(tmp_path))
    import jax

    monkeypatch.setattr(compiling, "_small_loops", lambda: None)
    theirs = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        assert compiling.speed_up() is None
        assert jax.config.jax_compilation_cache_dir is None
    finally:
        jax.config.update("jax_compilation_cache_dir", theirs)
