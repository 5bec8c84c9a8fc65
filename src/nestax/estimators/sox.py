"""SOX: a moving average of every block's inner value, and one of the gradient.

Wang, Yang: Finite-sum coupled compositional stochastic optimization: theory and applications, ICML 2022.

symbol   here              meaning
w_t      w                 weights
B_t      visited blocks    all equally likely, none twice
u_i      value[0][i]       running value of g_i; moves when block i is visited
ζ, ζ'    "value", "grad"   independent draws inside a block, for the value and for the derivative
v_t      grad              running gradient
γ, β     gamma, beta       forgetting rates of u and of v
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import pull_through
from nestax.chain.problem import Problem
from nestax.errors import UNIT
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate
from nestax.parts.settings import Setting, at, scaled, setting
from nestax.parts.tables import fill_table, visit_table
from nestax.parts.tracking import average
from nestax.steps import Descent
from nestax.steps.descent import beta_of_order_root


class SOXState(eqx.Module):
    """``value`` holds a row per block: u, and f(u) as of its last visit, for diagnostics."""

    w: PyTree
    value: tuple[PyTree, Array]
    grad: PyTree
    count: Array


class SOX(AbstractEstimator):
    """SOX for F(w) = 1/M Σ_i f_i(g_i(w)).

        u_i = (1−γ)u_i + γ g_i(w_t; ζ)  for the visited blocks
        v_t = (1−β)v_{t-1} + β·(mean over them of J_{g_i}(w_t; ζ')ᵀ ∇f_i(u_i))

    Args:
        gamma: forgetting rate of the values in (0, 1], a number or a schedule; None means
            min(1/2, 10/√N).
        beta: forgetting rate of the gradient in (0, 1], likewise.
        lr: c of η = c/√N; 1 by default.
    """

    gamma: Setting | None = setting(UNIT, default=None)
    beta: Setting | None = setting(UNIT, default=None)
    blocks: ClassVar = "table"
    about: ClassVar = About(
        "wang2022sox",
        "(M/B) ε⁻⁴",
        "blocks, bounded derivatives",
        "a value per block, one gradient",
        2,
        "BlockSMVR",
    )
    passes: ClassVar = {"value": Calls(1, 0), "grad": Calls(0, 1)}
    outer_passes: ClassVar = {"grad": Calls(1, 1)}

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        return {"gamma": beta_of_order_root, "beta": beta_of_order_root}

    def published_step(self, problem: Problem):
        return Descent(scaled(self.lr, 1.0, lambda count, steps: steps**-0.5))

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        def start(chain: Problem, draws: Batches) -> Any:
            return _look(chain, w, draws, None, 1.0)

        (value, grad), table = fill_table(problem, batches, start)
        return Estimate(value, grad, {}), SOXState(w, table, grad, jnp.zeros((), jnp.int32))

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: SOXState):
        count = state.count + 1

        def move(chain: Problem, draws: Batches, row: Any) -> Any:
            return _look(chain, w, draws, row[0], at(self.gamma, count))

        (value, z), table, _ = visit_table(problem, batches, state.value, move)
        grad = average(state.grad, at(self.beta, count), z)
        return Estimate(value, grad, {}), SOXState(w, table, grad, count)


def _look(chain: Problem, w: PyTree, draws: Batches, u: PyTree, gamma: Any) -> Any:
    """f and its gradient in one block, and the block's new row; the start has no old u."""
    g, f = chain.levels
    new = g.value(w, draws[0]["value"])
    u = g.project(new if u is None else average(u, gamma, new))
    _, pull_g = g.value_and_pull(w, draws[0]["grad"])
    value, pull_f = f.value_and_pull(u, draws[1]["grad"])
    return (value, pull_through([pull_g, pull_f], value)), (u, value)
