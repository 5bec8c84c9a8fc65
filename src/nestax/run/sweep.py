"""Many runs side by side: settings × seeds as lanes of one compiled loop."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem
from nestax.checkpoints.asked import Checkpoint, keeper_of
from nestax.devices.asked import Devices, sharing
from nestax.devices.hosts import Hosts, gathered
from nestax.devices.mesh import check_divides
from nestax.errors import SettingError, check_count, check_seed
from nestax.figures import plot_sweep
from nestax.loop.status import Status
from nestax.parts.estimator import AbstractEstimator
from nestax.parts.step_rule import Method
from nestax.run.follow import follow
from nestax.run.prepare import Budget, as_method, prepare
from nestax.run.record import Record, Watch
from nestax.streams.feed import streams_of
from nestax.table import Table, as_html, number, pandas
from nestax.trees import on_device

Settings = dict[str, np.ndarray]
#: Columns that a sweep is judged by where none is named, and how many settings a notebook shows.
FALLING = ("gap", "exact_value", "value")
MOST_SHOWN = 10


def grid(**values: Sequence[float]) -> Settings:
    """Every combination of the given values, as columns; the last name varies fastest."""
    for name, column in values.items():
        if (
            np.ndim(column) != 1
            or len(column) == 0
            or not np.issubdtype(np.asarray(column).dtype, np.number)
        ):
            raise SettingError(f"grid: {name} must be a list of at least one number; got {column!r}.")
    rows = list(itertools.product(*values.values()))
    return {name: np.asarray([row[k] for row in rows], float) for k, name in enumerate(values)}


@dataclasses.dataclass(frozen=True, repr=False)
class Sweep:
    """Result of ``sweep``: S settings × R seeds.

    settings: one column of S numbers per name.
    w: the weights at the end, with leading axes (S, R); where a lane diverged, its last finite ones.
    records: NumPy columns of shape (S, R, records); step and costs are the same in all lanes, so
        they have shape (records,).
    status: array (S, R) of ``Status``.
    ended, message: how the sweep as a whole ended, as a status and as a sentence.
    micro_batch: how many draws were evaluated at once, of the levels whose batches were cut.
    """

    settings: Settings
    w: PyTree
    records: dict[str, np.ndarray]
    status: np.ndarray
    ended: Status = Status.SUCCESS
    message: str = Status.SUCCESS.value
    micro_batch: dict[str, int] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        settings, seeds = self.status.shape
        lost = int((~self.finite).sum())
        note = f", {lost} of them diverged" if lost else ""
        end = f"\n{self.message}" if self.interrupted else ""
        return (
            f"Sweep: {settings} settings × {seeds} seeds, {self.records['step'][-1]:,} steps, "
            f"{self.records['samples'][-1]:,} samples each{note}{end}"
        )

    def _repr_html_(self) -> str:
        """For notebooks: the best settings by the first column that is to fall."""
        column = next((name for name in FALLING if name in self.records), None)
        if column is None:
            return as_html(repr(self))
        mean, spread = self._last(column)
        order = np.argsort(mean, kind="stable")[:MOST_SHOWN]
        rows = [
            [*(number(float(column[k])) for column in (*self.settings.values(), mean, spread))]
            for k in order
        ]
        table = Table([*self.settings, f"{column}, mean over seeds", "standard deviation"], rows)
        more = len(mean) - len(rows)
        return as_html(repr(self), table, *([f"and {more:,} other settings"] if more else []))

    def _last(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation over seeds of the last record; diverged lanes are infinite."""
        last = np.where(self.finite, self.records[column][:, :, -1], np.inf)
        mean = last.mean(axis=1)
        with np.errstate(invalid="ignore"):
            return mean, np.where(np.isfinite(mean), last.std(axis=1), np.nan)

    def best(self, column: str) -> dict[str, float]:
        """The setting with the least mean over seeds of the last record; diverged lanes are infinite.

        Where no mean is finite, that is an error. Besides the setting's numbers the dictionary holds
        ``mean``, ``std`` and ``index``.
        """
        if column not in self.records or self.records[column].ndim != 3:
            lanes = [name for name, c in self.records.items() if c.ndim == 3]
            raise SettingError(f"best: no column is called {column!r}; there are {', '.join(lanes)}.")
        mean, spread = self._last(column)
        index = int(np.argmin(np.where(np.isnan(mean), np.inf, mean)))
        if not np.isfinite(mean[index]):
            lost = int((~self.finite).sum())
            raise SettingError(
                f"best: no setting has a finite mean of {column!r} over its seeds, and {lost} of "
                f"{self.finite.size} lanes diverged: lower the learning rates, enlarge the batch, or "
                "give levels a project= or a smoother function."
            )
        chosen = {name: float(values[index]) for name, values in self.settings.items()}
        return chosen | {"mean": float(mean[index]), "std": float(spread[index]), "index": index}

    @property
    def finite(self) -> np.ndarray:
        return self.status != Status.NONFINITE

    @property
    def interrupted(self) -> bool:
        return self.ended is Status.INTERRUPTED

    def whole(self) -> "Sweep":
        """This sweep; for callers that have no use for a part, an interruption of their own."""
        if self.interrupted:
            raise KeyboardInterrupt(self.message)
        return self

    def to_frame(self) -> Any:
        """One row per setting, seed and record, as a pandas frame, with how the lane ended."""
        shape = (*self.status.shape, len(self.records["step"]))

        def wide(x: Any, axis: int) -> np.ndarray:
            column = np.asarray(x).reshape([-1 if k == axis else 1 for k in range(3)])
            return np.broadcast_to(column, shape).ravel()

        columns = {name: wide(values, 0) for name, values in self.settings.items()}
        columns["seed"] = wide(np.arange(shape[1]), 1)
        names = np.asarray([[status.name for status in row] for row in self.status])
        columns["status"] = np.broadcast_to(names[:, :, None], shape).ravel()
        for name, column in self.records.items():
            if column.ndim == 1:
                columns[name] = wide(column, 2)
            elif column.ndim == 3:
                columns[name] = column.ravel()
        return pandas().DataFrame(columns)

    def plot(self, path: str | Path | None = None, column: str = "exact_value") -> Any:
        """Mean and band over seeds of one column against samples, a curve per setting."""
        return plot_sweep(self, column, path)


def sweep(
    problem: Problem,
    build: Callable[[Any], Any],
    *,
    settings: Settings,
    seeds: int | Sequence[int] | np.ndarray,
    steps: int | None = None,
    samples: int | None = None,
    batch_size: int | dict[str, int] = 32,
    init_batch_size: int | dict[str, int] | None = None,
    record_every: int | None = None,
    record: Sequence[str] | None = None,
    callback: Callable[[Record], bool | None] | None = None,
    progress: bool | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    devices: int | Mesh | Devices | None = None,
) -> Sweep:
    """Runs every setting with every seed, side by side, compiled once whatever the grid.

    Lanes of equal seed see equal draws, so settings are compared on common randomness, and the data
    is never copied per lane.

    Args:
        problem: the chain of levels.
        build: from a setting ``s`` (attributes are the names in ``settings``) to
            ``(estimator, optimizer)``, or to ``(problem, estimator, optimizer)`` to range over
            numbers inside the levels through ``problem.with_args``; or to an estimator alone, which
            brings the step rule and the output it was published with.
        settings: columns of equal length, usually ``nx.grid(...)``.
        seeds: how many seeds, or a list of them; or a table with a row for every setting, which draws
            for every lane by itself.
        steps, samples, batch_size, init_batch_size, record_every, record, progress, checkpoint, devices:
            as in ``minimize``; a budget of samples is per lane, and devices share settings.
        callback: as in ``minimize``; columns and weights have leading axes (settings, seeds). Returning
            True stops all lanes.
    """
    watch = Watch((), callback)
    sharded = sharing(devices, ("lanes",))
    keeper = keeper_of(checkpoint, Hosts(sharded and sharded.mesh))
    seeds = np.arange(check_count("seeds", seeds)) if np.ndim(seeds) == 0 else np.asarray(seeds)
    lengths = {len(column) for column in settings.values()} if isinstance(settings, dict) else set()
    if len(lengths) != 1:
        raise SettingError("settings must be columns of one length, for example from nx.grid(...).")
    built = Built(build)
    # Building every setting here, with plain numbers, refuses a bad one before anything compiles.
    rows = [{k: float(v[n]) for k, v in settings.items()} for n in range(lengths.pop())]
    each = [built(problem, row)[1] for row in rows]
    first = each[0]
    if seeds.dtype.kind not in "iuO" or seeds.ndim > 2 or (seeds.ndim == 2 and len(seeds) != len(rows)):
        raise SettingError(
            "seeds must be whole numbers: how many, a list of them, or a table with a row for every one "
            f"of the {len(rows)} settings; got {seeds.dtype} of shape {seeds.shape}."
        )
    for seed in seeds.ravel().tolist():
        check_seed(seed)
    if sharded is not None:
        check_divides(sharded, "settings", len(rows))
    if seeds.size > 1 and streams_of(problem):
        raise SettingError(
            "a stream hands the same rows to every seed, so that several would tell nothing about "
            "chance: use seeds=1."
        )
    published = isinstance(built.out(rows[0]), AbstractEstimator)
    output = first.estimator.output if published else "last"
    run = prepare(
        problem,
        first,
        Budget(steps, samples, batch_size, init_batch_size, record_every, record),
        _keys(seeds),
        output=output,
        grid=(built, {name: on_device(np.asarray(v, problem.dtype)) for name, v in settings.items()}),
        copies=1,
        sharded=sharded,
        in_lanes=sharded is not None,
    )
    facts = {"run": "sweep", "seeds": seeds.tolist(), "record_every": run.stride}
    ended = follow(run, watch=watch, keeper=keeper, facts=facts, progress=progress)
    finite = ended.book.finite
    records = {
        name: np.moveaxis(column, 0, 2) if column.ndim > 1 else column
        for name, column in ended.records.items()
    }
    return Sweep(
        settings,
        ended.book.finite_weights(gathered(run.compiled.lane.output(ended.at.carry))),
        records,
        np.asarray([Status.NONFINITE, ended.status])[finite.astype(int)],
        ended.status,
        ended.message,
        run.micro_batch,
    )


def _keys(seeds: np.ndarray) -> Array:
    """The key of every seed."""
    key = jax.random.key
    for _ in seeds.shape:
        key = jax.vmap(key)
    return key(on_device(np.asarray(seeds, np.uint32)))


class Point(SimpleNamespace):
    """One setting of a sweep, a point of its grid; its numbers are attributes."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no setting is called {name!r}; there are {', '.join(vars(self))}.")


class Built(eqx.Module):
    """Turns what the user's ``build`` returns into a problem and a method."""

    build: Callable[[Any], Any]

    def out(self, setting: dict[str, Any]) -> Any:
        return self.build(Point(**setting))

    def __call__(self, problem: Problem, setting: dict[str, Any]) -> tuple[Problem, Method]:
        out = self.out(setting)
        if isinstance(out, AbstractEstimator | Method):
            return problem, as_method(problem, out)
        if isinstance(out, tuple) and len(out) == 2:
            return problem, as_method(problem, *out)
        if isinstance(out, tuple) and len(out) == 3:
            return out[0], as_method(*out)
        raise SettingError(
            "build must return (estimator, optimizer), (problem, estimator, optimizer) or a published "
            f"method alone; got {type(out).__name__}."
        )
