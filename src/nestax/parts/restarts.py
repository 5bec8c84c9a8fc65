"""What methods share that re-estimate from a large batch every so many steps."""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem
from nestax.errors import SettingError, check_count
from nestax.parts.estimator import AbstractEstimator, Batches
from nestax.parts.settings import count


class _FromLargeBatches(AbstractEstimator):
    """A method that forgets everything at the start and every ``period`` steps."""

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        return self.restart(problem, w, batches, jnp.zeros((), jnp.int32))

    def refresh(self, problem: Problem, w: PyTree, batches: Batches, state: Any):
        return self.restart(problem, w, batches, state.count + 1)

    def restart(self, problem: Problem, w: PyTree, batches: Batches, count: Array) -> Any:
        """Everything from the given batches alone, as at the start."""
        raise NotImplementedError


class Restarting(_FromLargeBatches):
    """A method with restarts.

    Args:
        period: steps between restarts. None means the larger of the batch size and 16.
        restart_batch: draws per level at a restart, or "population". None means ``period`` times the
            batch size, so that restarts take half of all samples; with the period equal to the batch
            size b these are the orders b = period = 1/ε, restart_batch = 1/ε² of the theory.
    """

    period: Any = count(default=None)  # pyright: ignore[reportIncompatibleMethodOverride]
    restart_batch: Any = eqx.field(default=None, static=True)

    def __check_init__(self):
        if isinstance(self.restart_batch, str):
            if self.restart_batch != "population":
                raise SettingError(
                    f'restart_batch must be a number or "population"; got {self.restart_batch!r}.'
                )
        elif self.restart_batch is not None:
            check_count("restart_batch", self.restart_batch)

    refresh_batch: ClassVar[Any] = property(lambda self: self.restart_batch)

    def published(self, problem: Problem, sizes: tuple[int, ...]) -> dict[str, Any]:
        period = self.period or max(16, *sizes)
        return {"period": period, "restart_batch": period * max(sizes)}


class Snapshots(_FromLargeBatches):
    """A method that looks at the whole population at the start and every ``period`` steps.

    Args:
        period: steps between snapshots; None means one pass of mini-batches over the rows.
    """

    period: Any = count(default=None, kw_only=True)  # pyright: ignore[reportIncompatibleMethodOverride]
    refresh_batch: ClassVar = "population"

    def published(self, problem: Problem, sizes: tuple[int, ...]) -> dict[str, Any]:
        return {"period": steps_per_pass(problem, sizes)}


def steps_per_pass(problem: Problem, sizes: tuple[int, ...]) -> int:
    """Returns how many steps see as many draws of a level as it has rows, at most."""
    levels = zip(problem.levels, sizes, strict=True)
    sources = [(level.source, size) for level, size in levels if level.source is not None]
    return max((math.ceil((source.size or 1) / size) for source, size in sources), default=1)
