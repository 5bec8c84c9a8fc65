"""Values, gradients and Jacobians over the population, against differences and plain JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from tests.support.cases import CASES, noisy
from tests.support.compare import assert_same, flat
from tests.support.compiled import quick_jit

import nestax as nx

FIVE_POINTS = ((-2, 1 / 12), (-1, -8 / 12), (1, 8 / 12), (2, -1 / 12))


def by_differences(fn, x, h=1e-3):
    """Derivative of fourth order along every axis, all points in one call."""
    steps = np.asarray([k for k, _ in FIVE_POINTS])[:, None, None] * h * np.eye(x.size)
    values = fn(jnp.asarray(x + steps.reshape(-1, x.size))).reshape(len(FIVE_POINTS), x.size)
    return np.asarray([c for _, c in FIVE_POINTS]) @ np.asarray(values) / h


def check_gradient(problem):
    w, unravel = ravel_pytree(problem.w0)
    w = w + 0.01 * np.arange(w.size)
    values = quick_jit(jax.vmap(lambda x: problem.value(unravel(x))))
    value, grad = quick_jit(lambda x: problem.value_and_grad(unravel(x)))(w)
    assert_same(value, values(w[None])[0])
    assert_same(flat(grad), by_differences(values, np.asarray(w)), tolerance=1e-9)
    return value, flat(grad)


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_the_slope_of_the_value(name):
    check_gradient(noisy(name).problem)


def test_closed_form_is_the_population_average():
    rows = nx.datasets.synthetic_returns(200, 5)
    closed = nx.problems.mean_deviation(rows)
    value, grad = check_gradient(closed)
    averaged_value, averaged_grad = check_gradient(closed.with_data(mean=rows))
    assert_same(value, averaged_value)
    assert_same(grad, averaged_grad)


def test_gradient_with_penalty():
    problem = noisy("two_levels").problem
    _, without = check_gradient(problem)
    penalised = nx.Problem(problem.levels, problem.w0, penalty=lambda w: w @ w)
    _, grad = check_gradient(penalised)
    w = problem.w0 + 0.01 * np.arange(4)
    assert_same(grad, without + 2 * w)


# Jacobians in blocks


def mean_function(level, unravel, weights):
    """The average over the rows, as a function of flat vectors, without the library."""

    def mean(x):
        if level.deterministic:
            return ravel_pytree(level.fn(unravel(x), *level.args))[0]
        each = jax.vmap(lambda d: ravel_pytree(level.fn(unravel(x), d, *level.args))[0])
        return weights @ each(level.source.data)

    return mean


def waves_like(tree):
    """A tree of the same shapes with numbers that have nothing to do with each other."""
    return jax.tree.map(lambda x: jnp.cos(3.7 * jnp.arange(x.size)).reshape(x.shape), tree)


@quick_jit
def block_arithmetic(level, x):
    rows = None if level.deterministic else level.source.population()
    value, jac = level.value_and_jac(x, rows)
    _, push, pull = level.value_and_maps(x, rows)
    return {
        "value": value,
        "pushed": push(waves_like(x)),
        "pulled": pull(waves_like(value)),
        "dense": jac.dense(),
        "push": jac.push(waves_like(x)),
        "pull": jac.pull(waves_like(value)),
        "square": jac.square(),
        "scalable": jac.scalable().dense(),
        "filled": jac.filled(2 * jac.dense()).dense(),
    }


def with_row_weights(level):
    weights = np.arange(1.0, level.source.size + 1)
    source = nx.Population(level.source.data, weights=weights)
    return level.replace(data=source), weights / weights.sum()


def levels_and_inputs(case):
    values = quick_jit(case.problem.level_values)(case.problem.w0)
    return zip(case.problem.levels, case.levels, (case.problem.w0, *values), strict=False)


@pytest.mark.parametrize(
    ("name", "weighted"),
    [(name, False) for name in CASES] + [("portfolio", True), ("tree", True)],
)
def test_jacobian_blocks_are_those_of_the_flat_mean(name, weighted):
    for level, in_numpy, x in levels_and_inputs(noisy(name)):
        if level.deterministic:
            draws, weights = [()], np.ones(1)
        else:
            columns = [np.asarray(d) for d in jax.tree.leaves(level.source.data)]
            draws, weights = list(zip(*columns, strict=True)), np.full(len(columns[0]), 1.0)
            weights = weights / weights.sum()
            if weighted:
                level, weights = with_row_weights(level)
        vector, unravel = ravel_pytree(x)
        mean = mean_function(level, unravel, weights)
        value, matrix = quick_jit(lambda v, mean=mean: (mean(v), jax.jacobian(mean)(v)))(vector)
        matrix, actual = np.asarray(matrix), block_arithmetic(level, x)
        if not weighted:
            assert_same(in_numpy.J(np.asarray(vector), draws), matrix)
        assert_same(flat(actual["value"]), value)
        assert_same(actual["dense"], matrix)
        for name in ("push", "pushed"):
            assert_same(flat(actual[name]), matrix @ flat(waves_like(x)))
        for name in ("pull", "pulled"):
            assert_same(flat(actual[name]), matrix.T @ flat(waves_like(actual["value"])))
        assert_same(actual["square"], np.sum(matrix**2))
        assert_same(actual["scalable"], matrix)
        assert_same(actual["filled"], 2 * matrix)


@pytest.mark.parametrize("name", CASES)
def test_a_pullback_per_draw_is_that_of_the_draw(name):
    """Each with an adjoint of its own; a level without noise has as many of one kind."""
    for level, _, x in levels_and_inputs(noisy(name)):
        batch = None if level.deterministic else level.source.rows(jnp.asarray([4, 0, 2]))
        each = [batch and level.source.rows(jnp.asarray([k])) for k in (4, 0, 2)]
        value, pulls = level.value_and_pulls(x, batch, 3)
        adjoints = [jax.tree.map(lambda y, k=k: k * y, waves_like(value)) for k in (1.0, -2.0, 0.5)]
        actual = pulls(jax.tree.map(lambda *y: jnp.stack(y), *adjoints))
        expected = [level.value_and_pull(x, one)[1](p) for one, p in zip(each, adjoints, strict=True)]
        assert_same(flat(actual), flat(jax.tree.map(lambda *y: jnp.stack(y), *expected)))
        assert_same(flat(value), flat(level.value(x, batch)))


def blocks_of(level):
    x = level.shape.inputs.structs()
    return jax.eval_shape(lambda x: level.value_and_jac(x, level.source.population())[1], x)


def test_inputs_handed_on_are_kept_as_identities():
    jac = blocks_of(noisy("portfolio").problem.levels[0])
    assert jac.identity == ((False,), (True,))
    assert jac.tiles[1] == (None,)


def test_outputs_that_do_not_see_an_input_have_no_block():
    jac = blocks_of(noisy("tree").problem.levels[1])
    present = [[tile is not None for tile in row] for row in jac.tiles]
    assert present == [[True, False, True], [False, True, True]]
