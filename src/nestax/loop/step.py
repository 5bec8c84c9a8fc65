"""The whole mathematics of a run: one step, nested loops of it, many lanes of them. Pure.

    step rule on the carried estimate → new w → project → draws for (key, step) → estimator.update

The carried estimate always belongs to the carried weights. Lanes (settings × seeds) are mapped
inside the loop, so that the step counter is one scalar for all and a restart is a real branch. Draws
for a block of steps are made before the block's loop; lanes of equal seed share them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.problem import Problem
from nestax.loop.columns import measure
from nestax.loop.packing import Packing, lasting_packing
from nestax.parts.estimator import AbstractEstimator, Batches, Estimate, Method, with_schedules
from nestax.parts.step import AbstractStep

#: How many records one call can hold; the host visits at least that often.
CAPACITY = 128
#: Weights above which a step is long enough for a GPU not to mind waiting for the host, and its program
#: too long to be compiled several times over.
LARGE = 2**14
#: The outputs that are averages of the iterates.
AVERAGES = ("average", "weighted")


class Carry(eqx.Module):
    """Everything a lane needs to go on.

    average: running mean of the weights, where it is the output that was asked for.
    """

    w: PyTree
    estimate: Estimate
    state: PyTree
    opt_state: PyTree
    average: PyTree


class Plan(NamedTuple):
    """The static facts of a run.

    sizes, first_sizes: draws per level and step, and at the start; 0 for deterministic levels.
    block: how many steps' draws are made at once.
    columns: what is recorded.
    average: None, or "average" over all iterates, or "weighted", those after step t with weight t.
    """

    sizes: tuple[int, ...]
    first_sizes: tuple[int, ...]
    block: int
    columns: tuple[str, ...]
    average: str | None
    grid: bool
    platform: str


class Run(eqx.Module):
    """A problem and how to run it: one lane, or a grid of settings × seeds.

    problem: what every lane draws from.
    build: setting ↦ (problem, Method); called while tracing, so every number in it may be traced.
    settings: argument of ``build``, with a leading axis in a grid.
    key: one key, or one per seed in a grid.
    packing: which leaves of the carry are one value; the loop carries packed leaves.
    """

    problem: Problem
    build: Callable[[Any], tuple[Problem, Method]]
    settings: PyTree
    key: Array
    horizon: Array
    plan: Plan = eqx.field(static=True)
    packing: Packing = eqx.field(static=True, default=None)  # pyright: ignore[reportAssignmentType]

    def lane(self, setting: PyTree) -> tuple[Problem, Method]:
        """Problem and method of one lane, with defaults filled in, in the dtype of w."""
        problem, method = self.build(trees.cast(setting, self.problem.dtype))
        estimator = method.estimator.defaults(problem, self.horizon, self.plan.sizes)
        step: Any = method.step
        if isinstance(step, AbstractStep):
            step = trees.cast(with_schedules(step, self.horizon, str(problem.dtype)), problem.dtype)
        return problem, Method(trees.cast(estimator, problem.dtype), step)

    def over_lanes(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Lifts ``fn(setting, per_seed, packed)`` to all lanes."""
        if not self.plan.grid:
            return fn
        over_seeds = jax.vmap(fn, in_axes=(None, 0, 0))
        return jax.vmap(over_seeds, in_axes=(0, None, 0))


def start(run: Run) -> list[Array]:
    """The first carry of every lane, packed."""

    def lane(setting: PyTree, key: Array, _: None) -> list[Array]:
        return run.packing.pack(_start_lane(run, setting, key))

    return run.over_lanes(lane)(run.settings, run.key, None)


def _start_lane(run: Run, setting: PyTree, key: Array) -> Carry:
    """Weights, and the estimate made from the first batches."""
    problem, method = run.lane(setting)
    w = problem.project(problem.start(jax.random.fold_in(key, FIRST_WEIGHTS)))
    batches = _first_batches(run, problem, method, key)
    estimate, state = method.estimator.init(problem, w, batches)
    return Carry(w, estimate, state, method.step.init(w), w if run.plan.average else None)


def observe(run: Run, packed: list[Array]) -> dict[str, Array]:
    """One record of every lane, and whether everything that the lane carries is finite."""

    def lane(setting: PyTree, _: None, packed: list[Array]) -> dict[str, Array]:
        problem, method = run.lane(setting)
        carry = run.packing.unpack(packed)
        w = carry.average if run.plan.average else carry.w
        record = measure(problem, method.estimator, run.plan.columns, w, carry.estimate, carry.state)
        return record | {"finite": trees.all_finite(carry)}

    return run.over_lanes(lane)(run.settings, None, packed)


def in_short(run: Run, step: Array) -> Any:
    """The start, one step and its record: all that a run is, however it is cut into pieces."""
    draws = jax.tree.map(lambda d: d[0], _draw_block(run, step, 1))
    packed = _step(run, start(run), draws, step)
    return packed, observe(run, packed)


def advance(
    run: Run, packed: list[Array], step: Array, strides: Array, length: Array
) -> tuple[list[Array], Array, dict[str, Array]]:
    """``strides`` times: ``length`` steps, then one record. Both numbers are traced bounds."""
    shapes = jax.eval_shape(lambda: observe(run, packed))
    records = jax.tree.map(lambda s: jnp.zeros((CAPACITY, *s.shape), s.dtype), shapes)

    def stride(k: Array, state: Any) -> Any:
        packed, step, records = state
        packed, step = _walk(run, packed, step, length)
        row = observe(run, packed)
        return packed, step, jax.tree.map(lambda all, one: all.at[k].set(one), records, row)

    return jax.lax.fori_loop(0, strides, stride, (packed, step, records))


def _walk(run: Run, packed: list[Array], step: Array, length: Array) -> tuple[list[Array], Array]:
    """``length`` steps, in blocks whose draws are made at once."""
    block = run.plan.block

    def one_block(state: tuple[list[Array], Array, Array]) -> tuple[list[Array], Array, Array]:
        packed, step, left = state
        draws = _draw_block(run, step + 1, block)
        todo = jnp.minimum(left, block)
        body = lambda i, p: _step(run, p, jax.tree.map(lambda d: d[i], draws), step + 1 + i)
        return _loop(run, todo, body, packed), step + todo, left - todo

    state = (packed, step, jnp.asarray(length, step.dtype))
    packed, step, _ = jax.lax.while_loop(lambda s: s[2] > 0, one_block, state)
    return packed, step


def _loop(run: Run, todo: Array, body: Callable[[Array, Any], Any], carry: Any) -> Any:
    """``todo`` steps. A GPU waits for the host at every turn of a loop of unknown length, so there
    full blocks have a length known to the compiler, and are unrolled; on a CPU that only costs."""
    plan = run.plan
    if plan.platform == "cpu" or plan.block == 1 or run.problem.shape.size > LARGE:
        return jax.lax.fori_loop(0, todo, body, carry)
    return jax.lax.cond(
        todo == plan.block,
        lambda c: jax.lax.fori_loop(0, plan.block, body, c, unroll=min(8, plan.block)),
        lambda c: jax.lax.fori_loop(0, todo, body, c),
        carry,
    )


def _step(run: Run, packed: list[Array], draws: Any, step: Array) -> list[Array]:
    """One step of every lane."""
    period = _facts(run).period

    def lanes(refresh: bool) -> Callable[[list[Array]], list[Array]]:
        def lane(setting: PyTree, per_seed: Any, packed: list[Array]) -> list[Array]:
            carry = _step_lane(run, setting, per_seed, run.packing.unpack(packed), step, refresh)
            return run.packing.pack(carry)

        return lambda packed: run.over_lanes(lane)(run.settings, (run.key, draws), packed)

    if period is None:
        return lanes(False)(packed)
    if period == 1:
        return lanes(True)(packed)
    return jax.lax.cond(step % period == 0, lanes(True), lanes(False), packed)


def _step_lane(
    run: Run, setting: PyTree, per_seed: tuple[Array, Batches], carry: Carry, step: Array, refresh: bool
) -> Carry:
    """One step of one lane: the whole mathematics of a run."""
    problem, method = run.lane(setting)
    key, batches = per_seed
    w, opt_state = descend(problem, method.step, carry)
    if refresh:
        batches = _refresh_batches(run, problem, method, key, step)
        estimate, state = method.estimator.refresh(problem, w, batches, carry.state)
    else:
        estimate, state = method.estimator.update(problem, w, batches, carry.state)
    average = None
    if run.plan.average:
        share = 2 if run.plan.average == "weighted" else 1
        average = jax.tree.map(lambda a, w: a + (w - a) * share / (step + 1), carry.average, w)
    return Carry(w, estimate, state, opt_state, average)


def descend(problem: Problem, rule: Any, carry: Carry) -> tuple[PyTree, PyTree]:
    """The step rule on the carried estimate: new weights, inside the feasible set."""
    value, grad = problem.add_penalty(carry.w, carry.estimate.value, carry.estimate.grad)
    aux = carry.estimate.aux
    if isinstance(rule, AbstractStep):
        return rule.update(problem, carry.w, grad, aux, carry.opt_state)
    rule = optax.with_extra_args_support(rule)
    updates, opt_state = rule.update(grad, carry.opt_state, carry.w, value=value, grad=grad, **aux)
    return problem.project(optax.apply_updates(carry.w, updates)), opt_state


# Draws. A key belongs to (seed, level, pass); the step is folded in by the source.

#: Folded into a seed's key for random starting weights and for visited blocks; levels use 0, 1, 2, …
FIRST_WEIGHTS = 2**31 - 1
VISITED_BLOCKS = 2**31 - 2


def draw_batches(
    problem: Problem,
    passes: Any,
    key: Array,
    step: Array | int,
    sizes: tuple[int, ...],
    every_block: bool = False,
) -> Batches:
    """The batches of one step, independent across levels and passes.

    The first pass of a level draws the same whatever other passes there are, so that methods can be
    compared draw by draw. In a chain with blocks all levels and passes visit the same blocks.

    Args:
        passes: an estimator, or the names of the passes to draw for every level.
        every_block: whether all blocks are visited, as at the start of a method with a table.
    """
    blocks = problem.blocks
    if blocks is None:
        draw = lambda source, number, key, size: source.draw_pass(number, key, jnp.asarray(step), size)
    else:
        own = jax.random.fold_in(key, VISITED_BLOCKS)
        visited = jnp.arange(blocks.blocks) if every_block else blocks.visited(own, jnp.asarray(step))
        draw = lambda source, _, key, size: source.draw_in(visited, key, jnp.asarray(step), size)
    if isinstance(passes, AbstractEstimator):
        per_level: Any = passes.level_passes(problem)
    else:
        per_level = [tuple(passes)] * len(problem.levels)
    levels, names = len(problem.levels), list(per_level[0])
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(levels * len(names)))
    batches: tuple[dict[str, Any], ...] = tuple({} for _ in problem.levels)
    for i, level in enumerate(problem.levels):
        for number, name in enumerate(per_level[i]):
            own, source = keys[names.index(name) * levels + i], level.source
            batches[i][name] = source and draw(source, number, own, sizes[i])
    return batches


def _draw_block(run: Run, first: Array, block: int) -> Batches:
    """The batches of a block of steps, the leading axis the step (and then the seed)."""
    estimator = _facts(run)
    one = lambda key, step: draw_batches(run.problem, estimator, key, step, run.plan.sizes)
    if run.plan.grid:
        one = jax.vmap(one, in_axes=(0, None))
    return jax.vmap(one, in_axes=(None, 0))(run.key, first + jnp.arange(block))


def _first_batches(run: Run, problem: Problem, method: Method, key: Array) -> Batches:
    everywhere = method.estimator.blocks == "table"
    if method.estimator.refresh_batch is not None:
        return _refresh_batches(run, problem, method, key, 0, everywhere)
    sizes = run.plan.first_sizes
    return draw_batches(run.problem, method.estimator, key, 0, sizes, everywhere)


def _refresh_batches(
    run: Run,
    problem: Problem,
    method: Method,
    key: Array,
    step: Array | int,
    every_block: bool = False,
) -> Batches:
    estimator = method.estimator
    if estimator.refresh_batch == "population":
        return tuple(
            dict.fromkeys(passes, None if level.source is None else level.source.population())
            for level, passes in zip(problem.levels, estimator.level_passes(problem), strict=True)
        )
    sizes = (int(estimator.refresh_batch or 1),) * len(problem.levels)
    return draw_batches(run.problem, estimator, key, step, sizes, every_block)


def _facts(run: Run) -> Any:
    """An estimator of the run, for its static facts; those are the same in every lane."""
    return run.lane(_first_setting(run))[1].estimator


def _first_setting(run: Run) -> PyTree:
    return jax.tree.map(lambda x: x[0], run.settings) if run.plan.grid else run.settings


def find_packing(run: Run) -> Packing:
    """Which leaves of the carry of one lane are one value, at the start and after every step."""
    setting, key = _first_setting(run), run.key[0] if run.plan.grid else run.key
    estimator, now = _facts(run), jnp.asarray(1)
    kinds = {None: [False], 1: [True]}.get(estimator.period, [False, True])

    def step(refresh: bool) -> Callable[[Carry], Carry]:
        def one(carry: Carry) -> Carry:
            draws = draw_batches(run.problem, estimator, key, now, run.plan.sizes)
            return _step_lane(run, setting, (key, draws), carry, now, refresh)

        return one

    return lasting_packing(lambda: _start_lane(run, setting, key), [step(kind) for kind in kinds])
