"""Methods side by side: the same problem, the same grid, the same budget of samples."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh

import nestax.trees as trees
from nestax.chain.problem import Problem
from nestax.checkpoints.asked import Checkpoint, as_checkpoint
from nestax.devices.asked import Devices
from nestax.errors import ProblemError, SettingError, check_count
from nestax.estimators.registry import find
from nestax.parts.estimator import AbstractEstimator
from nestax.run.sweep import Settings, Sweep, grid, sweep
from nestax.table import Table, as_html

#: Learning rates that every method is tried at unless told otherwise.
LEARNING_RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
#: Seeds for tuning start here, far from those that are reported.
FIRST_TUNING_SEED = 1_000_000
#: The end of a run, over which results are averaged: this share of the records.
TAIL = 0.2
#: Tuning and reporting share a program unless one of them has more than so many times the other's runs.
UNEQUAL = 4


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Result of ``compare``.

    table: one row per method, the best first: chosen setting, steps, samples, result at the end of the
        run, and what that is above the first. Runs of equal seed see the same draws, so that difference
        is the mean over seeds of those of single runs: judge it by its standard error, ``± error``, and
        not by the spread of the runs, ``± std``. It has ``to_markdown``, ``to_csv`` and ``to_frame``.
    runs: for every method the ``Sweep`` over the reported seeds, at its chosen setting.
    tuning: for every method the ``Sweep`` over the whole grid, on other seeds.
    refused: why a method does not apply, by name.
    column: what the methods were tuned for and are ranked by.
    """

    table: Table
    runs: dict[str, Sweep]
    tuning: dict[str, Sweep]
    refused: dict[str, str]
    column: str

    def _notes(self) -> list[str]:
        return [f"{name} was left out. {why}" for name, why in self.refused.items()]

    def __str__(self) -> str:
        return "\n".join([str(self.table), *self._notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For notebooks."""
        return as_html(self.table, *self._notes())

    def plot(self, path: str | Path | None = None) -> Any:
        """Loss (or gap) and gradient norm against samples, mean and band over seeds."""
        from nestax.figures import plot_panels

        columns = [
            c for c in (self.column, "grad_norm") if all(c in r.records for r in self.runs.values())
        ]
        runs = {name: run for name, run in self.runs.items() if run.finite.any()}
        samples = {name: run.records["samples"] for name, run in runs.items()}
        # Runs that diverged are counted in the table; here they would hide the others.
        curves = {
            c: {name: run.records[c][0][run.finite[0]] for name, run in runs.items()} for c in columns
        }
        return plot_panels(samples, curves, path)


def compare(
    problem: Problem,
    methods: Sequence[Any] | dict[str, Any],
    *,
    samples: int,
    tune: Settings | None = None,
    seeds: int | Sequence[int] = 20,
    tune_seeds: int = 4,
    batch_size: int | dict[str, int] = 32,
    init_batch_size: int | dict[str, int] | None = None,
    by: str | None = None,
    progress: bool | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    devices: int | Mesh | Devices | None = None,
) -> Comparison:
    """Tunes every method on the same grid and runs all of them with the same number of samples.

    Each method is tried at every setting of the grid with ``tune_seeds`` seeds of its own; the setting
    with the best mean over the last fifth of the run is run again with the reported seeds. A method
    ignores the names of the grid that it does not have.

    Args:
        problem: the chain of levels; its population must be finite or its value known exactly.
        methods: names ("NLASG"), classes, estimators with some settings fixed, or a dictionary from
            labels to any of these or to functions as ``nx.sweep`` takes them. A method comes with the
            step rule that it was published with.
        samples: budget of draws over all levels, restarts and first batch included, for every run.
        tune: the grid; by default five learning rates from 0.01 to 1.
        seeds: how many seeds are reported, or a list of them.
        tune_seeds: how many further seeds choose the setting.
        batch_size, init_batch_size: as in ``minimize``, the same for all methods.
        by: the column to tune for and to rank by; the gap where the optimum is known, else the value, of
            F itself where that can be computed and else as the method tracks it.
        checkpoint: as in ``minimize``; every sweep has a folder inside. An interruption raises
            KeyboardInterrupt, for half a comparison compares nothing.
        devices: as in ``sweep``: they share the settings of the grid, and so the reported seeds where
            those run in lanes of the same shape.
    """
    kept = as_checkpoint(checkpoint)
    seeds = list(range(check_count("seeds", seeds))) if np.ndim(seeds) == 0 else list(seeds)  # pyright: ignore[reportArgumentType]
    choosing = tuning_seeds(tune_seeds)
    known = problem.finite or problem.exact is not None
    if by is None:
        by = "value" if not known else "exact_value" if problem.optimum is None else "gap"
    tune = grid(lr=LEARNING_RATES) if tune is None else tune
    if not isinstance(tune, dict):
        raise SettingError(f"tune must be a grid such as nx.grid(lr=[0.01, 0.1]); got {tune!r}.")
    named = _named(methods)
    facts: dict[str, Any] = {
        "samples": samples,
        "batch_size": batch_size,
        "init_batch_size": init_batch_size,
        "record": list(dict.fromkeys([by, "grad_norm"] if known else [by])),
        "progress": progress,
        "devices": devices,
    }
    runs = {}
    tuning = {}
    refused = {}
    for k, (name, method) in enumerate(named.items()):
        build, settings = _builder(method, tune)

        def one(part: str, build: Any = build, k: int = k, **lanes: Any) -> Sweep:
            inside = kept and dataclasses.replace(
                kept, folder=Path(kept.folder) / f"method-{k + 1}-{part}"
            )
            return sweep(problem, build, checkpoint=inside, **lanes, **facts).whole()

        lanes = (len(next(iter(settings.values()))), len(choosing))
        counts = (math.prod(lanes), len(seeds))
        # What is shared draws for every lane by itself, which may cost much where draws are simulated.
        shared = problem.finite and max(counts) <= UNEQUAL * min(counts)
        shared = shared or devices is not None  # one setting alone could not be shared by devices
        own = np.tile(choosing, (lanes[0], 1)) if shared else choosing
        try:
            tuning[name] = one("tuning", settings=settings, seeds=own)
        except ProblemError as error:
            refused[name] = str(error)
            continue
        except (SettingError, AttributeError) as error:
            raise SettingError(f"{name}: {error}") from None
        best = int(np.argmin(_ends(tuning[name], by).mean(axis=1)))
        chosen = {key: values[best : best + 1] for key, values in settings.items()}
        if shared:
            runs[name] = _in_lanes(one, chosen, seeds, lanes)
        else:
            runs[name] = one("run", settings=chosen, seeds=seeds)
    return Comparison(tabulate(runs, list(tune), by), runs, tuning, refused, by)


def tabulate(runs: dict[str, Sweep], names: Sequence[str], by: str) -> Table:
    """One row per method, the best first, with its settings of these names."""
    order = sorted(runs, key=lambda name: float(_ends(runs[name], by)[0].mean()))
    first = runs[order[0]] if order else None
    rows = [
        [name, *_row(runs[name], names, by), *_above(runs[name], first, by), *_also(runs[name])]
        for name in order
    ]
    result = [by, "± std", "above the first", "± error", "grad_norm", "diverged"]
    return Table(["method", *names, "steps", "samples", *result], rows)


def tuning_seeds(count: int) -> list[int]:
    """Seeds that choose settings and are not reported."""
    return [FIRST_TUNING_SEED + k for k in range(check_count("tune_seeds", count))]


def _in_lanes(
    one: Callable[..., Sweep], chosen: Settings, seeds: Sequence[int], lanes: tuple[int, int]
) -> Sweep:
    """One setting with every seed, as sweeps over lanes of a given shape; the last of them is filled up.

    They are the same program as any other sweep of that shape.
    """
    settings = {key: np.repeat(value, lanes[0]) for key, value in chosen.items()}
    tables = np.resize(seeds, (-(-len(seeds) // math.prod(lanes)), *lanes))
    parts = [one(f"run-{k + 1}", settings=settings, seeds=table) for k, table in enumerate(tables)]

    def joined(*arrays: Any) -> np.ndarray:
        rows = [np.asarray(x).reshape(1, -1, *x.shape[2:]) for x in arrays]
        return np.concatenate(rows, axis=1)[:, : len(seeds)]

    records = {
        name: column if column.ndim == 1 else joined(*(part.records[name] for part in parts))
        for name, column in parts[0].records.items()
    }
    w = jax.tree.map(lambda *x: trees.on_device(joined(*x)), *(part.w for part in parts))
    return Sweep(chosen, w, records, joined(*(part.status for part in parts)))


def _row(run: Sweep, names: Sequence[str], by: str) -> list[Any]:
    shown = [float(run.settings[name][0]) if name in run.settings else "–" for name in names]
    ends = _ends(run, by)[0]
    spread = float(np.std(ends)) if np.isfinite(ends).all() else float("nan")
    drawn = [int(run.records[column][-1]) for column in ("step", "samples")]
    return [*shown, *drawn, float(np.mean(ends)), spread]


def _above(run: Sweep, first: Sweep | None, by: str) -> list[Any]:
    """What a method's end is above that of the first, seed by seed: mean and standard error."""
    if first is None or run is first:
        return ["–", "–"]
    with np.errstate(invalid="ignore"):  # where a run diverged
        above = _ends(run, by)[0] - _ends(first, by)[0]
        error = above.std(ddof=1) / len(above) ** 0.5 if len(above) > 1 else np.nan
    return [float(above.mean()), float(error)]


def _also(run: Sweep) -> list[Any]:
    """The mean length of the gradient, and how many runs diverged."""
    known = "grad_norm" in run.records
    length = float(np.mean(_ends(run, "grad_norm")[0])) if known else float("nan")
    return [length, int((~run.finite).sum())]


def _named(methods: Any) -> dict[str, Any]:
    if isinstance(methods, dict):
        named = dict(methods)
    else:
        listed = [methods] if isinstance(methods, str | type | AbstractEstimator) else list(methods)
        named = {_label(method): method for method in listed}
        if len(named) < len(listed):
            raise SettingError(
                "two methods have one name: pass a dictionary from labels of your own to methods."
            )
    if not named:
        raise SettingError("compare needs at least one method; nx.methods() lists them.")
    return named


def _ends(run: Sweep, column: str) -> np.ndarray:
    """Mean over the end of every run, infinite where it diverged: settings × seeds."""
    curves = run.records[column]
    tail = curves[:, :, -max(1, round(TAIL * curves.shape[2])) :].mean(axis=2)
    return np.where(run.finite & np.isfinite(tail), tail, np.inf)


def _label(method: Any) -> str:
    if isinstance(method, str):
        return find(method).__name__
    cls = method if isinstance(method, type) else type(method)
    if not issubclass(cls, AbstractEstimator):
        raise SettingError(
            f"compare takes names, classes or estimators, or a dictionary of them; got {method!r}."
        )
    return cls.__name__


def _builder(method: Any, tune: Settings) -> tuple[Callable[[Any], Any], Settings]:
    """What builds the method from a setting, and the part of the grid that it has a use for."""
    if isinstance(method, str):
        method = find(method)
    if isinstance(method, type):
        method = method()
    if not isinstance(method, AbstractEstimator):
        return method, tune
    used = [name for name in tune if name in {field.name for field in dataclasses.fields(method)}]
    if not used:
        raise SettingError(
            f"{type(method).__name__} has none of the settings {', '.join(tune)}: add lr to the grid."
        )
    table = np.unique(np.stack([tune[name] for name in used], axis=1), axis=0)
    return Replaced(method), {name: table[:, k] for k, name in enumerate(used)}


class Replaced(eqx.Module):
    """A method with the settings of one point of the grid in place of its own."""

    method: AbstractEstimator

    def __call__(self, setting: Any) -> AbstractEstimator:
        return dataclasses.replace(self.method, **vars(setting))
