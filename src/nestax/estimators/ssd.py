"""SSD: stochastic sequential dual, for chains of convex monotone levels. A RECONSTRUCTION (INFERRED).

After Zhang, Lan: Optimal algorithms for convex nested stochastic composite optimization, Math. Program.
2024. The paper's idea, dual steps in the Bregman distance of each f_i*, reads in primal form "average
the query point, then take value and Jacobian there"; its text was not available, so schedules and
details are ours.

symbol   here             meaning
x_t      w                weights
m^i      query[i]         query point of level i
ỹ^i      y                linearised value handed to level i+1; ỹ^0 is the extrapolated x
ξ, ζ     "value", "grad"  independent draws for the forward and the backward pass
θ_t, τ_t –                (t−1)/t, (t−1)/2
η_t      1/lr_t           2L/t + s√N, L = 1/lr, s = noise
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from nestax.chain.convexity import refuse_unless_convex_and_monotone
from nestax.chain.jacobian import pull_through
from nestax.chain.problem import Problem
from nestax.errors import NONNEGATIVE
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate, Trackers
from nestax.parts.plug_in import linearise
from nestax.parts.settings import Number, Schedule, setting
from nestax.steps import Descent


class SSDState(eqx.Module):
    w: PyTree
    query: tuple[PyTree, ...]
    count: Array


class SSD(AbstractEstimator):
    """SSD, reconstructed.

        ỹ^0 = x_t + θ_t (x_t − x_{t-1})
        m^i = (τ_t m^i + ỹ^{i-1})/(1 + τ_t),   ỹ^i = f_i(m^i; ξ) + J_i(m^i; ξ)(ỹ^{i-1} − m^i)
        v_t = J_1(m^1; ζ)ᵀ ⋯ J_K(m^K; ζ)ᵀ

    Needs convex levels, all but the innermost non-decreasing in every input that is not affine in w.
    The output is the average of the iterates with weights t.

    Args:
        noise: s ≥ 0, scale of the noise in the gradient.
        lr: 1/L, the inverse of the smoothness of F; 1 by default.
    """

    noise: Number = setting(NONNEGATIVE, default=0.1)
    output: ClassVar = "weighted"
    about: ClassVar = About(
        "zhang2024ssd",
        "F − F* ≤ ε: ε⁻²",
        "convex monotone levels",
        "query points",
        certainty="a reconstruction; the paper was not read",
    )
    passes: ClassVar = {"value": Calls(1, 1), "grad": Calls(0, 1)}
    outer_passes: ClassVar = {"grad": Calls(0, 1)}

    def check(self, problem: Problem):
        super().check(problem)
        refuse_unless_convex_and_monotone(problem, "SSD", self.about.instead)

    def published_step(self, problem: Problem):
        if callable(self.lr):
            return Descent(self.lr)
        return Descent(Schedule(Rate(jnp.asarray(1.0 if self.lr is None else self.lr), self.noise)))

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        query = tuple(level.shape.inputs.structs() for level in problem.levels)
        # Their weight is 0 at t = 1, where τ_1 = 0: the first query points are the inputs themselves.
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), query)
        return self.update(problem, w, batches, SSDState(w, zeros, jnp.zeros((), jnp.int32)))

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: SSDState):
        t = (state.count + 1).astype(problem.dtype)
        theta = (t - 1) / t
        share = 2 / (t + 1)  # share = 1/(1 + τ_t)
        y = jax.tree.map(lambda new, old: new + theta * (new - old), w, state.w)
        query = []
        for i, level in enumerate(problem.levels):
            m = jax.tree.map(lambda m, y: m + share * (y - m), state.query[i], y)
            query.append(m)
            if i < len(problem.levels) - 1:
                f, push, _ = level.value_and_maps(m, batches[i]["value"])
                y = level.project(jax.tree.map(jnp.add, f, push(optax.tree.sub(y, m))))
        values, pulls = linearise(problem, query, batches, "grad")
        state = SSDState(w, tuple(query), state.count + 1)
        return Estimate(values[-1], pull_through(pulls, values[-1]), {}), state

    def trackers(self, state: SSDState):
        return Trackers(state.w)


class Rate(eqx.Module):
    """1/η_t at t = count + 1, with η_t = 2L/t + s√N over N steps."""

    lr: Array
    noise: Number

    def __call__(self, count: Array, steps: Array) -> Array:
        return 1 / (2 / (self.lr * (count + 1)) + self.noise * steps**0.5)
