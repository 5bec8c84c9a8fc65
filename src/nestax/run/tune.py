"""Settings found by a short search: many lanes side by side, the worse ones given up on the way."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.problem import Problem
from nestax.checkpoints.keeper import Keeper, NoKeeper
from nestax.errors import ProblemError, SettingError, check_count, check_seed
from nestax.estimators import Plain, SelfTuning
from nestax.estimators.multilevel import Multilevel
from nestax.estimators.per_block import PerBlock
from nestax.loop.plan import Cost, Meter, draw_sizes
from nestax.loop.status import Status
from nestax.parts.estimator import AbstractEstimator, draw_batches
from nestax.parts.settings import Decay, Schedule
from nestax.parts.step_rule import Method
from nestax.programs import compute
from nestax.run.follow import follow
from nestax.run.prepare import Budget, prepare
from nestax.steps import Descent
from nestax.streams.feed import streams_of
from nestax.table import Table, as_html

#: Learning rates tried, as multiples of (size of the weights)/(size of the first gradient).
RATES = tuple(10.0 ** np.linspace(-3, 1, 9))
#: A third of the lanes survives each of this many rungs, and runs three times as long.
RUNGS = 3
#: What is best in a short run is often at the edge of what is stable in a long one: take half of it.
CAUTION = 0.5
#: Share of the budget that goes into comparing weights.
JUDGING = 0.05
PARTS = 4
#: What is kept of a search beside a run.
SEARCHED = "search"


class Tuned(NamedTuple):
    """A method ready to run, what finding it cost, and every lane that was tried."""

    method: Method
    cost: Cost
    table: Table

    def _repr_html_(self) -> str:
        """For notebooks."""
        return as_html(repr(self), self.table)

    def __repr__(self) -> str:
        method: Any = self.method
        lr = float(method.step.lr.scale)
        name = type(method.estimator).__name__
        return f"{name} with lr {lr:.3g}, found with {self.cost.samples:,} samples"


def self_tuning(problem: Problem) -> AbstractEstimator:
    """The method for those who name none: gains that set themselves, in every block by itself.

    Where blocks never come back there is nothing to remember, and so no bias of the draws instead.
    """
    if problem.endless:
        return Multilevel() if problem.simulated else Plain()
    return SelfTuning() if problem.blocks is None else PerBlock(SelfTuning())


class Candidate(eqx.Module):
    """Gains that set themselves and steps that fall as lr·t^(−1/3), for one learning rate."""

    def method(self, lr: Any) -> Method:
        return Method(SelfTuning(), Descent(Schedule(Decay(1 / 3), scale=lr)))

    def __call__(self, problem: Problem, setting: dict[str, Any]) -> tuple[Problem, Method]:
        return problem, self.method(setting["lr"])


def autotune(
    problem: Problem,
    *,
    samples: int,
    share: float = 1.0,
    batch_size: int | dict[str, int] = 32,
    init_batch_size: int | dict[str, int] | None = None,
    seed: int = 0,
) -> Tuned:
    """A learning rate for ``nx.SelfTuning``, by successive halving within a budget of samples.

    Nine lanes, a learning rate each, start together; after each of three rungs the best third goes on,
    three times as long. Lanes are compared by the objective at their weights, all on
    the same fresh draws. Half of the best learning rate is returned. All lanes are one compiled program;
    a lane counts as long as it is in the race.

    Args:
        problem: the chain of levels.
        samples: budget of draws over all levels and lanes.
        share: how much of the budget the search may use.
        batch_size, init_batch_size, seed: as in ``minimize``.
    """
    check_count("samples", samples)
    if problem.endless:
        raise SettingError(
            "learning rates are found by themselves for chains without blocks only: where outer draws "
            "never come back, pass nx.Multilevel() and an optimizer, such as optax.adam(0.01)."
        )
    if problem.blocks is not None:
        raise SettingError(
            "learning rates are found by themselves for chains without blocks only: pass an optimizer, "
            "such as optax.adam(0.01), or problem.every_block()."
        )
    if streams_of(problem):
        raise ProblemError(
            "settings are found on draws that can be repeated, and a Stream has none: give a method "
            "with its settings, such as nx.SelfTuning() and optax.adam(0.01), or tune on some rows in "
            "memory."
        )
    candidate = Candidate()
    example = candidate.method(1.0)
    sizes, first_sizes = draw_sizes(problem, batch_size, init_batch_size)
    meter = Meter(problem, example.estimator, sizes, first_sizes)
    lanes = len(RATES)
    # Lane steps over all rungs: n·r at first, then thirds of the lanes from 3^k·r to 3^(k+1)·r.
    weight = lanes + sum(lanes // 3**k * (3**k - 3 ** (k - 1)) for k in range(1, RUNGS))
    judge = int(JUDGING * share * samples)
    budget = int(share * samples) - judge - meter.start.samples
    rung = budget // (weight * max(meter.per_step.samples, 1))
    if rung < 1:
        paid = weight * meter.per_step.samples + meter.start.samples
        least = int(paid / (1 - JUDGING) / share) + 2
        raise SettingError(
            f"finding settings needs at least {least:,} samples here; got {samples:,}. Raise samples, "
            "lower batch_size, or give a method with its settings, such as nx.SMVR(beta=0.1, lr=0.05)."
        )
    key = jax.random.key(check_seed(seed))
    weights, gradient = map(float, compute(_sizes_at_start, problem, example, key, sizes, first_sizes))
    scale = max(weights, 1.0) / gradient if gradient > 0 and np.isfinite(gradient) else 1.0
    rates = scale * np.asarray(RATES)
    run = prepare(
        problem,
        example,
        Budget(rung * 3 ** (RUNGS - 1), None, batch_size, init_batch_size, rung, ()),
        key[None],
        grid=(candidate, {"lr": jnp.asarray(rates)}),
    )
    at = run.compiled.start()
    alive = np.arange(lanes)
    spent = meter.start
    values = np.full((lanes, RUNGS), np.nan)
    order = alive
    for k in range(RUNGS):
        until = rung * 3**k
        spent = spent.plus(len(alive) * (until - at.step), meter.per_step)
        ended = follow(run, start=at, until=until, replay=False)
        if ended.status is Status.INTERRUPTED:
            raise KeyboardInterrupt(ended.message)
        at = ended.at
        values[:, k], cost = _judge(problem, at.carry.w, jax.random.fold_in(key, k + 1), judge // RUNGS)
        spent = spent.plus(1, cost)
        order = alive[np.argsort(values[alive, k])]
        if k < RUNGS - 1:
            alive = order[: max(1, len(alive) // 3)]
    if not np.isfinite(values[order[0], -1]):
        raise SettingError(
            "every learning rate that was tried diverged. Start from other weights, give levels a "
            "project=, or pass a method with settings of your own."
        )
    columns = ["lr", *(f"value after {rung * 3**k} steps" for k in range(RUNGS))]
    rows = [[float(lr), *map(float, own)] for lr, own in zip(rates, values, strict=True)]
    return Tuned(candidate.method(float(CAUTION * rates[order[0]])), spent, Table(columns, rows))


def found_method(
    keeper: Keeper | NoKeeper, problem: Problem, budget: Budget, seed: int, start: Any
) -> tuple[Method, Cost]:
    """Finds a method with half of a budget, and what that cost; a run that goes on does not search."""
    if budget.samples is None or not (budget.steps is start is None):
        raise SettingError(
            "without an estimator and an optimizer minimize finds a learning rate by itself, within a "
            "budget: give samples, and neither steps nor start; or give an optimizer such as "
            "optax.sgd(0.1)."
        )
    note = keeper.noted(SEARCHED)
    if note is not None:
        return Candidate().method(note["lr"]), Cost(*note["cost"])
    draws = {"batch_size": budget.batch_size, "init_batch_size": budget.init_batch_size, "seed": seed}
    method, cost, _ = autotune(problem, samples=budget.samples, share=0.5, **draws)
    step: Any = method.step
    keeper.note(SEARCHED, {"lr": float(step.lr.scale), "cost": list(cost)})
    return method, cost


def _sizes_at_start(
    problem: Problem, method: Method, key: Array, sizes: tuple[int, ...], first_sizes: tuple[int, ...]
) -> tuple[Array, Array]:
    """How large the weights and the gradient are at the start."""
    w = problem.project(problem.start(key))
    estimator = method.ready(problem, 1, sizes).estimator
    batches = draw_batches(problem, estimator, key, 0, first_sizes)
    gradient = estimator.init(problem, w, batches)[0].grad
    return optax.tree.norm(trees.as_average(w)), optax.tree.norm(trees.as_average(gradient))


def _judge(problem: Problem, w: PyTree, key: Array, samples: int) -> tuple[np.ndarray, Cost]:
    """How bad the weights of every lane are, from draws that all share; and the cost of those.

    The mean of F over four separate batches plus their standard deviation: far away from the data F is
    uncertain, and by chance very low for some batch.
    """
    costs = [level.source.cost for level in problem.levels if level.source is not None]
    each = max(1, samples // PARTS // sum(costs))
    sizes = tuple(0 if level.source is None else each for level in problem.levels)
    lanes = jax.tree.map(lambda x: x[:, 0], w)
    found = np.asarray(compute(_values_in_parts, problem, lanes, key, sizes), float)
    with np.errstate(over="ignore", invalid="ignore"):  # of lanes that have left for infinity
        found = found.mean(axis=1) + found.std(axis=1)
    drawn = PARTS * each * sum(costs)
    return np.where(np.isfinite(found), found, np.inf), Cost(drawn, drawn, 0)


def _values_in_parts(problem: Problem, w: PyTree, key: Array, sizes: tuple[int, ...]) -> Array:
    """F at the weights of every lane, on each of some separate batches: lanes × parts."""

    def one(w: PyTree, part: Array) -> Array:
        x = w
        batches = draw_batches(problem, ("value",), key, part, sizes)
        for level, batch in zip(problem.levels, batches, strict=True):
            x = level.project(level.value(x, batch["value"]))
        x = x if problem.penalty is None else x + problem.penalty(w)
        return x + problem.nonsmooth(w)

    parts = jnp.arange(PARTS)
    return jax.lax.map(lambda w: jax.vmap(one, (None, 0))(w, parts), w)
