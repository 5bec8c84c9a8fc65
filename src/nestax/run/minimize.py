"""One run: from a problem and a method to weights."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from nestax.chain.problem import Problem
from nestax.checkpoints.asked import Checkpoint, keeper_of
from nestax.checkpoints.fingerprint import described
from nestax.devices.asked import Devices, sharing
from nestax.devices.hosts import Hosts
from nestax.errors import ConvergenceWarning, SettingError, check_seed, choose, warn
from nestax.estimators.registry import find
from nestax.loop.chunks import At, Compiled
from nestax.loop.plan import AVERAGES
from nestax.loop.status import Status
from nestax.parts.estimator import AbstractEstimator
from nestax.parts.step_rule import AbstractStep, Method
from nestax.run.follow import follow
from nestax.run.prepare import Budget, as_method, prepare
from nestax.run.record import Record, Watch
from nestax.run.result import Continuation, Result
from nestax.run.tune import found_method, self_tuning
from nestax.run.verdict import Word
from nestax.stop import Rule
from nestax.trees import as_host, shapes_of


def minimize(
    problem: Problem,
    estimator: AbstractEstimator | Method | str | None = None,
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
    start: Continuation | None = None,
    stop: Rule | Callable[[Record], Any] | Sequence[Any] | None = None,
    callback: Callable[[Record], bool | None] | None = None,
    progress: bool | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    devices: int | Mesh | Devices | None = None,
) -> Result:
    """Minimises F(w) over the feasible set of ``problem``.

    Args:
        problem: the chain of levels.
        estimator: how ∇F is estimated, for example ``nx.SMVR(beta=0.1)``; or the name of a method, or an
            ``nx.Method``. Left out, ``nx.SelfTuning()``, in a chain with blocks one for every block.
        optimizer: any Optax optimiser, which receives the estimate as the gradient, or one of
            ``nx.steps``. Left out, the estimator brings the step rule it was published with; without an
            estimator too, half of ``samples`` goes into finding a learning rate, see ``nx.autotune``.
        steps: number of steps; give this or ``samples``.
        samples: budget of draws over all levels, the first batch included.
        batch_size: draws per level and step, one number or a dictionary by level name.
        init_batch_size: the same for the start; ten times ``batch_size`` by default.
        seed: from 0 to 2³² − 1; every draw is a function of the seed and the step.
        record_every: steps between records; a hundredth of the run by default.
        record: names of the columns; see ``nx.COLUMNS``. By default the tracked value, and the
            exact value and gradient norm where the population is finite.
        output: "last" weights; "random", those after a number of steps drawn uniformly from
            0..steps-1, the paper's τ, with trackers that belong to them (the run stops there);
            "average" over all iterates; "weighted", the same with weight t for those after step t.
            By default "last", or what the method was published with if it brings its step rule.
        start: ``result.carry`` of an earlier run: continue it, without a draw at the start.
        stop: what ends the run before that, one rule or several: ``nx.stop.Gap``, ``nx.stop.Patience``,
            ``nx.stop.Seconds``, or functions of a record that return True or a sentence.
        callback: called at every record with an ``nx.Record``: a dictionary of its columns, with the
            weights ``record.w`` and all records so far, ``record.records``. Returning True stops the
            run exactly there.
        progress: show a progress line; by default on a terminal and in a notebook only.
        checkpoint: a folder in which the run is kept, so that it can go on after an interruption; or
            ``nx.Checkpoint(folder, every=60, resume=True)``.
        devices: how many compute together; a ``jax.sharding.Mesh``; or ``nx.Devices(mesh, "blocks")``,
            which says what they share. None means one, or those on which data has arrived in shards.
            The processes of a mesh call ``minimize`` together, with equal arguments; callbacks are
            asked, and files written, in the first of them.
    """
    began = time.perf_counter()
    if not isinstance(problem, Problem):
        raise SettingError(f"the first argument must be an nx.Problem; got {type(problem).__name__}.")
    if start is not None and not isinstance(start, Continuation):
        raise SettingError(f"start must be the carry of a result; got {type(start).__name__}.")
    watch = Watch(stop, callback, began)
    seed = check_seed(seed)
    sharded = sharing(devices, ("rows", "blocks", "model"), problem)
    keeper = keeper_of(checkpoint, Hosts(sharded and sharded.mesh))
    budget = Budget(steps, samples, batch_size, init_batch_size, record_every, record)
    search = None
    if isinstance(estimator, str):
        estimator = find(estimator)()
    if estimator is None and optimizer is None:
        estimator, search = found_method(keeper, problem, budget, seed, start)
    method = as_method(problem, estimator or self_tuning(problem), optimizer)
    if output is None:
        output = method.estimator.output if optimizer is None else "last"
    choose("output", output, ("last", "random", *AVERAGES))
    run = prepare(
        problem,
        method,
        budget,
        jax.random.key(seed) if start is None else start.key,
        needed=watch.columns,
        output=output,
        seed=seed,
        start=start,
        search=search,
        copies=1 if start is None else 2,
        sharded=sharded,
    )
    compiled = run.compiled
    facts = {"run": "minimize", "seed": seed, "output": output, "record_every": run.stride}
    if output == "random":
        facts["steps"] = int(compiled.lane.horizon) - run.begin
    at = None
    if start is not None:
        at = At(_restored(compiled, start), start.step)
        facts |= {"start": [described(x) for x in jax.tree.leaves(start.lane)]}
        facts |= {"start step": start.step, "start rows": list(start.rows)}
    ended = follow(run, start=at, watch=watch, keeper=keeper, facts=facts, progress=progress)
    step = ended.at.step
    carry = ended.at.carry
    result = Result(
        compiled.lane.output(carry),
        ended.records,
        ended.status,
        ended.message,
        Continuation(carry, compiled.run.key, step, run.cost(step), compiled.feed.rows_after(step)),
        tuple(level.name for level in problem.levels),
        run.micro_batch,
    )
    verdict = result.verdict
    # A run that somebody ended or goes on with is expected to be on its way.
    whole = start is None and ended.message == Status.SUCCESS.value
    if verdict.word is Word.DIVERGED or (whole and verdict.arrived is False):
        warn(str(verdict), ConvergenceWarning)
    return result


def _restored(compiled: Compiled, start: Continuation) -> Any:
    """The carry to continue from, with its structure if it came from a file; checked for fit."""
    if compiled.donates:
        raise SettingError(
            "there is memory for one copy of the trackers only, and start= is one that the run would "
            "overwrite: leave start out, or take fewer blocks."
        )
    packing = compiled.run.packing
    leaves = jax.tree.leaves(start.lane)
    fits = packing.shape.leaves == shapes_of(leaves).leaves
    if not fits or not all(
        np.array_equal(as_host(leaf)[0], as_host(leaves[k])[0], equal_nan=True)
        for leaf, k in zip(leaves, packing.groups, strict=True)
    ):
        raise SettingError(
            "start= belongs to another problem, method or output: its arrays are not the ones that "
            "this run carries."
        )
    compiled.feed.begin_after(start.step, start.rows)
    return packing.shape.treedef.unflatten(leaves)
