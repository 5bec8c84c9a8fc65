"""SCSC: values corrected at two points, derivatives raw.

Chen, Sun, Yin: Solving stochastic compositional optimization is nearly as easy as solving stochastic
optimization, IEEE Trans. Signal Process. 2021.

symbol   here        meaning
θ_k      w           weights
y_k^i    value[i-1]  running value of level i, i = 1..K-1
ξ_k^i    "value"     one sample per level, for values and derivative
α, β     lr, beta    both of order 1/√N
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import pull_through
from nestax.chain.problem import Problem
from nestax.errors import UNIT
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate
from nestax.parts.plug_in import plug_in
from nestax.parts.settings import Setting, at, choice, scaled, setting
from nestax.parts.tracking import storm
from nestax.steps import Descent
from nestax.steps.descent import beta_of_order_root


class SCSCState(eqx.Module):
    w: PyTree
    value: tuple[PyTree, ...]
    count: Array


class SCSC(AbstractEstimator):
    """SCSC.

        y_t^i = f_i(y_t^{i-1}; ξ) + (1−β)(y_{t-1}^i − f_i(y_{t-1}^{i-1}; ξ)),   y_t^0 = θ_t
        v_t   = J_1(θ_t; ξ)ᵀ J_2(y_t^1; ξ)ᵀ ⋯ J_K(y_t^{K-1}; ξ)ᵀ

    SMVR with raw Jacobians. "single-point" replaces the difference of values by
    J_i(y_t^{i-1}; ξ)(y_t^{i-1} − y_{t-1}^{i-1}).

    Args:
        beta: forgetting rate in (0, 1], a number or a schedule; None means min(1/2, 10/√N).
        mode: "two-point" or "single-point".
        lr: c of α = c/√N; 1 by default.
    """

    beta: Setting | None = setting(UNIT, default=None)
    mode: str = choice("two-point", "single-point", default="two-point")
    about: ClassVar = About("chen2021scsc", "ε⁻⁴", "smooth, Lipschitz draws")
    passes: ClassVar[Any] = property(lambda self: {"value": Calls(1 + (self.mode == "two-point"), 1)})
    outer_passes: ClassVar = {"value": Calls(1, 1)}

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        return {"beta": beta_of_order_root}

    def published_step(self, problem: Problem):
        return Descent(scaled(self.lr, 1.0, lambda count, steps: steps**-0.5))

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        value, pulls = plug_in(problem, w, batches)
        state = SCSCState(w, tuple(value), jnp.zeros((), jnp.int32))
        return Estimate(value[-1], pull_through(pulls, value[-1]), {}), state

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: SCSCState):
        keep = 1 - at(self.beta, state.count + 1)
        value = []
        pulls = []
        new = w
        old = state.w
        for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
            y, push, pull = level.value_and_maps(new, batch["value"])
            # The outermost value is raw: only its derivative enters the gradient.
            if not level.deterministic and i < len(problem.levels) - 1:
                if self.mode == "two-point":
                    y_old = level.value(old, batch["value"])
                else:
                    y_old = optax.tree.sub(y, push(optax.tree.sub(new, old)))
                y = storm(y, keep, state.value[i], y_old)
            new = level.project(y)
            old = state.value[i]
            value.append(new)
            pulls.append(pull)
        state = SCSCState(w, tuple(value), state.count + 1)
        return Estimate(value[-1], pull_through(pulls, value[-1]), {}), state
