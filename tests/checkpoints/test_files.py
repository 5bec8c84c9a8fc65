"""The file layer under faults: what was good stays good, what is damaged is never believed."""

import errno
import json
import os
import shutil
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nestax.checkpoints.files import FORMAT, Files, OtherFormatError, checksum, load, pack
from nestax.checkpoints.folder import Folder
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
    """The k-th state of a made-up run: arrays in groups, and facts."""
    rng = np.random.default_rng(k)
    carry = {"w": rng.normal(size=(20, 30)), "count": np.asarray(k, np.int32)}
    return {"carry": carry, "records": {"step": np.arange(10 * k)}}, {"step": 10 * k, "note": "ü"}


def save(folder, k):
    folder.save(*state(k))


def holds(found, k) -> bool:
    """Whether exactly the k-th state was found, with every record up to it."""
    groups, facts = state(k)
    return (
        found.facts == facts
        and found.groups.keys() == groups.keys()
        and all(list(found.groups[name]) == list(arrays) for name, arrays in groups.items())
        and all(
            np.array_equal(found.groups[group][name], x) and found.groups[group][name].dtype == x.dtype
            for group, arrays in groups.items()
            for name, x in arrays.items()
        )
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
    ]
    assert holds(Folder(three).load(), 3)
    (three / "checkpoint-00000003.safetensors").unlink()
    assert holds(Folder(three).load(), 2)
    assert Folder(three / "nothing").load() is None


def test_any_safetensors_reader_can_read_a_checkpoint(three):
    from safetensors.numpy import load_file

    np.testing.assert_array_equal(
        load_file(three / "checkpoint-00000003.safetensors")["carry/w"], state(3)[0]["carry"]["w"]
    )


SAVE = ["open", "write", "fsync", "rename", "fsync_folder", "remove"]
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
    assert len(FAULTS) == 33


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
    k = again.load().facts["step"] // 10 + 1
    save(again, k)
    assert holds(look(three), k)


@pytest.mark.parametrize("at", range(len(SAVE) - 1))
def test_a_fault_in_the_first_save_leaves_nothing_or_all(tmp_path, at):
    for error in (CrashError(), OSError(errno.ENOSPC, "words")):
        path = tmp_path / type(error).__name__
        path.mkdir()
        folder = Folder(path, FaultyFiles(at, error, 0.5))
        with pytest.raises((OSError, CrashError)):
            save(folder, 1)
        assert folder.files.calls[: at + 1] == SAVE[: at + 1]
        assert holds(look(path), 1) if at > SAVE.index("rename") else look(path) is None
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
    """Of the newest checkpoint, and of the one before it."""
    newest, before = three / "checkpoint-00000003.safetensors", three / "checkpoint-00000002.safetensors"
    intact = {path: path.read_bytes() for path in three.iterdir()}
    cases = {"newest": 0, "before": 0}
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
    assert {path: path.read_bytes() for path in three.iterdir()} == intact
    assert min(cases.values()) > 150, cases


@pytest.mark.parametrize("share", np.linspace(0, 1, 11))
def test_a_crash_at_any_stage_of_a_write_leaves_the_last_two(three, share):
    """Whatever part of the next file has reached the disk, under its working name or, where a disk
    forgets what it has flushed, under its own."""
    before = {path.name: path.read_bytes() for path in three.iterdir()}
    blob = pack(*state(4))
    part = blob[: int(share * len(blob))]
    (three / "checkpoint-00000004.safetensors.unfinished").write_bytes(part)
    assert holds(Folder(three).load(), 3)
    (three / "checkpoint-00000004.safetensors").write_bytes(part)
    found = look(three)
    assert holds(found, 4 if part == blob else 3)
    assert {name: (three / name).read_bytes() for name in before} == before
    again = Folder(three)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        k = again.load().facts["step"] // 10 + 1
    save(again, k)  # over what is damaged, so that the last two are whole
    assert holds(Folder(three).load(), k)
    again.checkpoints()[0].unlink()
    assert holds(Folder(three).load(), k - 1)


def test_when_both_are_damaged_the_sentence_says_so(three):
    for path in three.glob("checkpoint-*"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SettingError, match=r"holds no checkpoint that is whole \(.*begin again"):
        Folder(three).load()


def test_a_folder_of_another_version_is_one_sentence(tmp_path):
    """As this version's own files would be for another one, and as those of the format before."""
    from safetensors.numpy import save as save_tensors

    old = json.dumps({"format": 5, "step": 10, "records": {"bytes": 3, "digest": ""}})
    header = {"nestax": old, "sha256": "0" * 64}
    for metadata in (header, header | {"format": "7"}):
        blob = save_tensors({"w": np.zeros(3)}, metadata)
        for number in (1, 2):
            (tmp_path / f"checkpoint-0000000{number}.safetensors").write_bytes(blob)
        with pytest.raises(SettingError, match="was written by another version of nestax: use that"):
            Folder(tmp_path).load()
        with pytest.raises(OtherFormatError):
            load(tmp_path / "checkpoint-00000001.safetensors")


def test_notes_lie_beside_checkpoints_and_are_not_believed_when_damaged(three):
    folder = Folder(three)
    folder.note("search", {"lr": 0.1})
    assert folder.noted("search") == {"lr": 0.1}
    assert holds(folder.load(), 3)
    path = three / "search.safetensors"
    for broken in [*damaged(path)][:20]:
        path.write_bytes(broken)
        assert folder.noted("search") is None
    assert folder.noted("nothing") is None


def sealed(facts="{}", arrays="{}", tensors="", rest=b"", extra=""):
    """A file with a header of anybody's making, and a checksum that is right if nothing is in it."""
    text = f'{{"arrays": {arrays}, "facts": {facts}}}'
    about = {"format": FORMAT, "nestax": text, "sha256": checksum(text, {})}
    header = f'{{"__metadata__":{json.dumps(about)}{tensors}}}{extra}'.encode()
    return len(header).to_bytes(8, "little") + header + rest


HOSTILE = {
    "empty": b"",
    "huge header": (2**63 - 1).to_bytes(8, "little") + b"{}",
    "no checksum": (2).to_bytes(8, "little") + b"{}",
    "wrong checksum": sealed().replace(b'"sha256": "', b'"sha256": "0'),
    "no JSON": sealed(extra="}"),
    "deep header": sealed(tensors=',"x":' + "[" * 100_000 + "]" * 100_000),
    "deep facts": sealed("[" * 100_000 + "]" * 100_000),
    "long number": sealed('{"step": ' + "9" * 10_000 + "}"),
    "no facts": sealed("3"),
    "arrays are a list": sealed(arrays="[]"),
    "an array that is not there": sealed(arrays='{"x": ""}'),
    "an array that is not named": sealed(
        tensors=',"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}', rest=b"1"
    ),
    "huge tensor": sealed(
        tensors=',"x":{"dtype":"F64","shape":[1099511627776],"data_offsets":[0,8796093022208]}'
    ),
    "overflowing shape": sealed(
        tensors=',"x":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]}'
    ),
    "unknown dtype": sealed(tensors=',"x":{"dtype":"X9","shape":[1],"data_offsets":[0,1]}', rest=b"1"),
    "pickle": b"\x80\x04\x95cos\nsystem\n(S'echo'\ntR.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_sentence(tmp_path, name):
    (tmp_path / "checkpoint-00000001.safetensors").write_bytes(HOSTILE[name])
    with pytest.raises(SettingError, match="holds no checkpoint that is whole") as told:
        Folder(tmp_path).load()
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 400 + len(str(tmp_path))


def test_what_is_sealed_here_is_what_is_read(tmp_path):
    path = tmp_path / "checkpoint-00000001.safetensors"
    path.write_bytes(sealed('{"step": 3}'))
    assert Folder(tmp_path).load().facts == {"step": 3}


@pytest.mark.parametrize("kind", ["key none", "bits nonsense", "bits float64", 3])
def test_a_kind_of_anybodys_making_is_damage(tmp_path, monkeypatch, kind):
    from nestax.checkpoints import files

    monkeypatch.setattr(files, "as_host", lambda x: (x, kind))
    (tmp_path / "checkpoint-00000001.safetensors").write_bytes(pack({"a": {"x": np.zeros(3)}}, {}))
    with pytest.raises(SettingError, match="cut short or damaged"):
        Folder(tmp_path).load()


def test_keys_and_short_floats_come_back(tmp_path):
    keys = jax.random.split(jax.random.key(3), 2)
    short = jnp.asarray([[1.5, 2.0]], jnp.bfloat16)
    Folder(tmp_path).save({"a": {"keys": keys, "short": short, "none": np.zeros((0, 2))}}, {})
    found = Folder(tmp_path).load().groups["a"]
    assert list(found) == ["keys", "short", "none"]
    np.testing.assert_array_equal(jax.random.key_data(found["keys"]), jax.random.key_data(keys))
    np.testing.assert_array_equal(found["short"], short)
    assert (found["short"].dtype, found["none"].shape) == (jnp.bfloat16, (0, 2))


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
def test_ctrl_c_inside_a_save_leaves_a_whole_state(three, at, after):
    """Whoever catches it saves again, and so does the next one."""
    folder = Folder(three, InterruptedFiles(at, after))
    folder.load()
    with pytest.raises(KeyboardInterrupt):
        save(folder, 4)
    if folder.number == 3:
        save(folder, 4)
    else:
        assert SAVE[at] == "remove"
    assert holds(look(three), 4)
    save(folder, 5)
    assert holds(look(three), 5)
    assert not list(three.glob("*.unfinished"))


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
