"""Product SMVR: values by STORM, and one STORM estimate of the whole product of Jacobians.

The gradient estimator of PMVR (Jiang et al., ICML 2024) with the batch averages of the levels
multiplied, and with draws that keep it unbiased.

symbol   here                       meaning
u_t^i    inputs[i], last            running value of level i
v_t      grad                       running product, estimates J_1ᵀ⋯J_Kᵀ along the tracked values
ζ_t^i    batch["value" or "grad"]   draws of the backward pass, see `mode`
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax import trees
from nestax.errors import check_setting, choose
from nestax.estimator import AbstractEstimator, Batches, Estimate, Trackers
from nestax.jacobian import pull_through
from nestax.matrix_free import MODES, Forward, first_forward, passes_of, track_forward
from nestax.problem import Problem
from nestax.tracking import as_setting, at, storm


class ProductState(eqx.Module):
    """``inputs`` are (w, u^1, …, u^{K-1}); ``before`` are those of the step before."""

    inputs: tuple[PyTree, ...]
    before: tuple[PyTree, ...]
    last: Array
    grad: PyTree
    count: Array


class ProductSMVR(AbstractEstimator):
    """Matrix-free SMVR with one estimator for the whole product.

        v_t = Π[ ∏J_i(u_t^{i-1}; ζ) + (1−β)(v_{t-1} − ∏J_i(u_{t-1}^{i-1}; ζ)) ]

    The least memory of the family; its noise is that of a product of K noisy Jacobians.

    Args:
        beta: forgetting rate in (0, 1], a number or a schedule.
        mode: "lagged" (default), "fresh" or "reuse"; see ``nestax.matrix_free``. "reuse" is biased.
        radius: ball that holds v; None for none.
    """

    beta: Any = eqx.field(default=0.1, converter=as_setting)
    mode: str = eqx.field(default="lagged", static=True)
    radius: Any = eqx.field(default=None, converter=as_setting)
    citation: ClassVar = "Jiang et al.: ICML 2024"

    @property
    def passes(self):
        return passes_of(self.mode)

    @property
    def lag(self):
        return 1 if self.mode == "lagged" else 0

    def __check_init__(self):
        check_setting("beta", self.beta, "in (0, 1]", lambda b: (b > 0) & (b <= 1))
        check_setting("radius", self.radius, "positive", lambda r: r > 0)
        choose("mode", self.mode, MODES)

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        forward = first_forward(problem, w, batches, self.mode)
        grad = pull_through(forward.heads, forward.last)
        return self._read(forward, forward.inputs, grad, jnp.zeros((), jnp.int32))

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: ProductState):
        keep = 1 - at(self.beta, state.count + 1)
        forward = track_forward(problem, w, batches, self.mode, keep, state)
        new = pull_through(forward.heads, forward.last)
        old = pull_through(forward.tails, forward.last)
        return self._read(forward, state.inputs, storm(new, keep, state.grad, old), state.count + 1)

    def _read(self, forward: Forward, before: tuple, grad: PyTree, count: Array):
        if self.radius is not None:
            size = trees.norm(grad)
            grad = trees.scale(jnp.where(size > self.radius, self.radius / size, 1.0), grad)
        state = ProductState(forward.inputs, before, forward.last, grad, count)
        return Estimate(forward.last, grad, {}), state

    def trackers(self, state: ProductState):
        w = state.before[0] if self.lag else state.inputs[0]
        return Trackers(w, (*state.inputs[1:], state.last))
