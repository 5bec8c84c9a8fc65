"""Chains of any make: a run in pieces, stopped and resumed, is the run in one piece."""

import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.asked import asked

import nestax as nx
from nestax.loop import chunks as drive
from nestax.trees import as_host

ROWS, STEPS, EVERY = 12, 14, 3
SHAPES = st.lists(st.integers(1, 3), max_size=2).map(tuple)
TREES = st.recursive(
    SHAPES.map(np.zeros),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=2),
        st.lists(inner, min_size=1, max_size=2).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2),
    ),
    max_leaves=3,
)
ESTIMATORS = {
    "SMVR": lambda: nx.SMVR(beta=0.3),
    "AdjointSMVR": lambda: nx.AdjointSMVR(),
    "SnapshotSMVR": lambda: nx.SnapshotSMVR(period=4),
    "NLASG": lambda: nx.NLASG(),
    "Plain": lambda: nx.Plain(),
}


class Map:
    """u ↦ tanh(A·u + B·draw) in the shape of a tree; the last one is the sum of squares."""

    def __init__(self, rng, inputs, outputs, dtype, last):
        size = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
        self.A = jnp.asarray(rng.normal(size=(size(outputs), size(inputs))), dtype)
        self.B = jnp.asarray(0.1 * rng.normal(size=size(outputs)), dtype)
        self.outputs, self.last = outputs, last

    def __call__(self, u, draw=None):
        flat = jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(u)])
        out = jnp.tanh(self.A @ flat + (0 if draw is None else self.B * draw))
        if self.last:
            return jnp.sum(out * out)
        leaves, structure = jax.tree.flatten(self.outputs)
        ends = np.cumsum([x.size for x in leaves])[:-1]
        parts = zip(jnp.split(out, ends), leaves, strict=True)
        return structure.unflatten([part.reshape(leaf.shape) for part, leaf in parts])


@st.composite
def runs(draw):
    """A problem of one to five levels on trees, a method, an optimiser and batch sizes."""
    dtype = draw(st.sampled_from(["float32", "float64"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    trees = draw(st.lists(TREES, min_size=2, max_size=6))
    exact = draw(st.lists(st.booleans(), min_size=len(trees) - 1, max_size=len(trees) - 1))
    exact[0] = False  # something must be drawn
    levels = [
        nx.Level(
            Map(rng, a, b, dtype, last=k == len(exact) - 1),
            None if without else rng.normal(size=ROWS).astype(dtype),
            name=f"level {k}",
        )
        for k, (a, b, without) in enumerate(zip(trees, trees[1:], exact, strict=False))
    ]
    w0 = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), dtype), trees[0])
    sizes = draw(st.integers(1, 4))
    if draw(st.booleans()):
        sizes = {level.name: draw(st.integers(1, 4)) for level in levels if not level.deterministic}
    return {
        "problem": nx.Problem(levels, w0),
        "estimator": ESTIMATORS[draw(st.sampled_from(sorted(ESTIMATORS)))](),
        "optimizer": draw(st.sampled_from([optax.sgd(0.05), optax.adam(0.01)])),
        "batch_size": sizes,
        "output": draw(st.sampled_from(["last", "average"])),
        "seed": draw(st.integers(-5, 5)),
    }


def check(arguments, stop):
    facts = {"steps": STEPS, "record_every": EVERY}
    whole = nx.minimize(**arguments, **facts)
    usual, drive.CHUNK_SECONDS = drive.CHUNK_SECONDS, 0.0
    try:
        with tempfile.TemporaryDirectory() as folder:
            kept = facts | {"checkpoint": folder, "checkpoint_every": 0}
            nx.minimize(**arguments, **asked(**kept), callback=lambda record: record["step"] >= stop)
            rest = nx.minimize(**arguments, **asked(**kept, resume=True))
    finally:
        drive.CHUNK_SECONDS = usual
    bits = lambda tree: [as_host(x)[0].tobytes() for x in jax.tree.leaves(tree)]
    assert bits((rest.w, rest.carry.lane)) == bits((whole.w, whole.carry.lane))
    assert (rest.status, rest.message, rest.carry.cost) == (
        whole.status,
        whole.message,
        whole.carry.cost,
    )
    assert rest.records.keys() == whole.records.keys()
    for name, column in whole.records.items():
        assert (column.dtype, column.tobytes()) == (
            rest.records[name].dtype,
            rest.records[name].tobytes(),
        )
    assert jax.tree.structure(whole.w) == jax.tree.structure(arguments["problem"].w0)


@settings(max_examples=2, deadline=None, derandomize=True, database=None)
@given(runs(), st.integers(1, STEPS))
def test_a_few_chains(arguments, stop):
    check(arguments, stop)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(runs(), st.integers(1, STEPS))
def test_many_chains(arguments, stop):
    check(arguments, stop)
