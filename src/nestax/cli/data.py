"""``nestax data``: what there is and where it lies."""

import json
from typing import Any

import typer

import nestax.datasets as datasets

#: What fits on a screen; ``--json`` prints everything.
SHORT = ("name", "rows", "columns", "local copy", "terms")


def list_data(as_json: bool) -> None:
    everything: Any = datasets.available()
    if as_json:
        rows = [dict(zip(everything.columns, row, strict=True)) for row in everything.rows]
        typer.echo(json.dumps(rows, ensure_ascii=False))
        return
    typer.echo(everything.only(SHORT))
