"""From arguments to a compiled run, in one way for one run, for a grid of runs and for a search."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem, is_drawn
from nestax.devices.asked import sharded_in
from nestax.devices.hosts import Hosts, digest_of
from nestax.devices.mesh import at_place, shard, weights_in_pieces
from nestax.devices.rows import Sharded
from nestax.errors import SettingError, check_count
from nestax.loop.chunks import Compiled
from nestax.loop.columns import choose_columns
from nestax.loop.memory import parts_that_fit
from nestax.loop.plan import AVERAGES, Cost, Meter, draw_sizes, make_plan
from nestax.loop.step import Lane
from nestax.parts.estimator import AbstractEstimator
from nestax.parts.step_rule import Method
from nestax.run.result import Continuation
from nestax.steps.descent import step_of
from nestax.streams.feed import Feed, courses_of, streams_of, with_room
from nestax.streams.shares import comparable, warn_if_equal
from nestax.trees import on_device

#: Steps are counted in 32 bits, for without x64 JAX has no longer ones.
MOST_STEPS = 2**31 - 1


class Budget(NamedTuple):
    """What every kind of run is asked for in the same words; see ``minimize``."""

    steps: int | None = None
    samples: int | None = None
    batch_size: int | dict[str, int] = 32
    init_batch_size: int | dict[str, int] | None = None
    record_every: int | None = None
    record: Sequence[str] | None = None


class Prepared(NamedTuple):
    """A run that is ready to go.

    begin, total: the step it begins after, and its last one.
    stride: steps between records.
    spent: what it has cost at its beginning.
    """

    compiled: Compiled
    meter: Meter
    begin: int
    total: int
    stride: int
    spent: Cost

    @property
    def micro_batch(self) -> dict[str, int]:
        """How many draws are evaluated at once, of the levels whose batches are cut."""
        lane = self.compiled.lane
        pairs = zip(lane.problem.levels, lane.micro_batch, strict=True)
        return {level.name: most for level, most in pairs if most is not None}

    def cost(self, step: int) -> Cost:
        """What it has cost after so many steps."""
        return self.meter.after(self.spent, self.begin, step)


def prepare(
    problem: Problem,
    method: Method,
    budget: Budget,
    key: Array,
    *,
    needed: Sequence[str] = (),
    output: str = "last",
    seed: int = 0,
    start: Continuation | None = None,
    search: Cost | None = None,
    grid: tuple[Callable[..., Any], PyTree] | None = None,
    copies: int = 2,
    sharded: Sharded | None = None,
    in_lanes: bool = False,
) -> Prepared:
    """Makes a compiled run of what ``minimize``, ``sweep`` and ``autotune`` are asked for.

    Args:
        method: what runs; in a grid that of the first lane, which has the static facts of all.
        key: one key, or one per seed in a grid, or one per setting and seed.
        needed: columns that stop rules look at.
        output: as in ``minimize``. With "random" the run ends after a number of steps that ``seed``
            draws.
        start: the run that this one continues; None is a start.
        search: what finding the method has cost.
        grid: ``build(problem, setting)`` and the settings of all lanes; None means one lane.
        copies, sharded, in_lanes: as for ``Compiled``.
    """
    begin = 0 if start is None else start.step
    hosts = Hosts(sharded and sharded.mesh)
    if hosts.many:
        facts = (*budget, output, begin)
        streams = streams_of(problem)
        arrays, about = comparable(problem, streams)
        hosts.agree("data, settings or seeds", digest_of((arrays, method, key, grid), (facts, about)))
        warn_if_equal(hosts, streams, [level.name for level in problem.levels])
    if sharded is not None and not in_lanes:
        problem = shared_by(problem, sharded)
    problem = method.estimator.view(problem)
    method.check(problem)
    columns = choose_columns(problem, budget.record, needed)
    sizes, first_sizes = draw_sizes(problem, budget.batch_size, budget.init_batch_size)
    estimator = method.ready(problem, budget.steps or 1, sizes).estimator
    meter = Meter(problem, estimator, sizes, first_sizes)
    spent = meter.start.plus(1, search or Cost()) if start is None else start.cost
    steps = meter.steps(budget.steps, budget.samples, begin, spent)
    every = max(1, steps // 100) if budget.record_every is None else budget.record_every
    stride = check_count("record_every", every)
    total = begin + steps
    if total > MOST_STEPS:
        raise SettingError(
            f"a run has at most {MOST_STEPS:,} steps; got {total:,}. Take larger batches, or begin "
            "another run from its weights."
        )
    if output == "random":  # drawn first: the run simply stops there
        total = begin + int(np.random.default_rng([seed, 0x7A0]).integers(steps))
    courses = courses_of(problem, estimator, sizes, first_sizes) if streams_of(problem) else []
    problem = with_room(problem, courses) if courses else problem
    build, settings = grid or (None, ())
    lanes = len(jax.tree.leaves(settings)[0]) * key.shape[-1] if grid else 1
    lanes = lanes // sharded.size if sharded is not None and in_lanes else lanes
    parts = parts_that_fit(problem, estimator, sizes, first_sizes, lanes, hosts)
    plan = make_plan(
        problem,
        estimator,
        sizes,
        first_sizes,
        columns=columns,
        average=output if output in AVERAGES else None,
        seeds=key.size if grid else None,
        micro_batch=parts,
    )
    feed = None
    if courses:
        feed = Feed(problem, courses, plan.ahead, stride, total, sharded)
        problem = with_room(problem, courses, feed.steps)
    if build is None:
        build = method.lifted(problem, estimator, first_sizes)  # which asks for shapes
    horizon = on_device(np.asarray(begin + steps, jnp.result_type(int)))
    lane = Lane(problem, build, horizon, plan)
    compiled = Compiled(lane, settings, key, feed, copies, sharded, in_lanes)
    return Prepared(compiled, meter, begin, total, stride, spent)


def shared_by(problem: Problem, sharded: Sharded) -> Problem:
    """The problem with its rows, its blocks or its weights shared by devices."""
    if sharded.what == "model":
        if is_drawn(problem.w0):
            return problem
        places = weights_in_pieces(problem.w0, sharded)
        return eqx.tree_at(lambda p: p.w0, problem, jax.tree.map(at_place, problem.w0, places))
    blocks = problem.blocks is not None
    if blocks != (sharded.what == "blocks"):
        there, asked = ("blocks", "rows") if blocks else ("rows", "blocks")
        raise SettingError(
            f"the levels hold {there}, and no {asked} for devices to share: pass "
            f"nx.Devices(mesh, {there!r})."
        )
    problem = shard(problem, sharded)
    read_together = jax.process_count() > 1 and bool(streams_of(problem))
    if sharded_in(problem) is None and not read_together:
        raise SettingError(
            "no level has rows that devices could share, as nx.Population has: leave devices out, "
            "or run many settings by nx.sweep(devices=...)."
        )
    return problem


def as_method(problem: Problem, estimator: Any, optimizer: Any = None) -> Method:
    """An estimator with the given optimiser, or with the step rule it was published with."""
    if isinstance(estimator, Method):
        if optimizer is not None:
            raise SettingError("an nx.Method brings its own step rule; leave the optimizer out.")
        return estimator
    if isinstance(estimator, type) and issubclass(estimator, AbstractEstimator):
        estimator = estimator()
    if not isinstance(estimator, AbstractEstimator):
        hint = "; an optimiser is the third argument" if hasattr(estimator, "update") else ""
        raise SettingError(
            f"the second argument must be an estimator such as nx.SMVR(){hint}; "
            f"got {type(estimator).__name__}."
        )
    if optimizer is None:
        return Method(estimator, step_of(estimator, problem))
    method = Method(estimator, optimizer)
    if estimator.lr is not None:
        raise SettingError(
            f"{type(estimator).__name__}(lr=...) sets the step rule it was published with, which the "
            "optimizer replaces: leave one of the two out."
        )
    return method
