"""beta = 1 forgets everything: what is left is the mini-batch chain rule of this step's draws."""

import numpy as np
import pytest
from tests.helpers import (
    FIRST_BATCH,
    LAW_CASES,
    assert_same,
    compiled_init,
    draws_at,
    drive,
    flat,
    noisy,
    storm_family,
)  # fmt: skip

import nestax as nx

FORGETS = storm_family(1.0)


def run_of(name, estimator):
    case = noisy(name)
    return drive(case.problem, estimator, case.lr)


@pytest.mark.parametrize("estimator", ["smvr", "adjoint_reuse", "product_reuse"])
@pytest.mark.parametrize("name", LAW_CASES)
def test_is_plain_with_the_same_draws(name, estimator):
    run, plain = run_of(name, FORGETS[estimator]), run_of(name, nx.Plain())
    assert_same(run.weights, plain.weights)
    assert_same(run.grads, plain.grads)
    assert_same(run.values, plain.values)


@pytest.mark.parametrize("estimator", ["adjoint_fresh", "product_fresh"])
@pytest.mark.parametrize("name", ["three_levels", "portfolio"])
def test_fresh_is_not_plain_because_its_derivatives_have_draws_of_their_own(name, estimator):
    problem = noisy(name).problem
    batches = draws_at(problem, ("value", "grad"), 0, FIRST_BATCH)
    w = problem.project(problem.w0)
    fresh, _ = compiled_init(FORGETS[estimator], problem, w, batches)
    plain, _ = compiled_init(nx.Plain(), problem, w, batches)
    assert_same(fresh.value, plain.value)
    assert np.linalg.norm(flat(fresh.grad) - flat(plain.grad)) > 1e-2


@pytest.mark.parametrize("estimator", ["adjoint_lagged", "product_lagged"])
@pytest.mark.parametrize("name", LAW_CASES)
def test_lagged_takes_this_steps_derivatives_at_the_inputs_of_the_step_before(name, estimator):
    levels, method = noisy(name).levels, FORGETS[estimator]
    run = run_of(name, method)
    for t in range(1, len(run.w)):
        before = method.trackers(run.state[t - 1]).value
        inputs = (run.w[t - 1], *before[:-1])
        adjoint = np.ones(1)
        for level, x, draws in reversed(list(zip(levels, inputs, run.draws[t], strict=True))):
            adjoint = level.J(flat(x), draws["value"]).T @ adjoint
        assert_same(run.grads[t], adjoint)
