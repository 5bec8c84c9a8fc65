"""STORM: variance reduction without restarts for one level, with its adaptive learning rate.

Cutkosky, Orabona: Momentum-based variance reduction in non-convex SGD, NeurIPS 2019.

symbol   here         meaning
x_t      w            weights
d_t      grad         running gradient
G_t      –            norm of the sampled gradient at x_t; its squares add up in ``total``
η_t      aux["rate"]  k/(w + Σ_{s≤t} G_s²)^{1/3}
a_t      –            c·η_{t-1}², at most 1
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.problem import Problem
from nestax.errors import POSITIVE
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate, Trackers
from nestax.parts.plug_in import value_and_gradient
from nestax.parts.settings import Number, at, setting
from nestax.parts.tracking import storm
from nestax.steps import Suggested


class STORMState(eqx.Module):
    w: PyTree
    value: Array
    grad: PyTree
    total: Array
    count: Array


class STORM(AbstractEstimator):
    """STORM for F = E f(w; ξ).

        d_t = ∇f(x_t; ξ_t) + (1−a_t)(d_{t-1} − ∇f(x_{t-1}; ξ_t)),   x_{t+1} = x_t − η_t d_t

    The value is tracked with the same weights.

    Args:
        c: momentum factor of a_t = c·η_{t-1}².
        offset: w of the learning rate, positive.
        lr: k of the learning rate; 0.1 by default.
    """

    c: Number = setting(POSITIVE, default=10.0)
    offset: Number = setting(POSITIVE, default=0.1)
    about: ClassVar = About(
        "cutkosky2019storm", "ε⁻³", "smooth draws, bounded gradients", "one gradient", 1, "SMVR"
    )
    passes: ClassVar = {"value": Calls(2, 2)}

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        return {"lr": 0.1}

    def published_step(self, problem: Problem):
        return Suggested()

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        value, grad = value_and_gradient(problem, w, batches)
        return self._read(w, value, grad, _squared(grad), jnp.zeros((), jnp.int32))

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: STORMState):
        # a_t follows from the gradients up to the step before, so it knows nothing of this step's draw.
        keep = 1 - jnp.minimum(1, self.c * self._rate(state.total, state.count) ** 2)
        keep = keep.astype(state.value.dtype)
        new = value_and_gradient(problem, w, batches)
        old = value_and_gradient(problem, state.w, batches)
        value, grad = storm(new, keep, (state.value, state.grad), old)
        total = state.total + _squared(new[1])
        return self._read(w, problem.levels[0].project(value), grad, total, state.count + 1)

    def _rate(self, total: Array, count: Array) -> Array:
        return at(self.lr, count) / jnp.cbrt(self.offset + total)

    def _read(self, w: PyTree, value: Array, grad: PyTree, total: Array, count: Array):
        state = STORMState(w, value, grad, total, count)
        return Estimate(value, grad, {"rate": self._rate(total, count).astype(value.dtype)}), state

    def trackers(self, state: STORMState):
        return Trackers(state.w, (state.value,))


def _squared(grad: PyTree) -> Array:
    """‖∇f‖², in single precision at least: half has no room for the sum of many."""
    return optax.tree.norm(trees.as_average(grad), squared=True)
