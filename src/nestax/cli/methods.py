"""``nestax methods``."""

import inspect

import typer

from nestax.estimators.registry import find, methods

#: What fits on a screen; the rest is shown for one method at a time.
SHORT = ("name", "levels", "samples", "value_calls", "derivative_calls", "rate")


def list_methods(name: str | None) -> None:
    if name is None:
        typer.echo(methods().only(SHORT))
        typer.echo("\nnestax methods NAME tells more about one of them.")
        return
    method = find(name)
    typer.echo(methods(method))
    typer.echo("\n" + inspect.cleandoc(method.__doc__ or ""))
