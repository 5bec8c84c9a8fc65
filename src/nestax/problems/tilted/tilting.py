"""Tilted means as two levels of a chain, at any tilt, without overflow.

    R_t(x) = (1/t)·log E e^{tx} = untilted(E tilted(x)),     R_0(x) = E x

tilted     x ↦ e^{t(x − c)}          averaged, so it may be stochastic
untilted   u ↦ log(u)/t + c          deterministic

The mean grows with t: from the least x (t → −∞) over the average (t = 0) to the largest (t → ∞). The
reference c changes nothing but the scale of u; it is the tilted mean at the start, so that u is 1 there.
Tilt and reference are arguments of the levels. A tilt of 0 has none: both maps are then the identity.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from nestax.chain.problem import Problem
from nestax.errors import ProblemError, SettingError, is_traced

#: The two levels that a tilt belongs to, by the name of the setting.
LEVELS = {
    "tilt": ("losses", "risk"),
    "inner_tilt": ("losses", "group_risks"),
    "outer_tilt": ("groups", "risk"),
}


def largest_exponent(dtype: Any) -> float:
    """Half the logarithm of the largest number: the other half is room for what multiplies e^x."""
    return math.log(float(jnp.finfo(dtype).max)) / 2


def least_exponent(dtype: Any) -> float:
    """Logarithm of a number that can be multiplied by one of a thousandth and keep its digits.

    At the least number itself an exponential comes out as 0, and its logarithm is infinite.
    """
    return math.log(float(jnp.finfo(dtype).tiny) * 2**10)


def tilted(x: Array, *tilt: Array) -> Array:
    """e^{t(x − c)}, continued along its tangent where it would come near the largest number.

    The continuation is increasing, convex and smooth, so that a run that gets there finds its way back.
    """
    if not tilt:
        return x
    t, c = tilt
    exponent = t * (x - c)
    most = largest_exponent(x.dtype)
    # Cut inside of the exponential: an infinite one times 0 would make the derivative NaN.
    return jnp.exp(jnp.minimum(exponent, most)) * (1 + jnp.maximum(exponent - most, 0))


def untilted(u: Array, *tilt: Array) -> Array:
    """log(u)/t + c."""
    if not tilt:
        return u
    t, c = tilt
    return jnp.log(u) / t + c


def tilted_mean(x: Array, t: Array | float | None, share: Array | None = None) -> Array:
    """(1/t)·log Σ p e^{tx} over all entries; t None is t = 0, p None is equal shares."""
    share = jnp.full(x.shape, 1 / x.size, x.dtype) if share is None else share
    return share @ x if t is None else jax.nn.logsumexp(t * x, b=share) / t


class TiltedRange(eqx.Module):
    """Projection onto the values that E e^{t(x − c)} can take for x ≥ 0.

    For t > 0 these are the numbers from e^{−tc} on. For t < 0 they lie between 0 and e^{−tc}; as the
    logarithm's slope has no bound there, they are kept above ``floor`` times the value at the start.
    """

    t: Array
    c: Array
    start: Array
    floor: Array

    def __call__(self, u: Array) -> Array:
        at_zero = jnp.exp(-self.t * self.c)
        least = self.floor * jnp.exp(self.t * (self.start - self.c))
        rising = self.t > 0
        return jnp.clip(u, jnp.where(rising, at_zero, least), jnp.where(rising, jnp.inf, at_zero))


def nonnegative(x: Array) -> Array:
    return jnp.maximum(x, 0)


class Tilt(eqx.Module):
    """Arguments of the two levels of one tilt, and the range of the first; no arguments for t = 0."""

    args: tuple[Array, ...]
    range: Any

    @property
    def t(self) -> Array | None:
        return self.args[0] if self.args else None


def check_tilt(name: str, t: Any) -> float | None:
    """Returns a finite number, as a Python float; None for 0."""
    try:
        value = float("nan" if isinstance(t, str) else t)
    except TypeError:
        value = float("nan")
    if not math.isfinite(value):
        raise SettingError(
            f"{name} must be a finite number; got {t!r}. To range over it in a sweep use "
            "nx.problems.with_tilts."
        )
    return value or None


def make_tilt(t: float | None, start: Array, floor: float) -> Tilt:
    """Returns the tilt t for a mean, or several, that is ``start`` at the start of a run.

    c is ``start``, or less, so that e^{t(x − c)} can be represented from x = 0 on.
    """
    if isinstance(floor, str) or not 0 < floor < 1:
        raise SettingError(f"floor must be in (0, 1); got {floor!r}.")
    if t is None:
        return Tilt((), nonnegative)
    most = largest_exponent(start.dtype)
    least = least_exponent(start.dtype)
    c = jnp.minimum(start, (most if t < 0 else -least) / abs(t))
    exponent = t * (start - c)
    if bool(jnp.any((exponent > most) | (exponent + math.log(floor) < least))):
        raise ProblemError(
            f"losses of {jnp.max(start):.3g} at the start are too large for a tilt of {t:g} in "
            f"{start.dtype}: scale the targets, choose another w0, or a tilt nearer to 0."
        )
    number = jnp.asarray(t, start.dtype)
    return Tilt((number, c), TiltedRange(number, c, start, jnp.asarray(floor, start.dtype)))


def with_tilts(problem: Problem, **tilts: Any) -> Problem:
    """Returns a copy of a tilted problem with other tilts, in its levels and in its closed form.

    The tilts may be traced, so that ``build`` of a sweep can range over them without compiling again:
    ``lambda s: (with_tilts(problem, inner_tilt=s.tilt), nx.SMVR(), optax.sgd(0.1))``. The references
    stay those of the tilts that the problem was built with.

    Args:
        problem: made by ``nx.problems.term`` or ``nx.problems.hierarchical_term``.
        tilts: ``tilt``, or ``inner_tilt`` and ``outer_tilt``, none of them 0: a problem of tilt 0 has
            other levels, so it has to be built as such.
    """
    for name, t in tilts.items():
        places = _places(problem, name)
        if not is_traced(t) and check_tilt(name, t) is None:
            raise SettingError(f"{name} cannot become 0 here: build the problem with {name}=0.")
        number = jnp.asarray(t, problem.dtype)
        problem = eqx.tree_at(places, problem, replace_fn=lambda _, number=number: number)
    return problem


def _places(problem: Problem, name: str) -> Any:
    """Where the tilt called ``name`` is found in a problem."""
    order = [level.name for level in problem.levels]
    pair = LEVELS.get(name, ())
    if not pair or not set(pair) <= set(order) or not problem.levels[order.index(pair[0])].args:
        raise SettingError(
            f"this problem has no {name} to change: name a tilt of the function that made it, "
            "and build it with one that is not 0."
        )
    first, second = (order.index(level) for level in pair)

    def places(problem: Problem) -> list[Any]:
        levels: Any = problem.levels
        closed = [] if problem.exact is None else [getattr(problem.exact, name)]
        return [levels[first].args[0], levels[first].onto.t, levels[second].args[0], *closed]

    return places
