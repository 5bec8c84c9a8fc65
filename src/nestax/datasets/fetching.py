"""Where data sets are kept and where they come from: a folder of yours, the cache, their home.

Nothing is shipped with nestax. A data set is looked for in the folder that NESTAX_DATA names, then in
the cache, and is then downloaded from its home into the cache.
"""

import dataclasses
import difflib
import gzip
import io
import os
import zipfile
from pathlib import Path

from nestax.errors import ProblemError, SettingError
from nestax.table import Table

FRENCH = "https://mba.tuck.dartmouth.edu/pages/faculty/ken.french/"
LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"
#: How an archive begins, and with it an Excel workbook; and how a workbook of before 2007 begins.
ARCHIVE = b"PK\x03\x04"
OLD_WORKBOOK = b"\xd0\xcf\x11\xe0"


@dataclasses.dataclass(frozen=True)
class DataSet:
    """One data set.

    rows, columns: its size; the industries grow by a month at a time.
    files: what it is called in a folder of local copies.
    urls: where its originals are downloaded from; in the cache they have the last parts of these names.
    home: the page to read about it, and to cite.
    terms: what is known about its licence.
    """

    name: str
    rows: int
    columns: int
    files: tuple[str, ...]
    urls: tuple[str, ...]
    home: str
    terms: str

    @property
    def originals(self) -> tuple[str, ...]:
        return tuple(map(_last_part, self.urls))


def _industry(count: int, rows: int) -> DataSet:
    return DataSet(
        name=f"industry{count}",
        rows=rows,
        columns=count,
        files=(f"industry{count}_daily.csv.gz",),
        urls=(f"{FRENCH}ftp/{count}_Industry_Portfolios_daily_CSV.zip",),
        home=f"{FRENCH}data_library.html",
        terms="copyright Fama and French; not redistributable",
    )


def _libsvm(name: str, file: str, rows: int, columns: int) -> DataSet:
    return DataSet(
        name=name,
        rows=rows,
        columns=columns,
        files=(f"{file}.libsvm.gz",),
        urls=(f"{LIBSVM}binary/{file}",),
        home=f"{LIBSVM}binary.html",
        terms="no licence of its own; cite the original source",
    )


DATA_SETS = {
    data.name: data
    for data in (
        _industry(10, 25_982),
        _industry(12, 25_690),
        _industry(17, 25_543),
        _industry(30, 26_253),
        _libsvm("australian", "australian_scale", 690, 14),
        _libsvm("breast-cancer", "breast-cancer_scale", 683, 10),
        _libsvm("svmguide1", "svmguide1", 3_089, 4),
        _libsvm("svmguide1.t", "svmguide1.t", 4_000, 4),
    )
}


def available() -> Table:
    """Every data set that nestax can load, with its size, home and terms, and the local copy if any."""
    columns = ["name", "rows", "columns", "local copy", "terms", "home"]
    rows = []
    for data in DATA_SETS.values():
        paths = _kept(data)
        where = str(paths[0] if len(paths) == 1 else paths[0].parent) if paths else "–"
        rows.append([data.name, data.rows, data.columns, where, data.terms, data.home])
    return Table(columns, rows)


def fetch(name: str) -> list[Path]:
    """Returns the files of a data set on this machine; without any, its originals are downloaded."""
    if name not in DATA_SETS:
        near = difflib.get_close_matches(name, DATA_SETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(DATA_SETS)}."
        raise SettingError(f"no data set is called {name!r}; {hint}")
    return locate(DATA_SETS[name])


def locate(data: DataSet, path: str | Path | None = None) -> list[Path]:
    """The files of a data set: at ``path`` if given (a file or a folder), or else wherever they are."""
    if path is None:
        return _kept(data) or [_download(data, url) for url in data.urls]
    path = Path(path)
    if not path.is_dir():
        return [path]
    paths = _in_folder(data, path)
    if not paths:
        raise ProblemError(
            f"the folder {path} holds no copy of {data.name}: it needs {_list(data.files)}, "
            f"or {_list(data.originals)} from {data.home}."
        )
    return paths


def cache() -> Path | None:
    """Returns the folder that downloads are kept in; None without pooch, which downloads them."""
    try:
        import pooch
    except ImportError:
        return None
    return Path(pooch.os_cache("nestax"))


def read_raw(path: str | Path) -> bytes:
    """What a file holds, as it is."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise ProblemError(f"there is no file {path}.") from None
    except IsADirectoryError:
        raise ProblemError(f"{path} is a folder; give the name of a file in it.") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ProblemError(f"{path} cannot be read: {getattr(error, 'strerror', error)}.") from None


def read_bytes(path: str | Path) -> bytes:
    """What a file holds, unpacked: gzip and zip are recognised by their content, not by their name.

    A zip archive must hold just one file, or be an Excel workbook, which is left as it is.
    """
    data = read_raw(path)
    try:
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        if data.startswith(ARCHIVE):
            return _unzip(data, path)
    except ProblemError:
        raise
    except Exception:  # a damaged archive raises whatever its decoders stumble over
        raise ProblemError(f"{path} is a damaged archive: delete it and get it again.") from None
    return data


def read_text(path: str | Path) -> str:
    """Reads the text of a file, unpacked; it must be UTF-8."""
    return decode(read_bytes(path), path)


def is_workbook(data: bytes) -> bool:
    """Whether unpacked bytes are an Excel workbook: other archives have been unpacked."""
    return data.startswith((ARCHIVE, OLD_WORKBOOK))


def decode(data: bytes, path: str | Path) -> str:
    if is_workbook(data):
        raise ProblemError(f"{path} is an Excel workbook: save it as CSV.")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ProblemError(f"{path} is UTF-16 text: save it as UTF-8.")
    if (place := data.find(b"\0")) >= 0:
        line = data.count(b"\n", 0, place) + 1
        raise ProblemError(f"{path} is no UTF-8 text: line {line} holds a NUL byte; save it as UTF-8.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise ProblemError(
            f"{path} is no UTF-8 text: line {line} holds the byte 0x{byte:02x}; save it as UTF-8."
        ) from None


def _kept(data: DataSet) -> list[Path]:
    """Returns the local copy, in the user's folder or in the cache; an empty list if there is none."""
    chosen = os.environ.get("NESTAX_DATA")
    if chosen and not Path(chosen).is_dir():
        raise ProblemError(f"NESTAX_DATA names no folder: {chosen}.")
    folders = [Path(chosen) if chosen else None, cache()]
    paths = (_in_folder(data, folder) for folder in folders if folder is not None)
    return next(filter(None, paths), [])


def _in_folder(data: DataSet, folder: Path) -> list[Path]:
    for names in (data.files, data.originals):
        paths = [folder / name for name in names]
        if all(path.is_file() for path in paths):
            return paths
    return []


def _download(data: DataSet, url: str) -> Path:
    advice = (
        f"set NESTAX_DATA to a folder with {_list(data.files)}, "
        f"or put {_list(data.originals)} from {data.home} there"
    )
    try:
        import pooch
    except ImportError:
        raise ProblemError(
            f"there is no copy of {data.name}: pip install 'nestax[data]' to download it, or {advice}."
        ) from None
    # Its notes are about hashes, which files that grow every month do not keep.
    pooch.get_logger().setLevel("WARNING")
    try:
        path = Path(pooch.retrieve(url, None, fname=_last_part(url), path=cache()))
    except (OSError, ValueError) as error:
        raise ProblemError(
            f"there is no copy of {data.name}, and {url} cannot be "
            f"downloaded ({type(error).__name__}): {advice}."
        ) from None
    with path.open("rb") as file:
        start = file.read(4)
    if url.endswith(".zip") != start.startswith(b"PK") or start.startswith(b"<"):
        path.unlink()  # or it would be found at the next call
        raise ProblemError(f"{url} did not send {data.name} but something else: {advice}.")
    return path


def _unzip(data: bytes, path: str | Path) -> bytes:
    """Unpacks the one file of an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        if "xl/workbook.xml" in names:
            return data
        if len(names) == 1:
            return archive.read(names[0])
    raise ProblemError(f"the archive {path} holds {len(names)} files instead of one.")


def _last_part(url: str) -> str:
    return url.rsplit("/", 1)[1]


def _list(names: tuple[str, ...]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
