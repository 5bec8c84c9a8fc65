"""``nestax methods`` and ``nestax cite``."""

import inspect

import typer

from nestax.estimators.registry import cite, find, methods
from nestax.table import Table

#: What fits on a screen; the rest is shown for one method at a time.
SHORT = ("name", "levels", "samples", "value_calls", "derivative_calls", "rate")


def list_methods(name: str | None) -> None:
    if name is None:
        everything = methods()
        places = [everything.columns.index(column) for column in SHORT]
        rows = [[row[k] for k in places] for row in everything.rows]
        typer.echo(Table(list(SHORT), rows))
        typer.echo("\nnestax methods NAME tells more about one of them.")
        return
    method = find(name)
    typer.echo(methods(method))
    typer.echo("\n" + inspect.cleandoc(method.__doc__ or ""))


def print_reference(name: str) -> None:
    cite(name)
