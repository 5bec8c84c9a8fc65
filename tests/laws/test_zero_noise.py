"""Without noise every gradient is exact: at once, or as soon as what is remembered has faded.

STORM, recursive differences and snapshots are exact at every step, whatever beta, while the weights
move; `lagged` ones a step later. A moving average is exact where the weights rest: what it holds of the
first level is off by a factor 1 − β less at every step.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.cases import LAW_CASES, quiet
from tests.support.compare import assert_same, flat
from tests.support.compiled import compiled_init, compiled_update, quick_jit
from tests.support.drive import BATCH, FIRST_BATCH, STEPS, draws_at, drive, population_batches
from tests.support.methods import (
    ZERO_NOISE,
    core_methods,
    every_method,
    is_for_any_chain,
    quiet_chain_of,
)

import nestax as nx

ESTIMATORS = [name for name in core_methods() if name != "Exact"]
RATE = 0.5
RESTING = 80
#: Chains for methods for any number of levels, besides three levels with noise in everything.
ALIKE = ("portfolio", "tree")


OWN = "own"


def said(what):
    """Methods with chains: one of their own, and for any number of levels two more."""
    return [
        (name, chain)
        for name, says in ZERO_NOISE.covers.items()
        if says == what
        for chain in (OWN, *(ALIKE if is_for_any_chain(every_method()[name]) else ()))
    ]


def chain_without_noise(method, name):
    return quiet_chain_of(method) if name == OWN else quiet(name)


@quick_jit
def exact_along(problem, w):
    return jax.vmap(problem.value_and_grad)(w)


def exact_value_and_grad(problem, weights):
    value, grad = exact_along(problem, jax.tree.map(lambda *x: jnp.stack(x), *weights))
    return value, np.stack([flat(jax.tree.map(lambda x, t=t: x[t], grad)) for t in range(len(value))])


def assert_exact(run, problem, lag):
    value, grad = exact_value_and_grad(problem, run.w)
    belongs_to = np.maximum(np.arange(len(grad)) - lag, 0)
    assert_same(run.values, value)
    assert_same(run.grads, grad[belongs_to])
    assert np.linalg.norm(np.diff(grad, axis=0), axis=1).min() > 1e-6


@pytest.mark.parametrize("beta", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", LAW_CASES)
def test_gradient_is_exact(name, estimator, beta):
    case = quiet(name)
    method = core_methods(beta)[estimator]
    assert_exact(drive(case.problem, method, case.lr), case.problem, method.lag)


@pytest.mark.parametrize(
    ("name", "chain"), [pair for pair in said("exact") if pair[0] not in ESTIMATORS]
)
def test_gradient_is_exact_while_the_weights_move(name, chain):
    method = every_method()[name]
    case = chain_without_noise(method, chain)
    assert_exact(drive(case.problem, method, case.lr), case.problem, method.lag)


@pytest.mark.parametrize("mode", ["fresh", "lagged", "reuse"])
def test_only_lagged_declares_a_lag(mode):
    assert nx.AdjointSMVR(mode=mode).lag == nx.ProductSMVR(mode=mode).lag == (mode == "lagged")


# Where the weights rest after one move


def moved_once(name, chain):
    """Method, problem, the weights where it rests, and estimate and state after the move there."""
    method = every_method(RATE)[name]
    problem = chain_without_noise(method, chain).problem
    ready = method.defaults(problem, STEPS, (BATCH,) * len(problem.levels))
    passes = tuple(ready.passes)
    population = population_batches(problem, passes) if ready.refresh_batch == "population" else None
    first = population or draws_at(problem, passes, 0, FIRST_BATCH, ready.blocks == "table")
    _, state = compiled_init(ready, problem, problem.w0, first)
    w = jax.tree.map(lambda x: x + 0.1, problem.w0)
    return (
        ready,
        problem,
        w,
        compiled_update(ready, problem, w, draws_at(problem, passes, 1, BATCH), state),
    )


def rest(name, chain):
    """Errors of value, gradient and the first level's tracked value after 1, 2, … updates there."""
    method, problem, w, (estimate, state) = moved_once(name, chain)
    batches = draws_at(problem, tuple(method.passes), 1, BATCH)
    value, grad = problem.value_and_grad(w)
    first = first_value(problem, w)
    rows = []
    for _ in range(RESTING):
        tracked = flat(method.trackers(state).value[0])
        rows.append((estimate.value - value, flat(estimate.grad) - flat(grad), tracked - first))
        estimate, state = compiled_update(method, problem, w, batches, state)
    return [np.stack(column) for column in zip(*rows, strict=True)]


def first_value(problem, w):
    if problem.blocks is None:
        return flat(problem.level_values(w)[0])
    return np.concatenate(
        [flat(problem.block(m).level_values(w)[0]) for m in range(problem.blocks.blocks)]
    )


#: They add what a derivative says about the last move, which is all there is to say on affine levels.
LINEAR = ("ATSCGD", "NLASG", "SCSC")


def is_followed_exactly(name, chain):
    """Whether the method knows the first level at once; that of a portfolio is affine."""
    return chain == "portfolio" and name.split()[0] in LINEAR


@pytest.mark.parametrize(
    ("name", "chain"), [pair for pair in said("geometric") if is_followed_exactly(*pair)]
)
def test_a_linear_correction_follows_affine_levels_exactly(name, chain):
    _, _, first = rest(name, chain)
    assert_same(first, 0)


@pytest.mark.parametrize(
    ("name", "chain"), [pair for pair in said("geometric") if not is_followed_exactly(*pair)]
)
def test_what_an_average_remembers_fades_by_the_same_factor_every_step(name, chain):
    """Exactly so for the first level; up to powers of the step for the gradient behind it."""
    value, grad, first = rest(name, chain)
    assert_same(first[2:], (1 - RATE) * first[1:-1])
    assert np.abs(first[1]).max() > 1e-4
    size = np.linalg.norm(grad, axis=1)
    assert size[0] > 1e-4
    assert 1 / 2 < size[20] / size[10] / (1 - RATE) ** 10 < 2**3
    assert_same(grad[-1], 0)
    assert_same(value[-1], 0)


@pytest.mark.parametrize(("name", "chain"), said("quadratic"))
def test_query_points_reach_weights_at_rest_like_the_inverse_square_of_the_step(name, chain):
    """Weights that move for the last time at step 3 are missed by a share 12/(t(t + 1)) at step t."""
    method, problem, w, (_, state) = moved_once(name, chain)
    batches = draws_at(problem, tuple(method.passes), 1, BATCH)
    w = jax.tree.map(lambda x: x - 0.05, w)
    grad = flat(problem.value_and_grad(w)[1])
    off = []
    errors = []
    for _ in range(RESTING):
        estimate, state = compiled_update(method, problem, w, batches, state)
        off.append(flat(state.query[0]) - flat(w))
        errors.append(np.linalg.norm(flat(estimate.grad) - grad))
    t = np.arange(3, RESTING + 3)
    assert_same(off, np.outer(12 / (t * (t + 1)), off[0]))
    assert np.abs(off[0]).max() > 1e-3
    assert 1 / 2 < errors[-1] / errors[20] / (t[20] / t[-1]) ** 2 < 2


@pytest.mark.parametrize(("name", "chain"), said("every row"))
def test_a_table_is_exact_once_every_row_was_seen(name, chain):
    """At weights at rest; before, it holds rows of the weights before."""
    method, problem, w, (estimate, state) = moved_once(name, chain)
    value, grad = problem.value_and_grad(w)
    source = problem.levels[0].source
    everything = source.population().draws
    errors = []
    for start in range(0, source.size, BATCH):
        index = np.arange(start, start + BATCH) % source.size
        batch = nx.Batch(jax.tree.map(lambda x, i=index: x[i], everything), jnp.asarray(index))
        estimate, state = compiled_update(method, problem, w, ({"value": batch}, {"value": None}), state)
        errors.append(np.linalg.norm(flat(estimate.grad) - flat(grad)))
    estimate, _ = compiled_update(method, problem, w, ({"value": batch}, {"value": None}), state)
    assert max(errors) > 1e-2
    assert_same(flat(estimate.grad), flat(grad))
    assert_same(estimate.value, value)
