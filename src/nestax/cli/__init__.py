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


@app.command()
def rates(
    family: Annotated[str, typer.Option(help="nonconvex, convex, strongly convex or PL.")] = "nonconvex",
    methods: Annotated[str, typer.Option(help="Names, separated by commas.")] = "SMVR,SCSC,NLASG,ATSCGD",
    levels: Annotated[str, typer.Option(help="Numbers of levels, separated by commas.")] = "1,2,3",
    longest: Annotated[int, typer.Option(help="Steps of the longest run.")] = 2**18,
    seeds: Annotated[int, typer.Option(min=2, help="Runs per point.")] = 16,
    out: Annotated[Path, typer.Option(help="Folder for the figure and the tables.")] = Path("rates"),
) -> None:
    """Measure how samples grow with accuracy, per method and number of levels."""
    from nestax.cli.measuring import measure_rates

    measure_rates(family, methods.split(","), levels.split(","), longest, seeds, out)


def main() -> None:
    app()
