"""``nestax methods`` and ``nestax cite``."""

import inspect
from typing import NoReturn

import typer

from nestax.errors import SettingError
from nestax.registry import cite, find, methods
from nestax.table import Table

#: What fits on a screen; the rest is shown for one method at a time.
SHORT = ("name", "levels", "samples", "value_calls", "derivative_calls", "rate")


def list_methods(name: str | None) -> None:
    everything = methods()
    if name is None:
        places = [everything.columns.index(column) for column in SHORT]
        rows = [[row[k] for k in places] for row in everything.rows]
        typer.echo(Table(list(SHORT), rows))
        typer.echo("\nnestax methods NAME tells more about one of them.")
        return
    try:
        method = find(name)
    except SettingError as error:
        _fail(error)
    row = everything.rows[everything.column("name").index(method.__name__)]
    for column, cell in zip(everything.columns, row, strict=True):
        typer.echo(f"{column.replace('_', ' '):<17} {cell}")
    typer.echo("\n" + inspect.cleandoc(method.__doc__ or ""))


def print_reference(name: str) -> None:
    try:
        cite(name)
    except SettingError as error:
        _fail(error)


def _fail(error: SettingError) -> NoReturn:
    typer.echo(f"nestax: {error}", err=True)
    raise typer.Exit(2)
