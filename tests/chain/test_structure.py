"""What a trace tells of the outputs of a level."""

import jax

from nestax.chain.structure import origins_of


def test_origins_follow_calls():
    inner = jax.jit(lambda a, b: (b, a * 2))
    jaxpr = jax.make_jaxpr(lambda a, b, c: (*inner(a, b), c + 1, 4.0))(1.0, 2.0, 3.0).jaxpr
    origins = origins_of(jaxpr)
    assert [o.copy_of for o in origins] == [1, None, None, None]
    assert [sorted(o.arguments) for o in origins] == [[1], [0], [2], []]
