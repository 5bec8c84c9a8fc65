"""SCGD: the first stochastic compositional gradient method, two levels, two time scales.

Wang, Fang, Liu: Stochastic compositional gradient descent, Math. Program. 2017.

symbol    here        meaning
x_k       w           weights
y_{k+1}   value[0]    moving average of g(x_k; ω_k)
ω_k, ν_k  "value"     draws of g (value and Jacobian) and of f
α_k, β_k  lr, beta    k^{-3/4}, k^{-1/2}
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import pull_through
from nestax.chain.problem import Problem
from nestax.errors import UNIT
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate
from nestax.parts.plug_in import plug_in
from nestax.parts.settings import Setting, at, scaled, setting
from nestax.parts.tracking import average
from nestax.steps import Descent


class SCGDState(eqx.Module):
    w: PyTree
    value: tuple[PyTree, PyTree]
    count: Array


class SCGD(AbstractEstimator):
    """SCGD for F = f ∘ g.

        y_{k+1} = (1−β_k) y_k + β_k g(x_k; ω_k)
        v_k     = J_g(x_k; ω_k)ᵀ ∇f(y_{k+1}; ν_k)

    Args:
        beta: forgetting rate in (0, 1], a number or a schedule; None means k^{-1/2}.
        lr: α_1 of α_k = α_1·k^{-3/4}; 1 by default.
    """

    beta: Setting | None = setting(UNIT, default=None)
    about: ClassVar = About("wang2017scgd", "ε⁻⁸", levels=2, instead="TSCGD")
    passes: ClassVar = {"value": Calls(1, 1)}

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        return {"beta": lambda count: (count + 1.0) ** -0.5}

    def published_step(self, problem: Problem):
        return Descent(scaled(self.lr, 1.0, lambda count: (count + 1.0) ** -0.75))

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        value, pulls = plug_in(problem, w, batches)
        state = SCGDState(w, (value[0], value[1]), jnp.zeros((), jnp.int32))
        return Estimate(value[1], pull_through(pulls, value[1]), {}), state

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: SCGDState):
        g, f = problem.levels
        omega, nu = (batch["value"] for batch in batches)
        sampled, pull_g = g.value_and_pull(w, omega)
        # y moves first: ∇f is taken at the new average, as published.
        y = g.project(average(state.value[0], at(self.beta, state.count + 1), sampled))
        value, pull_f = f.value_and_pull(y, nu)
        grad = pull_through([pull_g, pull_f], value)
        value = f.project(value)
        return Estimate(value, grad, {}), SCGDState(w, (y, value), state.count + 1)
