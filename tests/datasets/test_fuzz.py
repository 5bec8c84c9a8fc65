"""Damaged files end in one sentence, or in sound numbers; never in anything else."""

import gzip
import random

import numpy as np
import pytest

import nestax as nx
from nestax.datasets import libsvm, read_returns

DAYS = range(1, 13)
TABLE = b"date,a,b,c\n" + b"".join(b"2020-01-%02d,%d.5,-0.%d,1e-%d\n" % (d, d, d, d) for d in DAYS)
PRICES = TABLE.replace(b"-0.", b"0.").replace(b"1e-", b"2.")
LINES = b"".join(b"%d 1:%d.5 2:-0.%d 4:1e-%d\n" % (d % 2, d, d, d) for d in DAYS)
PIECES = [
    b"", b",", b";", b":", b"\n", b"\r", b'"', b"\0", b"\xff\xfe", b"nan", b"inf", b"1e999", b"-", b"_",
    b" ", b"9" * 400, b"2020-02-30", b"\xe2\x80\xa8", b"\x1f\x8b", b"PK\x03\x04", b"PAR1", b"1:1",
    b"\xef\xbb\xbf", b"99999999999:1", b"1e-320", "٣".encode(),
]  # fmt: skip


def mutated(content: bytes, rng: random.Random) -> bytes:
    """A few pieces replaced by nothing, by others of the file or by odd ones; sometimes packed."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        start, other = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
        near = b"0123456789.,:-e\n"
        piece, length = rng.choice([
            (rng.choice(PIECES), rng.choice([0, 1, 10])),
            (bytes(data[other : other + 12]), rng.choice([0, 12])),
            (bytes([rng.randrange(256)]), 1),
            (bytes([rng.choice(near)]), 1),
            (bytes([rng.choice(near)]), 1),
        ])  # fmt: skip
        data[start : start + length] = piece
    return bytes(data) if rng.random() < 0.9 else gzip.compress(bytes(data))


def sound(read, path):
    """Whether the file was read; a refusal must be one sentence on one line."""
    try:
        result = read(path)
    except nx.ProblemError as error:
        message = str(error)
        assert message.endswith(".")
        assert "\n" not in message
        assert len(message) < 700
        return False
    array = result[0] if isinstance(result, tuple) else result.values
    assert array.ndim == 2
    assert np.isfinite(array).all()
    return True


READERS = {
    "returns": (TABLE, lambda path: read_returns(path, unit="percent")),
    "fractions": (TABLE, lambda path: read_returns(path, unit="fraction", dates=True)),
    "prices": (PRICES, lambda path: read_returns(path, kind="prices")),
    "packed": (gzip.compress(TABLE), lambda path: read_returns(path, unit="percent")),
    "libsvm": (LINES, libsvm),
}


def fuzz(name, count, path, seed=0):
    """How many of ``count`` mutated files were read."""
    content, read = READERS[name]
    rng = random.Random(f"{name} {seed}")
    path.write_bytes(content)
    assert sound(read, path)
    read_files = 0
    for _ in range(count):
        path.write_bytes(mutated(content, rng))
        read_files += sound(read, path)
    return read_files


@pytest.mark.parametrize("name", READERS)
def test_mutated_files(name, tmp_path):
    read_files = fuzz(name, 400, tmp_path / "x")
    assert (read_files > 20) == (name != "packed")  # a checksum lets few changes pass
