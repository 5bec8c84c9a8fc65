"""``nestax reproduce``: the experiments of the SMVR paper."""

from typing import Any

import nestax as nx
from nestax.cli.shell import Outcome, note
from nestax.errors import SettingError
from nestax.experiments import Portfolios, reproduce_portfolio
from nestax.experiments.portfolio import INDUSTRIES, ROWS

#: Runs that are reported and runs that choose the settings, of all markets and of the smallest.
FULL_SEEDS, QUICK_SEEDS = (20, 8), (5, 3)


def portfolio_figures(
    full: bool, industries: str | None, seeds: int | None, tune_seeds: int | None
) -> Outcome:
    """Figures 1 and 2, on all markets of the paper or on the smallest."""
    reported, tuning = FULL_SEEDS if full else QUICK_SEEDS
    seeds, tune_seeds = seeds or reported, tune_seeds or tuning
    result = reproduce_portfolio(
        _markets(full, industries), seeds=seeds, tune_seeds=tune_seeds, tell=note
    )
    *_, (_, compiling, running) = result.seconds().rows
    balls = "SMVR with its Jacobians kept in a ball, and the share of steps at which it was active"
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
        numbers=_numbers(result),
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
        found={"seeds": seeds, "tune_seeds": tune_seeds},
    )


def _markets(full: bool, industries: str | None) -> dict[str, Any]:
    """The real returns; made-up ones if nothing was asked for and there is no copy of the smallest."""
    copies = nx.datasets.available()
    copy = dict(zip(copies.column("name"), copies.column("local copy"), strict=True))["industry10"]
    if not full and industries is None and copy == "–":
        note("There is no copy of Industry-10, so the returns are made up; NESTAX_DATA may name one.")
        return {"made-up": nx.datasets.synthetic_returns(ROWS, INDUSTRIES[0])}
    usual = INDUSTRIES if full else INDUSTRIES[:1]
    counts = usual if industries is None else [_count(word) for word in industries.split(",")]
    return {f"Industry-{count}": nx.datasets.industry(count, rows=ROWS) for count in counts}


def _count(word: str) -> int:
    if word.strip() not in map(str, INDUSTRIES):
        known = ", ".join(map(str, INDUSTRIES))
        raise SettingError(f"industries must be some of {known}; got {word.strip()!r}.")
    return int(word)


def _numbers(result: Portfolios) -> dict[str, Any]:
    tables = {"methods": result.details(), "radii": result.radii(), "norms": result.norms()}
    rows = lambda table: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return {name: rows(table) for name, table in tables.items()}
