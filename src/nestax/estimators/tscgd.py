"""T-SCGD and its accelerated form A-TSCGD: one moving average per level, each on its own time scale.

Yang, Wang, Fang: Multilevel stochastic gradient methods for nested composition optimization, SIAM
J. Optim. 2019. The exponents for K > 2 are derived from the published rates, not read (INFERRED).

symbol    here             meaning
x_k       w                weights
y_k^i     value[i-1]       moving average of level i, i = 1..K-1
z_k^i     point            query point of level i, extrapolated by 1/β in A-TSCGD
ω′, ω     "value", "grad"  independent draws for values and derivatives
β_{i,k}   beta             forgetting rate of level i
"""

import functools
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import pull_through
from nestax.chain.problem import Problem
from nestax.errors import UNIT
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate
from nestax.parts.plug_in import linearise
from nestax.parts.settings import Setting, at, per_level, scaled, setting
from nestax.parts.tracking import average
from nestax.steps import Descent


class TSCGDState(eqx.Module):
    w: PyTree
    value: tuple[PyTree, ...]
    count: Array


def basic_beta(count: Array, levels: int) -> Array:
    """T-SCGD: k^{-(1−2^{i−K})} for i = 1..K with k = count + 1; the last entry is never used."""
    return (count + 1.0) ** (2.0 ** (np.arange(1, levels + 1) - levels) - 1)


def published_beta(k: Array, levels: int) -> Array:
    """A-TSCGD: min(1, 2·k^{-(3+K-i)/(7+K)}) for i = 1..K; the last entry is never used."""
    return jnp.minimum(1, 2 * k ** -((3 + levels - np.arange(1, levels + 1)) / (7 + levels)))


class TSCGD(AbstractEstimator):
    """Basic T-SCGD; for two levels SCGD, but for draws of their own for the derivatives.

        y_k^i = (1−β_{i,k}) y_{k-1}^i + β_{i,k} f_i(y_k^{i-1}; ω′),   y^0 = x
        v_k   = J_1(x_k; ω)ᵀ J_2(y_k^1; ω)ᵀ ⋯ J_K(y_k^{K-1}; ω)ᵀ

    Args:
        beta: forgetting rates in (0, 1]: one number, one per level, or a schedule; None: ``basic_beta``.
        exact_levels: evaluate deterministic levels exactly; False averages them too, as published.
        lr: α_1 of α_k = α_1·k^{-(1−2^{-K})}; 1 by default.
    """

    beta: Setting | None = setting(UNIT, default=None)
    exact_levels: bool = eqx.field(default=True, static=True)
    betas: ClassVar = staticmethod(basic_beta)
    first_lr: ClassVar = 1.0
    exponent: ClassVar = staticmethod(lambda K: 1 - 2.0**-K)
    about: ClassVar = About("yang2019tscgd", "ε^-2^(K+1)", certainty="exponents for K > 2 are INFERRED")
    passes: ClassVar = {"value": Calls(1, 0), "grad": Calls(0, 1)}
    outer_passes: ClassVar = {"grad": Calls(0, 1)}

    def published(self, problem: Problem, sizes: tuple[int, ...]):
        return {"beta": functools.partial(self.betas, levels=len(problem.levels))}

    def published_step(self, problem: Problem):
        exponent = self.exponent(len(problem.levels))
        return Descent(scaled(self.lr, self.first_lr, lambda count: (count + 1.0) ** -exponent))

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        inner = []
        x = w
        for level, batch in zip(problem.levels[:-1], batches, strict=False):
            x = level.project(level.value(x, batch["value"]))
            inner.append(x)
        return self._read(problem, w, inner, batches, jnp.zeros((), jnp.int32))

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: TSCGDState):
        count = state.count + 1
        beta = at(self.beta, count)
        inner = []
        new = w
        old = state.w
        for i, level in enumerate(problem.levels[:-1]):
            rate = per_level(beta, i, len(problem.levels))
            if level.deterministic and self.exact_levels:
                y = level.value(new, None)
            else:
                point = self.query_point(problem, i, new, old, rate)
                y = average(state.value[i], rate, level.value(point, batches[i]["value"]))
            new = level.project(y)
            old = state.value[i]
            inner.append(new)
        return self._read(problem, w, inner, batches, count)

    def query_point(self, problem: Problem, i: int, new: PyTree, old: PyTree, rate: Array) -> PyTree:
        return new

    def _read(self, problem: Problem, w: PyTree, inner: list, batches: Batches, count: Array):
        values, pulls = linearise(problem, (w, *inner), batches, "grad")
        state = TSCGDState(w, (*inner, problem.levels[-1].project(values[-1])), count)
        return Estimate(state.value[-1], pull_through(pulls, values[-1]), {}), state


class ATSCGD(TSCGD):
    """A-TSCGD: as ``TSCGD``, with level i queried at an extrapolated point.

        z_k^i = (1 − 1/β_{i,k}) y_{k-1}^{i-1} + (1/β_{i,k}) y_k^{i-1}

    Extrapolation leaves every set; where the range of level i−1 is known, z is moved back into it.

    Args:
        beta, exact_levels: as for ``TSCGD``; None means ``published_beta``.
        lr: α_0 of α_k = α_0·k^{-(3+K)/(7+K)}; 0.3 by default.
    """

    about: ClassVar = TSCGD.about._replace(rate="ε^-(7+K)/2")
    betas: ClassVar = staticmethod(published_beta)
    first_lr: ClassVar = 0.3
    exponent: ClassVar = staticmethod(lambda K: (3 + K) / (7 + K))

    def query_point(self, problem: Problem, i: int, new: PyTree, old: PyTree, rate: Array):
        # Extrapolated by 1/β: the average of queries at z then follows the input to first order.
        z = jax.tree.map(lambda n, o: o + (n - o) / rate, new, old)
        return z if i == 0 else problem.levels[i - 1].project(z)
