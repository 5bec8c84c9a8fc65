"""Octamers as zeros and ones."""

import io
import os
import zipfile

import numpy as np
import pytest

import nestax as nx

from experiments.cleavage import AMINO_ACIDS, HIV1, PARTS, hiv1

ROWS = (1_625, 746, 947, 3_272)


def made_up():
    """Four parts of the right lengths; every part begins with a letter of its own."""
    rng = np.random.default_rng(0)
    draw = lambda first: first + "".join(rng.choice(list(AMINO_ACIDS), 7))
    return [
        "".join(f"{draw(a)},{-1 if k else 1}\n" for k in range(n))
        for a, n in zip("ACDE", ROWS, strict=True)
    ]


def zipped(**files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


@pytest.fixture(params=["archive", "archive inside", "folder"])
def copy(request, machine, monkeypatch, tmp_path):
    parts, url = made_up(), HIV1.urls[0]
    inside = {f"newHIV-1_data/{name}": part for name, part in zip(PARTS, parts, strict=True)}
    if request.param == "archive":
        machine.web[url] = zipped(**inside, readme="x")
    elif request.param == "archive inside":
        machine.web[url] = zipped(**{"newHIV-1_data.zip": zipped(**inside), "readme": "x"})
    else:
        for name, part in zip(HIV1.files, parts, strict=True):
            (tmp_path / name).write_text(part.replace("-1", "0"))
        monkeypatch.setenv("NESTAX_DATA", str(tmp_path))
    return parts


def test_every_copy_gives_the_same_numbers(copy):
    X, y = hiv1()
    assert X.shape == (6_590, 160)
    assert (X.dtype, y.dtype) == (np.float64, np.int64)
    starts = np.cumsum([0, *ROWS[:-1]])
    np.testing.assert_array_equal(np.flatnonzero(y), starts)  # the first of each part is cleaved
    np.testing.assert_array_equal(X[starts, :20], np.eye(20)[:4])
    octamers = [line[:8] for part in copy for line in part.splitlines()]
    letters = np.array(list(AMINO_ACIDS))[X.reshape(-1, 8, 20).argmax(axis=2)]
    assert ["".join(row) for row in letters] == octamers
    assert X.sum() == 8 * len(X)


def test_one_sentence_for_a_bad_copy(tmp_path):
    parts = made_up()
    path = tmp_path / "x.zip"
    names = dict(zip(PARTS, parts, strict=True))
    path.write_bytes(zipped(**names | {"746Data.txt": parts[1].replace("\nC", "\nX", 1)}))
    with pytest.raises(nx.ProblemError, match="no list of octamers: line 2 is no 'AAAKFERQ,-1'"):
        hiv1(path=path)
    path.write_bytes(zipped(**names | {"746Data.txt": parts[0]}))
    with pytest.raises(nx.ProblemError, match="holds 7,469 octamers instead of 6,590"):
        hiv1(path=path)
    del names["746Data.txt"]
    path.write_bytes(zipped(**names))
    with pytest.raises(nx.ProblemError, match=r"x\.zip holds no file 746Data\.txt"):
        hiv1(path=path)
    path.write_bytes(b"PK\3\4 and nothing else")
    with pytest.raises(nx.ProblemError, match=r"x\.zip is a damaged archive: delete it"):
        hiv1(path=path)
    with pytest.raises(nx.ProblemError, match=r"there is no file .*y\.zip"):
        hiv1(path=tmp_path / "y.zip")
    with pytest.raises(nx.ProblemError, match=r"needs hiv1_1625\.csv\.gz, .* and hiv1_schilling"):
        hiv1(path=tmp_path)


@pytest.mark.data
@pytest.mark.skipif(
    "NESTAX_DATA" not in os.environ,
    reason="REAL DATA NOT CHECKED: set NESTAX_DATA to the folder of hiv1_*.csv.gz",
)
def test_the_real_set():
    X, y = hiv1()
    assert [int(y[a:b].sum()) for a, b in ((0, 1625), (1625, 2371), (2371, 3318), (3318, 6590))] == [
        375,
        402,
        149,
        434,
    ]
    assert round(float(y.mean()), 3) == 0.206
    assert X[0].reshape(8, 20).argmax(axis=1).tolist() == [AMINO_ACIDS.index(a) for a in "SLNLRETN"]
