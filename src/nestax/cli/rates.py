"""``nestax rates``."""

from pathlib import Path
from typing import NoReturn

import jax
import typer

from nestax.study.rates import rates


def measure_rates(
    family: str,
    methods: list[str],
    levels: list[str],
    longest: int,
    seeds: int,
    out: Path,
    cells: Path | None,
) -> None:
    """Writes the figure, the table of exponents and every measured point to a folder."""
    jax.config.update("jax_enable_x64", True)
    try:
        out.mkdir(parents=True, exist_ok=True)
        numbers = [int(number) for number in levels]
        result = rates(family, methods, numbers, longest=longest, seeds=seeds, cells=cells)
    except OSError as error:
        _fail(f"cannot write to {out}: {error.strerror}.")
    except ValueError as error:
        _fail(str(error))
    typer.echo(result)
    name = family.replace(" ", "-")
    result.table.to_csv(out / f"{name}-exponents.csv")
    result.points.to_csv(out / f"{name}-points.csv")
    (out / f"{name}.md").write_text(result.table.to_markdown() + "\n")
    result.plot(out / f"{name}.png")
    typer.echo(f"Written: {', '.join(str(path) for path in sorted(out.glob(f'{name}*')))}")


def _fail(sentence: str) -> NoReturn:
    typer.echo(f"nestax rates: {sentence}", err=True)
    raise typer.Exit(2)
