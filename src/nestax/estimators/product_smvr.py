"""PMVR and product SMVR: values by STORM, and one STORM estimate of the whole product of Jacobians.

Jiang et al.: Projection-free variance reduction methods for stochastic constrained multi-level
compositional optimization, ICML 2024. Product SMVR is the same estimator with the batch averages of
the levels multiplied, for any step. Both take draws that keep the product unbiased; as printed, PMVR
builds u_t^i from the draws that enter the product too, which is ``mode="reuse"``.

symbol   here                       meaning
u_t^i    inputs[i], last            running value of level i
v_t      grad                       running product, estimates J_1ᵀ⋯J_Kᵀ along the tracked values
ζ_t^i    batch["value" or "grad"]   draws of the backward pass, see `mode`
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem
from nestax.errors import POSITIVE, UNIT
from nestax.parts import matrix_free
from nestax.parts.estimator import About, AbstractEstimator, Batches, Estimate, Trackers
from nestax.parts.settings import Number, Setting, at, choice, scaled, setting
from nestax.parts.step_rule import AbstractStep
from nestax.parts.tracking import storm
from nestax.steps import FrankWolfe
from nestax.steps.descent import descent_beside, falling_beta


class ProductState(eqx.Module):
    """``inputs`` are (w, u^1, …, u^{K-1}); ``before`` are those of the step before, where it lags."""

    inputs: tuple[PyTree, ...]
    before: tuple[PyTree, ...] | None
    last: Array
    grad: PyTree
    count: Array


class ProductSMVR(AbstractEstimator):
    """Matrix-free SMVR with one estimator for the whole product.

        v_t = Π[ ∏J_i(u_t^{i-1}; ζ) + (1−β)(v_{t-1} − ∏J_i(u_{t-1}^{i-1}; ζ)) ]

    The least memory of the family; its noise is that of a product of K noisy Jacobians.

    Args:
        beta: forgetting rate in (0, 1], a number or a schedule; None as for ``SMVR``.
        mode: "lagged", "fresh" or "reuse", which is biased; see ``nestax.parts.matrix_free``.
        radius: ball that holds v; None for none.
        per_draw: form the product draw by draw and average; needs one batch size for all levels.
    """

    beta: Setting | None = setting(UNIT, default=None)
    mode: str = choice(*matrix_free.MODES, default="lagged")
    radius: Number | None = setting(POSITIVE, default=None)
    per_draw: bool = eqx.field(default=False, static=True)
    about: ClassVar = About(
        "jiang2024pmvr",
        "ε⁻³",
        "mean-squared smooth draws",
        "values, one gradient",
        certainty="PMVR with averages multiplied and any step; INFERRED",
    )
    passes: ClassVar[Any] = property(lambda self: matrix_free.passes_of(self.mode))
    lag: ClassVar[Any] = property(lambda self: 1 if self.mode == "lagged" else 0)

    def published(self, problem: Problem, sizes: tuple[int, ...]) -> dict[str, Setting]:
        return {"beta": falling_beta()}

    def published_step(self, problem: Problem) -> AbstractStep:
        return descent_beside(self.beta, self.lr)

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        size = matrix_free.draws_in(batches) if self.per_draw else None
        forward = matrix_free.first_forward(problem, w, batches, self.mode, size)
        grad = matrix_free.mean_of_products(forward.heads, forward.last, size)
        return self._read(forward, forward.inputs, grad, jnp.zeros((), jnp.int32))

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: ProductState):
        keep = 1 - at(self.beta, state.count + 1)
        size = matrix_free.draws_in(batches) if self.per_draw else None
        forward = matrix_free.track_forward(problem, w, batches, self.mode, keep, state, size)
        new = matrix_free.mean_of_products(forward.heads, forward.last, size)
        old = matrix_free.mean_of_products(forward.tails, forward.last, size)
        return self._read(forward, state.inputs, storm(new, keep, state.grad, old), state.count + 1)

    def _read(self, forward: matrix_free.Forward, before: tuple, grad: PyTree, count: Array):
        if self.radius is not None:
            size = optax.tree.norm(grad)
            grad = optax.tree.scale(jnp.where(size > self.radius, self.radius / size, 1.0), grad)
        older = before if self.lag else None
        state = ProductState(forward.inputs, older, forward.last, grad, count)
        return Estimate(forward.last, grad, {}), state

    def trackers(self, state: ProductState):
        w = state.inputs[0] if state.before is None else state.before[0]
        return Trackers(w, (*state.inputs[1:], state.last))


class PMVR(ProductSMVR):
    """PMVR: the product formed draw by draw, and a Frank-Wolfe step.

    Args:
        beta: forgetting rate in (0, 1], a number or a schedule; None means T^{-2/3} over T steps.
        mode, radius: as for ``ProductSMVR``.
        per_draw: True as published; False multiplies the averages, with less variance.
        lr: the Frank-Wolfe step η as a multiple of T^{-2/3}; 1 by default.
    """

    per_draw: bool = eqx.field(default=True, static=True)
    about: ClassVar = ProductSMVR.about._replace(
        certainty='as published with mode="reuse"; the draws lag by default'
    )

    def published(self, problem: Problem, sizes: tuple[int, ...]) -> dict[str, Setting]:
        return {"beta": lambda count, steps: steps ** (-2 / 3)}

    def published_step(self, problem: Problem):
        return FrankWolfe(scaled(self.lr, 1.0, lambda count, steps: steps ** (-2 / 3)))
