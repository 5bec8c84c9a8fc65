"""The contract of a step rule: from weights and a gradient estimate to new weights."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem
from nestax.errors import ProblemError


class AbstractStep(eqx.Module):
    """A step rule that knows the problem; its settings are numbers or schedules.

    Where an Optax optimiser returns a change of the weights, which the loop then projects, a step
    rule returns new weights inside the feasible set.
    """

    def init(self, w: PyTree) -> Any:
        """The state at the start: by default the number of steps taken."""
        del w
        return jnp.zeros((), jnp.int32)

    @abc.abstractmethod
    def update(
        self, problem: Problem, w: PyTree, grad: PyTree, aux: dict[str, Array], state: Any
    ) -> tuple[PyTree, Any]:
        """New weights and state. ``aux`` is what the estimator has to say besides the gradient."""

    def check(self, problem: Problem) -> None:
        """Refuses a problem that lacks what this rule needs."""
        if problem.linear_oracle is not None and problem.feasible is None:
            raise ProblemError(
                f"{type(self).__name__} projects, and this problem has only a linear_oracle: use "
                "nx.steps.FrankWolfe(lr), or pass project= as well."
            )
