"""One run: from a problem and a method to weights."""

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from nestax.chain.problem import Problem, is_drawn
from nestax.checkpoints.fingerprint import described
from nestax.checkpoints.keeper import Keeper
from nestax.devices.hosts import Hosts
from nestax.devices.mesh import sharded_over
from nestax.devices.rows import arrived_on
from nestax.errors import POSITIVE, SettingError, check_count, check_seed, check_setting, choose
from nestax.estimators.registry import find
from nestax.loop.chunks import At, Compiled
from nestax.loop.plan import AVERAGES
from nestax.parts.estimator import AbstractEstimator
from nestax.parts.step_rule import AbstractStep, Method
from nestax.run.divergence import warn_if_diverged, warn_if_still
from nestax.run.follow import Rules, follow
from nestax.run.prepare import as_method, prepare
from nestax.run.record import Record, check_callback
from nestax.run.result import Continuation, Result
from nestax.run.tune import autotune, found_method, self_tuning
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
    seconds: float | None = None,
    target_gap: float | None = None,
    patience: int | None = None,
    callback: Callable[[Record], bool | None] | None = None,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
    resume: bool = False,
    mesh: Mesh | int | None = None,
    shard: str = "rows",
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
        seconds: stop after the first chunk that ends later than this, or while a stream is waited for.
        target_gap: stop at the first record whose gap F(w) − F* is no larger.
        patience: stop after so many records without a new best value: that of the metric ``held_out`` if
            the problem has one, else the exact value, else the tracked one.
        callback: called at every record with an ``nx.Record``: a dictionary of its columns, with the
            weights ``record.w`` and all records so far, ``record.records``. Returning True stops the
            run exactly there.
        progress: show a progress line; by default on a terminal and in a notebook only.
        checkpoint: a folder in which the run is kept, so that it can go on after an interruption.
        checkpoint_every: seconds between checkpoints; one is written at the end in any case.
        resume: go on with the run in that folder, to the same bits as if it had never stopped; begin
            one if the folder holds none. The number of steps may have grown, where no schedule depends
            on it.
        mesh: a number of devices, or a ``jax.sharding.Mesh``; None means one device, or those on which
            data has arrived spread. The processes of a mesh call ``minimize`` together, with equal
            arguments; callbacks are asked, and files written, in the first of them.
        shard: what the devices share: "rows" of populations; "blocks", and what methods remember of
            them; their number must divide that of these. "model": the weights, and all that is like
            them, each array along its longest axis that can be cut, or as it has arrived.
    """
    began = time.perf_counter()
    if not isinstance(problem, Problem):
        raise SettingError(f"the first argument must be an nx.Problem; got {type(problem).__name__}.")
    if start is not None and not isinstance(start, Continuation):
        raise SettingError(f"start must be the carry of a result; got {type(start).__name__}.")
    seed = check_seed(seed)
    check_setting("seconds", seconds, *POSITIVE)
    if patience is not None:
        check_count("patience", patience)
    check_callback(callback)
    sharded = sharded_over(mesh, shard, ("rows", "blocks", "model"))
    sharded = sharded or arrived_on(problem)
    keeper = None
    if checkpoint is not None or resume:
        keeper = Keeper(checkpoint, checkpoint_every, resume, Hosts(sharded and sharded.mesh))
    search = None
    if isinstance(estimator, str):
        estimator = find(estimator)()
    if estimator is None and optimizer is not None:
        estimator = self_tuning(problem)
    elif estimator is None:
        if samples is None or not (steps is start is None):
            raise SettingError(
                "without an estimator and an optimizer minimize finds a learning rate by itself, within "
                "a budget: give samples, and neither steps nor start; or give an optimizer such as "
                "optax.sgd(0.1)."
            )
        draws = {"batch_size": batch_size, "init_batch_size": init_batch_size, "seed": seed}
        tuned = functools.partial(autotune, problem, samples=samples, share=0.5, **draws)
        estimator, search = found_method(keeper, resume, tuned)
    method = as_method(problem, estimator, optimizer)
    if output is None:
        output = method.estimator.output if optimizer is None else "last"
    choose("output", output, ("last", "random", *AVERAGES))
    run = prepare(
        problem,
        method,
        key=jax.random.key(seed) if start is None else start.key,
        steps=steps,
        samples=samples,
        batch_size=batch_size,
        init_batch_size=init_batch_size,
        record_every=record_every,
        record=record,
        gap=target_gap is not None,
        output=output,
        seed=seed,
        begin=0 if start is None else start.step,
        spent=None if start is None else start.cost,
        search=search,
        copies=1 if start is None else 2,
        sharded=sharded,
    )
    compiled = run.compiled
    feed = run.compiled.feed
    if compiled.donates and start is not None:
        raise SettingError(
            "there is memory for one copy of the trackers only, and start= is one that the run would "
            "overwrite: leave start out, or take fewer blocks."
        )
    facts = {"run": "minimize", "seed": seed, "output": output, "record_every": run.stride}
    if output == "random":
        facts["steps"] = int(compiled.lane.horizon) - run.begin
    at = None
    if start is not None:
        at = At(_restored(compiled, start), start.step)
        if feed is not None:
            feed.begin_after(start.step, start.rows)
        if keeper is not None:
            facts["start"] = [described(x) for x in jax.tree.leaves(start.lane)]
            facts |= {"start step": start.step, "start rows": list(start.rows)}
    columns = compiled.lane.plan.columns
    monitor = next((c for c in ("held_out", "exact_value", "value") if c in columns), None)
    if patience is not None and monitor is None:
        raise SettingError(
            "patience waits for a new best value, and none is recorded: add 'value' to record, or "
            "'held_out' where the problem has such a metric."
        )
    ended = follow(
        run,
        start=at,
        rules=Rules(began, seconds, target_gap, patience, monitor, callback),
        keeper=keeper,
        facts=facts,
        progress=progress,
    )
    step = ended.at.step
    carry = ended.at.carry
    rows = () if feed is None else feed.rows_after(step)
    result = Result(
        compiled.lane.output(carry),
        ended.records,
        ended.status,
        ended.message,
        Continuation(carry, compiled.run.key, step, run.cost(step), rows),
        tuple(level.name for level in problem.levels),
        run.micro_batch,
    )
    if start is None and not is_drawn(problem.w0):
        warn_if_still(step, problem.w0, carry.w)
    return warn_if_diverged(result)


def _restored(compiled: Compiled, start: Continuation) -> Any:
    """The carry to continue from, with its structure if it came from a file; checked for fit."""
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
    return packing.shape.treedef.unflatten(leaves)
