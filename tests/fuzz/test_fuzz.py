"""Damaged files end in one sentence, or in sound numbers; never in anything else."""

import pickle
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import nestax as nx
from nestax.checkpoints import files as checkpoint

sys.path.insert(0, str(Path(__file__).parent))
import fuzzing

#: Readers to which a checksum lets few changes pass.
GUARDED = {"packed", "workbook", "checkpoint", "program"}
#: Those that take a run for each file.
SLOW = {"sealed checkpoint", "program"}


@pytest.mark.parametrize("name", fuzzing.READERS)
def test_changed_files(name, tmp_path):
    if name == "workbook":
        pytest.importorskip("openpyxl", reason="EXCEL NOT CHECKED: pip install openpyxl")
    count = 20 if name in SLOW else 120
    done = fuzzing.fuzz(name, count, folder=tmp_path)
    if name not in GUARDED | SLOW:
        assert 0 < done < count
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_hundred_thousand_changed_files(capsys):
    fuzzing.main(100_000)
    assert re.search(r"100,0\d\d files, each ended", capsys.readouterr().out)


# Nothing is unpickled


class Payload:
    """What a file would do if anybody unpickled it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_no_source_file_unpickles_or_evaluates():
    unsafe = re.compile(
        r"\b(pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve)\b|allow_pickle=True|\b(eval|exec)\("
    )
    words = re.compile(r'"""[\s\S]*?"""|#.*')  # may speak of it
    for path in sorted(Path(nx.__file__).parent.rglob("*.py")):
        assert not unsafe.search(words.sub("", path.read_text())), path


def test_a_payload_is_never_carried_out(tmp_path):
    """As the whole file, as the bytes of a tensor, as a name, as text in a header."""
    mark = tmp_path / "carried out"
    payload = pickle.dumps(Payload(mark))
    text = payload.decode("latin-1")
    folder = tmp_path / "run"
    kept = fuzzing.Kept("checkpoint", sealed=True)
    groups, facts = kept.found
    strange = {"carry.w": np.frombuffer(payload, np.uint8), text: np.zeros(1)}
    told = {"message": text, "stream": [{"row": 0, "state": {"bytes": payload.hex()}}]}
    blobs = [
        payload,
        checkpoint.pack(groups | {"carry": groups["carry"] | strange}, facts | told),
        *(
            checkpoint.pack(groups, facts | {name: text})
            for name in ("message", "status", "made with", "fingerprint", "stream")
        ),
    ]
    for blob in blobs:
        folder.mkdir()
        kept.write(folder, None)
        (folder / kept.checkpoint).write_bytes(blob)
        fuzzing.outcome(kept, folder)
        shutil.rmtree(folder)
    (tmp_path / "file").write_bytes(payload)
    for read in (nx.load, nx.Stream, nx.datasets.libsvm):
        with pytest.raises(nx.ProblemError):
            read(tmp_path / "file")
    objects = np.array([Payload(mark)], dtype=object)
    with pytest.raises(nx.ProblemError, match="rows must hold numbers; got object"):
        nx.Stream(objects)
    assert not mark.exists()
    pickle.loads(payload)
    assert mark.exists()  # it would have
