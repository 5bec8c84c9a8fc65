"""The contract of an estimator: what it is given, what it returns, what it declares."""

import abc
import inspect
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from nestax.jacobian import Jacobian
from nestax.level import AnyBatch
from nestax.problem import Problem
from nestax.tracking import Schedule

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


class AbstractEstimator(eqx.Module):
    """Estimates ∇F along a run; an immutable tree of settings."""

    citation: ClassVar[str] = ""

    @property
    @abc.abstractmethod
    def passes(self) -> dict[str, Calls]:
        """Every independent batch that a step draws per level, with its evaluations per draw."""

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

    def defaults(self, problem: Problem, horizon: Array | int, sizes: tuple[int, ...]) -> Any:
        """This estimator with everything filled in that depends on the problem and the run."""
        del sizes
        return with_schedules(self, horizon, str(problem.dtype))


class Method(eqx.Module):
    """What runs: an estimator of the gradient, and the rule that turns it into a step."""

    estimator: AbstractEstimator
    step: optax.GradientTransformation


def with_schedules(tree: PyTree, horizon: Array | int, dtype: str) -> PyTree:
    """Makes a ``Schedule`` of every function among the settings, and gives it what it asks for."""

    def one(leaf: Any) -> Any:
        if not callable(leaf) or isinstance(leaf, Schedule):
            return leaf
        needed = [
            p
            for p in inspect.signature(leaf).parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        fn: Any = leaf
        return Schedule(fn, jnp.asarray(horizon) if len(needed) >= 2 else None, dtype)

    return jax.tree.map(one, tree, is_leaf=lambda x: isinstance(x, Schedule))
