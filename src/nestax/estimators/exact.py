"""Exact: the full gradient over the population at every step; what the others are compared with."""

from typing import ClassVar

import equinox as eqx
import jax
from jaxtyping import PyTree

from nestax.chain.jacobian import pull_through
from nestax.chain.problem import Problem
from nestax.errors import ProblemError
from nestax.parts.estimator import AbstractEstimator, Batches, Calls, Estimate, Trackers


class ExactState(eqx.Module):
    w: PyTree


class Exact(AbstractEstimator):
    """∇F(w) itself. Every step counts as one pass over the population of every level.

    Where a level has no population ∇F is the derivative of ``exact=``, and no step takes a draw.
    """

    passes: ClassVar = {"value": Calls(1, 1)}
    # Every step is a refresh, for only those see the population.
    period: ClassVar = 1
    refresh_batch: ClassVar = "population"

    def view(self, problem: Problem):
        return super().view(problem) if problem.finite or problem.exact is None else problem

    def level_passes(self, problem: Problem):
        return super().level_passes(problem) if problem.finite else ({},) * len(problem.levels)

    def check(self, problem: Problem) -> None:
        if problem.finite:
            super().check(problem)
        elif problem.exact is None:
            raise ProblemError(
                "Exact needs the population of every level, and a Sampler or a Stream has none: pass "
                "exact= to the Problem, or use SMVR instead."
            )

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        if not problem.finite and problem.exact is not None:
            return Estimate(*jax.value_and_grad(problem.exact)(w), {}), ExactState(w)
        pulls = []
        x = w
        for level, batch in zip(problem.levels, batches, strict=True):
            # Not projected: exact values lie in their ranges.
            x, pull = level.value_and_pull(x, batch["value"])
            pulls.append(pull)
        return Estimate(x, pull_through(pulls, x), {}), ExactState(w)

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: ExactState):
        return self.init(problem, w, batches)

    def refresh(self, problem: Problem, w: PyTree, batches: Batches, state: ExactState):
        return self.init(problem, w, batches)

    def trackers(self, state: ExactState):
        return Trackers(state.w)
