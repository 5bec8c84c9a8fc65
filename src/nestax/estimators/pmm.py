"""PMM: moving averages of the values and of the whole gradient, with Frank-Wolfe steps.

Jiang et al.: Projection-free variance reduction methods for stochastic constrained multi-level
compositional optimization, ICML 2024, and its journal version.

symbol   here       meaning
x_t      w          weights
u_t^i    value[i]   moving average of level i
v_t      grad       moving average of the product of Jacobians
α        beta       forgetting rate of both
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem
from nestax.errors import UNIT
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate
from nestax.parts.matrix_free import draws_in, mean_of_products
from nestax.parts.settings import Setting, at, scaled, setting
from nestax.parts.tracking import average
from nestax.steps import FrankWolfe


class PMMState(eqx.Module):
    w: PyTree
    value: tuple[PyTree, ...]
    grad: PyTree
    count: Array


class PMM(AbstractEstimator):
    """PMM.

        u_t^i = (1−α) u_{t-1}^i + α f_i(u_t^{i-1}; ξ)
        v_t   = (1−α) v_{t-1} + α ∏ J_i(u_t^{i-1}; ξ)ᵀ

    Value and derivative share their draws, as published; with moving averages the bias of that is of
    order α and is not amplified.

    Args:
        beta: α in (0, 1], a number or a schedule.
        per_draw: form the product draw by draw and average, as published; False multiplies the
            averages, with less variance.
        exact_levels: evaluate deterministic levels exactly; False averages them too, as published.
        lr: the Frank-Wolfe step η as a multiple of T^{-2/3}; 1 by default.
    """

    beta: Setting = setting(UNIT, default=0.1)
    per_draw: bool = eqx.field(default=True, static=True)
    exact_levels: bool = eqx.field(default=True, static=True)
    about: ClassVar = About("jiang2024pmvr", "ε⁻⁴", "–", "values, one gradient")
    passes: ClassVar = {"value": Calls(1, 1)}

    def published_step(self, problem: Problem):
        return FrankWolfe(scaled(self.lr, 1.0, lambda count, steps: steps ** (-2 / 3)))

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        value, grad = self._track(problem, w, batches, None, 1)
        state = PMMState(w, value, grad, jnp.zeros((), jnp.int32))
        return Estimate(value[-1], grad, {}), state

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: PMMState):
        beta = at(self.beta, state.count + 1)
        value, product = self._track(problem, w, batches, state.value, beta)
        grad = average(state.grad, beta, product)
        return Estimate(value[-1], grad, {}), PMMState(w, value, grad, state.count + 1)

    def _track(self, problem: Problem, w: PyTree, batches: Batches, tracked: Any, beta: Any):
        """Returns new values, and the product of the Jacobians along them."""
        # Draw by draw the mean of products has the noise of all levels at once, as published.
        size = draws_in(batches) if self.per_draw else None
        value = []
        pulls = []
        x = w
        for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
            x, pull = level.value_and_pulls(x, batch["value"], size)
            if tracked is not None and not (level.deterministic and self.exact_levels):
                x = average(tracked[i], beta, x)
            x = level.project(x)
            value.append(x)
            pulls.append(pull)
        return tuple(value), mean_of_products(pulls, value[-1], size)
