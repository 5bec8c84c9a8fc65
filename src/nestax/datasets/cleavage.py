"""Which octamers (strings of eight amino acids) the protease of HIV-1 cleaves.

T. Rögnvaldsson, L. You, D. Garwicz, State of the art prediction of HIV-1 protease cleavage sites,
Bioinformatics 31(8), 2015.
"""

import re
from pathlib import Path

import numpy as np

from nestax.datasets.fetching import DATA_SETS, locate, read_text
from nestax.errors import ProblemError

#: The four parts, as files in the archive of the UCI repository.
PARTS = ("1625Data.txt", "746Data.txt", "impensData.txt", "schillingData.txt")
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
ROW = re.compile(rf"([{AMINO_ACIDS}]{{8}}),(1|-1|0)")


def hiv1(*, path: str | Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    """6,590 octamers as X, 160 columns of zeros and ones, and y: 1 if cleaved, 0 if not (79 %).

    Column 20·p + a is 1 if position p holds amino acid a of ACDEFGHIKLMNPQRSTVWY. The rows are those
    of the parts 1625, 746, impens and schilling, in this order; an octamer may occur in several.

    Args:
        path: a folder with the four files, or the archive; without it the set is looked for, and
            downloaded from the UCI repository if need be.
    """
    files = locate("hiv1", path)
    if len(files) == 1:  # the archive
        parts = [(files[0], read_text(files[0], member)) for member in PARTS]
    else:
        parts = [(file, read_text(file)) for file in files]
    octamers = []
    labels = []
    for file, text in parts:
        for number, line in enumerate(text.split("\n"), 1):
            row = ROW.fullmatch(line.strip())
            if row:
                octamers.append(row[1])
                labels.append(row[2] == "1")
            elif line.strip():
                raise ProblemError(
                    f"{file} is no list of octamers: line {number} is no 'AAAKFERQ,-1' or the like."
                )
    rows = DATA_SETS["hiv1"].rows
    if len(octamers) != rows:
        raise ProblemError(f"{files[0].parent} holds {len(octamers):,} octamers instead of {rows:,}.")
    letters = np.array([list(octamer) for octamer in octamers])
    X = (letters[:, :, None] == np.array(list(AMINO_ACIDS))).reshape(rows, -1).astype(np.float64)
    return X, np.array(labels, np.int64)
