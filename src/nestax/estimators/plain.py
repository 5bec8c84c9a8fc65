"""Plain: a fresh mini-batch plugged into every level. Biased, and the baseline of everything.

symbol   here        meaning
u_t^i    value[i]    f_i(u_t^{i-1}; ξ_t^i), no memory
v_t      grad        J_1(w_t; ξ_t^1)ᵀ ⋯ J_K(u_t^{K-1}; ξ_t^K)ᵀ
"""

from typing import ClassVar

import equinox as eqx
from jaxtyping import PyTree

from nestax.chain.jacobian import pull_through
from nestax.chain.problem import Problem
from nestax.parts.estimator import AbstractEstimator, Batches, Calls, Estimate
from nestax.parts.plug_in import plug_in
from nestax.parts.tables import mean_of_visited, visit_blocks


class PlainState(eqx.Module):
    """For diagnostics only; nothing is kept of blocks."""

    w: PyTree
    value: tuple[PyTree, ...] | None


class Plain(AbstractEstimator):
    """The gradient of the chain with every expectation replaced by the mean of a fresh batch.

    Its expectation is not ∇F as soon as an outer level is not affine: the bias is of order one
    over the batch size and does not fade along the run. In a chain with blocks, the average over the
    visited ones.
    """

    blocks: ClassVar = "visited"
    passes: ClassVar = {"value": Calls(1, 1)}

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        if problem.blocks is not None:
            estimates = visit_blocks(
                problem, batches, lambda chain, draws: _plugged_in(chain, w, draws)[0]
            )
            return mean_of_visited(estimates), PlainState(w, None)
        return _plugged_in(problem, w, batches)

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: PlainState):
        return self.init(problem, w, batches)


def _plugged_in(problem: Problem, w: PyTree, batches: Batches) -> tuple[Estimate, PlainState]:
    value, pulls = plug_in(problem, w, batches)
    return Estimate(value[-1], pull_through(pulls, value[-1]), {}), PlainState(w, tuple(value))
