"""Batches are evaluated in parts on request, populations always; the average must not notice."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.cases import noisy
from tests.support.compare import assert_same, flat
from tests.support.compiled import quick_jit

import nestax as nx
from nestax.draws.rows import Batch


def evaluate(level, x):
    """Value, Jacobian and pullback of the population, and whether it took a loop."""

    def everything(level, x):
        batch = level.source.population()
        value, jac = level.value_and_jac(x, batch)
        again, pull = level.value_and_pull(x, batch)
        adjoint = jax.tree.map(lambda v: jnp.cos(jnp.arange(1.0 * v.size)).reshape(v.shape), value)
        return level.value(x, batch), value, again, jac.dense(), pull(adjoint)

    program = str(jax.make_jaxpr(lambda x: everything(level, x))(x))
    results = [flat(part) for part in quick_jit(everything)(level, x)]
    return results, "while[" in program or "scan[" in program


@functools.cache
def level_and_input(name, which, weighted):
    problem = noisy(name).problem
    level = problem.levels[which]
    x = problem.w0 if which == 0 else quick_jit(problem.level_values)(problem.w0)[which - 1]
    if weighted:
        weights = 1 + np.arange(level.source.size) % 7
        level = level.replace(data=nx.Population(level.source.data, weights=weights))
    return level, x


@functools.cache
def in_one_go(name, which, weighted):
    results, loops = evaluate(*level_and_input(name, which, weighted))
    assert not loops
    return results


@pytest.mark.parametrize(
    ("weighted", "draws"),
    [(False, 1), (False, 12), (True, 12)],
    ids=["one_row", "rows_that_do_not_divide", "weighted_rows"],
)
@pytest.mark.parametrize(("name", "which"), [("portfolio", 0), ("portfolio", 1), ("tree", 1)])
def test_parts_add_up_to_the_whole(name, which, weighted, draws):
    whole = in_one_go(name, which, weighted)
    level, x = level_and_input(name, which, weighted)
    parts, loops = evaluate(level.replace(micro_batch=draws), x)
    assert loops
    for part, reference in zip(parts, whole, strict=True):
        assert_same(part, reference)


def test_outputs_without_noise_are_exact_in_parts():
    level, x = level_and_input("portfolio", 0, True)
    level = level.replace(micro_batch=12)
    _, handed_on = quick_jit(lambda x: level.value(x, level.source.population()))(x)
    np.testing.assert_array_equal(handed_on, x)


@pytest.mark.parametrize(("name", "which"), [("portfolio", 0), ("portfolio", 1)])
def test_groups_one_after_the_other_are_the_groups_side_by_side(name, which):
    level, x = level_and_input(name, which, False)
    draws = jax.tree.map(lambda rows: rows[:24], level.source.data)
    groups = Batch(draws).in_groups(4)

    def everything(level, x):
        each, pull = level.value_and_pull_in_groups(x, groups)
        adjoint = jax.tree.map(jnp.ones_like, level.value(x, Batch(draws)))
        return each, pull(adjoint), level.value_and_jac_in_groups(x, groups)

    side_by_side = quick_jit(lambda x: everything(level, x))(x)
    one_by_one = quick_jit(lambda x: everything(level.replace(micro_batch=6), x))(x)
    assert jax.tree.structure(side_by_side) == jax.tree.structure(one_by_one)
    for one, other in zip(jax.tree.leaves(one_by_one), jax.tree.leaves(side_by_side), strict=True):
        assert_same(one, other)


def wide_level(weights, rows=64):
    """One scalar per draw from very many weights."""
    level = nx.Level(lambda w, r: jnp.tanh(r @ w["inner"]) @ w["outer"], jnp.ones((rows, 4)))
    w = {"inner": jnp.ones((4, weights)), "outer": jnp.ones(weights)}
    return level.bind(w), w


def loops_of(fn, *args):
    program = str(jax.make_jaxpr(fn)(*args))
    return "while[" in program or "scan[" in program


def test_many_weights_do_not_cut_a_batch():
    level, w = wide_level(2**20)
    batch = Batch(jnp.ones((512, 4)))
    assert not loops_of(lambda w: level.value_and_pull(w, batch)[1](jnp.ones(())), w)


def test_what_a_draw_makes_has_nothing_to_do_with_weights_it_does_not_touch():
    def scaled(w, r):
        return jnp.sum(w.astype(jnp.float32).astype(w.dtype) * 2) * jnp.exp(r)

    few = nx.Level(scaled, jnp.ones(8)).bind(jnp.ones(10))
    many = nx.Level(scaled, jnp.ones(8)).bind(jnp.ones(10**6))
    assert few.shape.made == many.shape.made == 3 * 8  # the draw, exp and the product


def test_what_is_held_of_a_draw_is_counted_by_its_residuals():
    level, _ = wide_level(1000)
    # The draw, and tanh with what its derivative needs: two or three arrays of a thousand.
    assert 2 * 8 * 1000 <= level.held() <= 3 * 8 * 1000 + 100
    inside = level.fn
    again = level.replace(fn=lambda w, r: jax.checkpoint(inside)(w, r))
    assert again.held() < 100  # the draw alone
    batched = nx.Level(
        lambda w, r: jnp.mean(jax.vmap(inside, (None, 0))(w, r)), jnp.ones((8, 4)), batched=True
    )
    assert batched.bind(level.shape.inputs.structs()).held() == level.held()


def test_populations_pass_through_in_parts_whatever_their_size(monkeypatch):
    level, x = level_and_input("portfolio", 0, False)
    monkeypatch.setattr("nestax.chain.level.PART_DRAWS", 12)
    population = level.source.population()
    drawn = Batch(population.draws)
    assert loops_of(lambda x: level.value(x, population), x)
    assert not loops_of(lambda x: level.value(x, drawn), x)


def test_parts_of_a_population_are_bounded_in_bytes(monkeypatch):
    level, _ = wide_level(1000)
    monkeypatch.setattr("nestax.chain.level.PART_BYTES", {"cpu": 8 * level.shape.made})
    assert level._at_once(level.source.population()) == 8
    monkeypatch.setattr("nestax.chain.level.PART_BYTES", {"cpu": 1})
    assert level._at_once(level.source.population()) == 1


@pytest.mark.parametrize("size", [0, -3, 1.5, True])
def test_a_micro_batch_is_a_count(size):
    with pytest.raises(nx.SettingError, match="micro_batch of level 'a' must be a whole number of at l"):
        nx.Level(lambda w, r: r @ w, jnp.ones((3, 2)), name="a", micro_batch=size)
