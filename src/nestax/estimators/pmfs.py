"""PMFS: STORM with snapshots on the values and on the whole product, finite populations.

Jiang et al.: Projection-free variance reduction methods for stochastic constrained multi-level
compositional optimization, ICML 2024, journal version.

symbol   here           meaning
x_t      w              weights
u_t^i    inputs, last   running value of level i
v_t      grad           running product, estimates J_1ᵀ⋯J_Kᵀ along the tracked values
s        at, full       last snapshot: inputs of all levels there, population values and product
I        period         steps between snapshots
"""

from typing import ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import pull_through
from nestax.chain.problem import Problem
from nestax.errors import UNIT
from nestax.parts.estimator import About, Batches, Calls, Estimate, Trackers
from nestax.parts.plug_in import linearise, plug_in
from nestax.parts.restarts import Snapshots
from nestax.parts.settings import Setting, at, scaled, setting
from nestax.steps import FrankWolfe


class PMFSState(eqx.Module):
    """``inputs`` are (w, u^1, …, u^{K-1}); ``full`` are the population values and their product."""

    inputs: tuple[PyTree, ...]
    last: Array
    grad: PyTree
    at: tuple[PyTree, ...]
    full: tuple[tuple[PyTree, ...], PyTree]
    count: Array


class PMFS(Snapshots):
    """PMFS: STORM with snapshots, on the values and on the product of all Jacobians.

    With g a level's value, or the product P of all batch Jacobians,

        h_t = g(u_t; ξ) − g(u_s; ξ) + ḡ(u_s)
        tracked = (1−β)·tracked + β·h_t + (1−β)(g(u_t; ξ) − g(u_{t-1}; ξ))

    At a snapshot all trackers become exact. Value and product share their draws, as published.

    Args:
        beta: forgetting rate in (0, 1].
        period: steps between snapshots; None means one pass of mini-batches over the rows.
        lr: the Frank-Wolfe step η as a multiple of T^{-1/2}; 1 by default.
    """

    beta: Setting = setting(UNIT, default=0.01)
    about: ClassVar = About(
        "jiang2024pmvr",
        "√n ε⁻²",
        "finite populations",
        "values and one gradient, twice",
        instead="PMVR",
        finite=True,
        sampled="PMVR",
        certainty="the form of the product's snapshot is INFERRED",
    )
    passes: ClassVar = {"value": Calls(3, 3)}

    def published_step(self, problem: Problem):
        return FrankWolfe(scaled(self.lr, 1.0, lambda count, steps: steps ** (-1 / 2)))

    def restart(self, problem: Problem, w: PyTree, batches: Batches, count: Array):
        value, pulls = plug_in(problem, w, batches)
        inputs = (w, *value[:-1])
        grad = pull_through(pulls, value[-1])
        state = PMFSState(inputs, value[-1], grad, inputs, (tuple(value), grad), count)
        return Estimate(value[-1], grad, {}), state

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: PMFSState):
        beta = at(self.beta, state.count + 1)

        def track(new, old, snapshot, full, tracked):
            h = new - snapshot + full
            return (1 - beta) * (tracked + new - old) + beta * h

        tracked = (*state.inputs[1:], state.last)
        f_old, pull_old = linearise(problem, state.inputs, batches, "value")
        f_at, pull_at = linearise(problem, state.at, batches, "value")
        x = w
        value = []
        pull_new = []
        for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
            x, pull = level.value_and_pull(x, batch["value"])
            if not level.deterministic:
                x = jax.tree.map(track, x, f_old[i], f_at[i], state.full[0][i], tracked[i])
            x = level.project(x)
            value.append(x)
            pull_new.append(pull)
        new, old, at_snapshot = (pull_through(p, x) for p in (pull_new, pull_old, pull_at))
        grad = jax.tree.map(track, new, old, at_snapshot, state.full[1], state.grad)
        count = state.count + 1
        state = PMFSState((w, *value[:-1]), x, grad, state.at, state.full, count)
        return Estimate(x, grad, {}), state

    def trackers(self, state: PMFSState):
        return Trackers(state.inputs[0], (*state.inputs[1:], state.last))
