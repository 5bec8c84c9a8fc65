"""What runs: an estimator of the gradient, and the rule that turns it into a step."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

import nestax.trees as trees
from nestax.chain.problem import Problem
from nestax.parts.batches import first_batches
from nestax.parts.estimator import AbstractEstimator
from nestax.parts.step_rule import AbstractStep, as_step


class Method(eqx.Module):
    """An estimator and a step rule; an Optax optimiser becomes one."""

    estimator: AbstractEstimator
    step: AbstractStep = eqx.field(converter=as_step)

    def check(self, problem: Problem) -> None:
        """Refuses a problem that the estimator or the step rule does not apply to."""
        self.estimator.check(problem)
        self.step.check(problem)

    def ready(self, problem: Problem, horizon: Array | int, sizes: tuple[int, ...]) -> "Method":
        """With everything filled in that depends on the problem and the run, in the dtype of w."""
        estimator = self.estimator.defaults(problem, horizon, sizes)
        step = self.step.ready(horizon, problem.dtype)
        return Method(trees.cast(estimator, problem.dtype), step)

    def lifted(self, problem: Problem, sizes: tuple[int, ...]) -> "Method":
        """The same method with every number of its schedules and of its optimiser as a leaf."""
        w = problem.shape.structs()

        def aux() -> dict[str, Any]:
            ready = self.ready(problem, 1, sizes).estimator
            init = lambda key, w: ready.init(problem, w, first_batches(problem, ready, key, sizes))[0]
            estimate = jax.eval_shape(init, jax.random.key(0), w)
            return estimate.aux | {"value": estimate.value}

        return Method(self.estimator.lifted(problem.dtype), self.step.lifted(w, aux))
