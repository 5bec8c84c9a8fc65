"""``nestax portfolio``: weights from a file of returns, and how far from the best they are."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np

from nestax.chain.problem import Problem
from nestax.cli.shell import Outcome, names_in, note
from nestax.cli.surface import Market, Portfolio
from nestax.datasets import Returns, industry, read_returns, synthetic_returns
from nestax.errors import SettingError
from nestax.estimators.registry import find
from nestax.figures import plot_curves, plot_weights
from nestax.loop.status import Status
from nestax.parts.estimator import AbstractEstimator
from nestax.problems import ExactPortfolio, exact_portfolio, mean_deviation
from nestax.problems.portfolio.exact import Optimum
from nestax.run.minimize import minimize
from nestax.run.result import Result
from nestax.steps.descent import with_rate
from nestax.stop import Gap
from nestax.table import Table

#: A run ends at this gap in percent, or after so many steps if no budget of samples is given.
TARGET = 1e-10
STEPS = 20_000
RECORDS = 1_000
#: Rounding error that weights may have when they are added up; beyond it they mean nothing.
ADDS_UP = 1e-6
LEFT = "The weights do not add up to one: the steps are too long for the numbers. Lower --lr."
#: An error of F* that is worth a word.
LOOSE = 1e-12
#: Gaps below this are rounding error.
ROUNDING = 1e-16
#: A gap that is worth less, in percent, is not told to the digit.
WORTH_NAMING = 1e-6
#: Deviations a year of equal weights, in percent, that returns read in the right unit hardly have.
USUAL_DEVIATIONS = (0.5, 200)
#: Weights below this, in percent, are not listed.
LEAST_PERCENT = 0.005
#: Figures of a portfolio, as they are named in numbers and in words.
FIGURES = {
    "expected_return": "expected return a row",
    "deviation": "deviation a row",
    "yearly_return": "expected return a year",
    "yearly_deviation": "deviation a year",
    "objective": "objective",
}


def run(options: Portfolio) -> Outcome:
    """Finds weights of least −mean + risk·deviation by one method."""
    method = find(options.method)(lr=options.lr)
    table = load(options.returns, options)
    constraint, bounds = allowed_weights(options.constraint, options.low, options.high)
    problem, exact, optimum = prepare(table, options.risk, constraint, bounds)
    if options.lr is None:
        fading = method.refresh_batch == "population"
        points = (np.asarray(problem.w0), optimum.w)
        rate = min(exact.learning_rate(w, options.batch_size, fading) for w in points)
        method = with_rate(method, problem, rate)
    result = minimize(
        problem,
        method,
        steps=STEPS if options.samples is None else None,
        samples=options.samples,
        batch_size=options.batch_size,
        seed=options.seed,
        stop=Gap(TARGET),
        record_every=STEPS // RECORDS if options.samples is None else None,
        devices=options.devices,
        checkpoint=options.kept,
    )
    goal = f"−mean + {options.risk:g}·deviation, constraint {constraint}"
    goal += " from {:g} to {:g}".format(*bounds) if bounds else ""
    outcome = describe(options, table, goal, exact, optimum, method, result)
    found = {"constraint": constraint} | ({} if options.unit or options.prices else {"unit": "percent"})
    return dataclasses.replace(outcome, found=outcome.found | found)


def describe(
    options: Portfolio,
    table: Returns,
    goal: str,
    exact: ExactPortfolio,
    optimum: Optimum,
    method: AbstractEstimator,
    result: Result,
) -> Outcome:
    """Tells what a run has found: weights, figures beside those of equal ones, and the gap."""
    w = np.asarray(result.w)
    # Steps so long that the projection loses all digits leave weights that add up to anything.
    feasible = abs(float(w.sum()) - 1) < ADDS_UP
    per_year = table.rows_per_year if options.per_year is None else options.per_year
    numbers = measure(table, exact, optimum, result, per_year)
    doubt(options.unit, numbers["equal_weights"])
    name = type(method).__name__
    lr = None if method.lr is None else float(method.lr)  # pyright: ignore[reportArgumentType]
    numbers |= {"method": name, "lr": lr, "batch_size": options.batch_size, "seed": options.seed}
    steps = "steps as published" if lr is None else f"learning rate {lr:.3g}"
    made_by = f"{name} with {steps}, batch size {options.batch_size}, seed {options.seed}"
    source = f"{len(table):,} rows of {Path(options.returns).name}{_about(table)}"

    def draw() -> list[tuple[str, str, Any]]:
        caption = f"Weights after {numbers['steps']:,} steps of {made_by}, on {source}; {goal}."
        weights = ("weights", caption, plot_weights(table.assets, w))
        caption = (
            f"Gap F(w) − F* in percent against samples drawn over both levels, for F = {goal}: "
            f"{made_by}. The error of F* itself is {in_words(optimum.error)}."
        )
        curve = {name: result.records["gap"][None]}
        gap = plot_curves(result.records["samples"], curve, "gap", unit="percent")
        return [weights, ("gap", caption, gap)]

    return Outcome(
        title=f"Portfolio of {len(table.assets)} assets",
        summary=f"{_summary(numbers, goal)} {meaning(numbers)}",
        tables=[
            (f"Weights in percent, from {source}", _weights_table(numbers["weights"])),
            _beside_equal(numbers),
            (f"Minimised: {goal}; returns in percent a row", _facts_table(numbers, made_by)),
        ],
        numbers=numbers,
        records={
            "records": result.records,
            "weights": Table(["asset", "weight"], list(map(list, numbers["weights"].items()))),
        },
        draw=draw,
        found={"lr": lr},
        status=result.status if feasible else Status.NONFINITE,
        message=result.message if feasible else LEFT,
    )


# The data and the problem


def load(name: str, options: Market) -> Returns:
    """Returns in percent: "synthetic", "industry10" and its like, or a file."""
    known = re.fullmatch(r"industry([0-9]+)", name)
    if name != "synthetic" and not known:
        if not Path(name).exists():
            raise SettingError(
                f"there is no file {name}; besides files there are synthetic and industry10, 12, 17, 30."
            )
        kind = "prices" if options.prices else "returns"
        drop = names_in(options.drop)
        return read_returns(
            name, unit=options.unit, kind=kind, drop=drop, drop_missing=options.drop_missing
        )
    if options.unit is not None or options.prices:
        raise SettingError(f"{name} is returns in percent: leave out --unit and --prices.")
    if options.drop or options.drop_missing:
        raise SettingError(f"--drop and --drop-missing are for files: {name} is whole.")
    if known:
        return industry(int(known[1]))
    values = synthetic_returns()
    return Returns(values, tuple(f"asset {k}" for k in range(1, values.shape[1] + 1)))


def allowed_weights(
    constraint: str, low: float | None, high: float | None
) -> tuple[str, tuple[float, float] | None]:
    """Reads the constraint and its limits; one limit alone means a box."""
    if low is high is None:
        if constraint == "box":
            raise SettingError("the constraint box needs --low or --high, such as --high 0.3.")
        return str(constraint), None
    if constraint == "budget":
        raise SettingError("--low and --high belong to --constraint box; got budget.")
    return "box", (low or 0.0, 1.0 if high is None else high)


def prepare(
    table: Returns,
    risk: float,
    constraint: str = "simplex",
    bounds: tuple[float, float] | None = None,
) -> tuple[Problem, ExactPortfolio, Optimum]:
    """Builds the problem with its optimum, and what is exact about it."""
    facts: dict[str, Any] = {"risk": risk, "constraint": constraint, "bounds": bounds}
    problem = mean_deviation(table.values, least_variance=None, **facts)
    exact = exact_portfolio(table.values, **facts)
    optimum = exact.least()
    if optimum.error > LOOSE:
        note(f"The exact optimum is known to within {optimum.error:.0e} only.")
    return problem.replace(optimum=optimum.value), exact, optimum


# What is said about it


def moments(
    table: Returns, exact: ExactPortfolio, w: np.ndarray, per_year: float | None
) -> dict[str, Any]:
    """Computes return and deviation of some weights, in percent a row and a year, and F."""
    returns = table.values @ w
    figures = {"expected_return": float(returns.mean()), "deviation": float(returns.std())}
    if per_year is not None:
        figures["yearly_return"] = per_year * figures["expected_return"]
        figures["yearly_deviation"] = float(np.sqrt(per_year)) * figures["deviation"]
    return figures | {"objective": exact.value(w)}


def measure(
    table: Returns, exact: ExactPortfolio, optimum: Optimum, result: Result, per_year: float | None
) -> dict[str, Any]:
    """Computes every number about the weights, as ``--json`` prints them."""
    w = np.asarray(result.w)
    figures = moments(table, exact, w, per_year)
    days = [None, None] if table.dates is None else [str(table.dates[0]), str(table.dates[-1])]
    return {
        "weights": dict(zip(table.assets, w.tolist(), strict=True)),
        "unit": "percent",
        **figures,
        "equal_weights": moments(table, exact, np.full(len(w), 1 / len(w)), per_year),
        "rows_per_year": per_year,
        "optimum": optimum.value,
        "gap": figures["objective"] - optimum.value,
        "optimum_error": optimum.error,
        "rows": len(table),
        "first": days[0],
        "last": days[1],
        "steps": int(result.records["step"][-1]),
        "samples": int(result.records["samples"][-1]),
    }


def doubt(unit: str | None, equal: dict[str, Any]) -> None:
    """Prints a note where returns would be usual ones if they were read in the other unit."""
    deviation = equal.get("yearly_deviation")
    if unit is None or deviation is None:
        return
    least, most = USUAL_DEVIATIONS
    unusual = deviation > most if unit == "fraction" else deviation < least
    if unusual:
        other = "percent" if unit == "fraction" else "fraction"
        note(
            f"With --unit {unit} equal weights deviate by {deviation:,.3g} percent a year: if that is "
            f"not so, the file needs --unit {other}."
        )


def meaning(numbers: dict[str, Any]) -> str:
    """What the gap is worth, beside what nobody can know from so many rows."""
    per_year = numbers["rows_per_year"]
    period = "row" if per_year is None else "year"
    worth = max(numbers["gap"], 0.0) * (per_year or 1.0)
    unsure = numbers["deviation"] / np.sqrt(numbers["rows"]) * (per_year or 1.0)
    amount = f"{worth:.2g}" if worth > WORTH_NAMING else f"less than {WORTH_NAMING:.0e}"
    return (
        f"The gap is what the search has left on the table: {amount} percent a {period} of return, "
        "after the price of risk. It says nothing about the years to come: from "
        f"{numbers['rows']:,} rows alone the expected return is known to ± {unsure:.2g} percent a "
        f"{period} (one standard error)."
    )


def _beside_equal(numbers: dict[str, Any]) -> tuple[str, Table]:
    """Returns the figures of the weights beside those of equal ones, under their caption."""
    per_year = numbers["rows_per_year"]
    caption = "Beside equal weights, in percent a row; --per-year N gives figures a year"
    if per_year is not None:
        caption = (
            f"Beside equal weights, in percent; a year has {per_year:g} rows, and figures a year are "
            f"{per_year:g} times the mean and √{per_year:g} times the deviation of a row"
        )
    equal = numbers["equal_weights"]
    rows = [
        [label, f"{numbers[name]:.4g}", f"{equal[name]:.4g}"]
        for name, label in FIGURES.items()
        if name in equal
    ]
    return caption, Table(["quantity", "found", "equal"], rows)


def _summary(numbers: dict[str, Any], goal: str) -> str:
    weights = numbers["weights"]
    held = [name for name, w in weights.items() if 100 * abs(w) >= LEAST_PERCENT]
    most = max(weights, key=lambda name: weights[name])
    yearly = numbers["rows_per_year"] is not None
    names = ("yearly_return", "yearly_deviation") if yearly else ("expected_return", "deviation")
    found, equal = ([figures[n] for n in names] for figures in (numbers, numbers["equal_weights"]))
    return (
        f"{len(held)} of {len(weights)} assets are held, most of all {most} "
        f"({100 * weights[most]:.1f} percent). The expected return is {found[0]:.4g} and the deviation "
        f"{found[1]:.4g} percent a {'year' if yearly else 'row'}, and those of equal weights "
        f"{equal[0]:.4g} and {equal[1]:.4g}; {goal.partition(',')[0]} = {numbers['objective']:.6g} is "
        f"{in_words(numbers['gap'])} above its least value."
    )


def _weights_table(weights: dict[str, float]) -> Table:
    """Lists the weights in percent, the largest first; those too small to print in one row."""
    ordered = sorted(weights.items(), key=lambda pair: -pair[1])
    shown = [pair for pair in ordered if 100 * abs(pair[1]) >= LEAST_PERCENT]
    rows = [[name, f"{100 * w:.2f}"] for name, w in shown]
    if others := len(weights) - len(shown):
        rows.append([f"{others} other{'s' if others > 1 else ''}", "0.00"])
    return Table(["asset", "weight"], rows)


def _facts_table(numbers: dict[str, Any], made_by: str) -> Table:
    rows = [
        ["expected return", f"{numbers['expected_return']:.6g}"],
        ["deviation", f"{numbers['deviation']:.6g}"],
        ["objective", f"{numbers['objective']:.8g}"],
        ["exact optimum", f"{numbers['optimum']:.8g} (error: {in_words(numbers['optimum_error'])})"],
        ["gap", in_words(numbers["gap"])],
        ["method", made_by],
        ["cost", f"{numbers['steps']:,} steps, {numbers['samples']:,} samples"],
    ]
    return Table(["quantity", "value"], rows)


def in_words(gap: float) -> str:
    return f"{gap:.1e}" if abs(gap) > ROUNDING else f"less than {ROUNDING:.0e}"


def _about(table: Returns) -> str:
    """Which table of the file it is, its time, and what of it was left out."""
    title = f", {table.table}" if table.table else ""
    span = "" if table.dates is None else f", {table.dates[0]} to {table.dates[-1]}"
    gone = f" without {table.dropped:,} that are not all known" if table.dropped else ""
    return title + span + gone
