"""What an adversary may do to the shares p of rows or groups, as a minimum over a dual variable.

    sup_q E_q ℓ − λ₀·D(q‖p)  over  D(q‖p) ≤ ρ   =   min over dual of outer(E_p inner(ℓ, dual), dual)

Without a radius ρ the penalty λ₀ alone keeps q near p. With one, and λ₀ → 0, this is the ball alone; the
penalty lowers it by at most λ₀ρ, and keeps derivatives bounded.

A divergence has five methods: ``start``, itself and its dual variables for losses at the start of a run;
``inner``, ``outer``; ``onto``, the range of E inner; ``feasible``, the projection of the dual variables.
"""

import math
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nestax.errors import BELOW_ONE, ProblemError, check_setting
from nestax.problems.tilted.tilting import (
    largest_exponent,
    least_exponent,
    nonnegative,
    tilted,
    tilted_mean,
    untilted,
)

Dual = dict[str, Array]


def _check(name: str, value: Any) -> None:
    number = math.nan if value is None or callable(value) else value
    check_setting(name, number, "positive and finite", lambda x: (x > 0) & (x < np.inf))


class AbstractDivergence(eqx.Module):
    """How far shares may move, and what it costs."""

    def start(self, losses: Array, share: Array) -> tuple["AbstractDivergence", Dual]:
        """This divergence for losses of this size, and dual variables to start from."""
        raise NotImplementedError

    def inner(self, loss: Array, dual: Dual) -> Array:
        raise NotImplementedError

    def outer(self, u: Array, dual: Dual) -> Array:
        raise NotImplementedError

    def onto(self, u: Array, dual: Dual) -> Array:
        """Returns the nearest value that E inner can have, for losses of at least 0."""
        del dual
        return nonnegative(u)

    def feasible(self, dual: Dual) -> Dual:
        return dual

    def risk(self, losses: Array, share: Array, dual: Dual) -> Array:
        """outer(Σ p inner(ℓ, dual), dual), for the losses of all rows or groups."""
        return self.outer(share @ self.inner(losses, dual), dual)


class KL(AbstractDivergence):
    """D(q‖p) = E_q log(q/p); the dual variable is the scale λ ≥ λ₀, if there is a radius.

        inner(ℓ, λ) = e^{(ℓ − c)/λ}          outer(u, λ) = λ·log u + c + (λ − λ₀)·ρ

    The worst shares are q ∝ p·e^{ℓ/λ}. Without a radius λ = λ₀ and there is no dual variable: that is
    ``nx.problems.term`` with a tilt of 1/λ₀. The reference c changes nothing but the scale of u.

    Qi, Lyu, Chan, Bai, Yang: Stochastic constrained DRO with a complexity independent of sample size,
    TMLR 2023.

    Args:
        penalty: λ₀, positive, in units of the loss.
        radius: ρ, positive; None for the penalty alone.
    """

    penalty: Any
    radius: Any = None
    #: c, set by ``start``.
    reference: Any = 0.0

    def __check_init__(self):
        _check("penalty", self.penalty)
        if self.radius is not None:
            _check("radius", self.radius)

    def start(self, losses: Array, share: Array) -> tuple["KL", Dual]:
        scale = self.penalty
        if self.radius is not None:
            # λ = √(Var ℓ/2ρ) for a small ρ. The second moment is larger, so that exponents start small.
            scale = jnp.maximum(scale, jnp.sqrt(share @ losses**2 / (2 * self.radius)))
        risk = tilted_mean(losses, 1 / scale, share)
        # e^{−c/λ} can be represented for all λ.
        reference = jnp.minimum(risk, -least_exponent(losses.dtype) * self.penalty)
        if bool((risk - reference) / scale > largest_exponent(losses.dtype)):
            raise ProblemError(
                f"losses of {risk:.3g} at the start are too large for a penalty of {self.penalty:g} in "
                f"{losses.dtype}: raise the penalty, scale the targets, or choose another w0."
            )
        return KL(self.penalty, self.radius, reference), {} if self.radius is None else {"scale": scale}

    def inner(self, loss: Array, dual: Dual) -> Array:
        return tilted(loss, 1 / self._scale(dual), self.reference)

    def outer(self, u: Array, dual: Dual) -> Array:
        scale = self._scale(dual)
        return untilted(u, 1 / scale, self.reference) + self._price(scale)

    def onto(self, u: Array, dual: Dual) -> Array:
        return jnp.maximum(u, jnp.exp(-self.reference / self._scale(dual)))

    def feasible(self, dual: Dual) -> Dual:
        return jax.tree.map(lambda scale: jnp.maximum(scale, self.penalty), dual)

    def risk(self, losses: Array, share: Array, dual: Dual) -> Array:
        scale = self._scale(dual)
        return tilted_mean(losses, 1 / scale, share) + self._price(scale)

    def _scale(self, dual: Dual) -> Array:
        return dual["scale"] if "scale" in dual else jnp.asarray(self.penalty)

    def _price(self, scale: Array) -> Array | Literal[0]:
        return 0 if self.radius is None else (scale - self.penalty) * self.radius


class ChiSquare(AbstractDivergence):
    """D(q‖p) = E_p (q/p − 1)²/2; the dual variable is a threshold a, below which losses count nothing.

        inner(ℓ, a) = max(ℓ − a, 0)²          outer(u, a) = a + min over λ of u/2λ + λ/2 + (λ − λ₀)·ρ

    where λ ≥ λ₀, or λ = λ₀ without a radius. The worst shares are q ∝ p·max(ℓ − a, 0). For λ₀ → 0 the
    second is a + √((1 + 2ρ)·u).

    Duchi, Namkoong: Learning models with uniform performance via distributionally robust optimization,
    Annals of Statistics 2021.

    Args:
        penalty: λ₀, positive, in units of the loss.
        radius: ρ, positive; None for the penalty alone.
    """

    penalty: Any
    radius: Any = None

    def __check_init__(self):
        _check("penalty", self.penalty)
        if self.radius is not None:
            _check("radius", self.radius)

    def start(self, losses: Array, share: Array) -> tuple["ChiSquare", Dual]:
        mean = share @ losses
        gap = jnp.asarray(self.penalty)
        if self.radius is not None:
            variance = share @ (losses - mean) ** 2
            gap = jnp.maximum(gap, jnp.sqrt(variance / (2 * self.radius)))
        return self, {"threshold": mean - gap}  # the best one, if no loss lies below it

    def inner(self, loss: Array, dual: Dual) -> Array:
        return jnp.maximum(loss - dual["threshold"], 0) ** 2

    def outer(self, u: Array, dual: Dual) -> Array:
        if self.radius is None:
            return dual["threshold"] + u / (2 * self.penalty) + self.penalty / 2
        # At least λ₀² under the root: at u = 0 its derivative would be infinite.
        best = jnp.sqrt(jnp.maximum(u / (1 + 2 * self.radius), self.penalty**2))
        price = best / 2 + (best - self.penalty) * self.radius
        return dual["threshold"] + u / (2 * best) + price


class CVaR(AbstractDivergence):
    """q ≤ p/tail: the mean loss over the worst share of the rows; the dual variable is a threshold a.

        inner(ℓ, a) = h·log(1 + e^{(ℓ − a)/h}) ≈ max(ℓ − a, 0)          outer(u, a) = a + u/tail

    The smoothing of width h raises the value by at most h·log(2)/tail. No level of it is curved, so that
    any stochastic gradient is unbiased: memory makes it less noisy, and nothing else.

    Rockafellar, Uryasev: Optimization of conditional value-at-risk, Journal of Risk 2000.

    Args:
        tail: in (0, 1), the share of the rows that counts.
        width: h, positive, in units of the loss.
    """

    tail: Any
    width: Any = 0.01

    def __check_init__(self):
        _check("tail", self.tail)
        check_setting("tail", self.tail, *BELOW_ONE)
        _check("width", self.width)

    def start(self, losses: Array, share: Array) -> tuple["CVaR", Dual]:
        order = jnp.argsort(-losses)
        beyond = jnp.searchsorted(jnp.cumsum(share[order]), self.tail)
        return self, {"threshold": losses[order][jnp.minimum(beyond, len(losses) - 1)]}

    def inner(self, loss: Array, dual: Dual) -> Array:
        return self.width * jax.nn.softplus((loss - dual["threshold"]) / self.width)

    def outer(self, u: Array, dual: Dual) -> Array:
        return dual["threshold"] + u / self.tail
