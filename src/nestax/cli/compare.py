"""``nestax compare``: several methods on one portfolio, at equal samples."""

from pathlib import Path
from typing import Any

import numpy as np

from nestax.cli.portfolio import ROUNDING, in_words, load, prepare
from nestax.cli.shell import Outcome, note
from nestax.cli.surface import Compare
from nestax.estimators.registry import find
from nestax.run.sweep import grid
from nestax.study.compare import Comparison, compare
from nestax.table import Table

#: Learning rates that methods are tried at, as multiples of the inverse curvature.
MULTIPLES = tuple(10.0 ** np.arange(-3, 0.5, 0.5))


def run(options: Compare) -> Outcome:
    """Runs every method at the best of the same learning rates, with as many samples as the others."""
    names = [find(name.strip()).__name__ for name in options.methods.split(",") if name.strip()]
    table = load(options.data, options)
    problem, exact, optimum = prepare(table, options.risk)
    points = (np.asarray(problem.w0), optimum.w)
    scale = min(exact.inverse_curvature(w, options.batch_size) for w in points)
    # Devices share the rates, so that there is one more: 2, 4 and 8 divide them.
    multiples = MULTIPLES if options.devices is None else (MULTIPLES[0] / 10**0.5, *MULTIPLES)
    rates = [float(f"{scale * multiple:.2g}") for multiple in multiples]
    note(f"Trying {len(rates)} learning rates from {rates[0]:g} to {rates[-1]:g}.")
    result = compare(
        problem,
        names,
        samples=options.samples,
        tune=grid(lr=rates),
        seeds=options.seeds,
        tune_seeds=options.tune_seeds,
        batch_size=options.batch_size,
        devices=options.devices,
        checkpoint=options.kept,
    )
    return describe(
        result,
        title=f"Methods on a portfolio of {len(table.assets)} assets",
        setting=(
            f"{len(table):,} rows of {Path(options.data).name} × {len(table.assets)} assets, F = −mean "
            f"+ {options.risk:g}·deviation on the simplex, batch size {options.batch_size}"
        ),
        optimum=optimum.value,
        found={"learning rates tried": rates},
    )


def describe(
    result: Comparison, *, title: str, setting: str, optimum: float, found: dict[str, Any]
) -> Outcome:
    """Tells a comparison in words, tables and a figure; ``setting`` says what was run."""
    rows = [dict(zip(result.table.columns, row, strict=True)) for row in result.table.rows]
    runs = max((run.status.shape[1] for run in result.runs.values()), default=0)

    def draw() -> list[tuple[str, str, Any]]:
        caption = (
            "Gap F(w) − F* and gradient mapping, both in percent a row, against samples drawn over all "
            f"levels; {setting}. Every method at its best learning rate; mean and band of one standard "
            f"deviation over {runs} runs that had no part in choosing it."
        )
        drawable = any(run.finite.any() for run in result.runs.values())
        return [("comparison", caption, result.plot())] if drawable else []

    caption = (
        f"{setting}; mean over the last fifth of {runs} runs, every method at its best learning rate"
    )
    left_out = Table(["left out", "why"], [list(pair) for pair in result.refused.items()])
    return Outcome(
        title=title,
        summary=_summary(rows),
        tables=[
            (caption, _shown(result.table)),
            *([("Methods that do not apply", left_out)] if len(left_out) else []),
        ],
        numbers={
            "methods": rows,
            "refused": result.refused,
            "optimum": optimum,
        },
        records={"comparison": result.table, "records": columns(result)},
        draw=draw,
        found=found,
    )


def _summary(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "None of the methods applies."
    best, *others = rows
    than = f", and {others[0]['method']} to {in_words(others[0]['gap'])}" if others else ""
    return (
        f"With {best['samples']:,} samples {best['method']} comes to {in_words(best['gap'])} above the "
        f"least value of F{than}."
    )


def _shown(table: Table) -> Table:
    """Returns the table without digits that are rounding error."""
    gap = table.columns.index("gap")
    std = table.columns.index("± std")
    rows = [list(row) for row in table.rows]
    for row in rows:
        if abs(row[gap]) < ROUNDING:
            row[gap] = f"< {ROUNDING:.0e}"
            row[std] = "–"
    return Table(table.columns, rows)


def columns(result: Comparison) -> dict[str, np.ndarray]:
    """Returns every record of every reported run, one below the other."""
    parts: dict[str, list[np.ndarray]] = {}
    for name, run in result.runs.items():
        lanes = {key: c[0] for key, c in run.records.items() if c.ndim == 3}
        seeds, records = next(iter(lanes.values())).shape
        part = {
            "method": np.full(seeds * records, name),
            "run": np.repeat(np.arange(seeds), records),
            "step": np.tile(run.records["step"], seeds),
            "samples": np.tile(run.records["samples"], seeds),
            **{key: lane.ravel() for key, lane in lanes.items()},
        }
        for key, column in part.items():
            parts.setdefault(key, []).append(column)
    return {key: np.concatenate(column) for key, column in parts.items()}
