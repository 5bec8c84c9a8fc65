"""Accelerated SCGD and ASC-PG: SCGD with the inner function queried at an extrapolated point.

Wang, Fang, Liu: Stochastic compositional gradient descent, Math. Program. 2017 (accelerated SCGD);
Wang, Liu, Fang: Accelerating stochastic composition optimization, JMLR 2017 (ASC-PG, with a proximal
step and other exponents). The estimator is the same.

symbol    here        meaning
x_k       w           weights
z_k       z           query point (1 − 1/β) x_{k-1} + x_k/β
y_k       value[0]    moving average of g(z_k; ω_k)
ω_k, ν_k  "value"     draws of g (value at z_k, Jacobian at x_k) and of f
"""

from typing import ClassVar

import equinox as eqx
import jax
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


class AcceleratedState(eqx.Module):
    w: PyTree
    value: tuple[PyTree, PyTree]
    count: Array


class ASCGD(AbstractEstimator):
    """Accelerated SCGD for F = f ∘ g.

        z_k = (1 − 1/β_{k-1}) x_{k-1} + x_k/β_{k-1}
        y_k = (1−β_{k-1}) y_{k-1} + β_{k-1} g(z_k; ω_k)
        v_k = J_g(x_k; ω_k)ᵀ ∇f(y_k; ν_k)

    Args:
        beta: forgetting rate in (0, 1], a number or a schedule; None means k^{-4/7}.
        lr: α_1 of α_k = α_1·k^{-5/7}; 1 by default.
    """

    beta: Setting | None = setting(UNIT, default=None)
    about: ClassVar = About("wang2017scgd", "ε⁻⁷", levels=2, instead="ATSCGD")
    #: Exponents of the learning rate and of beta.
    exponents: ClassVar = (5 / 7, 4 / 7)
    passes: ClassVar = {"value": Calls(2, 1)}
    outer_passes: ClassVar = {"value": Calls(1, 1)}

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        exponent = -self.exponents[1]
        return {"beta": lambda count: (count + 0.0) ** exponent}

    def published_step(self, problem: Problem):
        exponent = -self.exponents[0]
        return Descent(scaled(self.lr, 1.0, lambda count: (count + 1.0) ** exponent))

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        value, pulls = plug_in(problem, w, batches)
        state = AcceleratedState(w, (value[0], value[1]), jnp.zeros((), jnp.int32))
        return Estimate(value[1], pull_through(pulls, value[1]), {}), state

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: AcceleratedState):
        g, f = problem.levels
        omega, nu = (batch["value"] for batch in batches)
        beta = at(self.beta, state.count + 1)
        z = jax.tree.map(lambda new, old: old + (new - old) / beta, w, state.w)
        # The value is asked for at the extrapolated point z, its derivative at the weights themselves.
        y = g.project(average(state.value[0], beta, g.value(z, omega)))
        _, pull_g = g.value_and_pull(w, omega)
        value, pull_f = f.value_and_pull(y, nu)
        grad = pull_through([pull_g, pull_f], value)
        value = f.project(value)
        return Estimate(value, grad, {}), AcceleratedState(w, (y, value), state.count + 1)


class ASCPG(ASCGD):
    """ASC-PG: accelerated SCGD with a proximal step, β_k = k^{-4/9}, α_k = α_1·k^{-5/9}."""

    about: ClassVar = About("wang2017ascpg", "ε^-4.5", levels=2, instead="ATSCGD")
    exponents: ClassVar = (5 / 9, 4 / 9)
