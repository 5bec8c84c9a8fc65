"""STORM-Compositional: three STORM estimators, for the inner value, its Jacobian and the gradient.

Yuan, Hu: Stochastic recursive momentum method for non-convex compositional optimization, 2020.

symbol         here              meaning
x_t            w                 weights
g_t, G_t, F_t  value, jac, grad  running value, Jacobian and gradient
B^g            "value"           draws of g for the value
B^G, B^f       "jac"             draws of g for the Jacobian; of f for its gradient
a_g, a_G, a_F  beta, …           forgetting rates
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import Jacobian, pull_through
from nestax.chain.problem import Problem
from nestax.errors import POSITIVE, UNIT
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate
from nestax.parts.settings import Setting, at, setting
from nestax.parts.tracking import storm
from nestax.steps import Bounded


class STORMCState(eqx.Module):
    w: PyTree
    value: tuple[PyTree, PyTree]
    jac: Jacobian
    grad: PyTree
    count: Array


class STORMC(AbstractEstimator):
    """STORM-Compositional for F = f ∘ g.

        g_t = g(x_t; B^g) + (1−a_g)(g_{t-1} − g(x_{t-1}; B^g)),   G_t likewise with J_g, B^G
        F_t = G_tᵀ∇f(g_t; B^f) + (1−a_F)(F_{t-1} − G_{t-1}ᵀ∇f(g_{t-1}; B^f))

    Args:
        beta: forgetting rate a_g in (0, 1], a number or a schedule.
        beta_jac, beta_grad: a_G and a_F; None means ``beta``.
        eps: ε of the step, which is never longer than lr·ε; None means 1/√T over T steps.
        lr: η of the step; 0.5 by default.
    """

    beta: Setting = setting(UNIT, default=0.1)
    beta_jac: Setting | None = setting(UNIT, default=None)
    beta_grad: Setting | None = setting(UNIT, default=None)
    eps: Setting | None = setting(POSITIVE, default=None)
    about: ClassVar = About(
        "yuan2020stormc", "ε⁻³", "mean-squared smooth draws", "value, Jacobian, gradient", 2
    )
    passes: ClassVar = {"value": Calls(2, 0), "jac": Calls(0, 2)}
    outer_passes: ClassVar = {"jac": Calls(0, 2)}

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        return {"beta_jac": self.beta, "beta_grad": self.beta}

    def published_step(self, problem: Problem):
        return Bounded(0.5 if self.lr is None else self.lr, self.eps)

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        g, f = problem.levels
        value = g.project(g.value(w, batches[0]["value"]))
        _, G = g.value_and_jac(w, batches[0]["jac"])
        outer, pull_f = f.value_and_pull(value, batches[1]["jac"])
        grad = pull_through([G.pull, pull_f], outer)
        state = STORMCState(w, (value, f.project(outer)), G, grad, jnp.zeros((), jnp.int32))
        return Estimate(state.value[1], grad, {}), state

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: STORMCState):
        g, f = problem.levels
        keep, keep_jac, keep_grad = (
            1 - at(beta, state.count + 1) for beta in (self.beta, self.beta_jac, self.beta_grad)
        )
        g_new, g_old = (g.value(x, batches[0]["value"]) for x in (w, state.w))
        value = g.project(storm(g_new, keep, state.value[0], g_old))
        (_, J_new), (_, J_old) = (g.value_and_jac(x, batches[0]["jac"]) for x in (w, state.w))
        G = storm(J_new, keep_jac, state.jac, J_old)
        outer, pull_new = f.value_and_pull(value, batches[1]["jac"])
        _, pull_old = f.value_and_pull(state.value[0], batches[1]["jac"])
        new = pull_through([G.pull, pull_new], outer)
        # What is subtracted is the product of the step before, with this step's draws of f alone.
        old = pull_through([state.jac.pull, pull_old], outer)
        grad = storm(new, keep_grad, state.grad, old)
        state = STORMCState(w, (value, f.project(outer)), G, grad, state.count + 1)
        return Estimate(state.value[1], grad, {}), state
