"""The file layer under faults: what was good stays good, what is damaged is never believed."""

import errno
import json
import os
import shutil
import warnings

import numpy as np
import pytest

from nestax.checkpoints.files import (
    DIGEST,
    HEAD,
    LENGTH,
    RECORDS,
    Files,
    Folder,
    decode,
    encode,
    unframed,
)
from nestax.errors import SettingError

ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)
OPERATIONS = ("open", "write", "fsync", "rename", "fsync_folder", "remove")


class CrashError(BaseException):
    """The process is gone: nobody cleans up."""


class FaultyFiles(Files):
    """Fails at one operation; ``calls`` lists those that were made."""

    def __init__(self, fail_at=None, error=None, part=1.0):
        self.calls, self.fail_at, self.error, self.part = [], fail_at, error, part

    def _step(self, name, *args):
        self.calls.append(name)
        if len(self.calls) - 1 != self.fail_at:
            return getattr(Files, name)(self, *args)
        if name == "write":  # a part of the data arrives
            file, data = args
            done = Files.write(self, file, data[: int(self.part * len(data))])
            if self.error is None:
                return done  # a short write is no error: the rest must follow
        if self.error is None:
            return getattr(Files, name)(self, *args)
        raise self.error

    def open(self, *args):
        return self._step("open", *args)

    def write(self, *args):
        return self._step("write", *args)

    def fsync(self, *args):
        return self._step("fsync", *args)

    def rename(self, *args):
        return self._step("rename", *args)

    def fsync_folder(self, *args):
        return self._step("fsync_folder", *args)

    def remove(self, *args):
        return self._step("remove", *args)


def state(k: int):
    """The k-th state of a made-up run: tensors, facts, new records."""
    rng = np.random.default_rng(k)
    tensors = {"w": rng.normal(size=(20, 30)), "count": np.asarray(k, np.int32)}
    return tensors, {"step": 10 * k, "note": "ü"}, {"step": np.arange(10 * k - 10, 10 * k)}


def save(folder, k):
    folder.save(*state(k))


def holds(found, k) -> bool:
    """Whether exactly the k-th state was found, with every record up to it."""
    tensors, about, _ = state(k)
    return (
        found.tensors.keys() == tensors.keys()
        and all(np.array_equal(found.tensors[name], x) for name, x in tensors.items())
        and {name: found.about[name] for name in about} == about
        and np.array_equal(found.records["step"], np.arange(10 * k))
    )


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """That data is flushed is seen by the calls; waiting for the disk proves nothing here."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def three(tmp_path):
    """A folder after three saves: the last two are there."""
    path = tmp_path / "run"
    path.mkdir()
    folder = Folder(path)
    for k in (1, 2, 3):
        save(folder, k)
    return path


def look(path):
    """What a new process finds, quietly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Folder(path).load()


def test_the_last_two_are_kept_and_the_newest_is_found(three):
    assert sorted(os.listdir(three)) == [
        "checkpoint-00000002.safetensors",
        "checkpoint-00000003.safetensors",
        RECORDS,
    ]
    assert holds(Folder(three).load(), 3)
    (three / "checkpoint-00000003.safetensors").unlink()
    assert holds(Folder(three).load(), 2)
    assert Folder(three / "nothing").load() is None


def test_records_are_appended_and_never_written_again(three):
    before = (three / RECORDS).read_bytes()
    folder = Folder(three)
    folder.load()
    save(folder, 4)
    assert (three / RECORDS).read_bytes().startswith(before)
    grown = (three / RECORDS).stat().st_size
    folder.save(*state(5)[:2], {})  # nothing new
    assert (three / RECORDS).stat().st_size == grown


def test_any_safetensors_reader_can_read_a_checkpoint(three):
    from safetensors.numpy import load_file

    np.testing.assert_array_equal(
        load_file(three / "checkpoint-00000003.safetensors")["w"], state(3)[0]["w"]
    )


POUR = ["open", "write", "write", "write", "fsync"]
SAVE = [*POUR, *POUR, "rename", "fsync_folder", "remove"]
FIRST = [*POUR, "rename", "fsync_folder", *POUR, "rename", "fsync_folder"]
FAULTS = [
    (at, kind, part)
    for at, name in enumerate(SAVE)
    for kind in (*ERRORS, "crash", *(["short"] if name == "write" else []))
    for part in ((0.0, 0.5, 1.0) if name == "write" and kind != "short" else (0.5,))
]


def test_the_faults_below_are_those_of_a_whole_save(three):
    folder = Folder(three, FaultyFiles())
    folder.load()
    save(folder, 4)
    assert folder.files.calls == SAVE
    assert set(SAVE) == set(OPERATIONS)
    assert len(FAULTS) == 106


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_while_saving_loses_nothing(three, fault):
    at, kind, part = fault
    error = None if kind == "short" else CrashError() if kind == "crash" else OSError(kind, "words")
    folder = Folder(three, FaultyFiles(at, error, part))
    folder.load()
    try:
        save(folder, 4)
        done = True
    except (OSError, CrashError):
        done = False
    renamed = at > SAVE.index("rename")
    assert done == (kind == "short" or (SAVE[at] == "remove" and kind != "crash"))
    assert holds(look(three), 4 if done or renamed else 3)
    if not done and kind != "crash":  # nothing is left lying about to fill the disk
        assert not list(three.glob("*.unfinished"))
    # Whoever comes next goes on from there, over whatever was left behind.
    again = Folder(three)
    k = again.load().about["step"] // 10 + 1
    save(again, k)
    assert holds(look(three), k)


@pytest.mark.parametrize("at", range(len(FIRST)))
def test_a_fault_in_the_first_save_leaves_nothing_or_all(tmp_path, at):
    for error in (CrashError(), OSError(errno.ENOSPC, "words")):
        path = tmp_path / type(error).__name__
        path.mkdir()
        folder = Folder(path, FaultyFiles(at, error, 0.5))
        with pytest.raises((OSError, CrashError)):
            save(folder, 1)
        assert folder.files.calls[: at + 1] == FIRST[: at + 1]
        renamed = len(FIRST) - 1 - FIRST[::-1].index("rename")
        assert holds(look(path), 1) if at > renamed else look(path) is None
        again = Folder(path)
        if again.load() is None:
            save(again, 1)
        assert holds(look(path), 1)


def damaged(path):
    """Every 100th byte flipped, and the file cut there."""
    blob = path.read_bytes()
    for at in range(0, len(blob), 100):
        for bit in (0, 7):
            broken = bytearray(blob)
            broken[at] ^= 1 << bit
            yield bytes(broken)
        yield blob[:at]


def test_damage_anywhere_is_seen_and_the_one_before_is_used(three):
    """Of the newest checkpoint, of the one before it, and of the records."""
    newest, before = three / "checkpoint-00000003.safetensors", three / "checkpoint-00000002.safetensors"
    intact = {path: path.read_bytes() for path in three.iterdir()}
    cases = {"newest": 0, "before": 0, "records": 0}
    for broken in damaged(newest):
        newest.write_bytes(broken)
        with pytest.warns(UserWarning, match=r"checkpoint-00000003.* Going on from checkpoint-00000002"):
            assert holds(Folder(three).load(), 2)
        cases["newest"] += 1
    newest.write_bytes(intact[newest])
    for broken in damaged(before):
        before.write_bytes(broken)
        assert holds(Folder(three).load(), 3)
        cases["before"] += 1
    before.write_bytes(intact[before])
    (end_before,) = [decode(intact[before])[1]["records"]["bytes"]]
    log = three / RECORDS
    for k, broken in enumerate(damaged(log)):
        log.write_bytes(broken)
        at = 100 * (k // 3)
        if at >= end_before:
            assert holds(look(three), 2)
        else:
            with pytest.warns(UserWarning, match=r"00003\.safetensors without the records"):
                goes_on_without_some(Folder(three))
        cases["records"] += 1
        log.write_bytes(intact[log])
        for path in intact.keys() - set(three.iterdir()) | {three / "checkpoint-00000002.safetensors"}:
            path.write_bytes(intact[path])
        (three / "checkpoint-00000004.safetensors").unlink(missing_ok=True)
    log.write_bytes(intact[log])
    assert {path: path.read_bytes() for path in three.iterdir()} == intact
    assert min(cases.values()) > 10
    assert sum(cases.values()) > 300, cases


def goes_on_without_some(folder):
    """The state of the third save is found, with records of its run, the last one among them; the next
    save makes all of it whole again."""
    found = folder.load()
    assert found.about["step"] == 30
    assert np.array_equal(found.tensors["w"], state(3)[0]["w"])
    left = sorted(set(found.records["step"].tolist()))
    assert left[-1] == 29
    assert set(left) < set(range(30))
    folder.look()
    tensors, about, new = state(4)
    folder.save(tensors, about, {"step": np.concatenate([left, new["step"]])})
    again = Folder(folder.path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = again.load()
    assert np.array_equal(found.records["step"], np.concatenate([left, new["step"]]))
    assert again.place.rows == len(left) + 10
    return left


def test_one_bit_costs_one_frame_of_records(three):
    """Of the content, or of the digest, of any frame; those that follow are found again."""
    log = three / RECORDS
    blob = log.read_bytes()
    intact = {path: path.read_bytes() for path in three.iterdir()}
    begins = [frame.begin for frame in unframed(memoryview(blob))]
    assert len(begins) == 3
    for k, begin in enumerate(begins[:2]):
        for at in (LENGTH, HEAD + 100):
            broken = bytearray(blob)
            broken[begin + at] ^= 1
            log.write_bytes(broken)
            with pytest.warns(UserWarning, match=f"damaged in the frame that begins at byte {begin:,}"):
                left = goes_on_without_some(Folder(three))
            assert left == [n for n in range(30) if n // 10 != k]
            for path in three.iterdir():
                path.unlink()
            for path, content in intact.items():
                path.write_bytes(content)


def test_a_crash_while_records_are_written_anew_loses_no_more(three):
    """All of them are in the new file already, when the old checkpoints are all there is."""
    log = three / RECORDS
    intact = {path: path.read_bytes() for path in three.iterdir()}
    broken = bytearray(intact[log])
    broken[HEAD + 100] ^= 1
    for at in range(12):
        for path in three.iterdir():
            path.unlink()
        for path, content in (intact | {log: bytes(broken)}).items():
            path.write_bytes(content)
        folder = Folder(three, FaultyFiles(at, CrashError(), 0.5))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            left = folder.load().records["step"]
        left = np.unique(left)
        tensors, about, new = state(4)
        with pytest.raises(CrashError):
            folder.save(tensors, about, {"step": np.concatenate([left, new["step"]])})
        found = look(three)
        assert {n for n in found.records["step"].tolist() if n < 30} == set(range(10, 30))
    assert folder.files.calls == FIRST[:12]


def test_when_both_are_damaged_the_sentence_says_so(three):
    for path in three.glob("checkpoint-*"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SettingError, match=r"holds no checkpoint that is whole \(.*begin again"):
        Folder(three).load()


def test_a_newer_file_that_cannot_be_read_today_is_not_believed_tomorrow(three):
    """Going on from the one before rewrites the records, so the other one no longer fits them."""
    newest = three / "checkpoint-00000003.safetensors"
    hidden = newest.read_bytes()
    newest.write_bytes(b"")
    folder = Folder(three)
    with pytest.warns(UserWarning, match="Going on"):
        folder.load()
    folder._append({"step": np.arange(3)})
    newest.write_bytes(hidden)
    assert holds(look(three), 2)


def sealed(header: bytes, rest: bytes = b"") -> bytes:
    """A file with a header of anybody's making, and a checksum that is right."""
    import hashlib

    blob = len(header).to_bytes(LENGTH, "little") + header + rest
    first, last = DIGEST.search(blob).span(1)
    return blob[:first] + hashlib.sha256(blob).hexdigest().encode() + blob[last:]


def header(nestax='"{}"', tensors="") -> bytes:
    return f'{{"__metadata__":{{"nestax":{nestax},"sha256":"{"0" * 64}"}}{tensors}}}'.encode()


HOSTILE = {
    "empty": b"",
    "huge header": (2**63 - 1).to_bytes(8, "little") + b"{}",
    "no checksum": (2).to_bytes(8, "little") + b"{}",
    "two checksums": sealed(header(tensors=f',"x":{{"sha256":"{"0" * 64}"}}')),
    "no JSON": sealed(header()[:-1]),
    "deep header": sealed(header(tensors=',"x":' + "[" * 100_000 + "]" * 100_000)),
    "deep facts": sealed(header(json.dumps("[" * 100_000 + "]" * 100_000))),
    "long number": sealed(header(json.dumps('{"step": ' + "9" * 10_000 + "}"))),
    "no facts": sealed(header("3")),
    "facts are a list": sealed(header('"[]"')),
    "no records": sealed(header()),
    "records that are none": sealed(header(json.dumps('{"records": {"bytes": 0, "digest": ""}}'))),
    "records of no length": sealed(header(json.dumps('{"records": {"bytes": "x", "digest": ""}}'))),
    "infinite records": sealed(header(json.dumps('{"records": {"bytes": 1e999, "digest": ""}}'))),
    "huge tensor": sealed(
        header(tensors=',"x":{"dtype":"F64","shape":[1099511627776],"data_offsets":[0,8796093022208]}')
    ),
    "overflowing shape": sealed(
        header(tensors=',"x":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]}')
    ),
    "unknown dtype": sealed(
        header(tensors=',"x":{"dtype":"X9","shape":[1],"data_offsets":[0,1]}'), b"1"
    ),
    "pickle": b"\x80\x04\x95cos\nsystem\n(S'echo'\ntR.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_sentence(tmp_path, name):
    (tmp_path / "checkpoint-00000001.safetensors").write_bytes(HOSTILE[name])
    with pytest.raises(SettingError, match="holds no checkpoint that is whole") as told:
        Folder(tmp_path).load()
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 400 + len(str(tmp_path))


def test_what_is_sealed_here_is_what_is_written():
    tensors, about, _ = state(1)
    blob = b"".join(bytes(part) for part in encode(tensors, about))
    size = int.from_bytes(blob[:LENGTH], "little")
    assert (
        sealed(
            blob[LENGTH : LENGTH + size].replace(DIGEST.search(blob).group(1), b"0" * 64),
            blob[LENGTH + size :],
        )
        == blob
    )
    assert decode(blob)[1] == about


def test_one_process_at_a_time(three):
    pytest.importorskip("fcntl")
    first, second = Folder(three), Folder(three)
    held = first.files.lock(three)
    with pytest.raises(SettingError, match="another process is writing to"):
        second.files.lock(three)
    first.files.unlock(held)
    second.files.unlock(second.files.lock(three))


def test_a_vanished_folder_is_an_error_and_is_not_made_again(three):
    folder = Folder(three)
    folder.load()
    shutil.rmtree(three)
    with pytest.raises(FileNotFoundError):
        save(folder, 4)
    assert not three.exists()


# What happens to a folder while a run goes on


class InterruptedFiles(FaultyFiles):
    """Ctrl-C before one of the operations, or after it."""

    def __init__(self, at, after):
        super().__init__()
        self.at, self.after = at, after

    def _step(self, name, *args):
        here = len(self.calls) == self.at
        self.calls.append(name)
        if here and not self.after:
            raise KeyboardInterrupt
        out = getattr(Files, name)(self, *args)
        if here:
            if name == "open":
                out.close()  # nobody has it
            raise KeyboardInterrupt
        return out


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(len(SAVE)))
def test_ctrl_c_inside_a_save_writes_no_record_twice(three, at, after):
    """Whoever catches it saves again, and so does the next one."""
    folder = Folder(three, InterruptedFiles(at, after))
    folder.load()
    with pytest.raises(KeyboardInterrupt):
        save(folder, 4)
    if folder.place.rows == 30:
        save(folder, 4)
    else:
        assert SAVE[at] == "remove"
    assert holds(look(three), 4)
    save(folder, 5)
    assert holds(look(three), 5)
    assert not list(three.glob("*.unfinished"))


def test_records_that_are_deleted_meanwhile_are_all_written_again(three):
    for damage in (lambda log: log.unlink(), lambda log: log.write_bytes(log.read_bytes()[:-1])):
        folder = Folder(three)
        folder.load()
        damage(three / RECORDS)
        folder.look()
        assert folder.place.rows == 0
        tensors, about, _ = state(3)
        folder.save(tensors, about, {"step": np.arange(30)})
        assert holds(Folder(three).load(), 3)


def test_a_folder_that_another_one_replaces_is_left_to_it(three):
    pytest.importorskip("fcntl")
    folder = Folder(three)
    folder.load()
    folder.lock = folder.files.lock(three)
    folder.look()
    three.rename(three.with_name("moved"))
    with pytest.raises(FileNotFoundError):
        folder.look()
    three.mkdir()
    with pytest.raises(OSError, match="another folder has taken its place"):
        folder.look()
    folder.files.unlock(folder.lock)
