"""NASA: one time scale for the inner value, the gradient and the weights; two levels.

Ghadimi, Ruszczyński, Wang: A single timescale stochastic approximation method for nested stochastic
optimization, SIAM J. Optim. 2020.

symbol   here         meaning
x^k      w            weights
u^k      value[0]     running value of g
z^k      grad         running gradient
G, J, s  sampled, …   value and Jacobian of g at the NEW x, gradient of f at the OLD u
τ_k, β   tau, 1/lr    averaging weight; curvature of the step
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import pull_through
from nestax.chain.problem import Problem
from nestax.errors import POSITIVE, UNIT
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate
from nestax.parts.plug_in import plug_in
from nestax.parts.settings import Number, Setting, at, setting
from nestax.parts.tracking import average
from nestax.steps import Averaged
from nestax.steps.averaged import one_then_root


class NASAState(eqx.Module):
    w: PyTree
    value: tuple[PyTree, PyTree]
    grad: PyTree
    count: Array


class NASA(AbstractEstimator):
    """NASA for F = f ∘ g.

        z^{k+1} = (1−aτ_k) z^k + aτ_k J(x^{k+1})ᵀ s(u^k)
        u^{k+1} = (1−bτ_k) u^k + bτ_k G(x^{k+1})

    Args:
        tau: τ in (0, 1], a number or a schedule; None means τ_0 = 1, τ_k = 1/√N.
        a, b: factors of τ for gradient and value, with aτ, bτ ≤ 1; larger weights count as 1.
        lr: 1/β; the effective step is τ·lr. 0.3 by default, close to β = 2√3.
    """

    tau: Setting | None = setting(UNIT, default=None)
    a: Number = setting(POSITIVE, default=1.0)
    b: Number = setting(POSITIVE, default=1.0)
    about: ClassVar = About(
        "ghadimi2020nasa", "ε⁻⁴", memory="one value, one gradient", levels=2, instead="NLASG"
    )
    passes: ClassVar = {"value": Calls(1, 1)}

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        return {"tau": one_then_root}

    def published_step(self, problem: Problem):
        return Averaged(0.3 if self.lr is None else self.lr, self.tau)

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        value, pulls = plug_in(problem, w, batches)
        grad = pull_through(pulls, value[1])
        state = NASAState(w, (value[0], value[1]), grad, jnp.zeros((), jnp.int32))
        return Estimate(value[1], grad, {}), state

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: NASAState):
        g, f = problem.levels
        omega, nu = (batch["value"] for batch in batches)
        tau = at(self.tau, state.count)
        u = state.value[0]
        sampled, pull_g = g.value_and_pull(w, omega)
        # At the old u, which does not know this step's draws of g: so J and s are independent.
        value, pull_f = f.value_and_pull(u, nu)
        grad = average(state.grad, jnp.minimum(self.a * tau, 1), pull_through([pull_g, pull_f], value))
        value = f.project(value)
        u = g.project(average(u, jnp.minimum(self.b * tau, 1), sampled))
        return Estimate(value, grad, {}), NASAState(w, (u, value), grad, state.count + 1)
