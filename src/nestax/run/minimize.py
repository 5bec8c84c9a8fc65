"""One run: from a problem and a method to weights."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import nestax.trees as trees
from nestax.chain.problem import Problem
from nestax.checkpoints.fingerprint import described
from nestax.checkpoints.keeper import Keeper, Saved, as_columns
from nestax.errors import SettingError, check_count, check_seed, check_setting, choose
from nestax.estimators.registry import find
from nestax.loop.columns import FINITE_COLUMNS, choose_columns
from nestax.loop.compiled import At, Chunk, Compiled, make_plan
from nestax.loop.cost import Cost, Meter
from nestax.loop.step import AVERAGES, Run
from nestax.parts.estimator import AbstractEstimator, Method, as_method, seen_by
from nestax.parts.step import AbstractStep
from nestax.run.progress import Progress, progress_line
from nestax.run.result import Carry, Result, Status
from nestax.run.tune import autotune
from nestax.streams.feed import make_feed
from nestax.trees import as_host, shapes_of


def minimize(
    problem: Problem,
    estimator: AbstractEstimator | Method | None = None,
    optimizer: optax.GradientTransformation | AbstractStep | None = None,
    *,
    steps: int | None = None,
    samples: int | None = None,
    batch_size: int | dict[str, int] = 32,
    init_batch_size: int | dict[str, int] | None = None,
    seed: int = 0,
    record_every: int | None = None,
    record: Sequence[str] | None = None,
    output: str | None = None,
    start: Carry | None = None,
    seconds: float | None = None,
    target_gap: float | None = None,
    patience: int | None = None,
    callback: Callable[[dict[str, Any]], bool | None] | None = None,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
    resume: bool = False,
) -> Result:
    """Minimises F(w) over the feasible set of ``problem``.

    Args:
        problem: the chain of levels.
        estimator: how ∇F is estimated, for example ``nx.SMVR(beta=0.1)``; or the name of a method, or an
            ``nx.Method``. Left out, half of ``samples`` goes into finding a learning rate for SMVR; see
            ``nx.autotune``.
        optimizer: any Optax optimiser, which receives the estimate as the gradient, or one of
            ``nx.steps``. Left out, the estimator brings the step rule it was published with.
        steps: number of steps; give this or ``samples``.
        samples: budget of draws over all levels, the first batch included.
        batch_size: draws per level and step, one number or a dictionary by level name.
        init_batch_size: the same for the start; ten times ``batch_size`` by default.
        seed: every draw is a function of the seed and the step.
        record_every: steps between records; a hundredth of the run by default.
        record: names of the columns; see ``nx.COLUMNS``. By default the tracked value, and the
            exact value and gradient norm where the population is finite.
        output: "last" weights; "random", those after a number of steps drawn uniformly from
            0..steps-1, the paper's τ, with trackers that belong to them (the run stops there);
            "average" over all iterates; "weighted", the same with weight t for those after step t.
            By default "last", or what the method was published with if it brings its step rule.
        start: ``result.carry`` of an earlier run: continue it, without a draw at the start.
        seconds: stop after the first chunk that ends later than this.
        target_gap: stop at the first record whose gap F(w) − F* is no larger.
        patience: stop after so many records without a new best value.
        callback: called between chunks with the latest record as a dictionary; returning True
            stops the run.
        progress: show a progress line; by default only on a terminal.
        checkpoint: a folder in which the run is kept, so that it can go on after an interruption.
        checkpoint_every: seconds between checkpoints; one is written at the end in any case.
        resume: go on with the run in that folder, to the same bits as if it had never stopped; begin
            one if the folder holds none. The number of steps may have grown, where no schedule depends
            on it.
    """
    began = time.perf_counter()
    if not isinstance(problem, Problem):
        raise SettingError(f"the first argument must be an nx.Problem; got {problem!r}.")
    keeper = Keeper(checkpoint, checkpoint_every, resume)
    search = Cost()
    if isinstance(estimator, str):
        estimator = find(estimator)()
    if estimator is None:
        if samples is None or not (steps is optimizer is start is None):
            raise SettingError(
                "without an estimator minimize finds settings by itself, within a budget: give samples, "
                "and neither steps, an optimizer nor start."
            )
        estimator, search, _ = autotune(
            problem, samples=check_count("samples", samples), share=0.5, batch_size=batch_size,
            init_batch_size=init_batch_size, seed=check_seed(seed),
        )  # fmt: skip
    method = as_method(problem, estimator, optimizer)
    problem = seen_by(method.estimator, problem)
    method.check(problem)
    seed = check_seed(seed)
    if output is None:
        output = method.estimator.output if optimizer is None else "last"
    choose("output", output, ("last", "random", *AVERAGES))
    check_setting("seconds", seconds, "positive", lambda s: s > 0)
    if patience is not None:
        check_count("patience", patience)
    columns = choose_columns(problem, record)
    if target_gap is not None and "gap" not in columns:
        columns = choose_columns(problem, (*columns, "gap"))
    sized = make_plan(
        problem, method.estimator, batch_size=batch_size, init_batch_size=init_batch_size,
        stride=1, columns=columns,
    )  # fmt: skip
    filled = method.estimator.defaults(problem, steps or 1, sized.sizes)
    meter = Meter(problem, filled, sized.sizes, sized.first_sizes)
    begin = At(None, 0) if start is None else At(start.lane, start.step)
    spent = meter.start.plus(1, search) if start is None else start.cost
    steps = meter.steps(steps, samples, begin.step, spent)
    stride = check_count("record_every", record_every or max(1, steps // 100))
    plan = make_plan(
        problem, filled, batch_size=batch_size, init_batch_size=init_batch_size,
        stride=min(stride, steps), columns=columns, average=output if output in AVERAGES else None,
    )  # fmt: skip
    key = jax.random.key(seed) if start is None else start.key
    run = Run(problem, Always(problem, method), (), key, jnp.asarray(begin.step + steps), plan)
    facts = {"run": "minimize", "seed": seed, "output": output, "record_every": stride}
    if start is not None and checkpoint is not None:
        facts |= {"start": [described(x) for x in jax.tree.leaves(start.lane)], "start step": start.step}
        facts["start rows"] = list(start.rows)
    if output == "random":  # drawn first: the run simply stops there
        facts["steps"] = steps
        steps = int(np.random.default_rng([seed, 0x7A0]).integers(steps))
    total = begin.step + steps
    feed = make_feed(problem, filled, plan, stride, total)
    if feed is not None and start is not None:
        feed.begin_after(start.step, start.rows)
    compiled = Compiled(run, feed)
    if compiled.donates and (start is not None or target_gap is not None or patience is not None):
        raise SettingError(
            "there is memory for one copy of the trackers only, so that nothing can be repeated: leave "
            "start, target_gap and patience out, or take fewer blocks."
        )
    monitor = next((c for c in ("exact_value", "value") if c in columns), None)
    rules = Rules(began, seconds, target_gap, patience, monitor, callback)
    with progress_line(total, progress) as show, keeper.at_work():
        found = keeper.find(compiled, begin.step, stride, total, facts)
        if found is None:
            at = compiled.start() if start is None else At(_restored(compiled, start), start.step)
            at, first = compiled.observe(at)
            book = Book.begun(meter, at.step, spent, first)
        else:
            at, book = found.at, Book(meter, found.rows)
        at, status, message = _follow(compiled, keeper, found, at, book, total, stride, rules, show)
        if book.finite:
            message = keeper.close(at, book.rows, status, message)
    w = at.carry.average if output in AVERAGES else at.carry.w
    rows = () if feed is None else feed.rows_after(at.step)
    carry = Carry(at.carry, key, at.step, meter.after(spent, begin.step, at.step), rows)
    return Result(w, as_columns(book.rows), status, message, carry)


class Rules(NamedTuple):
    """When a run ends before its last step."""

    began: float
    seconds: float | None
    target_gap: float | None
    patience: int | None
    monitor: str | None
    callback: Callable[[dict[str, Any]], bool | None] | None

    def met(self, rows: list[dict[str, Any]]) -> str | None:
        """A sentence if the last of the records ends the run; the one at the start never does."""
        if len(rows) == 1:
            return None
        if self.target_gap is not None and rows[-1]["gap"] <= self.target_gap:
            return f"The gap reached {self.target_gap:g}."
        if self.patience is not None and self.monitor is not None:
            seen = [row[self.monitor] for row in rows]
            if len(seen) - 1 - int(np.argmin(seen)) >= self.patience:
                return f"No new best {self.monitor} in {self.patience} records."
        return None

    def between(self, latest: dict[str, Any]) -> str | None:
        """A sentence if the clock or the user ends the run between two chunks."""
        late = self.seconds is not None and time.perf_counter() - self.began > self.seconds
        stopped = self.callback is not None and self.callback(latest)
        if late:
            return f"Stopped after {self.seconds:g} seconds."
        return "Stopped by the callback." if stopped else None


def _follow(
    compiled: Compiled,
    keeper: Keeper,
    found: Saved | None,
    at: At,
    book: "Book",
    total: int,
    stride: int,
    rules: Rules,
    show: Progress,
) -> tuple[At, Status, str]:
    """Chunk after chunk to the end, or to where a rule, a signal or a number ends the run."""
    if found is not None and found.status is Status.NONFINITE:
        return at, found.status, found.message
    if not book.finite:
        return at, Status.NONFINITE, _name_failure(compiled, at, at.step, at.step)
    why = rules.met(book.rows)
    if why is not None:
        return at, Status.SUCCESS, why
    weights = _weights_of(compiled, at)
    try:
        for chunk in compiled.chunks(at, total - at.step, stride, at.step - book.step):
            bad = np.flatnonzero(~chunk.records["finite"])
            if bad.size and weights is not None:  # there is nothing to go back to but the weights
                book.finite = False  # so that the last checkpoint stays the last good one
                carry = dataclasses.replace(chunk.after.carry, w=weights[0], average=weights[1])
                return At(carry, at.step), Status.NONFINITE, _without_trackers(chunk)
            if bad.size:
                at, first, last = _last_finite(compiled, chunk, int(bad[0]))
                for k in range(int(bad[0])):
                    book.add(chunk, k)
                return at, Status.NONFINITE, _name_failure(compiled, at, first, last)
            for k in range(chunk.strides):
                book.add(chunk, k)
                why = rules.met(book.rows)
                if why is not None:  # go back to the record that fulfilled the rule
                    chunk = compiled.advance(chunk.before, k + 1, chunk.length)
                    break
            at, weights = chunk.after, _weights_of(compiled, chunk.after)
            show(at.step, **book.latest(rules.monitor))
            asked = rules.between(book.rows[-1]) if chunk.strides else None
            why = why or asked
            if why is not None:
                return at, Status.SUCCESS, why
            why = keeper.visit(at, book.rows) if at.step < total else None
            if why is not None:
                return at, Status.INTERRUPTED, why
    except KeyboardInterrupt:
        if compiled.donates:  # what the chunk began with is gone
            raise
        book.cut(at.step)
        return at, Status.INTERRUPTED, Status.INTERRUPTED.value
    if compiled.feed is not None and at.step < total:
        return at, Status.INTERRUPTED, compiled.feed.why()
    return at, Status.SUCCESS, Status.SUCCESS.value


def _weights_of(compiled: Compiled, at: At) -> tuple[Any, Any] | None:
    """A copy of the weights and of their average, where the next chunk overwrites them."""
    kept = (at.carry.w, at.carry.average)
    return jax.tree.map(jnp.copy, kept) if compiled.donates else None


def _without_trackers(chunk: Chunk) -> str:
    return (
        f"A value became infinite or NaN after step {chunk.before.step:,}, and there was memory for one "
        "copy of the trackers only: the result are the weights of that step, without trackers to go on "
        "with. Lower the learning rate, enlarge the batch, or resume from a checkpoint."
    )


class Always(eqx.Module):
    """The method of a run with one lane: the same for every setting."""

    problem: Problem
    method: Method

    def __call__(self, setting: Any) -> tuple[Problem, Method]:
        return self.problem, self.method


class Book:
    """The records so far, with the columns that only the host knows."""

    def __init__(self, meter: Meter, rows: list[dict[str, Any]]):
        self.meter, self.rows, self.finite = meter, rows, True

    @classmethod
    def begun(cls, meter: Meter, step: int, cost: Cost, first: dict[str, np.ndarray]) -> "Book":
        """With the record of the start alone."""
        finite = bool(first.pop("finite"))
        book = cls(meter, [{"step": step, **cost._asdict(), **first}])
        book.finite = finite
        return book

    @property
    def step(self) -> int:
        return int(self.rows[-1]["step"])

    def add(self, chunk: Chunk, k: int) -> None:
        """Record ``k`` of a chunk."""
        before, step = self.rows[-1], chunk.before.step + (k + 1) * chunk.length
        cost = Cost(*(int(before[name]) for name in Cost._fields))
        cost = self.meter.after(cost, self.step, step)
        row = {name: c[k] for name, c in chunk.records.items() if name != "finite"}
        self.rows.append({"step": step, **cost._asdict(), **row})

    def cut(self, step: int) -> None:
        """Forgets what came after ``step``."""
        self.rows = [row for row in self.rows if row["step"] <= step]

    def latest(self, name: str | None) -> dict[str, Any]:
        return {} if name is None else {name: self.rows[-1][name]}


def _restored(compiled: Compiled, start: Carry) -> Any:
    """The carry to continue from, with its structure if it came from a file; checked for fit."""
    packing = compiled.run.packing
    leaves = jax.tree.leaves(start.lane)
    fits = packing.shape.leaves == shapes_of(leaves).leaves
    if not fits or not all(
        np.array_equal(as_host(leaf)[0], as_host(leaves[k])[0], equal_nan=True)
        for leaf, k in zip(leaves, packing.groups)  # noqa: B905
    ):
        raise SettingError(
            "start= belongs to another problem, method or output: its arrays are not the ones that "
            "this run carries."
        )
    return packing.shape.treedef.unflatten(leaves)


def _last_finite(compiled: Compiled, chunk: Chunk, bad: int) -> tuple[At, int, int]:
    """The last finite state, found by replaying the stride in which the first bad value appeared."""
    good = compiled.advance(chunk.before, bad, chunk.length).after if bad else chunk.before
    low, high = 0, chunk.length  # after `low` steps all is finite, after `high` it is not
    while high - low > 1:
        middle = (low + high) // 2
        finite = bool(compiled.advance(good, 1, middle).records["finite"][0])
        low, high = (middle, high) if finite else (low, middle)
    state = compiled.advance(good, 1, low).after if low else good
    return state, good.step, good.step + chunk.length


def _name_failure(compiled: Compiled, at: At, first: int, last: int) -> str:
    """Which quantity became non-finite in the step after ``at``, or is not finite at the start."""
    problem, method = compiled.run.lane(())
    at, record = compiled.observe(at)
    carry = at.carry
    if record["finite"]:
        chunk = compiled.advance(at, 1, 1)
        carry, record = chunk.after.carry, {name: c[0] for name, c in chunk.records.items()}
    trackers = method.estimator.trackers(carry.state)
    parts = {"the weights": carry.w}
    for kind, word in {"value": "value", "jac": "Jacobian", "adjoint": "adjoint"}.items():
        tracked = zip(problem.levels, getattr(trackers, kind) or (), strict=False)
        parts |= {f"the {word} of level {level.name!r}": part for level, part in tracked}
    parts |= {"the gradient estimate": carry.estimate, "the state of the optimizer": carry.opt_state}
    parts |= {words: record[name] for name, words in FINITE_COLUMNS.items() if name in record}
    bad = (words for words, part in parts.items() if not trees.all_finite(part))
    what = next(bad, "the state of the method")
    what = f"{what[0].upper()}{what[1:]}"
    if first == last:
        return (
            f"{what} is infinite or NaN at the start: choose another w0, or give the level a project= "
            "or a smoother function."
        )
    return (
        f"{what} became infinite or NaN at step {at.step + 1:,} (between the records of steps {first:,} "
        f"and {last:,}); the result is the last finite state. Lower the learning rate, enlarge the "
        "batch, give the level a project= or a smoother function."
    )
