"""Which octamers (strings of eight amino acids) the protease of HIV-1 cleaves.

T. Rögnvaldsson, L. You, D. Garwicz, State of the art prediction of HIV-1 protease cleavage sites,
Bioinformatics 31(8), 2015.
"""

import io
import re
import zipfile
from pathlib import Path

import numpy as np

from nestax.datasets.fetching import DataSet, locate, read_raw, read_text
from nestax.errors import ProblemError

UCI = "https://archive.ics.uci.edu/"
HIV1 = DataSet(
    name="hiv1",
    rows=6_590,
    columns=160,
    files=tuple(f"hiv1_{part}.csv.gz" for part in ("1625", "746", "impens", "schilling")),
    urls=(f"{UCI}static/public/330/hiv+1+protease+cleavage.zip",),
    home=f"{UCI}dataset/330/hiv+1+protease+cleavage",
    terms="CC BY 4.0, as far as known",
)
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
    files = locate(HIV1, path)
    parts = _unzipped(files[0]) if len(files) == 1 else [(file, read_text(file)) for file in files]
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
    if len(octamers) != HIV1.rows:
        raise ProblemError(
            f"{files[0].parent} holds {len(octamers):,} octamers instead of {HIV1.rows:,}."
        )
    letters = np.array([list(octamer) for octamer in octamers])
    X = (letters[:, :, None] == np.array(list(AMINO_ACIDS))).reshape(HIV1.rows, -1).astype(np.float64)
    return X, np.array(labels, np.int64)


def _unzipped(file: Path) -> list[tuple[Path, str]]:
    """The parts in the archive, or in the archive inside it."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(read_raw(file)))
        inner = [name for name in archive.namelist() if name.lower().endswith(".zip")]
        if len(inner) == 1:
            archive = zipfile.ZipFile(io.BytesIO(archive.read(inner[0])))
        members = {name.rsplit("/", 1)[-1]: name for name in archive.namelist()}
        missing = [part for part in PARTS if part not in members]
        if not missing:
            return [(file, archive.read(members[part]).decode("utf-8")) for part in PARTS]
    except ProblemError:
        raise
    except Exception:  # a damaged archive raises whatever its decoders stumble over
        raise ProblemError(f"{file} is a damaged archive: delete it and get it again.") from None
    raise ProblemError(f"the archive {file} holds no file {missing[0]}.")
