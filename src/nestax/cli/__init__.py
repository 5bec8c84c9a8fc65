"""The command line. Nothing here imports JAX before a command runs."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="nestax",
    help="Stochastic multi-level compositional optimisation.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from nestax import __version__

        typer.echo(f"nestax {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Stochastic multi-level compositional optimisation."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the table.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions per method.")] = 10,
) -> None:
    """Solve a risk-averse portfolio on made-up returns with four methods, and compare them."""
    from nestax.cli.demonstration import run_demo

    run_demo(out, seeds)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Everything about one method.")] = None,
) -> None:
    """List every method: levels, cost per step, memory, claimed rate, reference."""
    from nestax.cli.listing import list_methods

    list_methods(name)


@app.command()
def cite(name: Annotated[str, typer.Argument(help="Name of a method, such as NLASG.")]) -> None:
    """Print the BibTeX entry of a method."""
    from nestax.cli.listing import print_reference

    print_reference(name)


def main() -> None:
    app()
