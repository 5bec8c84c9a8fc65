"""Exact: the full gradient over the population at every step; what the others are compared with."""

import equinox as eqx
from jaxtyping import PyTree

from nestax.chain.jacobian import pull_through
from nestax.chain.problem import Problem
from nestax.parts.estimator import AbstractEstimator, Batches, Calls, Estimate, Trackers


class ExactState(eqx.Module):
    w: PyTree


class Exact(AbstractEstimator):
    """∇F(w) itself. Every step counts as one pass over the population of every level."""

    @property
    def passes(self):
        return {"value": Calls(1, 1)}

    @property
    def period(self):
        return 1

    @property
    def refresh_batch(self):
        return "population"

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        pulls = []
        x = w
        for level, batch in zip(problem.levels, batches, strict=True):
            x, pull = level.value_and_pull(x, batch["value"])
            pulls.append(pull)
        return Estimate(x, pull_through(pulls, x), {}), ExactState(w)

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: ExactState):
        return self.init(problem, w, batches)

    def refresh(self, problem: Problem, w: PyTree, batches: Batches, state: ExactState):
        return self.init(problem, w, batches)

    def trackers(self, state: ExactState):
        return Trackers(state.w)
