"""LIBSVM's text format, against scikit-learn's reader where that is sound."""

import gzip
import os

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

import nestax as nx
from nestax.datasets import libsvm
from nestax.datasets.fetching import DATA_SETS


@pytest.fixture
def write(tmp_path):
    def written(content, name="x.libsvm"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


def test_rows_labels_and_zeros(write):
    X, y = libsvm(write(gzip.compress(b"+1 1:0.5 3:-2e1\r\n\n-1\n0 2:7 \n")))
    np.testing.assert_array_equal(X, [[0.5, 0, -20], [0, 0, 0], [0, 7, 0]])
    np.testing.assert_array_equal(y, [1, -1, 0])
    assert (X.dtype, y.dtype) == (np.float64, np.int64)
    _, y = libsvm(str(write("0.5 1:1\n")))
    assert y.tolist() == [0.5]


def test_it_reads_what_scikit_learn_writes(write, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 6)) * (rng.random((30, 6)) < 0.5)
    X[0, -1] = 1.0
    dump_svmlight_file(X, rng.integers(0, 3, 30), str(tmp_path / "s"), zero_based=False)
    mine, theirs = libsvm(tmp_path / "s"), load_svmlight_file(str(tmp_path / "s"))
    np.testing.assert_array_equal(mine[0], theirs[0].toarray())
    np.testing.assert_array_equal(mine[1], theirs[1])


@pytest.mark.parametrize(
    "line",
    [
        "x 1:2",
        "1 0:2",
        "1 -1:2",
        "1 2:1 2:1",
        "1 2:1 1:1",
        "1 1:x",
        "1 1:nan",
        "1 1:1e999",
        "inf 1:1",
        "1 1:2:3",
        "1 2",
        "1 a:1",
        "1 1.5:1",
        "1 1:1_0",
        "1 1_0:1",
        "1,2",
        "1 qid:1 1:1",
        "1 1:2 # note",
        f"1 {'9' * 5000}:1",
    ],
)
def test_a_bad_line_is_named(write, line):
    with pytest.raises(nx.ProblemError, match="LIBSVM's format at line 2: a line is 'label index:value"):
        libsvm(write(f"1 1:1\n{line}\n"))


def test_bad_lines_are_named_together(write):
    with pytest.raises(
        nx.ProblemError, match="at line 2; line 4; line 6; line 8; line 10 and 3 more: a"
    ):
        libsvm(write("1 1:1\nx\n" * 8))


def test_other_bad_files(write, tmp_path):
    with pytest.raises(nx.ProblemError, match="holds no examples with features"):
        libsvm(write("\n1\n"))
    with pytest.raises(nx.ProblemError, match="is 2 × 1,000,000,000, too large for a dense array"):
        libsvm(write("1 1:1\n1 1000000000:1\n"))
    with pytest.raises(nx.ProblemError, match="no UTF-8 text"):
        libsvm(write(b"1 1:1\n\xff"))
    with pytest.raises(nx.ProblemError, match="is a folder"):
        libsvm(tmp_path)
    with pytest.raises(
        nx.ProblemError, match="no file austalian, and the sets with a name are australian,"
    ):
        libsvm("austalian")


def test_a_set_with_a_name_has_its_shape_and_one_kind_of_labels(machine):
    source = DATA_SETS["breast-cancer"]
    values = " ".join(f"{k}:{k / 10}" for k in range(1, 11))
    rows = [f"{2 + 2 * (k % 3 == 0)} {values}" for k in range(source.rows)]
    machine.web[source.urls[0]] = "\n".join(rows).encode()
    X, y = libsvm("breast-cancer")
    assert X.shape == (683, 10)
    assert y[:4].tolist() == [1, -1, -1, 1]  # 4 and 2 on the page
    (machine.cache / source.originals[0]).write_text("\n".join(rows[1:]))
    with pytest.raises(nx.ProblemError, match="is 682 × 10 instead of 683 × 10: delete it"):
        libsvm("breast-cancer")


COUNTS = {
    "australian": {-1: 383, 1: 307},
    "breast-cancer": {-1: 444, 1: 239},
    "svmguide1": {0: 1_089, 1: 2_000},
    "svmguide1.t": {0: 2_000, 1: 2_000},
}


@pytest.mark.data
@pytest.mark.skipif(
    "NESTAX_DATA" not in os.environ,
    reason="REAL DATA NOT CHECKED: set NESTAX_DATA to the folder of *.libsvm.gz",
)
@pytest.mark.parametrize("name", COUNTS)
def test_the_real_sets(name):
    _, y = libsvm(name)
    labels, counts = np.unique(y, return_counts=True)
    assert dict(zip(labels.tolist(), counts.tolist(), strict=True)) == COUNTS[name]
