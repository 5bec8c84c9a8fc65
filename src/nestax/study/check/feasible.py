"""Whether a projection is one: the nearest point of a convex set, whatever it is given."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem
from nestax.programs import compute
from nestax.projections import takes_metric

#: Points around the weights, at each of some distances.
POINTS = 8
DISTANCES = (0.01, 0.1, 1.0, 10.0)
#: What an error may be, in roundings of the numbers that it is made of.
ROUNDINGS = 1e3


def doubts_about_projection(problem: Problem, w: PyTree, key: Array) -> list[str]:
    """Sentences about what is no projection onto a convex set.

    P is one onto its own images if it leaves them and the points between them where they are, and if
    ⟨x − P(x), z − P(x)⟩ ≤ 0 for all of these z. In a metric D the same with D(x − P(x)).
    """
    if problem.feasible is None:
        return []
    found = compute(_violations, problem, w, key)
    small = ROUNDINGS * float(jnp.finfo(problem.dtype).eps)

    def wrong(name):
        return not float(found[name]) < small

    sentences = []
    for name, words in (
        ("again", "moves a point that it has just returned, so that it is not idempotent"),
        ("between", "moves points between those that it returns, so that they are no convex set"),
        ("nearest", "returns points that are not the nearest of its set"),
        ("metric", "returns other points for metric= than the nearest in that norm"),
    ):
        if name in found and wrong(name) and not sentences:
            sentences.append(f"project= {words} (by {float(found[name]):.1e}); steps rely on that.")
    return sentences


def _violations(problem: Problem, w: PyTree, key: Array) -> dict[str, Array]:
    flat, unravel = ravel_pytree(w)
    wide = jnp.promote_types(flat.dtype, jnp.float32)

    def project(x):
        return ravel_pytree(problem.project(unravel(x.astype(flat.dtype))))[0].astype(wide)

    size = jnp.maximum(jnp.linalg.norm(flat.astype(wide)) / np.sqrt(flat.size), 1e-3)
    far = jnp.repeat(jnp.asarray(DISTANCES, wide), POINTS)[:, None]
    x = flat.astype(wide) + size * far * jax.random.normal(key, (far.size, flat.size), wide)
    image = jax.vmap(project)(x)
    between = (image + jnp.roll(image, 1, axis=0)) / 2

    def scale(*parts):
        return sum(jnp.max(jnp.abs(p)) for p in parts) + jnp.finfo(wide).tiny

    def beyond(x: Array, image: Array, weights: Array) -> Array:
        """The largest ⟨D(x − P(x)), z − P(x)⟩ over all z, as a share of its terms."""
        away = (x - image) * weights
        products = away @ image.T - jnp.sum(away * image, axis=1, keepdims=True)
        size = jnp.maximum(jnp.abs(away), jnp.abs(x) * weights)
        terms = jnp.sum(size, axis=1, keepdims=True) * jnp.max(jnp.abs(image))
        return jnp.max(products / (terms + jnp.finfo(wide).tiny))

    def moved(z):
        return jnp.max(jnp.abs(jax.vmap(project)(z) - z)) / scale(z)

    out = {
        "again": moved(image),
        "between": moved(between),
        "nearest": beyond(x, image, jnp.ones_like(flat, wide)),
    }
    assert problem.feasible is not None
    if takes_metric(problem.feasible):
        stiff = 10 ** jax.random.uniform(key, flat.shape, wide, -1, 1)
        tree = unravel(stiff.astype(flat.dtype))

        def within(x):
            return problem.project(unravel(x.astype(flat.dtype)), metric=tree)

        of = jax.vmap(lambda x: ravel_pytree(within(x))[0].astype(wide))
        out["metric"] = beyond(x, of(x), stiff)
    return out
