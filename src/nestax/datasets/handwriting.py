"""Omniglot: 1,623 characters of 50 alphabets, each drawn once by 20 people.

B. M. Lake, R. Salakhutdinov, J. B. Tenenbaum, Human-level concept learning through probabilistic program
induction, Science 350, 2015.
"""

import dataclasses
import io
from pathlib import Path

import numpy as np

from nestax.errors import ProblemError, SettingError, check_count, check_seed
from nestax.fetching import locate, read_bytes
from nestax.tasks import Tasks

CHARACTERS, DRAWERS, SIDE = 1623, 20, 28
#: Characters that tasks for training are made of; tasks for testing are made of the others.
TRAINING = 1200


@dataclasses.dataclass(frozen=True, repr=False)
class Omniglot:
    """Images by character and drawer.

    images: (characters, drawers, side, side) bytes, ink 255 and paper 0.
    """

    images: np.ndarray

    def __repr__(self) -> str:
        characters, drawers, side, _ = self.images.shape
        return f"Omniglot: {characters:,} characters × {drawers} drawers, {side} × {side} pixels"

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
        characters, drawers, side, _ = self.images.shape
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
            turn, character = classes % 4, pool[classes // 4]
            drawn = np.stack([rng.permutation(drawers)[: support + query] for _ in range(ways)], axis=1)
            numbers[k] = (turn * characters + character) * drawers + drawn
        labels = np.broadcast_to(np.arange(ways, dtype=np.int32), numbers.shape)
        turned = np.stack([np.rot90(self.images, k, axes=(2, 3)) for k in range(4)])
        part = lambda rows: (numbers[:, rows], labels[:, rows])
        return Tasks(part(slice(support)), part(slice(support, None)), turned.reshape(-1, side, side))


def omniglot(*, side: int = SIDE, path: str | Path | None = None) -> Omniglot:
    """The images of Omniglot.

    Args:
        side: pixels of a side, 28, or 14 or 7 where neighbouring pixels are averaged.
        path: the file ``omniglot28.npz`` or a folder that holds it; without it the set is looked for.
    """
    if side not in (28, 14, 7):
        raise SettingError(f"side must be 28, 14 or 7; got {side!r}.")
    (file,) = locate("omniglot", path)
    data = Path(file).read_bytes() if str(file).endswith(".npz") else read_bytes(file)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            images, character = arrays["images"], arrays["character"]
    except Exception:
        raise ProblemError(f"{file} is not a copy of Omniglot, or it is damaged.") from None
    if images.shape != (CHARACTERS * DRAWERS, SIDE, SIDE) or images.dtype != np.uint8:
        raise ProblemError(
            f"{file} holds images of shape {images.shape}, not {CHARACTERS * DRAWERS:,} of 28 × 28."
        )
    images = images[np.argsort(character, kind="stable")].reshape(CHARACTERS, DRAWERS, SIDE, SIDE)
    if side < SIDE:
        by = SIDE // side
        means = images.reshape(CHARACTERS, DRAWERS, side, by, side, by).mean(axis=(3, 5))
        images = np.round(means).astype(np.uint8)
    return Omniglot(images)
