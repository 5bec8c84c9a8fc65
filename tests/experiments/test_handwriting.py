"""Omniglot from one file or from its home, and tasks made of it."""

import io
import os
import sys
import zipfile

import numpy as np
import pytest
from PIL import Image

import nestax as nx

from experiments import handwriting
from experiments.handwriting import OMNIGLOT, Omniglot, omniglot

URLS = OMNIGLOT.urls
CHARACTERS, DRAWERS = 3, 2


@pytest.fixture
def small(monkeypatch):
    """A set of three characters by two drawers."""
    monkeypatch.setattr(handwriting, "CHARACTERS", CHARACTERS)
    monkeypatch.setattr(handwriting, "DRAWERS", DRAWERS)


def drawing(character, drawer):
    """Black on white, 105 × 105: a bar whose place and height tell character and drawer."""
    pixels = np.full((105, 105), 255, np.uint8)
    pixels[: 40 * drawer, 30 * character - 15 : 30 * character] = 0
    return pixels


def zipped(drawings):
    """An archive as at the home: folders, and files in no order; beside them what a Mac adds."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("images/", "")
        archive.writestr("__MACOSX/images/Greek/._0001_01.png", "x")
        for character, drawer in drawings:
            png = io.BytesIO()
            Image.fromarray(drawing(character, drawer)).convert("1").save(png, "png")
            name = f"images/Greek/character{character:02}/{character:04}_{drawer:02}.png"
            archive.writestr(name, png.getvalue())
    return out.getvalue()


def put(folder, images=None, **arrays):
    rng = np.random.default_rng(0)
    if images is None:
        images = rng.integers(0, 256, (CHARACTERS * DRAWERS, 28, 28), np.uint8)
    arrays = {"images": images, "character": np.arange(len(images)) // DRAWERS} | arrays
    np.savez(folder / "omniglot28.npz", **arrays)
    return images


def made_up(characters=30, side=4):
    """Every image is another; the first byte tells the character."""
    images = np.random.default_rng(1).integers(0, 256, (characters, 20, side, side), np.uint8)
    images[:, :, 0, 0] = np.arange(characters)[:, None]
    return Omniglot(images)


# Reading


def test_the_archives_of_the_home_are_downloaded_and_scaled_down(small, machine):
    machine.web[URLS[0]] = zipped([(2, 1), (1, 2), (1, 1)])
    machine.web[URLS[1]] = zipped([(3, 2), (3, 1), (2, 2)])
    images = omniglot().images
    assert (images.shape, images.dtype) == ((3, 2, 28, 28), np.uint8)
    for c in (1, 2, 3):
        for d in (1, 2):
            image = images[c - 1, d - 1] > 128
            columns, rows = np.flatnonzero(image.any(axis=0)), np.flatnonzero(image.any(axis=1))
            assert abs(columns.mean() - 28 / 105 * (30 * c - 7.5) + 0.5) < 0.6
            assert abs(len(rows) - 28 / 105 * 40 * d) < 0.8
    assert (images[0, 0, 20:] == 0).all()
    assert images.max() == 255
    grey = Image.fromarray(drawing(3, 2)).resize((28, 28), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(images[2, 1], 255 - np.asarray(grey))
    machine.web.clear()  # the next call finds both in the cache, where `path` may also point
    np.testing.assert_array_equal(omniglot(path=machine.cache).images, images)


def test_both_archives_are_needed(small, machine, tmp_path):
    machine.web[URLS[0]] = zipped([(1, 1)])
    with pytest.raises(nx.ProblemError, match=r"images_evaluation\.zip cannot be downloaded \(Conn"):
        omniglot()
    with pytest.raises(
        nx.ProblemError,
        match=r"holds no copy of omniglot: it needs omniglot28\.npz, or images_background\.zip and "
        r"images_evaluation\.zip from https",
    ):
        omniglot(path=machine.cache)
    machine.web[URLS[1]] = zipped([(2, 1)])
    with pytest.raises(nx.ProblemError, match=r"evaluation\.zip hold 2 drawings instead of 6: delete"):
        omniglot()
    (machine.cache / "images_evaluation.zip").write_bytes(b"PK\3\4 and nothing else")
    with pytest.raises(nx.ProblemError, match=r"evaluation\.zip is a damaged archive: delete it"):
        omniglot()


def test_without_pillow_there_is_a_sentence(small, machine, monkeypatch):
    machine.web |= {url: zipped([(1, 1)]) for url in URLS}
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(nx.ProblemError, match=r"read with Pillow: pip install 'nestax\[data\]'\.$"):
        omniglot()


def test_one_file_in_any_order(small, machine, tmp_path, monkeypatch):
    images = put(tmp_path)
    found = omniglot(path=tmp_path / "omniglot28.npz")
    assert str(found) == "Omniglot: 3 characters × 2 drawers, 28 × 28 pixels"
    np.testing.assert_array_equal(found.images.reshape(6, 28, 28), images)
    order = [5, 0, 2, 4, 1, 3]
    put(tmp_path, images[order], character=np.arange(6)[order] // 2)
    monkeypatch.setenv("NESTAX_DATA", str(tmp_path))
    np.testing.assert_array_equal(omniglot().images[:2, :, :, :].reshape(4, 28, 28), images[:4])
    np.testing.assert_array_equal(omniglot().images[2], images[[5, 4]])


@pytest.mark.parametrize("side", [14, 7])
def test_smaller_images_are_means(small, tmp_path, side):
    images, by = put(tmp_path), 28 // side
    small = omniglot(side=side, path=tmp_path).images
    assert (small.shape, small.dtype) == ((3, 2, side, side), np.uint8)
    block = images[3, by : 2 * by, 2 * by : 3 * by]
    assert abs(float(small[1, 1, 1, 2]) - block.mean()) <= 0.5


def test_one_sentence_for_a_bad_copy(small, machine, tmp_path):
    path = tmp_path / "omniglot28.npz"
    with pytest.raises(nx.ProblemError, match=r"there is no file .*omniglot28\.npz\.$"):
        omniglot(path=path)
    bad = "is not a copy of Omniglot, or it is damaged: give an omniglot28"
    put(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(nx.ProblemError, match=bad):
        omniglot(path=path)
    path.write_bytes(zipped([(1, 1)]))
    with pytest.raises(nx.ProblemError, match=bad):
        omniglot(path=path)
    put(tmp_path, np.zeros((4, 28, 28), np.uint8))
    with pytest.raises(nx.ProblemError, match=r"holds uint8 images of shape \(4, 28, 28\), not bytes"):
        omniglot(path=path)
    with pytest.raises(nx.SettingError, match="side must be 28, 14 or 7; got 20"):
        omniglot(side=20)


# Tasks


def test_tasks_share_neither_characters_nor_images():
    images = made_up()
    train, test = images.tasks(40, support=5, query=4), images.tasks(40, support=5, query=4, test=True)
    assert train.images is test.images
    assert train.support[0].shape == train.support[1].shape == (40, 5, 5)
    assert train.query[0].shape == (40, 4, 5)
    rows_of = lambda tasks: np.concatenate([tasks.support[0], tasks.query[0]], axis=1)
    characters = lambda tasks: set((rows_of(tasks) // 20 % 30).flat)
    assert (len(characters(train)), len(characters(test))) == (22, 8)  # as 1,200 of 1,623
    assert not characters(train) & characters(test)
    for rows in rows_of(train):
        assert len(set(rows.flat)) == rows.size
        classes = rows // 20  # rotation and character
        assert (classes == classes[0]).all()  # a column is a class
        assert len(set(classes[0])) == 5
    np.testing.assert_array_equal(train.support[1], np.broadcast_to(np.arange(5), (40, 5, 5)))
    np.testing.assert_array_equal(images.tasks(40, support=5, query=4).support[0], train.support[0])
    assert (images.tasks(40, support=5, query=4, seed=1).support[0] != train.support[0]).any()


def test_rotations_are_rotations():
    images = made_up()
    assert images.turned.shape == (4 * 30 * 20, 4, 4)
    turned = images.turned.reshape(4, 30, 20, 4, 4)
    for k in range(4):
        np.testing.assert_array_equal(turned[k, 7, 3], np.rot90(images.images[7, 3], k))
    turns = images.tasks(200).support[0][:, 0] // (30 * 20)
    assert set(turns.flat) == {0, 1, 2, 3}


def test_what_tasks_refuse():
    images = made_up()
    with pytest.raises(
        nx.ProblemError, match=r"has 20 images, fewer than the 15 \+ 10 that a task asks"
    ):
        images.tasks(2, support=15)
    with pytest.raises(nx.ProblemError, match="there are 32 classes, fewer than ways=33"):
        images.tasks(2, ways=33, test=True)
    with pytest.raises(nx.SettingError, match="count must be a whole number of at least 1; got 0"):
        images.tasks(0)


@pytest.mark.data
@pytest.mark.skipif(
    "NESTAX_DATA" not in os.environ,
    reason="REAL DATA NOT CHECKED: set NESTAX_DATA to the folder of omniglot28.npz",
)
def test_the_real_set():
    images = omniglot()
    assert str(images) == "Omniglot: 1,623 characters × 20 drawers, 28 × 28 pixels"
    ink = images.images > 128
    assert 0.03 < ink.mean() < 0.15
    # The ink of a drawing lies where others of the character have theirs, not those of the next one.
    others = ink[:, 1:].mean(axis=1)
    own, next_one = (np.sum(ink[:, 0] * m, axis=(1, 2)) for m in (others, np.roll(others, 1, axis=0)))
    assert np.mean(own > next_one) > 0.7  # it would be a half, give or take 0.013
    with np.load(os.environ["NESTAX_DATA"] + "/omniglot28.npz") as arrays:
        one = (arrays["character"] == 1200) & (arrays["drawer"] == 7)
        np.testing.assert_array_equal(images.images[1200, 6], arrays["images"][one][0])
    train, test = images.tasks(500), images.tasks(500, test=True)
    number = lambda tasks: set((tasks.support[0] // 20 % 1623).flat)
    assert not number(train) & number(test)
    assert len(number(train)) > 900
    assert omniglot(side=7).images.shape == (1623, 20, 7, 7)
