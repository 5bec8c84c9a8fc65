"""Files changed at random, for everything that reads files. As a program: many of them, counted.

    python -m tests.fuzz.fuzzing [how many in all]

Whatever a file holds, reading it ends with sound numbers or with one sentence, in bounded time, and
writes nothing outside of the folder that the file lies in.
"""

import copy
import faulthandler
import gzip
import io
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors
import safetensors.numpy
from tests.support.asked import asked

import nestax as nx
from nestax.checkpoints import files as checkpoint
from nestax.checkpoints.folder import Folder
from nestax.cli import shell
from nestax.datasets import libsvm, read_examples, read_returns

PROGRAM = "program.safetensors"
#: Seconds that one file may take, and after which a process that does not answer is ended.
LIMIT, LAST_LIMIT = 10.0, 120.0
LONGEST_MESSAGE = 1_500

# Changing files

PIECES = [
    b"",
    b",",
    b";",
    b":",
    b"\n",
    b"\r",
    b'"',
    b"\0",
    b"\0" * 40,
    b"\xff\xfe",
    b"nan",
    b"inf",
    b"1e999",
    b"-",
    b"_",
    b" ",
    b"9" * 400,
    b"2020-02-30",
    b"\xe2\x80\xa8",
    b"\x1f\x8b",
    b"PK\x03\x04",
    b"PAR1",
    b"1:1",
    b"\xef\xbb\xbf",
    b"99999999999:1",
    b"1e-320",
    "٣".encode(),
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    b"[" * 5_000,
    b"{" * 200,
    b'{"a":' * 2_000,
    b"null",
    b"-1",
    b"true",
    b"18446744073709551616",
]
NEAR = b"0123456789.,:-e\n"


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Bits flipped, pieces cut out, doubled, moved or replaced by odd ones; sometimes cut short."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        start, other = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
        kind = rng.randrange(7)
        if kind == 0:
            data[start : start + rng.choice([0, 1, 10])] = rng.choice(PIECES)
        elif kind == 1:
            data[start : start + rng.choice([0, 12])] = data[other : other + 12]
        elif kind == 2:
            data[start : start + 1] = bytes([rng.randrange(256)])
        elif kind == 3 and start < len(data):
            data[start] ^= 1 << rng.randrange(8)
        elif kind == 4 and rng.random() < 0.3:
            del data[start:]
        elif kind == 5 and rng.random() < 0.3:
            del data[min(start, other) : max(start, other)]
        else:
            data[start : start + 1] = bytes([rng.choice(NEAR)])
    return bytes(data)


def _nested(depth):
    out = []
    for _ in range(depth):
        out = [out]
    return out


HOSTILE = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2**31,
    2**63,
    2**70,
    -(2**63),
    0.5,
    math.inf,
    math.nan,
    "",
    "x",
    "\0",
    "../../outside",
    "/outside",
    "x" * 3_000,
    [],
    [[]],
    {},
    {"a": 1},
    _nested(200),
    ["x"],
    [1, 2, 3],
    "cos\nsystem\n(S'true'\ntR.",
    {"py/object": "os.system"},
    "key threefry2x32",
    "bits float64",
]


def mutated_json(tree, rng: random.Random):
    """One or two places of a JSON value replaced, removed, or given something more."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice([1, 1, 2])):
        here = tree
        while True:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(here[key], dict | list) and here[key] and rng.random() < 0.7:
                here = here[key]
                continue
            change = rng.randrange(4)
            if change == 0:
                del here[key]
            elif change == 1 and isinstance(here, dict):
                here[rng.choice(["x", "", "\0", str(key)])] = copy.deepcopy(rng.choice(HOSTILE))
            else:
                here[key] = copy.deepcopy(rng.choice(HOSTILE))
            break
    return tree


# What is read


DAYS = range(1, 13)
TABLE = b"date,a,b,c\n" + b"".join(b"2020-01-%02d,%d.5,-0.%d,1e-%d\n" % (d, d, d, d) for d in DAYS)
PRICES = TABLE.replace(b"-0.", b"0.").replace(b"1e-", b"2.")
LINES = b"".join(b"%d 1:%d.5 2:-0.%d 4:1e-%d\n" % (d % 2, d, d, d) for d in DAYS)
LIBRARY = b"Made by hand, in percent. Kenneth R. French has others.\n\n  Monthly\n,a ,b,c\n"
LIBRARY += b"".join(b"2020%02d,%7d.5,%7.2f,%8d\n" % (d, d, d**2, -999 if d == 5 else d) for d in DAYS)
LIBRARY += b"\n  Annual\n,a,b,c\n  2019,   1.5,  2.5, 3.5\n\nCopyright of somebody\n"
CONFIG = b'data = "x.csv"\nrisk = 0.3\nmethods = ["SMVR", "Plain"]\nseeds = 3\n[more]\na = 2020-01-01\n'


def sound(array):
    assert array.ndim == 2
    assert np.isfinite(array).all()


class Bytes:
    """A file whose bytes are changed; ``packed`` ones are changed inside at times."""

    def __init__(self, content, read, packed=False):
        self.content, self.read_file, self.packed = content, read, packed

    def write(self, folder, rng):
        if rng is None:
            changed = self.content
        elif self.packed and rng.random() < 0.5:
            changed = gzip.compress(mutated(gzip.decompress(self.content), rng), 1)
        else:
            changed = mutated(self.content, rng)
        (folder / "file").write_bytes(changed)

    def read(self, folder):
        self.read_file(folder / "file")


def parquet():
    rng = np.random.default_rng(0)
    columns = {"a": rng.normal(size=60), "b": rng.normal(size=60).astype(np.float32), "c": np.arange(60)}
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, row_group_size=25)
    return out.getvalue()


def workbook():
    out = io.BytesIO()
    pd.read_csv(io.BytesIO(TABLE)).to_excel(out, index=False)
    return out.getvalue()


def read_stream(path):
    stream = nx.Stream(path)
    for start in (0, 41):
        rows, why = stream.reader.read(start, 70)
        sound(rows)
        if why is not None:
            raise nx.ProblemError(why)


def small():
    levels = [
        nx.Level(lambda w, r: r @ w, np.random.default_rng(1).normal(size=(30, 2)), name="inner"),
        nx.Level(lambda u: u**2, name="outer"),
    ]
    return nx.Problem(levels, jnp.asarray([1.0, 2.0]))


STREAMED = np.random.default_rng(2).normal(size=(400, 2))


def run(rate=0.01, **kept):
    """A run on a stream, so that its place is a part of what is read."""
    problem = small().with_data(inner=nx.Stream(iter(STREAMED)))
    return nx.minimize(
        problem,
        nx.SMVR(beta=0.3),
        optax.adam(rate),
        steps=20,
        batch_size=2,
        record_every=5,
        **asked(**kept),
    )


class Kept:
    """A folder with a run: bytes of one of its files are changed, or the facts in its checkpoint."""

    def __init__(self, name, sealed=False):
        self.name, self.sealed, self.refused = name, sealed, name == PROGRAM
        with tempfile.TemporaryDirectory() as place:
            run(checkpoint=place, callback=lambda record: record["step"] >= 10)
            self.files = {path.name: path.read_bytes() for path in Path(place).iterdir()}
            self.found = Folder(place).load()
        self.checkpoint = next(name for name in self.files if name.startswith("checkpoint"))

    def write(self, folder, rng):
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        if rng is None:
            return
        path = folder / (self.checkpoint if self.name == "checkpoint" else self.name)
        if not self.sealed:
            path.write_bytes(mutated(path.read_bytes(), rng))
        elif rng.random() < 0.5:
            facts = mutated_json(self.found.facts, rng)
            path.write_bytes(checkpoint.pack(self.found.groups, facts))
        else:  # the bytes of the tensors and of the header, with a checksum that is right
            path.write_bytes(resealed(mutated(path.read_bytes(), rng)))

    def read(self, folder):
        if not self.sealed and self.name != PROGRAM:
            found = Folder(folder).load()
            assert found.facts == self.found.facts  # changed files are never believed
            bits = lambda groups: jax.tree.map(lambda x: np.asarray(x).tobytes(), groups)
            assert bits(found.groups) == bits(self.found.groups)
            return
        # With another learning rate the program is looked at, to tell the difference.
        rate = 0.02 if self.name == PROGRAM else 0.01
        result = run(rate, checkpoint=folder, resume=True)
        assert isinstance(result, nx.Result)


def resealed(blob: bytes) -> bytes:
    """A file whose checksum is that of what it holds, if it can be read at all."""
    try:
        size = int.from_bytes(blob[:8], "little")
        header = json.loads(blob[8 : 8 + size])
        about = header["__metadata__"]
        tensors = safetensors.numpy.load(blob)
        ordered = {name: tensors[name] for name in json.loads(about["nestax"])["arrays"]}
        about["sha256"] = checkpoint.checksum(about["nestax"], ordered)
    except (safetensors.SafetensorError, *checkpoint.MADE_UP):
        return blob
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + blob[8 + size :]


class Results:
    """A file that ``Result.save`` wrote: its bytes, or the facts in its header."""

    def __init__(self):
        with tempfile.TemporaryDirectory() as place:
            run().save(Path(place) / "file")
            self.content = (Path(place) / "file").read_bytes()

    def write(self, folder, rng):
        path, content = folder / "file", self.content
        if rng is not None and rng.random() < 0.5:
            groups, facts = checkpoint.unpack(content)
            content = checkpoint.pack(groups, mutated_json(facts, rng))
        elif rng is not None:
            content = mutated(content, rng)
        path.write_bytes(content)

    def read(self, folder):
        found = nx.load(folder / "file")
        assert isinstance(found.carry.step, int)
        assert isinstance(found.message, str)
        repr(found)


class Commands:
    """What ``nestax resume`` reads; the command itself is not carried out."""

    def write(self, folder, rng):
        command = {"arguments": ["portfolio", "x.csv", "--risk", "0.3"], "folder": str(folder)}
        if rng is not None and rng.random() < 0.6:
            command = mutated_json(command, rng)
        content = json.dumps(command).encode()
        if rng is not None and rng.random() < 0.5:
            content = mutated(content, rng)
        (folder / shell.COMMAND).write_bytes(content)

    def read(self, folder):
        def main(arguments, prog_name):
            assert all(isinstance(word, str) for word in arguments)

        root = SimpleNamespace(command=SimpleNamespace(main=main), info_name="nestax")
        here = os.getcwd()
        try:
            shell.repeat(SimpleNamespace(find_root=lambda: root), folder, None)
        finally:
            os.chdir(here)


#: How to make a reader, and its share of the files.
READERS = {
    "returns": (lambda: Bytes(TABLE, lambda p: sound(read_returns(p, unit="percent").values)), 12),
    "fractions": (
        lambda: Bytes(TABLE, lambda p: sound(read_returns(p, unit="fraction", dates=True).values)),
        8,
    ),
    "prices": (lambda: Bytes(PRICES, lambda p: sound(read_returns(p, kind="prices").values)), 10),
    "packed": (
        lambda: Bytes(
            gzip.compress(TABLE), lambda p: sound(read_returns(p, unit="percent").values), packed=True
        ),
        8,
    ),
    "Parquet returns": (
        lambda: Bytes(parquet(), lambda p: sound(read_returns(p, unit="percent").values)),
        6,
    ),
    "library": (lambda: Bytes(LIBRARY, lambda p: sound(read_returns(p).values)), 8),
    "padded library": (
        lambda: Bytes(LIBRARY.replace(b",", b" "), lambda p: sound(read_returns(p).values)),
        6,
    ),
    "workbook": (
        lambda: Bytes(workbook(), lambda p: sound(read_returns(p, unit="percent").values)),
        2,
    ),
    "Parquet stream": (lambda: Bytes(parquet(), read_stream), 12),
    "examples": (lambda: Bytes(TABLE, lambda p: sound(read_examples(p, "date", groups="a").X)), 8),
    "libsvm": (lambda: Bytes(LINES, lambda p: sound(libsvm(p)[0])), 12),
    "libsvm examples": (lambda: Bytes(LINES, lambda p: sound(read_examples(p).X)), 6),
    "config": (lambda: Bytes(CONFIG, shell._toml), 6),
    "checkpoint": (lambda: Kept("checkpoint"), 14),
    "program": (lambda: Kept(PROGRAM), 1),
    "sealed checkpoint": (lambda: Kept("checkpoint", sealed=True), 3),
    "result": (Results, 8),
    "command": (Commands, 6),
}

# Reading them


class HangError(BaseException):
    """Reading one file took too long."""


class Watch:
    """Notes what must not happen while a file is read: writing elsewhere, starting or unpickling."""

    def __init__(self):
        self.folder, self.broken = None, []
        self.programs = os.path.realpath(jax.config.jax_compilation_cache_dir or os.devnull)
        sys.addaudithook(self._see)  # stays for the life of the process

    @contextmanager
    def over(self, folder):
        self.folder = str(folder.resolve())
        try:
            yield
        finally:
            self.folder = None

    def _see(self, event, args):
        if self.folder is None:
            return
        if event in ("pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
            self.broken.append((event, str(args)))
        paths = []
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            flags = args[2] if isinstance(args[2], int) else 0
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or (
                args[1] and set(args[1]) & set("wax+")
            ):
                paths = [args[0]]
        elif event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link"):
            paths = [x for x in args if isinstance(x, str | bytes | os.PathLike)]
        for path in paths:
            where = os.path.realpath(os.fsdecode(path))
            # Programs that JAX keeps, if somebody has told it a folder, are no part of what is read.
            if not where.startswith((self.folder, self.programs)) and where != os.devnull:
                self.broken.append((event, where))


_WATCH: list[Watch] = []


def watch() -> Watch:
    if not _WATCH:
        _WATCH.append(Watch())
    return _WATCH[0]


def outcome(reader, folder) -> bool:
    """Whether the files were read; a refusal must be one line that ends with a full stop."""
    try:
        reader.read(folder)
    except (nx.ProblemError, nx.SettingError) as error:
        words = str(error)
        if len(words) > LONGEST_MESSAGE or not re.fullmatch(r"[^\n\r]+[.?]", words):
            raise AssertionError(f"no sentence: {words[:2_000]!r}") from error
        return False
    return True


def _late(*_):
    raise HangError


def fuzz(name, count, seed=0, folder=None, patience=None):
    """How many of ``count`` changed files were read; raises at the first that ends otherwise."""
    reader, looking = READERS[name][0](), watch()
    place = Path(tempfile.mkdtemp(dir=folder))
    timed = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    before = signal.signal(signal.SIGALRM, _late) if timed else None
    done = 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number in range(-1, count):
                rng = None if number < 0 else random.Random(f"{name} {seed} {number}")
                here = place / "read"
                here.mkdir()
                reader.write(here, rng)
                if timed:
                    signal.setitimer(signal.ITIMER_REAL, LIMIT)
                if patience is not None:
                    faulthandler.dump_traceback_later(patience, exit=True, file=sys.__stderr__)
                try:
                    with looking.over(here):
                        was_read = outcome(reader, here)
                    assert not looking.broken, looking.broken
                    if rng is None:
                        assert was_read != getattr(reader, "refused", False), "before any change"
                    done += was_read and rng is not None
                except BaseException as error:
                    error.add_note(f"{name}, seed {seed}, file {number}")
                    raise
                finally:
                    if timed:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                shutil.rmtree(here)
    finally:
        looking.broken.clear()
        shutil.rmtree(place, ignore_errors=True)
        if patience is not None:
            faulthandler.cancel_dump_traceback_later()
        if timed:
            signal.signal(signal.SIGALRM, before)
    return done


def main(count: int, seed: int = 0) -> None:
    shares = sum(share for _, share in READERS.values())
    total = 0
    for name, (_, share) in READERS.items():
        many, begin = math.ceil(count * share / shares), time.perf_counter()
        done = fuzz(name, many, seed, patience=LAST_LIMIT)
        total += many
        took = time.perf_counter() - begin
        print(f"{name:<20} {many:>7,} files, {done:>7,} read, {many - done:>7,} refused, {took:>5.0f} s")
    print(f"{total:,} files, each ended with a result or with one sentence")


if __name__ == "__main__":
    import jax

    jax.config.update("jax_enable_x64", True)
    main(*map(int, sys.argv[1:]) if len(sys.argv) > 1 else [100_000])
