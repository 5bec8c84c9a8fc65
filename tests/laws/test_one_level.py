"""One level: the whole family is STORM (Cutkosky and Orabona)."""

import numpy as np
import pytest
from tests.helpers import assert_same, drive, noisy, storm_family


def storm(case, draws, beta):
    (level,) = case.levels
    gradient = lambda w, batch: level.J(w, batch)[0]
    weights, estimates = [case.w0], [gradient(case.w0, draws[0])]
    for xi in draws[1:]:
        w_old, d_old = weights[-1], estimates[-1]
        w = w_old - case.lr * d_old
        weights.append(w)
        estimates.append(gradient(w, xi) + (1 - beta) * (d_old - gradient(w_old, xi)))
    return weights, estimates


@pytest.mark.parametrize("beta", [0.05, 0.3])
@pytest.mark.parametrize(
    "estimator",
    ["smvr", "adjoint_reuse", "product_reuse", "adjoint_fresh", "product_fresh"],
)
def test_is_storm(estimator, beta):
    case = noisy("one_level")
    run = drive(case.problem, storm_family(beta)[estimator], case.lr)
    name = "grad" if estimator.endswith("fresh") else "value"
    weights, estimates = storm(case, [xi[0][name] for xi in run.draws], beta)
    assert_same(run.weights, weights)
    assert_same(run.grads, estimates)


def test_storm_has_memory():
    case = noisy("one_level")
    run = drive(case.problem, storm_family(0.05)["smvr"], case.lr)
    draws = [xi[0]["value"] for xi in run.draws]
    difference = np.asarray(storm(case, draws, 0.05)[1]) - np.asarray(storm(case, draws, 1.0)[1])
    assert np.abs(difference).max() > 0.1
