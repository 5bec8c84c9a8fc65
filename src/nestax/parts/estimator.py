"""The contract of an estimator: what it is given, what it returns, what it declares."""

import abc
import dataclasses
import inspect
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import Jacobian
from nestax.chain.level import AnyBatch
from nestax.chain.problem import Problem
from nestax.errors import ProblemError, SettingError, check_setting
from nestax.parts.step import AbstractStep
from nestax.parts.tracking import Schedule, as_setting
from nestax.steps import Descent

#: One dictionary per level, from the name of a pass to its batch; None for deterministic levels.
Batches = tuple[dict[str, AnyBatch], ...]


class Estimate(eqx.Module):
    """What is known about F at the weights that were given.

    value: the tracked value of f_K ∘ … ∘ f_1.
    grad: the estimate of ∇F, in the structure of w.
    aux: anything the step rule or the records may want, by name.
    """

    value: Array
    grad: PyTree
    aux: dict[str, Array]


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

    reference: key of ``nestax.references``.
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
    certainty: str = "as published"


class AbstractEstimator(eqx.Module):
    """Estimates ∇F along a run; an immutable tree of settings.

    lr: the learning rate of the step rule that the method was published with: a number scales the
        published schedule, a schedule replaces it. For use without an optimiser of your own.
    """

    lr: Any = eqx.field(default=None, kw_only=True, converter=as_setting)
    about: ClassVar[About] = About()
    #: Which weights the method returns: "last", "average" or "weighted"; see ``minimize``.
    output: ClassVar[str] = "last"
    #: How it runs on a chain with blocks: "table", with memory of every block, so that the start visits
    #: all of them; "visited", with none; None on the view of all blocks side by side.
    blocks: ClassVar[str | None] = None

    def __check_init__(self):
        check_setting("lr", self.lr, "positive", lambda x: x > 0)

    @property
    @abc.abstractmethod
    def passes(self) -> dict[str, Calls]:
        """Every independent batch that a step draws per level, with its evaluations per draw."""

    @property
    def outer_passes(self) -> dict[str, Calls]:
        """The same for the outermost level, where it needs less: some of the names in ``passes``."""
        return self.passes

    def level_passes(self, problem: Problem) -> tuple[dict[str, Calls], ...]:
        """The passes of every level of a problem."""
        return (*(self.passes for _ in problem.levels[1:]), self.outer_passes)

    @property
    def lag(self) -> int:
        """How many steps old the weights are that the gradient estimate belongs to."""
        return 0

    @property
    def period(self) -> int | None:
        """Every so many steps ``refresh`` is called instead of ``update``; None means never."""
        return None

    @property
    def refresh_batch(self) -> int | str | None:
        """How many draws a refresh and the start see, or "population"."""
        return None

    def check(self, problem: Problem) -> None:
        """Refuses a problem that the method does not apply to, and names one that does."""
        name, about, levels = type(self).__name__, self.about, len(problem.levels)
        what, instead = None, about.instead
        if problem.blocks is not None and self.blocks is None:
            raise ProblemError(
                f"{name} knows no blocks: wrap it as nx.PerBlock(nx.{name}(...)), or pass "
                "problem.every_block(), which visits all of them."
            )
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

    def published_step(self, problem: Problem) -> AbstractStep:
        """The step rule that the method was published with."""
        return Descent(0.1 if self.lr is None else self.lr)

    @abc.abstractmethod
    def init(self, problem: Problem, w: PyTree, batches: Batches) -> tuple[Estimate, PyTree]:
        """The estimate at the starting weights, and the state that belongs to it."""

    @abc.abstractmethod
    def update(
        self, problem: Problem, w: PyTree, batches: Batches, state: Any
    ) -> tuple[Estimate, PyTree]:
        """The estimate at new weights ``w``, from the state that belongs to the old ones."""

    def refresh(
        self, problem: Problem, w: PyTree, batches: Batches, state: Any
    ) -> tuple[Estimate, PyTree]:
        """As ``update``, at the steps where a method restarts or takes a snapshot."""
        raise NotImplementedError(f"{type(self).__name__} has no restarts.")

    @abc.abstractmethod
    def trackers(self, state: Any) -> Trackers:
        """The tracked quantities inside a state."""

    def published(self, problem: Problem, sizes: tuple[int, ...]) -> dict[str, Any]:
        """The published value of every setting that may be left out; a number or a schedule."""
        del problem, sizes
        return {}

    def defaults(self, problem: Problem, horizon: Array | int, sizes: tuple[int, ...]) -> Any:
        """This estimator with everything filled in that depends on the problem and the run."""
        values = self.published(problem, sizes).items()
        missing = {name: value for name, value in values if getattr(self, name) is None}
        this = dataclasses.replace(self, **missing) if missing else self
        return with_schedules(this, horizon, str(problem.dtype))


def seen_by(estimator: Any, problem: Problem) -> Problem:
    """The problem as the method sees it: one that knows no blocks sees all of them side by side."""
    return problem if getattr(estimator, "blocks", None) else problem.every_block()


class Method(eqx.Module):
    """What runs: an estimator of the gradient, and the rule that turns it into a step."""

    estimator: AbstractEstimator
    step: optax.GradientTransformation | AbstractStep

    def check(self, problem: Problem) -> None:
        """Refuses a problem that the estimator or the step rule does not apply to."""
        self.estimator.check(problem)
        if isinstance(self.step, AbstractStep):
            self.step.check(problem)
        elif problem.prox is not None:
            raise ProblemError(
                "a problem with prox= needs a step rule that knows its own length, which an Optax "
                "optimiser does not tell: use nx.steps.Descent(lr)."
            )
        elif problem.feasible is None and problem.linear_oracle is not None:
            raise ProblemError(
                "this problem has a linear_oracle and no project, so an Optax optimiser would leave its "
                "feasible set: use nx.steps.FrankWolfe(lr), or pass project= as well."
            )


def as_method(problem: Problem, estimator: Any, optimizer: Any = None) -> Method:
    """An estimator with the given optimiser, or with the step rule it was published with."""
    if isinstance(estimator, Method):
        if optimizer is not None:
            raise SettingError("an nx.Method brings its own step rule; leave the optimizer out.")
        estimator, optimizer = estimator.estimator, estimator.step
    if isinstance(estimator, type) and issubclass(estimator, AbstractEstimator):
        estimator = estimator()
    if not isinstance(estimator, AbstractEstimator):
        hint = "; an optimiser is the third argument" if hasattr(estimator, "update") else ""
        raise SettingError(
            f"the second argument must be an estimator such as nx.SMVR(){hint}; got {estimator!r}."
        )
    if optimizer is None:
        optimizer = estimator.published_step(problem)
    elif not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise SettingError(
            f"the third argument must be an Optax optimiser such as optax.sgd(0.1); got {optimizer!r}."
        )
    elif estimator.lr is not None:
        raise SettingError(
            f"{type(estimator).__name__}(lr=...) sets the step rule it was published with, which the "
            "optimizer replaces: leave one of the two out."
        )
    return Method(estimator, optimizer)


def with_schedules(tree: PyTree, horizon: Array | int, dtype: str) -> PyTree:
    """Makes a ``Schedule`` of every function among the settings, and gives it what it asks for."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Schedule):
            if leaf.dtype is not None:
                return leaf
            fn, scale = leaf.fn, leaf.scale
        elif callable(leaf):
            fn, scale = leaf, None
        else:
            return leaf
        needed = [
            p
            for p in inspect.signature(fn).parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        return Schedule(fn, jnp.asarray(horizon) if len(needed) >= 2 else None, dtype, scale)

    return jax.tree.map(one, tree, is_leaf=lambda x: isinstance(x, Schedule))
