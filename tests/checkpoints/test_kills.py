"""Processes killed at any moment, also in the middle of a write: what they leave goes on bit for bit."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nestax.checkpoints.folder import Folder
from nestax.loop import chunks as drive
from nestax.streams import feed as feeding

sys.path.insert(0, str(Path(__file__).parent))
import killed

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be forked")


def check(kind, plan, place, monkeypatch):
    """Kills one run at every moment of the plan, and goes on with each; how many had made progress."""
    monkeypatch.setattr(drive, "CHUNK_SECONDS", 0.05)
    monkeypatch.setattr(feeding, "PORTION_STEPS", 2 * killed.PORTION)
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(place / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    done = subprocess.run(
        [sys.executable, killed.__file__, kind, str(place), json.dumps(plan)],
        env=os.environ | cache,
        capture_output=True,
        text=True,
        check=False,
        timeout=30 + 20 * len(plan),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [True] * len(plan), done.stderr
    whole = killed.make(kind)
    progress = []
    for k in range(len(plan)):
        folder = place / str(k)
        found = Folder(folder).load()
        progress.append(0 if found is None else found.facts["step"])
        rest = killed.make(kind, folder, resume=True)
        np.testing.assert_array_equal(rest.w, whole.w)
        assert list(rest.records) == list(whole.records)
        for name, column in whole.records.items():
            assert np.array_equal(rest.records[name], column), (kind, plan[k], name)
        shutil.rmtree(folder)
    return progress


@pytest.mark.parametrize("kind", ["minimize", "stream"])
def test_a_few_kills(kind, tmp_path, monkeypatch):
    progress = check(kind, killed.moments(2, inside=1, seed=0), tmp_path, monkeypatch)
    assert all(step < killed.STEPS for step in progress)
    assert any(progress)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["minimize", "sweep", "stages", "stream"])
def test_twenty_five_kills(kind, tmp_path, monkeypatch):
    """Eleven of them inside a file operation, by a hook; the others by the clock."""
    plan = killed.moments(25, inside=11, seed=len(kind))
    progress = check(kind, plan, tmp_path, monkeypatch)
    assert all(step < killed.STEPS for step in progress)
    assert len(set(progress)) > 10
