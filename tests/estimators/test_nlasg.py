"""ML-NASA and NLASG of Balasubramanian, Ghadimi and Nguyen, written out with matrices in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.estimators.transcribe import averaged, follow, jacobians, noiseless, plain, product, sgd
from tests.support.cases import exact_middle, noisy
from tests.support.drive import STEPS

import nestax as nx

METHODS = {"mlnasa": nx.MLNASA, "nlasg": nx.NLASG}


def published_tau(k):
    return 1 if k == 0 else 1 / np.sqrt(STEPS)


def nlasg(case, name, tau, exact_levels=True):
    """tau(k) = τ_k; u[0] is x; values and Jacobians are sampled at the old inputs."""

    def method(t, x, xi, state):
        if t == 0:
            u = plain(case, x, xi, "value")
            z = product(jacobians(case, u, xi, "value"))
            return z, u[-1][0], (u, z)
        (u_old, z_old), tau_k = state, tau(t - 1)
        J = jacobians(case, u_old, xi, "value")
        u = [x]
        for i, level in enumerate(case.levels):
            batch = xi[i]["value"]
            if exact_levels and noiseless(batch):
                u_i = level.f(u[i], batch)
            else:
                u_i = (1 - tau_k) * u_old[i + 1] + tau_k * level.f(u_old[i], batch)
                if name == "nlasg":
                    u_i = u_i + J[i] @ (u[i] - u_old[i])
            u.append(level.project(u_i))
        z = (1 - tau_k) * z_old + tau_k * product(J)
        return z, u[-1][0], (u, z)

    return method


@pytest.mark.parametrize("problem", ["three_levels", "portfolio"])
@pytest.mark.parametrize("name", METHODS)
def test_published_pair(name, problem):
    case = noisy(problem)
    step = averaged(case, 0.3, published_tau)
    follow(case, METHODS[name](), nlasg(case, name, published_tau), step)


@pytest.mark.parametrize("name", METHODS)
def test_levels_without_noise(name):
    case, runs = exact_middle(), {}
    for exact in (True, False):
        estimator = METHODS[name](tau=0.4, exact_levels=exact)
        method = nlasg(case, name, lambda k: 0.4, exact)
        runs[exact] = follow(case, estimator, method, sgd(case), case.lr)
    assert np.abs(runs[True].grads - runs[False].grads).max() > 1e-4


def test_last_level_without_noise():
    case = noisy("portfolio")
    follow(
        case,
        nx.NLASG(tau=0.4, exact_levels=False),
        nlasg(case, "nlasg", lambda k: 0.4, False),
        sgd(case),
        case.lr,
    )


def test_schedule_starts_at_zero_for_the_estimate_and_for_the_step():
    case = noisy("two_levels")
    estimator = lambda method: method(tau=lambda k: 0.9 / (1 + jnp.asarray(k, float)), lr=0.3)
    tau = lambda k: 0.9 / (1 + k)
    step = averaged(case, 0.3, tau)
    one = follow(case, estimator(nx.NLASG), nlasg(case, "nlasg", tau), step)
    other = follow(case, estimator(nx.MLNASA), nlasg(case, "mlnasa", tau), step)
    assert np.abs(one.values - other.values).max() > 1e-3
