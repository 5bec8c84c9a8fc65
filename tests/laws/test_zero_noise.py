"""Without noise every estimator gives the exact gradient, whatever beta; `lagged` one step later."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.helpers import LAW_CASES, assert_same, drive, every_estimator, flat, quick_jit, quiet

import nestax as nx

ESTIMATORS = [name for name in every_estimator() if name != "exact"]


@quick_jit
def exact_along(problem, w):
    return jax.vmap(problem.value_and_grad)(w)


def exact_value_and_grad(problem, weights):
    value, grad = exact_along(problem, jax.tree.map(lambda *x: jnp.stack(x), *weights))
    return value, np.stack([flat(jax.tree.map(lambda x, t=t: x[t], grad)) for t in range(len(value))])


@pytest.mark.parametrize("beta", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", LAW_CASES)
def test_gradient_is_exact(name, estimator, beta):
    case = quiet(name)
    method = every_estimator(beta)[estimator]
    run = drive(case.problem, method, case.lr)
    value, grad = exact_value_and_grad(case.problem, run.w)
    belongs_to = np.maximum(np.arange(len(grad)) - method.lag, 0)
    assert_same(run.values, value)
    assert_same(run.grads, grad[belongs_to])
    assert np.linalg.norm(np.diff(grad, axis=0), axis=1).min() > 1e-6


@pytest.mark.parametrize("mode", ["fresh", "lagged", "reuse"])
def test_only_lagged_declares_a_lag(mode):
    assert nx.AdjointSMVR(mode=mode).lag == nx.ProductSMVR(mode=mode).lag == (mode == "lagged")
