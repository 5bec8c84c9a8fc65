"""Omniglot: 1,623 characters of 50 alphabets, each drawn once by 20 people.

B. M. Lake, R. Salakhutdinov, J. B. Tenenbaum, Human-level concept learning through probabilistic program
induction, Science 350, 2015.
"""

import dataclasses
import functools
import io
import re
import zipfile
from pathlib import Path

import numpy as np

from nestax.datasets.fetching import DataSet, locate, read_raw
from nestax.errors import ProblemError, SettingError, check_count, check_seed
from nestax.problems.few_shot.tasks import Tasks

HOME = "https://github.com/brendenlake/omniglot/"
OMNIGLOT = DataSet(
    name="omniglot",
    rows=32_460,
    columns=784,
    files=("omniglot28.npz",),
    urls=tuple(f"{HOME}raw/master/python/images_{part}.zip" for part in ("background", "evaluation")),
    home=HOME,
    terms="MIT licence",
)
CHARACTERS = 1623
DRAWERS = 20
SIDE = 28
#: Characters that tasks for training are made of; tasks for testing are made of the others.
TRAINING = 1200
#: A file of the archives: number of the character, number of the drawer.
DRAWING = re.compile(r"(?:.*/)?(\d{4})_(\d{2})\.png")


@dataclasses.dataclass(frozen=True, repr=False)
class Omniglot:
    """Images by character and drawer.

    images: (characters, drawers, side, side) bytes, ink 255 and paper 0.
    """

    images: np.ndarray

    def __repr__(self) -> str:
        characters, drawers, side, _ = self.images.shape
        return f"Omniglot: {characters:,} characters × {drawers} drawers, {side} × {side} pixels"

    @functools.cached_property
    def turned(self) -> np.ndarray:
        """All images four times, as they are and turned left by 90, 180 and 270 degrees, in one list."""
        turns = np.stack([np.rot90(self.images, k, axes=(2, 3)) for k in range(4)])
        return turns.reshape(-1, *self.images.shape[2:])

    def tasks(
        self,
        count: int,
        *,
        ways: int = 5,
        support: int = 10,
        query: int = 10,
        test: bool = False,
        seed: int = 0,
    ) -> Tasks:
        """Random tasks: tell ``ways`` characters apart. Every character occurs in four rotations, which
        are classes of their own.

        A row holds one image of every class. Support and query rows show different drawers.

        Args:
            count: how many tasks.
            ways: classes of a task.
            support, query: rows per task to learn from and to be judged by, together at most 20.
            test: whether tasks are made of the characters that no training task shows. Which 1,200
                characters are for training is drawn once and for all.
            seed: of the tasks.
        """
        characters, drawers = self.images.shape[:2]
        for name, value in {"count": count, "ways": ways, "support": support, "query": query}.items():
            check_count(name, value)
        if support + query > drawers:
            raise ProblemError(
                f"a character has {drawers} images, fewer than the {support} + {query} that a task asks "
                "for: lower support or query."
            )
        order = np.random.default_rng(0).permutation(characters)
        cut = round(characters * TRAINING / CHARACTERS)
        pool = order[cut:] if test else order[:cut]
        if ways > 4 * len(pool):
            raise ProblemError(f"there are {4 * len(pool)} classes, fewer than ways={ways}.")
        rng = np.random.default_rng([check_seed(seed), int(test), 0x0316])
        numbers = np.empty((count, support + query, ways), np.int32)
        for k in range(count):
            classes = rng.choice(4 * len(pool), ways, replace=False)
            turn = classes % 4
            character = pool[classes // 4]
            drawn = np.stack([rng.permutation(drawers)[: support + query] for _ in range(ways)], axis=1)
            numbers[k] = (turn * characters + character) * drawers + drawn
        labels = np.broadcast_to(np.arange(ways, dtype=np.int32), numbers.shape)
        part = lambda rows: (numbers[:, rows], labels[:, rows])
        return Tasks(part(slice(support)), part(slice(support, None)), self.turned)


def omniglot(*, side: int = SIDE, path: str | Path | None = None) -> Omniglot:
    """The images of Omniglot.

    Args:
        side: pixels of a side, 28, or 14 or 7 where neighbouring pixels are averaged.
        path: the file ``omniglot28.npz``, or a folder that holds it or the two archives of the home;
            without it the set is looked for, and the archives are downloaded if need be. Their 32,460
            files are scaled down at every call, which takes a while.
    """
    if side not in (28, 14, 7):
        raise SettingError(f"side must be 28, 14 or 7; got {side!r}.")
    files = locate(OMNIGLOT, path)
    images = _one_array(files[0]) if len(files) == 1 else _archives(files)
    if images.shape != (CHARACTERS * DRAWERS, SIDE, SIDE) or images.dtype != np.uint8:
        raise ProblemError(
            f"{files[0]} holds {images.dtype} images of shape {images.shape}, not bytes of "
            f"{(CHARACTERS * DRAWERS, SIDE, SIDE)}."
        )
    by = SIDE // side
    if by > 1:
        means = images.reshape(-1, side, by, side, by).mean(axis=(2, 4))
        images = np.round(means).astype(np.uint8)
    return Omniglot(images.reshape(CHARACTERS, DRAWERS, side, side))


def _one_array(file: Path) -> np.ndarray:
    """Images by character, in the order of the file within one."""
    data = read_raw(file)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return arrays["images"][np.argsort(arrays["character"], kind="stable")]
    except Exception:  # whatever the decoders of a damaged file stumble over
        raise ProblemError(
            f"{file} is not a copy of Omniglot, or it is damaged: give an omniglot28.npz, or the folder "
            f"of {' and '.join(OMNIGLOT.originals)}."
        ) from None


def _archives(files: list[Path]) -> np.ndarray:
    """Images by character and drawer, from black drawings on white named NNNN_DD.png."""
    try:
        from PIL import Image
    except ImportError:
        raise ProblemError(
            "the original images of Omniglot are read with Pillow: pip install 'nestax[data]'."
        ) from None
    drawn: dict[tuple[int, int], np.ndarray] = {}
    for file in files:
        data = read_raw(file)
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for name in archive.namelist():
                    if drawing := DRAWING.fullmatch(name):
                        grey = Image.open(archive.open(name)).convert("L")
                        small = grey.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
                        drawn[int(drawing[1]), int(drawing[2])] = 255 - np.asarray(small)
        except Exception:
            raise ProblemError(f"{file} is a damaged archive: delete it and get it again.") from None
    if len(drawn) != CHARACTERS * DRAWERS:
        raise ProblemError(
            f"{' and '.join(map(str, files))} hold {len(drawn):,} drawings instead of "
            f"{CHARACTERS * DRAWERS:,}: delete them and get them again."
        )
    return np.stack([drawn[key] for key in sorted(drawn)])
