"""The contract of an estimator: what it is given, what it returns, what it declares."""

import abc
import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import Jacobian
from nestax.chain.problem import Problem
from nestax.draws.blocks import NEVER_AGAIN
from nestax.errors import POSITIVE, ProblemError
from nestax.parts.form import in_form
from nestax.parts.settings import (
    Setting,
    Settings,
    as_setting,
    checked,
    with_lifted_schedules,
    with_schedules,
)

#: One dictionary per level, from the name of a pass to what was drawn for it: a batch, the visits of a
#: chain with blocks, None for deterministic levels.
Batches = tuple[dict[str, Any], ...]


class Estimate(eqx.Module):
    """What is known about F at the weights that were given.

    value: the tracked value of f_K ∘ … ∘ f_1.
    grad: the estimate of ∇F, in the structure of w.
    aux: anything the step rule or the records may want, by name.
    plain: the gradient that this batch alone would have, where a step asks for it and the estimator has
        it at hand; None elsewhere.
    """

    value: Array
    grad: PyTree
    aux: dict[str, Array]
    plain: PyTree | None = None


class Trackers(NamedTuple):
    """What diagnostics compare with the truth; None where a method has no such tracker.

    w: the weights that the gradient estimate belongs to (older than the current for lag > 0).
    value: one tracked value per level, belonging to the current weights.
    jac: one tracked Jacobian per level, at the tracked value of the level before; None for a
        deterministic level, whose Jacobian is exact.
    adjoint: one tracked adjoint per level.

    A method with memory of every block has a leading axis, that of the blocks, in all but perhaps ``w``.
    """

    w: PyTree
    value: tuple[PyTree, ...] | None = None
    jac: tuple[Jacobian | None, ...] | None = None
    adjoint: tuple[PyTree, ...] | None = None


class Calls(NamedTuple):
    """Evaluations per draw of one pass: at how many points the value, at how many a derivative.

    A derivative evaluation yields the value at its point too, so a level's function is called
    max(values, derivatives) times.
    """

    values: int
    derivatives: int


class About(NamedTuple):
    """What is known about a published method; every table of methods is made from these.

    reference: key of ``nestax.estimators.bibliography``.
    also: key of a relative that was published before, where this is not its algorithm.
    rate: how many samples its authors claim for ‖∇F‖ ≤ ε (or F − F* ≤ ε where it says so).
    assumes: what that needs beyond smooth, Lipschitz levels and bounded variance.
    memory: what is carried besides the weights.
    levels: how many levels it is made for; None means any number.
    instead: what to use for another number of levels, or where it does not apply.
    outer_exact: its outermost level must be deterministic.
    finite: it needs populations, not samplers; ``sampled`` is what to use for those.
    certainty: how sure it is that this is the published algorithm.
    """

    reference: str = ""
    rate: str = "–"
    assumes: str = "–"
    memory: str = "values"
    levels: int | None = None
    instead: str = "SMVR"
    outer_exact: bool = False
    finite: bool = False
    sampled: str = "SMVR"
    also: str = ""
    certainty: str = "as published"


class AbstractEstimator(Settings):
    """Estimates ∇F along a run; an immutable tree of settings.

    lr: the learning rate of the step rule that the method was published with: a number scales the
        published schedule, a schedule replaces it. For use without an optimiser of your own.
    """

    lr: Setting | None = eqx.field(
        default=None, kw_only=True, converter=as_setting, metadata=checked(POSITIVE)
    )
    # What a class declares; a property of that name where it depends on a setting.
    about: ClassVar[About] = About()
    #: Every independent batch that a step draws per level, with its evaluations per draw.
    passes: ClassVar[Any]
    #: The same for the outermost level, where it needs less, with some of those names.
    outer_passes: ClassVar[Any] = None
    #: How many steps old the weights are that the gradient estimate belongs to.
    lag: ClassVar[Any] = 0
    #: Every so many steps ``refresh`` is called instead of ``update``; None means never.
    period: ClassVar[Any] = None
    #: How many draws a refresh and the start see, or "population".
    refresh_batch: ClassVar[Any] = None
    #: Which weights the method returns: "last", "average" or "weighted"; see ``minimize``.
    output: ClassVar[str] = "last"
    #: How it runs on a chain with blocks: "table", with memory of every block, so that the start visits
    #: all of them; "visited", with none; None on the view of all blocks side by side.
    blocks: ClassVar[str | None] = None

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        # Here rather than in every method: batches may come from anybody's loop.
        for name in ("init", "update", "refresh"):
            if name in vars(cls):
                setattr(cls, name, _with_checked_batches(vars(cls)[name]))

    def level_passes(self, problem: Problem) -> tuple[dict[str, Calls], ...]:
        """Returns the passes of every level of a problem."""
        outer = self.passes if self.outer_passes is None else self.outer_passes
        return (*(self.passes for _ in problem.levels[1:]), outer)

    def check(self, problem: Problem) -> None:
        """Refuses a problem that the method does not apply to, and names one that does."""
        name = type(self).__name__
        about = self.about
        levels = len(problem.levels)
        what = None
        instead = about.instead
        if problem.blocks is not None and self.blocks is None:
            raise ProblemError(
                f"{name} knows no blocks: wrap it as nx.PerBlock(nx.{name}(...)), or pass "
                "problem.every_block(), which visits all of them."
            )
        if problem.endless and self.blocks == "table":
            raise ProblemError(f"{name} remembers blocks, and here {NEVER_AGAIN}")
        if problem.blocks is None and self.blocks == "table":
            raise ProblemError(
                f"{name} is made for levels with nx.Blocks as data, and this chain has none: use "
                "AdjointSMVR instead."
            )
        if about.levels is not None and levels != about.levels:
            words = {1: "one level", 2: "two levels"}
            what = f"is made for {words[about.levels]} and this chain has {levels}"
        elif about.outer_exact and not problem.levels[-1].deterministic:
            what = (
                f"needs a deterministic outermost level and {problem.levels[-1].name!r} draws from data"
            )
        elif about.finite and not problem.finite:
            what = "averages over the population, which a Sampler or a Stream does not have"
            instead = about.sampled
        if what is not None:
            raise ProblemError(f"{name} {what}: use {instead} instead.")

    def published_step(self, problem: Problem) -> Any:
        """Returns the ``AbstractStep`` that the method was published with; None means plain descent."""
        del problem
        return None

    def handing_plain(self) -> "AbstractEstimator":
        """The same method with gradients of plain batches in its estimates, if it has them at hand."""
        return self

    @abc.abstractmethod
    def init(self, problem: Problem, w: PyTree, batches: Batches) -> tuple[Estimate, PyTree]:
        """Returns the estimate at the starting weights, and the state that belongs to it."""

    @abc.abstractmethod
    def update(
        self, problem: Problem, w: PyTree, batches: Batches, state: Any
    ) -> tuple[Estimate, PyTree]:
        """Returns the estimate at new weights ``w``, from the state that belongs to the old ones."""

    def refresh(
        self, problem: Problem, w: PyTree, batches: Batches, state: Any
    ) -> tuple[Estimate, PyTree]:
        """As ``update``, at the steps where a method restarts or takes a snapshot."""
        raise NotImplementedError(f"{type(self).__name__} has no restarts.")

    def trackers(self, state: Any) -> Trackers:
        """The tracked quantities in a state: by default its ``w``, ``value`` and ``jac``, if it has one.

        A single Jacobian is that of the first of two levels, whose second is not tracked.
        """
        jac = getattr(state, "jac", None)
        return Trackers(state.w, state.value, (jac, None) if isinstance(jac, Jacobian) else jac)

    def believed(self, problem: Problem, state: Any) -> dict[str, Array]:
        """Record columns with error bars, by name, where a method keeps them; see ``nx.COLUMNS``."""
        del problem, state
        return {}

    def published(self, problem: Problem, sizes: tuple[int, ...]) -> dict[str, Any]:
        """Returns the published value of every setting that may be left out; a number or a schedule."""
        del problem, sizes
        return {}

    def defaults(self, problem: Problem, horizon: Array | int, sizes: tuple[int, ...]) -> Any:
        """This estimator with everything filled in that depends on the problem and the run."""
        values = self.published(problem, sizes).items()
        missing = {name: value for name, value in values if getattr(self, name) is None}
        this = dataclasses.replace(self, **missing) if missing else self
        return with_schedules(this, horizon, str(problem.dtype))

    def lifted(self, dtype: Any) -> Any:
        """Returns the same estimator with every number of its schedules as a leaf."""
        return with_lifted_schedules(self, str(dtype))

    def view(self, problem: Problem) -> Problem:
        """The problem as the method sees it: one that knows no blocks sees all of them side by side."""
        return problem if self.blocks else problem.every_block()


class Drawn(tuple):
    """Batches that the loop itself has drawn for an estimator, whose form nobody has to check."""


def _with_checked_batches(method: Any) -> Any:
    @functools.wraps(method)
    def checked(self: AbstractEstimator, problem: Problem, w: PyTree, batches: Any, *state: Any) -> Any:
        if isinstance(batches, Drawn):
            batches = tuple(batches)
        else:
            batches = in_form(problem, self.level_passes(problem), batches)
        return method(self, problem, w, batches, *state)

    return checked


# What an estimator is given. A key belongs to (seed, level, pass); the step is folded in by the source.

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
    """Returns the batches of one step, independent across levels and passes.

    The first pass of a level draws the same whatever other passes there are, so that methods can be
    compared draw by draw. In a chain with blocks all levels and passes visit the same blocks.

    Args:
        passes: an estimator, or the names of the passes to draw for every level.
        every_block: whether all blocks are visited, as at the start of a method with a table.
    """
    step = jnp.asarray(step)
    blocks = problem.blocks
    if blocks is None:
        visited = None
    elif every_block:
        visited = jnp.arange(blocks.blocks)
    else:
        visited = blocks.visited(jax.random.fold_in(key, VISITED_BLOCKS), step)
    if isinstance(passes, AbstractEstimator):
        per_level: Any = passes.level_passes(problem)
    else:
        per_level = [tuple(passes)] * len(problem.levels)
    levels = len(problem.levels)
    # Pass k of level i has key k·levels + i: a further pass leaves the keys of the first as they are.
    names = list(per_level[0])
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(levels * len(names)))
    batches: tuple[dict[str, Any], ...] = tuple({} for _ in problem.levels)
    for i, level in enumerate(problem.levels):
        for number, name in enumerate(per_level[i]):
            pass_key = keys[names.index(name) * levels + i]
            source: Any = level.source
            if source is None:
                batches[i][name] = None
            elif visited is None:
                batches[i][name] = source.draw_pass(number, pass_key, step, sizes[i])
            else:
                batches[i][name] = source.draw_in(visited, pass_key, step, sizes[i])
    return batches


def first_batches(problem: Problem, estimator: AbstractEstimator, key: Array, sizes: Any) -> Batches:
    """Returns the batches that a method starts from."""
    everywhere = estimator.blocks == "table"
    if estimator.refresh_batch is not None:
        return refresh_batches(problem, estimator, key, 0, everywhere)
    return draw_batches(problem, estimator, key, 0, sizes, everywhere)


def refresh_batches(
    problem: Problem,
    estimator: AbstractEstimator,
    key: Array,
    step: Array | int,
    every_block: bool = False,
) -> Batches:
    """Returns the batches of a step at which a method restarts or takes a snapshot."""
    if estimator.refresh_batch == "population":
        levels = zip(problem.levels, estimator.level_passes(problem), strict=True)
        return tuple(
            {name: level.source and level.source.population() for name in passes}
            for level, passes in levels
        )
    sizes = (int(estimator.refresh_batch or 1),) * len(problem.levels)
    return draw_batches(problem, estimator, key, step, sizes, every_block)
