"""Block SMVR: many levels in many blocks, without a copy of the weights per block.

MSVR's correction at the innermost level, whose input w moves for every block at every step; plain STORM
at all others, whose input is the block's own tracker and rests between visits (INFERRED).

symbol   here              meaning
w_t      w                 weights
u_m^i    value[i-1][m]     running value of level i in block m; raw for i = K
p_m^i    adjoint[i-2][m]   running adjoint for i ≥ 2, estimates J_i(u^{i-1})ᵀ p^{i+1}; p^{K+1} = 1
ξ, ζ     "value", "grad"   independent draws inside a block, for values and for adjoints
v_t      grad              mean over the visited blocks of J_1(w_t; ζ)ᵀ p_m^2
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem
from nestax.errors import BELOW_ONE
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate, Trackers
from nestax.parts.plug_in import linearise
from nestax.parts.settings import Setting, at, setting
from nestax.parts.tables import fill_table, visit_table
from nestax.parts.tracking import storm, storm_of_blocks
from nestax.steps.descent import descent_beside, falling_beta


class BlockRow(eqx.Module):
    value: tuple[PyTree, ...]
    adjoint: tuple[PyTree, ...]


class BlockSMVRState(eqx.Module):
    w: PyTree
    table: BlockRow
    count: Array


class BlockSMVR(AbstractEstimator):
    """SMVR for F(w) = 1/M Σ_m f_K^m ∘ … ∘ f_1^m(w), with M values and adjoints per inner level.

        u^1 = (1−β)u^1 + β f_1(w_t; ξ) + γ'(f_1(w_t; ξ) − f_1(w_{t-1}; ξ)),   γ' = (M−B)/(B(1−β)) + 1−β
        u^i = f_i(u^{i-1}; ξ) + (1−β)(u_old^i − f_i(u_old^{i-1}; ξ)),         i ≥ 2, "old": last visit
        p^i = G_i(u^{i-1}, p^{i+1}; ζ) + (1−β)(p_old^i − G_i(u_old^{i-1}, p_old^{i+1}; ζ)),   i ≥ 2

    for the visited blocks. The adjoint of level 1 is raw: it moves with w in every block, so that
    tracking it would take a vector of the size of w per block; momentum in the step rule averages over
    blocks and draws instead. Memory per block is that of values and adjoints between the levels.

    Args:
        beta: forgetting rate in (0, 1), a number or a schedule; None means (1 + t/100)^(−2/3)/10.
        lr: η, constant if beta is given; otherwise η_0 of η_0·(1 + t/100)^(−1/3); 0.1 by default.
    """

    beta: Setting | None = setting(BELOW_ONE, default=None)
    blocks: ClassVar = "table"
    about: ClassVar = About(
        "jiang2022msvr",
        assumes="mean-squared smooth draws",
        memory="values, adjoints per block",
        certainty="an extension of MSVR to many levels; INFERRED",
    )
    passes: ClassVar = {"value": Calls(2, 0), "grad": Calls(0, 2)}
    outer_passes: ClassVar = {"grad": Calls(1, 2)}

    def level_passes(self, problem: Problem):
        if len(problem.levels) == 1:
            return ({"grad": Calls(1, 1)},)
        return ({"value": Calls(2, 0), "grad": Calls(0, 1)}, *super().level_passes(problem)[1:])

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        return {"beta": falling_beta()}

    def published_step(self, problem: Problem):
        return descent_beside(self.beta, self.lr)

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        (value, grad), table = fill_table(problem, batches, lambda chain, draws: _first(chain, w, draws))
        return Estimate(value, grad, {}), BlockSMVRState(w, table, jnp.zeros((), jnp.int32))

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: BlockSMVRState):
        blocks: Any = problem.blocks
        M = blocks.blocks
        B = blocks.visit
        keep = 1 - at(self.beta, state.count + 1)

        def move(chain: Problem, draws: Batches, row: BlockRow) -> Any:
            new = [w]
            old = [state.w, *row.value]
            for i, (level, batch) in enumerate(zip(chain.levels[:-1], draws, strict=False)):
                u = level.value(new[i], batch["value"])
                if not level.deterministic:
                    terms = u, keep, old[i + 1], level.value(old[i], batch["value"])
                    tracked = storm(*terms) if i else storm_of_blocks(*terms, M, B)
                    u = level.with_exact(tracked, u)
                new.append(level.project(u))
            values, pulls = linearise(chain, new, draws, "grad")
            adjoint = []
            p_new = p_old = jnp.ones_like(values[-1])
            for i, level in reversed(list(enumerate(chain.levels))[1:]):
                p = pulls[i](p_new)
                if not level.deterministic:
                    _, pull_old = level.value_and_pull(old[i], draws[i]["grad"])
                    p = storm(p, keep, row.adjoint[i - 1], pull_old(p_old))
                p_new = p
                p_old = row.adjoint[i - 1]
                adjoint.insert(0, p)
            row = BlockRow((*new[1:], values[-1]), tuple(adjoint))
            # Level 1 stays raw: w moves for all blocks, and adjoints would be vectors of size w.
            return (values[-1], pulls[0](p_new)), row

        (value, grad), table, _ = visit_table(problem, batches, state.table, move)
        return Estimate(value, grad, {}), BlockSMVRState(w, table, state.count + 1)

    def trackers(self, state: BlockSMVRState):
        return Trackers(state.w, state.table.value)


def _first(chain: Problem, w: PyTree, draws: Batches) -> Any:
    """Plain evaluation at the start."""
    inputs = [w]
    for level, batch in zip(chain.levels[:-1], draws, strict=False):
        inputs.append(level.project(level.value(inputs[-1], batch["value"])))
    values, pulls = linearise(chain, inputs, draws, "grad")
    adjoint = [jnp.ones_like(values[-1])]
    for pull in reversed(pulls):
        adjoint.insert(0, pull(adjoint[0]))
    return (values[-1], adjoint[0]), BlockRow((*inputs[1:], values[-1]), tuple(adjoint[1:-1]))
