"""A batch is a set: the order of its draws changes nothing, nor does that of the visited blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.compare import assert_same, flat
from tests.support.compiled import compiled_init, compiled_refresh, compiled_update
from tests.support.drive import BATCH, FIRST_BATCH, STEPS, draws_at, population_batches
from tests.support.methods import PERMUTATION, chain_of, every_method

import nestax as nx
from nestax.draws.blocks import Visits

#: Where the product is formed draw by draw, draws of different levels belong together.
TOGETHER = [n for n, method in every_method().items() if getattr(method, "per_draw", False)]
#: The rows of its table are numbered, so that its first look at the population has an order.
NUMBERED = "CSAGA"


def order(rng, batch):
    return rng.permutation(jax.tree.leaves(batch)[0].shape[0])


def permuted(batches, rng, together):
    """Other orders for the draws of all batches, or one for those of all levels."""
    visited = [batch for level in batches for batch in level.values() if batch is not None]
    shared = order(rng, visited[0])

    def one(batch):
        if batch is None:
            return None
        if isinstance(batch, Visits):
            index = rng.permuted(np.asarray(batch.index), axis=1)
            return Visits(jnp.asarray(batch.blocks)[shared], jnp.asarray(index)[shared])
        own = shared if together else order(rng, batch)
        return jax.tree.map(lambda x: jnp.asarray(x)[own], batch)

    return tuple({name: one(batch) for name, batch in level.items()} for level in batches)


def estimates(name, reorder):
    """Of a few steps along given weights, with the batches of all of them reordered."""
    method = every_method()[name]
    problem = chain_of(method).problem
    ready = method.defaults(problem, STEPS, (BATCH,) * len(problem.levels))
    passes = tuple(ready.passes)
    population = population_batches(problem, passes) if ready.refresh_batch == "population" else None
    size = ready.refresh_batch if isinstance(ready.refresh_batch, int) else FIRST_BATCH
    w = problem.w0
    in_order = name == NUMBERED or ready.blocks == "table"
    first = population or draws_at(problem, passes, 0, size, ready.blocks == "table")
    estimate, state = compiled_init(ready, problem, w, first if in_order else reorder(first))
    out = [estimate]
    for t in (1, 2, 3):
        w = jax.tree.map(lambda x: x + 0.1, w)
        if t == 2 and ready.period is not None:
            batches = population or draws_at(problem, passes, t, size)
            estimate, state = compiled_refresh(ready, problem, w, reorder(batches), state)
        else:
            batches = draws_at(problem, passes, t, BATCH)
            estimate, state = compiled_update(ready, problem, w, reorder(batches), state)
        out.append(estimate)
    return np.stack([np.append(flat(e.grad), e.value) for e in out])


@pytest.mark.parametrize("name", PERMUTATION.covers)
def test_the_order_of_draws_changes_nothing(name):
    rng = np.random.default_rng(0)
    reorder = lambda batches: permuted(batches, rng, name in TOGETHER)
    assert_same(estimates(name, reorder), estimates(name, lambda batches: batches))


@pytest.mark.parametrize("name", TOGETHER)
def test_draws_of_different_levels_belong_together_where_products_are_formed_draw_by_draw(name):
    rng = np.random.default_rng(0)
    apart = estimates(name, lambda batches: permuted(batches, rng, together=False))
    assert np.abs(apart - estimates(name, lambda batches: batches)).max() > 1e-3


def test_orders_do_change():
    method = every_method()["SMVR"]
    problem = chain_of(method).problem
    batches = draws_at(problem, ("value",), 1, FIRST_BATCH)
    other = permuted(batches, np.random.default_rng(0), together=False)
    rows = lambda of: [np.asarray(level["value"].index) for level in of]
    assert all((a != b).any() for a, b in zip(rows(batches), rows(other), strict=True))
    assert all((np.sort(a) == np.sort(b)).all() for a, b in zip(rows(batches), rows(other), strict=True))
    assert isinstance(batches[0]["value"], nx.Batch)
