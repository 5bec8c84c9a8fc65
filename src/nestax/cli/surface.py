"""What can be typed: every option once. Nothing here imports JAX before a command runs."""

import dataclasses
import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestax.cli.shell import Group, command, read_config, repeat

if TYPE_CHECKING:
    from nestax.checkpoints.asked import Checkpoint

#: Below the list of commands.
EXAMPLES = """Examples:\b

nestax demo\b

nestax portfolio returns.csv --unit percent --out result\b

nestax classify train.csv --target diagnosis\b

nestax new problem.py   and then   python problem.py\b

nestax --install-completion   and names are completed by the Tab key"""

app = typer.Typer(
    name="nestax",
    cls=Group,
    help="Stochastic multi-level compositional optimisation.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
data = typer.Typer(cls=Group, no_args_is_help=True, help="Data sets: what there is, and fetching one.")
app.add_typer(data, name="data")


class Unit(enum.StrEnum):
    PERCENT = "percent"
    FRACTION = "fraction"


class Constraint(enum.StrEnum):
    SIMPLEX = "simplex"
    BOX = "box"
    BUDGET = "budget"


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
OutOption = Annotated[
    Path | None, typer.Option(help="Folder for report, figures and records; without it only print.")
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace an earlier run in that folder.")
]
MethodOption = Annotated[str, typer.Option(help="One of `nestax methods`.")]
DropOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Columns to leave out, separated by commas or one by one; one with a comma in quotes."
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delivered:
    """Where the results of a command go."""

    json: JsonOption = False
    out: OutOption = None
    overwrite: OverwriteOption = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configured(Delivered):
    """A command whose options may come from a file."""

    config: Annotated[
        Path | None,
        typer.Option(
            is_eager=True,
            callback=read_config,
            help="TOML file with any of these settings; options win.",
        ),
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept(Configured):
    """A command whose run is kept in a folder, on some devices."""

    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder to keep the run in, so that it can go on if it is stopped."),
    ] = None
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --checkpoint, or begin one.")
    ] = False
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="Share the work among so many devices of this machine, GPUs or cores."),
    ] = None

    @property
    def kept(self) -> "Checkpoint | None":
        """Where the run is kept, as ``minimize`` is told."""
        from nestax.checkpoints.asked import Checkpoint
        from nestax.errors import SettingError

        if self.checkpoint is None:
            if self.resume:
                raise SettingError("--resume needs the folder of the run: pass --checkpoint as well.")
            return None
        return Checkpoint(self.checkpoint, resume=self.resume)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Market:
    """How a file of returns is read, and the price of risk."""

    unit: Annotated[
        Unit | None, typer.Option(help="What the returns are in; 0.01 is one percent as a fraction.")
    ] = None
    prices: Annotated[bool, typer.Option("--prices", help="The file holds prices, not returns.")] = False
    drop: DropOption = None
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Leave out rows with a missing cell, and count them.")
    ] = False
    risk: Annotated[
        float, typer.Option(help="Price of one unit of standard deviation; nx.problems has other risks.")
    ] = 0.2


def _version(wanted: bool) -> bool:
    if wanted:
        from nestax.version import __version__

        typer.echo(f"nestax {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Stochastic multi-level compositional optimisation."""


@command(app, "nestax.cli.demo")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Demo(Delivered):
    """Solve a risk-averse portfolio on made-up returns with four methods, and compare them."""

    seeds: Annotated[int, typer.Option(min=1, help="Repetitions per method.")] = 10
    out: OutOption = Path("demo")


@command(app, "nestax.cli.portfolio")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Portfolio(Kept, Market):
    """Weights of least −mean + risk·deviation for the assets in a file, and how good they are."""

    returns: Annotated[
        str, typer.Argument(help="A CSV, Parquet or Excel file, or synthetic, industry10, 12, 17, 30.")
    ]
    constraint: Annotated[
        Constraint,
        typer.Option(help="No short positions; limits on every weight; or weights add up to 1 alone."),
    ] = Constraint.SIMPLEX
    low: Annotated[float | None, typer.Option(help="Least weight of any asset: a box; or 0.")] = None
    high: Annotated[float | None, typer.Option(help="Largest weight of any asset: a box; or 1.")] = None
    method: MethodOption = "SnapshotSMVR"
    lr: Annotated[float | None, typer.Option(help="Learning rate; found by itself if not given.")] = None
    samples: Annotated[
        int | None, typer.Option(min=1, help="Budget of draws over all levels; or 20,000 steps.")
    ] = None
    batch_size: Annotated[int, typer.Option(min=1, help="Draws per level and step.")] = 64
    seed: Annotated[int, typer.Option(help="Every draw is a function of it.")] = 0
    per_year: Annotated[
        float | None,
        typer.Option(min=0.01, help="Rows a year, for figures a year; by default told by the dates."),
    ] = None


@command(app, "nestax.cli.classify")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Classify(Configured):
    """A classifier for rare and mislabelled classes from a file, beside logistic regression."""

    train: Annotated[
        str,
        typer.Argument(help="A CSV, Parquet, Excel or LIBSVM file: numbers, and a column of classes."),
    ]
    target: Annotated[
        str | None,
        typer.Option(help="The column that holds the class; any words. LIBSVM files need none."),
    ] = None
    groups: Annotated[
        str | None,
        typer.Option(help="A column of groups; each class of each group is then treated as one."),
    ] = None
    drop: DropOption = None
    test: Annotated[str | None, typer.Option(help="A file with rows to predict and compare.")] = None
    held_out: Annotated[
        float | None,
        typer.Option(min=0.01, max=0.99, help="Share of every class to compare on; 0.3 without --test."),
    ] = None
    inner_tilt: Annotated[
        float | None,
        typer.Option(
            help="Within classes; below 0 looks away from rows that do not fit. "
            "Chosen by cross-validation by default."
        ),
    ] = None
    outer_tilt: Annotated[
        float, typer.Option(help="Across classes; above 0 looks at the one served worst.")
    ] = 0.0
    l2: Annotated[
        float | None,
        typer.Option(help="Strength of the penalty on the weights. Chosen likewise by default."),
    ] = None
    method: MethodOption = "SMVR"
    steps: Annotated[int, typer.Option(min=1, help="Steps of the method.")] = 2_000
    batch_size: Annotated[int, typer.Option(min=1, help="Draws per class and step.")] = 16
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of the draws and of the split.")] = 0
    repeats: Annotated[
        int | None,
        typer.Option(min=1, help="How often a single file is split and all is fitted; 5 by default."),
    ] = None


@command(app, "nestax.cli.compare")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare(Kept, Market):
    """Several methods on one portfolio: the same samples, each at its best learning rate."""

    data: Annotated[
        str, typer.Option(help="synthetic, industry10, 12, 17, 30, or a CSV, Parquet or Excel file.")
    ] = "synthetic"
    methods: Annotated[str, typer.Option(help="Names from `nestax methods`, separated by commas.")] = (
        "Plain,SCSC,NLASG,SMVR,SnapshotSMVR"
    )
    samples: Annotated[int, typer.Option(min=1, help="Draws over all levels, for every method.")] = (
        200_000
    )
    batch_size: Annotated[int, typer.Option(min=1, help="Draws per level and step.")] = 16
    seeds: Annotated[int, typer.Option(min=1, help="Runs per method that are reported.")] = 10
    tune_seeds: Annotated[
        int, typer.Option(min=1, help="Further runs that choose the learning rate.")
    ] = 3


@app.command()
def new(
    script: Annotated[Path, typer.Argument(help="The script to write.")] = Path("problem.py"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file of that name.")] = False,
) -> None:
    """Write a commented script of a problem of your own, which runs as it is."""
    from nestax.cli.new import write_script

    write_script(script, overwrite)


@app.command()
def resume(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(help="What --checkpoint named.")],
    out: Annotated[
        Path | None, typer.Option(help="Another folder for the report than the command named.")
    ] = None,
) -> None:
    """Go on with a run that was kept by --checkpoint and stopped; the same command, typed again."""
    repeat(ctx, folder, out)


@data.command("list")
def list_sets(json: JsonOption = False) -> None:
    """Every data set with its size, its terms, and where it lies on this machine."""
    from nestax.cli.data import list_data

    list_data(json)


@data.command()
def fetch(name: Annotated[str, typer.Argument(help="One of `nestax data list`.")]) -> None:
    """Download a data set into the cache, unless it is on this machine; print its files."""
    import nestax.datasets as datasets

    for path in datasets.fetch(name):
        typer.echo(path)


@app.command()
def doctor(json: JsonOption = False) -> None:
    """What nestax finds on this machine: versions, devices, folders, and what will be slow."""
    from nestax.cli.doctor import examine

    examine(json)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Everything about one method.")] = None,
) -> None:
    """List every method: levels, cost per step, memory, claimed rate, reference."""
    from nestax.cli.methods import list_methods

    list_methods(name)


@app.command()
def cite(name: Annotated[str, typer.Argument(help="Name of a method, such as NLASG.")]) -> None:
    """Print the BibTeX entry of a method."""
    from nestax.estimators import registry

    registry.cite(name)
