"""``nestax portfolio``: weights from a file of returns, and how far from the best they are."""

import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from nestax.chain.problem import Problem
from nestax.cli.shell import Outcome, names_in, note
from nestax.datasets import Returns, industry, read_returns, synthetic_returns
from nestax.errors import SettingError
from nestax.estimators import SnapshotSMVR
from nestax.estimators.registry import find
from nestax.figures import plot_curves, plot_weights
from nestax.loop.status import Status
from nestax.problems import ExactPortfolio, exact_portfolio, mean_deviation
from nestax.problems.portfolio.exact import Optimum
from nestax.run.minimize import minimize
from nestax.run.sweep import grid, sweep
from nestax.study.compare import tuning_seeds
from nestax.table import Table

#: A run ends at this gap in percent, or after so many steps if no budget of samples is given.
TARGET = 1e-10
STEPS = 20_000
RECORDS = 1_000
#: The step as a share of the inverse curvature, for the method that needs no search.
SHARE = 0.5
#: Learning rates that other methods are tried at, as multiples of the inverse curvature.
MULTIPLES = tuple(10.0 ** np.arange(-3, 0.5, 0.5))
TUNING_SEEDS = 2
#: Rounding error that weights may have when they are added up; beyond it they mean nothing.
ADDS_UP = 1e-6
LEFT = "The weights do not add up to one: the steps are too long for the numbers. Lower --lr."
#: An error of F* that is worth a word.
LOOSE = 1e-12
#: Gaps below this are rounding error.
ROUNDING = 1e-16
#: A gap that is worth less, in percent, is not told to the digit.
WORTH_NAMING = 1e-6
#: Rows a year that files usually have, how near theirs have to be, and with how many rows that is told.
USUAL_ROWS = (1, 4, 12, 52, 252, 365)
NEAR = 0.05
LEAST_DATED = 3
DAYS_IN_YEAR = 365.25
#: Deviations a year of equal weights, in percent, that returns read in the right unit hardly have.
USUAL_DEVIATIONS = (0.5, 200)
#: Weights below this, in percent, are not listed.
LEAST_PERCENT = 0.005


def solve_portfolio(
    returns: str,
    unit: str | None,
    prices: bool,
    drop: list[str] | None,
    drop_missing: bool,
    risk: float,
    constraint: str,
    low: float | None,
    high: float | None,
    method: str,
    lr: float | None,
    samples: int | None,
    batch_size: int,
    seed: int,
    per_year: float | None,
    devices: int | None,
    keeping: dict[str, Any],
) -> Outcome:
    """Weights of least −mean + risk·deviation by one method, and the gap to the exact optimum."""
    kind = find(method)
    if constraint == "simplex" and not (low is high is None):
        constraint = "box"
    table = load(returns, unit, prices, drop, drop_missing)
    problem, exact, reference = prepare(table, risk, constraint, low, high)
    budget: dict[str, Any] = {"steps": STEPS} if samples is None else {"samples": samples}
    budget |= {"batch_size": batch_size}
    if lr is None:
        rate = longest_step(exact, reference, batch_size)
        lr = SHARE * rate if kind is SnapshotSMVR else search(problem, kind, rate, budget, keeping)
    result = minimize(
        problem,
        kind(lr=lr),
        **budget,
        seed=seed,
        target_gap=TARGET,
        record_every=STEPS // RECORDS if samples is None else None,
        mesh=devices,
        **_inside(keeping, "run"),
    )
    feasible = abs(float(result.w.sum()) - 1) < ADDS_UP
    made_by = f"{kind.__name__} with learning rate {lr:.3g}, batch size {batch_size}, seed {seed}"
    limits = f" from {low or 0:g} to {1 if high is None else high:g}" if constraint == "box" else ""
    goal = f"−mean + {risk:g}·deviation, constraint {constraint}{limits}"
    per_year = rows_per_year(table) if per_year is None else per_year
    numbers = measure(table, problem, reference, result, per_year)
    doubt(unit, numbers["equal_weights"])
    numbers |= {"method": kind.__name__, "lr": lr, "batch_size": batch_size, "seed": seed}
    source = f"{len(table):,} rows of {Path(returns).name}{_about(table)}"

    def draw() -> list[tuple[str, str, Any]]:
        caption = f"Weights after {numbers['steps']:,} steps of {made_by}, on {source}; {goal}."
        weights = ("weights", caption, plot_weights(table.assets, np.asarray(result.w)))
        curve = {kind.__name__: result.records["gap"][None]}
        caption = (
            f"Gap F(w) − F* in percent against samples drawn over both levels, for F = {goal}: "
            f"{made_by}. The error of F* itself is {in_words(reference.error)}."
        )
        gap = plot_curves(result.records["samples"], curve, "gap", unit="percent")
        return [weights, ("gap", caption, gap)]

    return Outcome(
        title=f"Portfolio of {len(table.assets)} assets",
        summary=f"{_summary(numbers, goal)} {meaning(numbers)}",
        tables=[
            (f"Weights in percent, from {source}", _weights_table(table, result.w)),
            (_beside_caption(numbers), _beside_table(numbers)),
            (f"Minimised: {goal}; returns in percent a row", _facts_table(numbers, made_by)),
        ],
        numbers=numbers,
        records={"records": result.records, "weights": _all_weights(table, result.w)},
        draw=draw,
        found={"lr": lr, "constraint": constraint} | ({} if unit or prices else {"unit": "percent"}),
        status=result.status if feasible else Status.NONFINITE,
        message=result.message if feasible else LEFT,
    )


# The data and the problem


def load(
    name: str,
    unit: str | None = None,
    prices: bool = False,
    drop: list[str] | None = None,
    drop_missing: bool = False,
) -> Returns:
    """Returns in percent: "synthetic", "industry10" and its like, or a file."""
    known = re.fullmatch(r"industry([0-9]+)", name)
    if name != "synthetic" and not known:
        if not Path(name).exists():
            raise SettingError(
                f"there is no file {name}; besides files there are synthetic and industry10, 12, 17, 30."
            )
        kind = "prices" if prices else "returns"
        return read_returns(name, unit=unit, kind=kind, drop=names_in(drop), drop_missing=drop_missing)
    if unit is not None or prices:
        raise SettingError(f"{name} is returns in percent: leave out --unit and --prices.")
    if drop or drop_missing:
        raise SettingError(f"--drop and --drop-missing are for files: {name} is whole.")
    if known:
        return industry(int(known[1]))
    values = synthetic_returns()
    return Returns(values, tuple(f"asset {k}" for k in range(1, values.shape[1] + 1)))


def prepare(
    table: Returns,
    risk: float,
    constraint: str = "simplex",
    low: float | None = None,
    high: float | None = None,
) -> tuple[Problem, ExactPortfolio, Optimum]:
    """The problem with its optimum, and what is exact about it."""
    if constraint == "box" and low is high is None:
        raise SettingError("the constraint box needs --low or --high, such as --high 0.3.")
    if constraint != "box" and not (low is high is None):
        raise SettingError(f"--low and --high belong to --constraint box; got {constraint}.")
    facts: dict[str, Any] = {
        "risk": risk,
        "constraint": constraint,
        "bounds": (low or 0.0, 1.0 if high is None else high) if constraint == "box" else None,
    }
    problem = mean_deviation(table.values, least_variance=None, **facts)
    exact = exact_portfolio(table.values, **facts)
    least = exact.least()
    if least.error > LOOSE:
        note(f"The exact optimum is known to within {least.error:.0e} only.")
    return problem.replace(optimum=least.value), exact, least


def longest_step(exact: ExactPortfolio, least: Optimum, batch_size: int) -> float:
    """A step that batches can be trusted with, between equal weights and the optimum."""
    start = exact.project(np.full(len(least.w), 1 / len(least.w)))
    return min(exact.inverse_curvature(w, batch_size) for w in (start, least.w))


def search(
    problem: Problem, kind: Any, rate: float, budget: dict[str, Any], keeping: dict[str, Any]
) -> float:
    """The learning rate of least gap, tried on seeds of their own with the whole budget."""
    note(f"Trying {len(MULTIPLES)} learning rates for {kind.__name__}.")
    rates = [float(f"{rate * multiple:.2g}") for multiple in MULTIPLES]
    tried = sweep(
        problem,
        lambda s: kind(lr=s.lr),
        settings=grid(lr=rates),
        seeds=tuning_seeds(TUNING_SEEDS),
        record=["gap"],
        **budget,
        **_inside(keeping, "search"),
    ).whole()
    return tried.best("gap")["lr"]


def _inside(keeping: dict[str, Any], part: str) -> dict[str, Any]:
    """Where a part of the command is kept: a folder of its own."""
    folder = keeping["checkpoint"]
    return keeping | {"checkpoint": None if folder is None else folder / part}


# What is said about it


def rows_per_year(table: Returns) -> float | None:
    """From the dates, to a usual number where it is one but for holidays; None without dates."""
    if table.dates is None or len(table) < LEAST_DATED:
        return None
    years = float((table.dates[-1] - table.dates[0]) / np.timedelta64(1, "D")) / DAYS_IN_YEAR
    if years <= 0:
        return None
    each = (len(table) - 1) / years
    usual = min(USUAL_ROWS, key=lambda n: abs(n - each))
    return float(usual) if abs(usual - each) < NEAR * usual else each


def moments(table: Returns, problem: Problem, w: Any, per_year: float | None) -> dict[str, Any]:
    """Return and deviation of some weights, in percent a row and a year, and their objective."""
    own = table.values @ np.asarray(w)
    found = {"expected_return": float(own.mean()), "deviation": float(own.std())}
    if per_year is not None:
        found["yearly_return"] = per_year * found["expected_return"]
        found["yearly_deviation"] = float(np.sqrt(per_year)) * found["deviation"]
    return found | {"objective": float(problem.value(jnp.asarray(w, problem.dtype)))}


def measure(
    table: Returns, problem: Problem, reference: Optimum, result: Any, per_year: float | None = None
) -> dict[str, Any]:
    """Every number about the weights, as ``--json`` prints them."""
    w = np.asarray(result.w)
    found = moments(table, problem, w, per_year)
    value = found["objective"]
    days = [None, None] if table.dates is None else [str(table.dates[0]), str(table.dates[-1])]
    return {
        "weights": dict(zip(table.assets, w.tolist(), strict=True)),
        "unit": "percent",
        **found,
        "equal_weights": moments(table, problem, np.full(len(w), 1 / len(w)), per_year),
        "rows_per_year": per_year,
        "optimum": reference.value,
        "gap": value - reference.value,
        "optimum_error": reference.error,
        "rows": len(table),
        "first": days[0],
        "last": days[1],
        "steps": int(result.records["step"][-1]),
        "samples": int(result.records["samples"][-1]),
    }


def doubt(unit: str | None, equal: dict[str, Any]) -> None:
    """A note where returns would be usual ones if they were read in the other unit."""
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
    each = "row" if per_year is None else "year"
    worth = max(numbers["gap"], 0.0) * (per_year or 1.0)
    unsure = numbers["deviation"] / np.sqrt(numbers["rows"]) * (per_year or 1.0)
    words = f"{worth:.2g}" if worth > WORTH_NAMING else f"less than {WORTH_NAMING:.0e}"
    return (
        f"The gap is what the search has left on the table: {words} percent a {each} of return, after "
        f"the price of risk. It says nothing about the years to come: from {numbers['rows']:,} rows "
        f"alone the expected return is known to ± {unsure:.2g} percent a {each} (one standard error)."
    )


def _beside_caption(numbers: dict[str, Any]) -> str:
    per_year = numbers["rows_per_year"]
    if per_year is None:
        return "Beside equal weights, in percent a row; --per-year N gives figures a year"
    return (
        f"Beside equal weights, in percent; a year has {per_year:g} rows, and figures a year are "
        f"{per_year:g} times the mean and √{per_year:g} times the deviation of a row"
    )


def _beside_table(numbers: dict[str, Any]) -> Table:
    names = {
        "expected_return": "expected return a row",
        "deviation": "deviation a row",
        "yearly_return": "expected return a year",
        "yearly_deviation": "deviation a year",
        "objective": "objective",
    }
    equal = numbers["equal_weights"]
    rows = [
        [words, f"{numbers[name]:.4g}", f"{equal[name]:.4g}"]
        for name, words in names.items()
        if name in equal
    ]
    return Table(["quantity", "found", "equal"], rows)


def _summary(numbers: dict[str, Any], goal: str) -> str:
    weights = numbers["weights"]
    held = [name for name, w in weights.items() if 100 * abs(w) >= LEAST_PERCENT]
    most = max(weights, key=lambda name: weights[name])
    yearly = numbers["rows_per_year"] is not None
    names = ("yearly_return", "yearly_deviation") if yearly else ("expected_return", "deviation")
    own, equal = ([of[name] for name in names] for of in (numbers, numbers["equal_weights"]))
    return (
        f"{len(held)} of {len(weights)} assets are held, most of all {most} "
        f"({100 * weights[most]:.1f} percent). The expected return is {own[0]:.4g} and the deviation "
        f"{own[1]:.4g} percent a {'year' if yearly else 'row'}, and those of equal weights "
        f"{equal[0]:.4g} and {equal[1]:.4g}; {goal.partition(',')[0]} = {numbers['objective']:.6g} is "
        f"{in_words(numbers['gap'])} above its least value."
    )


def _weights_table(table: Returns, w: Any) -> Table:
    percent = 100 * np.asarray(w)
    order = [int(k) for k in np.argsort(-percent, kind="stable") if abs(percent[k]) >= LEAST_PERCENT]
    rows = [[table.assets[k], f"{percent[k]:.2f}"] for k in order]
    if others := len(percent) - len(order):
        rows.append([f"{others} other{'s' if others > 1 else ''}", "0.00"])
    return Table(["asset", "weight"], rows)


def _all_weights(table: Returns, w: Any) -> Table:
    rows = zip(table.assets, np.asarray(w).tolist(), strict=True)
    return Table(["asset", "weight"], [list(row) for row in rows])


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
