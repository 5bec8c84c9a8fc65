"""What can be typed after ``python -m experiments``. Reports are those of the commands of nestax."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nestax.cli.shell import Group, Outcome, begin, finish, note
from nestax.cli.surface import JsonOption, OutOption, OverwriteOption
from nestax.errors import SettingError
from nestax.table import Table

from experiments import sets
from experiments.handwriting import omniglot
from experiments.maml import FULL, QUICK, FewShot, reproduce_maml
from experiments.portfolio import Portfolios, reproduce_portfolio
from experiments.rates import Rates, measure_rates
from experiments.tilted import TiltedRuns, reproduce_term

#: Runs that are reported and runs that choose the settings, of all sets and of the smallest.
FULL_SEEDS = (20, 8)
QUICK_SEEDS = (5, 3)

app = typer.Typer(
    name="experiments",
    cls=Group,
    help="The experiments of the SMVR paper, and measured rates of convergence.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

CellsOption = Annotated[
    Path | None, typer.Option(help="Folder in which what is computed is kept, and found again.")
]
SeedsOption = Annotated[
    int | None, typer.Option(min=1, help="Runs that are reported; 20 with --full, or else 5.")
]
TuneSeedsOption = Annotated[
    int | None, typer.Option(min=1, help="Runs that choose the settings; 8 with --full, or else 3.")
]


@app.command()
def portfolio(
    ctx: typer.Context,
    full: Annotated[
        bool, typer.Option("--full", help="All markets and 20 runs: a quarter of an hour on 2 cores.")
    ] = False,
    industries: Annotated[
        str | None,
        typer.Option(help="Markets, separated by commas; 10,12,17,30 with --full, or else 10."),
    ] = None,
    seeds: SeedsOption = None,
    tune_seeds: TuneSeedsOption = None,
    cells: CellsOption = None,
    json: JsonOption = False,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Figures 1 and 2: methods compared on portfolios of industries, and SMVR with balls."""
    begin(ctx)
    found = _found_seeds(full, seeds, tune_seeds)
    markets = sets.markets(full, industries)
    result = reproduce_portfolio(markets, **found, cells=cells, tell=note)
    finish(ctx, portfolio_figures(result, found))


def _found_seeds(full: bool, seeds: int | None, tune_seeds: int | None) -> dict[str, Any]:
    reported, tuning = FULL_SEEDS if full else QUICK_SEEDS
    return {"seeds": seeds or reported, "tune_seeds": tune_seeds or tuning}


def portfolio_figures(result: Portfolios, found: dict[str, Any]) -> Outcome:
    """Returns what is printed and reported of Figures 1 and 2; ``found`` are settings by default."""
    seeds = found["seeds"]
    *_, (_, compiling, running) = result.seconds().rows
    balls = "SMVR with its Jacobians kept in a ball, and the share of steps at which it was active"
    tables = {"methods": result.details(), "radii": result.radii(), "norms": result.norms()}
    return Outcome(
        title=f"Risk-averse portfolios: {', '.join(result.trials)}",
        summary=" ".join(result.findings())
        + f" Compiling the grid took {compiling:.0f} s, computing it {running:.0f} s.",
        tables=[
            (f"Gap F(w) − F* in percent a day at equal samples, {seeds} runs", result.gaps()),
            ("SnapshotSMVR by passes over the rows per level: mean gap, and the worst", result.epochs()),
            ("Chosen settings, cost and seconds", result.details()),
            ("Seconds by method", result.seconds()),
            (balls, result.radii()),
            ("Norms of the true Jacobians", result.norms()),
        ],
        numbers={name: _rows(table) for name, table in tables.items()},
        records={"methods": result.details(), "radii": result.radii(), "curves": result.curves()},
        draw=lambda: [
            (
                "figure-1",
                "Figure 1: gap F(w) − F* in percent a day, and gradient mapping, against samples drawn "
                f"over all levels; mean and band of one standard deviation over {seeds} runs, every "
                "method at the setting that other seeds chose.",
                result.plot_methods(),
            ),
            (
                "figure-2",
                "Figure 2: the gap of SMVR at the setting of Figure 1, with every tracked Jacobian in a "
                "ball of the given radius, Frobenius above and spectral below.",
                result.plot_radii(),
            ),
        ],
        found=found,
    )


def _rows(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


@app.command()
def term(
    ctx: typer.Context,
    full: Annotated[
        bool, typer.Option("--full", help="Four data sets and 20 runs: a quarter of an hour on 2 cores.")
    ] = False,
    batches: Annotated[
        Literal["stratified", "pooled", "both-levels"],
        typer.Option(help="A batch of either class; of both together; or that, and classes as well."),
    ] = "stratified",
    only: Annotated[
        str | None, typer.Option(help="Data sets of --full, separated by semicolons; all by default.")
    ] = None,
    seeds: SeedsOption = None,
    tune_seeds: TuneSeedsOption = None,
    cells: CellsOption = None,
    json: JsonOption = False,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Figure 3 and Table 2: methods compared on classes that are rare and mislabelled."""
    begin(ctx)
    found = _found_seeds(full, seeds, tune_seeds)
    classes = sets.two_classes(full, only)
    result = reproduce_term(classes, **found, batches=batches, cells=cells, tell=note)
    finish(ctx, term_table(result, found, batches))


def term_table(result: TiltedRuns, found: dict[str, Any], batches: str) -> Outcome:
    """Returns what is printed and reported of Figure 3 and Table 2."""
    seeds = found["seeds"]
    accuracies = result.accuracies()
    losses = result.losses()
    details = result.details()
    return Outcome(
        title=f"Rare and mislabelled classes, {batches} batches: {', '.join(result.trials)}",
        summary=" ".join(result.findings()) + f" The methods took {result.seconds():.0f} s.",
        tables=[
            (f"Table 2: test accuracy in percent, mean ± deviation over {seeds} splits", accuracies),
            ("F at the end of the budget, and how far above the full gradient", losses),
            ("SMVR less other methods on the same split, mean ± standard error", result.apart()),
            ("Chosen settings, cost, result and seconds", details),
            ("Rows of every split", result.rows()),
        ],
        numbers={"methods": _rows(details), "findings": result.findings()},
        records={
            "accuracies": accuracies,
            "losses": losses,
            "apart": result.apart(),
            "methods": details,
            "rows": result.rows(),
            "curves": result.curves(),
            "findings": Table(["finding"], [[finding] for finding in result.findings()]),
        },
        draw=lambda: [
            (
                "figure-3",
                "Figure 3: F(w) and the norm of its gradient against samples drawn; mean and band of one"
                f" deviation over {seeds} splits, every method at the setting that other splits "
                "chose. The level line is where as many steps of the full gradient end.",
                result.plot(),
            )
        ],
        found=found,
    )


@app.command()
def maml(
    ctx: typer.Context,
    full: Annotated[
        bool, typer.Option("--full", help="Images of 28 × 28 and 1,000 steps, for a large GPU.")
    ] = False,
    shots: Annotated[
        int | None,
        typer.Option(min=1, max=5, help="Images of a class to learn from; 1 and 5 by default."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Methods to compute, separated by semicolons; all by default.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=20, help="Steps of a run; 1,000 with --full, 60 without it, by default."),
    ] = None,
    cells: CellsOption = None,
    tuned: Annotated[
        Path | None,
        typer.Option(help="Folder of kept results whose settings are taken; by default they are tuned."),
    ] = None,
    json: JsonOption = False,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Figure 4: methods compared on five-step meta-learning of handwriting."""
    begin(ctx, float64=False)
    setup = FULL if full else QUICK
    if steps is not None:
        setup = setup._replace(steps=steps)
    result = reproduce_maml(
        omniglot(side=setup.side),
        shots=(1, 5) if shots is None else (shots,),
        setup=setup,
        methods=None if only is None else [name.strip() for name in only.split(";")],
        cells=cells,
        tuned=tuned,
        tell=note,
    )
    finish(ctx, few_shot_figure(result))


def few_shot_figure(result: FewShot) -> Outcome:
    """Returns what is printed and reported of Figure 4."""
    setup = result.setup
    accuracies = result.accuracies()
    details = result.details()
    apart = result.apart()
    words = "The same, one method less another in the same run, ± standard error"
    paired = [(words, apart)] if apart.rows else []
    return Outcome(
        title="Five-step meta-learning of handwriting",
        summary=" ".join(result.findings()),
        tables=[
            (
                "Accuracy on test tasks in percent, by thirds of the images that all have drawn",
                accuracies,
            ),
            *paired,
            ("Chosen settings and cost", details),
        ],
        numbers={"methods": _rows(accuracies), "findings": result.findings()},
        records={
            "accuracies": accuracies,
            "apart": apart,
            "methods": details,
            "curves": result.curves(),
        },
        draw=lambda: [
            (
                "figure-4",
                "Figure 4: accuracy after five steps on the given number of images a class, against "
                f"images drawn; {setup.tasks:,} training tasks, {setup.visit} of them a step; mean and "
                "range over runs, every method at the setting that did best on training tasks.",
                result.plot(),
            )
        ],
        found={"setup": setup._asdict()},
    )


@app.command()
def rates(
    ctx: typer.Context,
    family: Annotated[str, typer.Option(help="nonconvex, convex, strongly convex or PL.")] = "nonconvex",
    methods: Annotated[str, typer.Option(help="Names, separated by commas.")] = "SMVR,SCSC,NLASG,ATSCGD",
    levels: Annotated[str, typer.Option(help="Numbers of levels, separated by commas.")] = "1,2,3",
    longest: Annotated[int, typer.Option(help="Steps of the longest run.")] = 2**18,
    seeds: Annotated[int, typer.Option(min=2, help="Runs per point.")] = 16,
    cells: CellsOption = None,
    json: JsonOption = False,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """How samples grow with accuracy, per method and number of levels."""
    begin(ctx)
    numbers = [_number(word) for word in levels.split(",")]
    names = methods.split(",")
    result = measure_rates(family, names, numbers, longest=longest, seeds=seeds, cells=cells)
    finish(ctx, exponents(result))


def _number(word: str) -> int:
    if not word.strip().isdecimal():
        raise SettingError(f"levels must be whole numbers, such as 1,2,3; got {word.strip()!r}.")
    return int(word)


def exponents(result: Rates) -> Outcome:
    """Returns what is printed and reported of measured rates."""
    caption = f"Samples grow like ε to minus this exponent, {result.family} family"
    return Outcome(
        title=f"Rates of convergence: {result.family}",
        summary="Every exponent has a 95 % interval from resampled seeds.",
        tables=[(caption, result.table)],
        numbers={"exponents": _rows(result.table), "points": _rows(result.points)},
        records={"exponents": result.table, "points": result.points},
        draw=lambda: [("rates", "Error against samples drawn over all levels.", result.plot())],
    )
