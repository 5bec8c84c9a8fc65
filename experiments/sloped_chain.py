"""A family indexed by the accuracy asked for: as long a way as smoothness and gap allow, then a bowl.

inner levels   f_i(x; e) = x + e_1·sin(x) + e_2
outer level    h(x) + e_1·(1 − cos x) + e_2·x
h′(x)          x cut off at −left and at 2ε,  left = 2ε (symmetric) or 1 (asymmetric)

The e are centred noise, so that F = h. Its curvature is at most 1, and from w = 1/(2ε) it falls by about
1, all at a slope of 2ε: a short step takes long to arrive, and a long one is noisy in the bowl, where
|F′| ≤ ε is. Near a minimum with curvature the schedule alone decides how fast an error falls; here the
step has to be chosen for ε, and a method is as good as the step that its noise allows.

In the asymmetric bowl a wall of slope 1 to the left is seen by every draw of an inner value that falls
beyond it. A method whose inner values are noisy stops to the right of the bowl, on the slope.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.errors import check_count, check_setting, choose

from experiments.smooth_chain import centred, inner

BOWLS = ("symmetric", "asymmetric")


class Bowl(eqx.Module):
    """h, with slopes −left and right outside of [−left, right]; F in closed form as well."""

    left: Array
    right: Array

    def __call__(self, x: Array) -> Array:
        near = jnp.clip(x, -self.left, self.right)
        return jnp.sum(near * x - near**2 / 2)


def outer(x: Array, draw: tuple[Array, Array], bowl: Bowl) -> Array:
    curve, tilt = draw
    return bowl(x) + jnp.sum(curve * (1 - jnp.cos(x)) + tilt * x)


def sloped_chain(
    eps: float,
    levels: int = 3,
    *,
    bowl: str = "symmetric",
    noise: float = 0.5,
    rows: int = 2_000,
    seed: int = 0,
) -> Problem:
    """A chain of K levels with one weight and F* = 0, on which |F′| ≤ ε takes long to reach.

    Args:
        eps: ε in (0, 0.5], the accuracy that the problem is made for.
        levels: K ≥ 1.
        bowl: "symmetric" or "asymmetric", with a wall of slope 1 on the far side.
        noise: standard deviation of every kind of noise.
        rows: rows of noise per level; their mean is 0 exactly.
        seed: of the rows.
    """
    check_setting("eps", eps, "in (0, 0.5]", lambda x: (x > 0) & (x <= 0.5))
    check_count("levels", levels)
    choose("bowl", bowl, BOWLS)
    check_setting("noise", noise, "at least 0", lambda x: x >= 0)
    rng = np.random.default_rng(seed)
    pair = lambda: (centred(rng, noise, (rows, 1)), centred(rng, noise, (rows, 1)))
    number = lambda x: jnp.asarray(x, jnp.result_type(float))
    h = Bowl(number(2 * eps if bowl == "symmetric" else 1.0), number(2 * eps))
    flat = number(0.0)
    chain = [Level(inner, pair(), args=(flat,), name=f"inner {k + 1}") for k in range(levels - 1)]
    return Problem(
        [*chain, Level(outer, pair(), args=(h,), name="outer")],
        w0=jnp.full(1, 1 / (2 * eps), jnp.result_type(float)),
        exact=h,
        optimum=0.0,
    )
