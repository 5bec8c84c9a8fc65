"""A run as a folder: settings, environment, records, figures, and one page to read."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nestax.errors import SettingError
from nestax.loop.status import Status
from nestax.report.environment import cores as cores
from nestax.report.environment import environment as environment
from nestax.report.folder import LISTING, whole_folder
from nestax.report.folder import check_folder as check_folder
from nestax.report.page import as_svg, inline, render
from nestax.report.page import require as require
from nestax.run.result import flat_columns
from nestax.table import Table, inert
from nestax.version import __version__

PAGE = "report.html"
ENVIRONMENT = "environment.json"


def write_run(
    folder: str | Path,
    *,
    title: str,
    summary: str,
    command: str | None = None,
    settings: Mapping[str, Any] | None = None,
    tables: Sequence[tuple[str, Table]] = (),
    figures: Sequence[tuple[str, str, Any]] = (),
    records: Mapping[str, Table | Mapping[str, np.ndarray]] | None = None,
    status: Status = Status.SUCCESS,
    message: str = "",
    overwrite: bool = False,
) -> Path:
    """Writes a run to a folder and returns the path of its page, ``report.html``.

    All files are written or none: ``settings.json``, ``environment.json``, a CSV file for each of the
    records, every figure as PNG and SVG, and one page that holds all of it and needs no other file.

    Args:
        folder: missing or empty, or one that holds an earlier run if ``overwrite``.
        title: the heading of the page.
        summary: a sentence with the numbers that matter.
        command: the command line that made the run, if one did.
        settings: every setting of the run, the seed included.
        tables: pairs of caption and table.
        figures: triples of file name, caption and matplotlib figure.
        records: by file name, a table, or columns such as ``result.records``.
        status: how the run ended; anything but success stands on top of the page.
        message: a sentence in place of the one that belongs to ``status``.
        overwrite: replace an earlier run; other files are never touched.
    """
    require()
    records = records or {}
    files = sorted(
        [PAGE, LISTING, ENVIRONMENT]
        + [f"{name}.csv" for name in records]
        + [f"{name}.{ending}" for name, _, _ in figures for ending in ("png", "svg")]
    )
    plain = all(Path(name).name == name and not name.startswith(".") for name in files)
    if not plain or len(set(files)) < len(files):
        raise SettingError(f"figures and records need plain names that differ; got {', '.join(files)}.")
    about = {
        "nestax": __version__,
        "title": title,
        "summary": summary,
        "command": command,
        "status": status.name,
        "message": message or status.value,
        "settings": dict(settings or {}),
        "files": files,
    }
    with whole_folder(folder, overwrite) as working:
        drawn = []
        for name, caption, figure in figures:
            figure.savefig(working / f"{name}.png", dpi=150)
            svg = as_svg(figure)
            (working / f"{name}.svg").write_text(svg, encoding="utf-8")
            drawn.append((caption, figure.get_figwidth(), inline(name, svg)))
        for name, columns in records.items():
            _write_csv(working / f"{name}.csv", columns)
        made = environment()
        for name, facts in ((LISTING, about), (ENVIRONMENT, made)):
            # Arrays and their numbers as lists and numbers, anything else as text.
            text = json.dumps(
                facts,
                indent=2,
                ensure_ascii=False,
                default=lambda x: x.tolist() if isinstance(x, np.ndarray | np.generic) else str(x),
            )
            (working / name).write_text(f"{text}\n", encoding="utf-8")
        page = render(
            **about,
            succeeded=status is Status.SUCCESS,
            figures=drawn,
            tables=list(tables),
            environment=made,
        )
        (working / PAGE).write_text(page, encoding="utf-8")
    return Path(folder) / PAGE


def _write_csv(path: Path, columns: Table | Mapping[str, np.ndarray]) -> None:
    if isinstance(columns, Table):
        columns.to_csv(path)
        return
    flat = flat_columns({name: np.asarray(column) for name, column in columns.items()})
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(map(inert, flat))
        writer.writerows(zip(*(column.tolist() for column in flat.values()), strict=True))
