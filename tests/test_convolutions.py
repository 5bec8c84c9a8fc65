"""Convolutions whose axes are put into the order that XLA is fast with on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

import nestax as nx
from nestax.chain.structure import inner_jaxprs
from nestax.convolutions import in_order
from nestax.run.prepare import Budget, as_method, prepare

FAST = ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
LAYOUTS = [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HWNC", "IOHW", "CNHW")]


def convolutions(jaxpr):
    """Dimension numbers of all convolutions in a jaxpr, inner ones too."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "conv_general_dilated":
            found.append(tuple(eqn.params["dimension_numbers"]))
        for inner in inner_jaxprs(eqn.params.values()):
            found += convolutions(inner)
    return found


def arranged(x, order, usual):
    return jnp.transpose(x, [usual.index(axis) for axis in order])


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout[0])
@pytest.mark.parametrize(
    "options", [{}, {"strides": (2, 1)}, {"dilation": (2, 2)}, {"groups": 2}], ids=str
)
def test_the_same_is_computed_and_everything_is_in_order(layout, options):
    strides = options.get("strides", (1, 1))
    groups = options.get("groups", 1)
    keys = jax.random.split(jax.random.key(0))
    x = arranged(jax.random.normal(keys[0], (3, 7, 6, 4)), layout[0], "NHWC")
    kernel = arranged(jax.random.normal(keys[1], (3, 2, 4 // groups, 8)), layout[1], "HWIO")

    def loss(kernel, x):
        out = jax.lax.conv_general_dilated(
            x,
            kernel,
            strides,
            "SAME",
            rhs_dilation=options.get("dilation"),
            dimension_numbers=layout,
            feature_group_count=groups,
        )
        return jnp.sum(jnp.sin(out))

    def grads(kernel, x):
        """Under a loop, a branch, a call and a checkpoint."""
        one = jax.checkpoint(jax.jit(loss))
        once = lambda grad, _: (jax.grad(one, (0, 1))(kernel, x), None)
        grad = jax.lax.scan(once, (kernel, x), None, length=1)[0]
        return jax.lax.cond(kernel.sum() < 1e9, lambda: grad, lambda: (kernel, x))

    closed = jax.make_jaxpr(grads)(kernel, x)
    new = in_order(closed.jaxpr)
    told = zip(jaxpr_as_fun(ClosedJaxpr(new, closed.consts))(kernel, x), grads(kernel, x), strict=True)
    for ours, theirs in told:
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    # A kernel's derivative in groups is a convolution in groups of the batch, which is left alone.
    if groups == 1:
        assert set(convolutions(new)) == {FAST}
    assert set(convolutions(closed.jaxpr)) != {FAST}


def test_what_has_no_convolution_stays_the_same_object():
    jaxpr = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, r: (c + r, r), 0.0, x))(jnp.ones(3)).jaxpr
    assert in_order(jaxpr) is jaxpr


def test_the_steps_of_a_run_have_them_in_order():
    images = np.random.default_rng(0).normal(size=(8, 1, 6, 6)).astype(np.float32)

    def loss(w, image):
        out = jax.lax.conv(image[None], w, (1, 1), "SAME")
        return jnp.mean((out - image[None]) ** 2)

    kernel = jnp.full((1, 1, 3, 3), 0.1, jnp.float32)
    problem = nx.Problem([nx.Level(loss, images), nx.Level(jnp.log1p)], kernel)
    run = prepare(
        problem,
        as_method(problem, nx.SCSC(0.5), optax.sgd(0.05)),
        Budget(steps=40, batch_size=4),
        jax.random.key(0),
    )
    found = convolutions(run.compiled.run.functions.step.program.jaxpr)
    assert len(found) >= 3
    assert set(found) == {FAST}
