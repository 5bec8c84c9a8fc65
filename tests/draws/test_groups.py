"""Groups of unequal sizes: exact averages are those of every group on its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.cases import rng_of
from tests.support.compare import assert_same, flat
from tests.support.compiled import quick_jit

import nestax as nx

SIZES = {"unequal": (3, 5, 7), "equal": (4, 4, 4), "multiples": (2, 6, 3), "one": (5,)}


def per_group(w, members):
    """One entry per group, and a sum over the groups."""
    each = jnp.stack([jnp.tanh(a @ w) * y for a, y in members])
    return each, sum(jnp.sin(y) * w for _, y in members)


def grouped(sizes):
    rng = rng_of("groups")
    groups = [(rng.normal(size=(n, 3)), rng.normal(size=n)) for n in sizes]
    total = lambda u: jnp.sum(u[0] ** 2) + jnp.sum(u[1])
    levels = [nx.Level(per_group, nx.Groups(groups), name="groups"), nx.Level(total, name="total")]
    return nx.Problem(levels, w0=rng.normal(size=3)), groups


def separate_means(groups, w):
    each = np.stack([np.mean(np.tanh(a @ w) * y) for a, y in groups])
    return np.concatenate([each, sum(np.mean(np.sin(y)) for _, y in groups) * w])


def separate_jacobian(groups, w):
    rows = [np.mean(((1 - np.tanh(a @ w) ** 2) * y)[:, None] * a, axis=0) for a, y in groups]
    return np.vstack([*rows, sum(np.mean(np.sin(y)) for _, y in groups) * np.eye(3)])


@pytest.mark.parametrize(
    ("sizes", "draws"),
    [(sizes, 4096) for sizes in SIZES.values()] + [(SIZES["unequal"], 3)],
    ids=[*SIZES, "unequal_in_parts"],
)
def test_population_averages_are_group_means(sizes, draws, monkeypatch):
    monkeypatch.setattr("nestax.chain.level.PART_DRAWS", draws)
    problem, groups = grouped(sizes)
    level, w = problem.levels[0], np.asarray(problem.w0)
    mean, matrix = separate_means(groups, w), separate_jacobian(groups, w)
    adjoint = (jnp.cos(jnp.arange(1.0 * len(sizes))), jnp.sin(jnp.arange(3.0)))

    @quick_jit
    def averages(w):
        population = level.source.population()
        value, jac = level.value_and_jac(w, population)
        again, pull = level.value_and_pull(w, population)
        return (level.value(w, population), value, again), jac.dense(), pull(adjoint)

    values, dense, pulled = averages(problem.w0)
    for value in values:
        assert_same(flat(value), mean)
    assert_same(dense, matrix)
    assert_same(pulled, matrix.T @ flat(adjoint))


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_gradient_of_the_chain(sizes):
    problem, groups = grouped(sizes)
    w = np.asarray(problem.w0)
    u, J = separate_means(groups, w), separate_jacobian(groups, w)
    outer = np.concatenate([2 * u[: len(sizes)], np.ones(3)])
    value, grad = quick_jit(problem.value_and_grad)(problem.w0)
    assert_same(value, np.sum(u[: len(sizes)] ** 2) + np.sum(u[len(sizes) :]))
    assert_same(grad, J.T @ outer)


def test_population_mentions_every_row_once_in_proportion():
    problem, groups = grouped((3, 5, 7))
    coupling = problem.levels[0].source.population()
    batch = coupling.part(0, coupling.size)
    weights = np.asarray(batch.weights)
    for (rows, _), (drawn, _) in zip(groups, batch.draws, strict=True):
        mass = [weights[np.all(np.asarray(drawn) == row, axis=1)].sum() for row in rows]
        assert_same(mass, np.full(len(rows), 1 / len(rows)))


def test_one_draw_costs_one_sample_of_every_group():
    problem, _ = grouped((3, 5, 7))
    batches = nx.draw_batches(problem, ("value",), jax.random.key(0), 0, (6, 6))
    batch = batches[0]["value"]
    assert [a.shape for a, _ in batch.draws] == [(6, 3)] * 3
    assert problem.levels[0].source.cost == 3
    assert problem.levels[0].source.size == 15
