"""ML-NASA and NLASG: moving averages on one time scale, NLASG with a linear correction of the values.

Balasubramanian, Ghadimi, Nguyen: Stochastic multilevel composition optimization algorithms with
level-independent convergence rates, SIAM J. Optim. 2022. NLASG is their second algorithm (LiNASA).

symbol   here       meaning
x^k      w          weights
w_i^k    value[i]   running value of level i
z^k      grad       running gradient
G_i, J_i f, push    value and Jacobian of level i at its OLD input, one sample for both
τ_k, β   tau, 1/lr  averaging weight; curvature of the step
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import pull_through
from nestax.chain.problem import Problem
from nestax.errors import UNIT
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate, Trackers
from nestax.parts.plug_in import plug_in
from nestax.parts.settings import Setting, at, setting
from nestax.parts.tracking import average
from nestax.steps import Averaged
from nestax.steps.averaged import one_then_root


class NASAState(eqx.Module):
    """``before`` are the weights that the last derivatives were taken at."""

    w: PyTree
    before: PyTree
    value: tuple[PyTree, ...]
    grad: PyTree
    count: Array


class MLNASA(AbstractEstimator):
    """ML-NASA; its theory asks for batches of order √N.

        w_i^{k+1} = (1−τ_k) w_i^k + τ_k G_i
        z^{k+1}   = (1−τ_k) z^k + τ_k J_1ᵀ ⋯ J_Kᵀ

    All of G_i, J_i are taken at the inputs w_{i-1}^k, so one sample may serve both.

    Args:
        tau: τ in (0, 1], a number or a schedule; None means τ_0 = 1, τ_k = 1/√N.
        exact_levels: evaluate deterministic levels exactly; False averages them too, as published.
        lr: 1/β; the effective step is τ·lr. 0.3 by default, close to β = 2√3.
    """

    tau: Setting | None = setting(UNIT, default=None)
    exact_levels: bool = eqx.field(default=True, static=True)
    about: ClassVar = About("balasubramanian2022", "ε⁻⁶", "batches of order ε⁻²", "values, one gradient")
    linearised: ClassVar = False
    passes: ClassVar = {"value": Calls(1, 1)}
    lag: ClassVar = 1

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        return {"tau": one_then_root}

    def published_step(self, problem: Problem):
        return Averaged(0.3 if self.lr is None else self.lr, self.tau)

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        value, pulls = plug_in(problem, w, batches)
        grad = pull_through(pulls, value[-1])
        state = NASAState(w, w, tuple(value), grad, jnp.zeros((), jnp.int32))
        return Estimate(value[-1], grad, {}), state

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: NASAState):
        tau = at(self.tau, state.count)
        value = []
        pulls = []
        new = w
        old = state.w
        for level, batch, tracked in zip(problem.levels, batches, state.value, strict=True):
            # At the old input, where the tracked value belongs; ``push`` carries it to the new one.
            f, push, pull = level.value_and_maps(old, batch["value"])
            pulls.append(pull)
            if level.deterministic and self.exact_levels:
                u = level.value(new, None)
            else:
                u = average(tracked, tau, f)
                if self.linearised:
                    u = jax.tree.map(jnp.add, u, push(optax.tree.sub(new, old)))
            new = level.project(u)
            old = tracked
            value.append(new)
        grad = average(state.grad, tau, pull_through(pulls, value[-1]))
        state = NASAState(w, state.w, tuple(value), grad, state.count + 1)
        return Estimate(value[-1], grad, {}), state

    def trackers(self, state: NASAState):
        return Trackers(state.before, state.value)


class NLASG(MLNASA):
    """NLASG: as ``MLNASA``, with the values carried along by their Jacobians; any batch size.

    w_i^{k+1} = (1−τ_k) w_i^k + τ_k G_i + J_i (w_{i-1}^{k+1} − w_{i-1}^k),   w_0 = x
    """

    about: ClassVar = About("balasubramanian2022", "ε⁻⁴", "–", "values, one gradient")
    linearised: ClassVar = True
