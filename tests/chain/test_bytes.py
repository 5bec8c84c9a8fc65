"""Bytes of what an evaluation makes, which micro-batches are chosen by."""

import jax
import jax.numpy as jnp
import pytest

from nestax.chain.tracing import analyse, bytes_made

X = jax.ShapeDtypeStruct((3,), jnp.float64)


@pytest.mark.parametrize(
    ("fn", "numbers"),
    [
        (lambda x, y: x * y + jnp.cos(y), (6, 9)),
        (lambda x, y: jax.jit(lambda x: 2 * x)(x), (3, 0)),
        (lambda x, y: jax.checkpoint(lambda x: 2 * jnp.sin(x))(x), (9, 0)),
        (lambda x, y: jax.lax.scan(lambda c, _: (2 * c, None), x, length=5)[0], (18, 0)),
        (lambda x, y: jax.lax.cond(True, lambda x: 2 * x, jnp.sin, x), (9, 0)),
    ],
)
def test_bytes_of_what_depends_on_an_argument(fn, numbers):
    """Inside calls, loops (every turn) and branches (all of them), and the results of these."""
    jaxpr = jax.make_jaxpr(fn)(X, X).jaxpr
    for marked, count in zip(((True, False), (False, True)), numbers, strict=True):
        assert bytes_made(jaxpr, marked)[0] == 8 * count


def test_bytes_of_a_draw_are_its_own_and_those_of_what_is_made_of_it():
    fn = lambda x, draw: jnp.sin(x) @ (x * draw[0] + draw[1])
    draw = (X, jax.ShapeDtypeStruct((), jnp.float64))
    assert analyse(fn, X, draw).made == 8 * (3 + 1 + 3 + 3 + 1)  # both, x·draw, the sum, the product
    many = jax.tree.map(lambda s: jax.ShapeDtypeStruct((5, *s.shape), s.dtype), draw)
    each = jax.vmap(lambda x, draw: x * draw[0], in_axes=(None, 0))
    assert analyse(each, X, many, draws=5).made == 8 * (3 + 1 + 3)
