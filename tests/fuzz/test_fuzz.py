"""Damaged files end in one sentence, or in sound numbers; never in anything else."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fuzzing

#: Readers to which a checksum lets few changes pass.
GUARDED = {"packed", "checkpoint", "records", "program"}
#: Those that take a run for each file.
SLOW = {"sealed checkpoint", "program"}


@pytest.mark.parametrize("name", fuzzing.READERS)
def test_changed_files(name, tmp_path):
    count = 40 if name in SLOW else 200
    done = fuzzing.fuzz(name, count, folder=tmp_path)
    if name not in GUARDED | SLOW:
        assert 0 < done < count
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_hundred_thousand_changed_files(capsys):
    fuzzing.main(100_000)
    assert re.search(r"100,0\d\d files, each ended", capsys.readouterr().out)
