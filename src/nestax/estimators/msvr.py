"""MSVR: STORM for the inner values of many blocks, with a correction for those that are not visited.

Jiang, Li, Wang, Zhang, Yang: Multi-block-single-probe variance reduced estimator for coupled
compositional optimization, NeurIPS 2022.

symbol   here             meaning
w_t      w                weights; ``before`` are those of the step before
B_t      visited blocks   all equally likely, none twice
u_i      value[0][i]      running value of g_i; moves when block i is visited
ζ        "value"          draws inside a block
γ, γ'    gamma            γ' = (M−B)/(B(1−γ)) + 1−γ
β        beta             forgetting rate of the gradient
v_t      grad             running gradient, belongs to w_{t-1}
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from nestax.chain.jacobian import pull_through
from nestax.chain.problem import Problem
from nestax.errors import UNIT, UP_TO_HALF
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate, Trackers
from nestax.parts.settings import Setting, at, setting
from nestax.parts.tables import fill_table, rows_of, visit_table, visited_in
from nestax.parts.tracking import storm, storm_of_blocks
from nestax.steps.descent import descent_beside, falling_beta


class MSVRState(eqx.Module):
    """``value``: a row per block, u and f(u) of its last visit; ``replaced``: what u was at ``visited``
    before the last step."""

    w: PyTree
    before: PyTree
    value: tuple[PyTree, Array]
    visited: Int[Array, " visit"]
    replaced: PyTree
    grad: PyTree
    count: Array


class MSVR(AbstractEstimator):
    """MSVR for F(w) = 1/M Σ_i f_i(g_i(w)).

        u_i = (1−γ)u_i + γ g_i(w_t; ζ) + γ'(g_i(w_t; ζ) − g_i(w_{t-1}; ζ))  for the visited blocks
        v_t = G_t(w_{t-1}, u_{t-1}) + (1−β)(v_{t-1} − G_t(w_{t-2}, u_{t-2}))

    with G_t(w, u) the mean over the visited blocks of J_{g_i}(w; ζ)ᵀ ∇f_i(u_i). The gradient is one step
    old, so that blocks and draws of a step are independent of the points at which they are used.

    Args:
        gamma: forgetting rate of the values in (0, 1/2], a number or a schedule; None means
            (1 + t/100)^(−2/3)/10.
        beta: forgetting rate of the gradient in (0, 1], likewise.
        lr: η, constant if beta is given; otherwise η_0 of η_0·(1 + t/100)^(−1/3); 0.1 by default.
    """

    gamma: Setting | None = setting(UP_TO_HALF, default=None)
    beta: Setting | None = setting(UNIT, default=None)
    blocks: ClassVar = "table"
    about: ClassVar = About(
        "jiang2022msvr",
        "(M/B) ε⁻³",
        "blocks, mean-squared smooth draws",
        "a value per block, one gradient",
        2,
        "BlockSMVR",
    )
    passes: ClassVar = {"value": Calls(3, 2)}
    lag: ClassVar = 1

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        return {"gamma": falling_beta(), "beta": falling_beta()}

    def published_step(self, problem: Problem):
        return descent_beside(self.beta, self.lr)

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        def start(chain: Problem, draws: Batches) -> Any:
            u = chain.levels[0].project(chain.levels[0].value(w, draws[0]["value"]))
            _, value, grad = _product(chain, w, u, draws)
            return (value, grad), (u, value)

        (value, grad), table = fill_table(problem, batches, start)
        blocks: Any = problem.blocks
        first = jnp.arange(blocks.visit)
        count = jnp.zeros((), jnp.int32)
        replaced = rows_of(problem, table[0], first)
        return Estimate(value, grad, {}), MSVRState(w, w, table, first, replaced, grad, count)

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: MSVRState):
        blocks: Any = problem.blocks
        count = state.count + 1
        visited = visited_in(batches)
        keep = 1 - at(self.gamma, count)

        def move(chain: Problem, draws: Batches, row: Any, block: Array) -> Any:
            g, f = chain.levels
            hit = state.visited == block
            # A block that was visited at the last step had another u then.
            u_before = jax.tree.map(
                lambda r, u: jnp.where(hit.any(), r[jnp.argmax(hit)], u), state.replaced, row[0]
            )
            g_old, _, head = _product(chain, state.w, row[0], draws)
            tail = _product(chain, state.before, u_before, draws)[2]
            g_new = g.value(w, draws[0]["value"])
            u = storm_of_blocks(g_new, keep, row[0], g_old, blocks.blocks, blocks.visit)
            # What g hands on without noise is known exactly, whatever was tracked.
            u = g.project(g.with_exact(u, g_new))
            value = f.value(u, draws[1]["value"])
            return (value, head, tail), (u, value)

        means, table, replaced = visit_table(problem, batches, state.value, move, visited)
        value, head, tail = means
        grad = storm(head, 1 - at(self.beta, count), state.grad, tail)
        state = MSVRState(w, state.w, table, visited, replaced[0], grad, count)
        return Estimate(value, grad, {}), state

    def trackers(self, state: MSVRState):
        return Trackers(state.before, state.value)


def _product(chain: Problem, w: PyTree, u: PyTree, draws: Batches) -> tuple[PyTree, Array, PyTree]:
    """g(w), f(u) and J_g(w)ᵀ ∇f(u) in one block."""
    inner, pull_g = chain.levels[0].value_and_pull(w, draws[0]["value"])
    value, pull_f = chain.levels[1].value_and_pull(u, draws[1]["value"])
    return inner, value, pull_through([pull_g, pull_f], value)
