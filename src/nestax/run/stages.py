"""Stage-wise runs (Algorithm 2 of Jiang et al., ICML 2022): settings that are constant per stage.

A stage starts from the weights and trackers that the one before ended with, all of the same step, takes
its first step with the gradient it was handed, and only then draws. That is one run whose settings
change at the ends of stages, so all stages share one compilation, and nothing is handed over at all.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nestax.chain.problem import Problem
from nestax.errors import SettingError, choose
from nestax.estimators import SMVR
from nestax.parts.estimator import AbstractEstimator
from nestax.parts.settings import Schedule
from nestax.run.minimize import minimize
from nestax.run.result import Result
from nestax.steps import Descent
from nestax.theory.theorems import Stage


class Piecewise(eqx.Module):
    """The value of the stage that step ``count − shift`` belongs to."""

    ends: Array
    values: Array
    shift: int = eqx.field(static=True)

    def __call__(self, count: Array) -> Array:
        stage = jnp.searchsorted(self.ends, count - self.shift, side="right")
        return self.values[jnp.minimum(stage, len(self.values) - 1)]


def stage_schedules(stages: Sequence[Stage]) -> tuple[Schedule, Schedule]:
    """Learning rate and forgetting rate of a list of stages, as settings.

    The step after ``count`` steps belongs to the stage that ``count`` lies in, and so does the update
    that follows it, which is update ``count + 1``.
    """
    if not stages:
        raise SettingError(
            "stages must hold at least one nx.theory.Stage; nx.theory.halving(...) makes a list."
        )
    ends = jnp.asarray(np.cumsum([stage.steps for stage in stages]), jnp.int32)
    lr = Piecewise(ends, jnp.asarray([stage.lr for stage in stages]), shift=0)
    beta = Piecewise(ends, jnp.asarray([stage.beta for stage in stages]), shift=1)
    return Schedule(lr), Schedule(beta)


def solve_stages(
    problem: Problem,
    stages: Sequence[Stage],
    estimator: AbstractEstimator | None = None,
    *,
    output: str = "last",
    seed: int = 0,
    **options: Any,
) -> Result:
    """Runs SMVR, or another estimator with a ``beta``, in stages.

    Args:
        problem: the chain of levels. For a convex objective see ``regularised``.
        stages: from ``nx.theory.halving`` (practical) or ``nx.theory.lemma_222`` (the theorem's).
        estimator: ``nx.SMVR()`` by default; its ``beta`` is that of the stage.
        output: "last": a stage ends with its last iterate. "random", as in the paper: after a number of
            steps drawn uniformly from 0..steps−1 (at least one), trackers handed over with the weights.
        seed, options: as in ``minimize``.
    """
    estimator = SMVR() if estimator is None else estimator
    if "beta" not in {field.name for field in dataclasses.fields(estimator)}:
        raise SettingError(
            f"{type(estimator).__name__} has no beta that stages could set: use nx.SMVR()."
        )
    choose("output", output, ("last", "random"))
    if {"steps", "samples"} & set(options):
        raise SettingError("the stages say how many steps there are: leave steps and samples out.")
    if not isinstance(stages, Sequence) or not all(isinstance(s, Stage) for s in stages):
        raise SettingError(
            f"stages must be a list of nx.theory.Stage, such as nx.theory.halving(...); got {stages!r}."
        )
    stages = list(stages)
    if output == "random":
        rng = np.random.default_rng([seed, 0x57A6E])
        stages = [dataclasses.replace(s, steps=max(1, int(rng.integers(s.steps)))) for s in stages]
    lr, beta = stage_schedules(stages)
    staged = dataclasses.replace(estimator, beta=beta, lr=None)
    steps = sum(stage.steps for stage in stages)
    return minimize(problem, staged, Descent(lr), steps=steps, seed=seed, **options)
