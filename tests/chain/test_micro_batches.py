"""Large batches are evaluated in parts; the average must not notice."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.cases import noisy
from tests.support.compare import assert_same, flat
from tests.support.compiled import quick_jit

import nestax as nx


def evaluate(level, x):
    """Value, Jacobian and pullback of the population, and whether it took a loop.

    The function is new each time, so that nothing is compiled for another size of the parts.
    """

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


ONE_ROW, A_DOZEN_ROWS = 7, 84


@pytest.mark.parametrize(
    ("weighted", "entries"),
    [(False, ONE_ROW), (False, A_DOZEN_ROWS), (True, A_DOZEN_ROWS)],
    ids=["one_row", "rows_that_do_not_divide", "weighted_rows"],
)
@pytest.mark.parametrize(("name", "which"), [("portfolio", 0), ("portfolio", 1), ("tree", 1)])
def test_parts_add_up_to_the_whole(name, which, weighted, entries, monkeypatch):
    whole = in_one_go(name, which, weighted)
    monkeypatch.setattr("nestax.chain.level.MICRO_BATCH_ENTRIES", entries)
    parts, loops = evaluate(*level_and_input(name, which, weighted))
    assert loops
    for part, reference in zip(parts, whole, strict=True):
        assert_same(part, reference)


def test_outputs_without_noise_are_exact_in_parts(monkeypatch):
    level, x = level_and_input("portfolio", 0, True)
    monkeypatch.setattr("nestax.chain.level.MICRO_BATCH_ENTRIES", A_DOZEN_ROWS)
    _, handed_on = quick_jit(lambda x: level.value(x, level.source.population()))(x)
    np.testing.assert_array_equal(handed_on, x)
