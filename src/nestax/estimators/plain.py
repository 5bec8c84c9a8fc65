"""Plain: a fresh mini-batch plugged into every level. Biased, and the baseline of everything.

symbol   here        meaning
u_t^i    value[i]    f_i(u_t^{i-1}; ξ_t^i), no memory
v_t      grad        J_1(w_t; ξ_t^1)ᵀ ⋯ J_K(u_t^{K-1}; ξ_t^K)ᵀ
"""

import equinox as eqx
from jaxtyping import PyTree

from nestax.chain import plug_in
from nestax.estimator import AbstractEstimator, Batches, Calls, Estimate, Trackers
from nestax.jacobian import pull_through
from nestax.problem import Problem


class PlainState(eqx.Module):
    w: PyTree
    value: tuple[PyTree, ...]


class Plain(AbstractEstimator):
    """The gradient of the chain with every expectation replaced by the mean of a fresh batch.

    Its expectation is not ∇F as soon as an outer level is not affine: the bias is of order one
    over the batch size and does not fade along the run.
    """

    @property
    def passes(self):
        return {"value": Calls(1, 1)}

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        value, pulls = plug_in(problem, w, batches)
        return Estimate(value[-1], pull_through(pulls, value[-1]), {}), PlainState(w, tuple(value))

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: PlainState):
        return self.init(problem, w, batches)

    def trackers(self, state: PlainState):
        return Trackers(state.w, state.value)
