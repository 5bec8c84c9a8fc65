"""One level: a method for any number of them is one of the known methods for one.

SMVR and its relatives are STORM (Cutkosky and Orabona), methods that leave the outermost derivative raw
are plain descent, averaged gradients stay averages, Nested-SPIDER is SPIDER.
"""

import numpy as np
import pytest
from tests.support.blocked import blocked, draws_of, visited_count
from tests.support.cases import noisy
from tests.support.compare import assert_same, flat
from tests.support.drive import drive
from tests.support.methods import BLOCKS, ONE_LEVEL, VISIT, every_method, storm_family


def gradient_of(case, method, run):
    """g(s, t): the mean gradient at the weights of step s with the draws of step t."""
    (level,) = case.levels
    name = "grad" if "grad" in method.passes else "value"
    if case.problem.blocks is None:
        draws = [xi[0][name] for xi in run.draws]
        return lambda s, t: level.J(flat(run.w[s]), draws[t])[0]

    def over_blocks(s, t):
        visits = [draws_of(case, run.batches[t], k) for k in range(visited_count(run.batches[t]))]
        return np.mean([level.J(flat(run.w[s]), xi[0][name])[0] for _, xi in visits], axis=0)

    return over_blocks


def sgd(method, g, steps, rate, late):
    return [g(t, t) for t in range(steps)]


def storm(method, g, steps, rate, late):
    """∇f(w_t; ξ_t) + (1 − β)(d_{t-1} − ∇f(w_{t-1}; ξ_t)), at the weights of the step before if late."""
    d = [g(0, 0)]
    for t in range(1, steps):
        new, old = max(t - late, 0), max(t - 1 - late, 0)
        d.append(g(new, t) + (1 - rate) * (d[-1] - g(old, t)))
    return d


def average(method, g, steps, rate, late):
    d = [g(0, 0)]
    for t in range(1, steps):
        d.append((1 - rate) * d[-1] + rate * g(max(t - late, 0), t))
    return d


def spider(method, g, steps, rate, late):
    d = [g(0, 0)]
    for t in range(1, steps):
        d.append(g(t, t) if t % method.period == 0 else d[-1] + g(t, t) - g(t - 1, t))
    return d


def storm_with_snapshots(method, g, steps, rate, late):
    """The fresh part of STORM is an SVRG sample; a snapshot, which sees all rows, is exact."""
    d = [g(0, 0)]
    for t in range(1, steps):
        s = t - t % method.period
        svrg = g(t, t) - g(s, t) + g(s, s)
        d.append(svrg if s == t else rate * svrg + (1 - rate) * (d[-1] + g(t, t) - g(t - 1, t)))
    return d


RELATIVES = {
    "SGD": sgd,
    "STORM": storm,
    "average": average,
    "SPIDER": spider,
    "STORM with snapshots": storm_with_snapshots,
}


@pytest.mark.parametrize("rate", [0.05, 0.3])
@pytest.mark.parametrize("name", [n for n, says in ONE_LEVEL.covers.items() if says != "acceleration"])
def test_is_the_method_for_one_level(name, rate):
    method = every_method(rate)[name]
    in_blocks = blocked("one_level", blocks=BLOCKS, visit=VISIT)
    case = in_blocks if method.blocks == "table" else noisy("one_level")
    run = drive(case.problem, method, case.lr)
    relative, _, late = ONE_LEVEL.covers[name].partition(", ")
    assert bool(late) == (method.lag == 1)
    g = gradient_of(case, method, run)
    assert_same(run.grads, RELATIVES[relative](method, g, len(run.w), rate, method.lag))
    weights = np.asarray(run.weights)
    assert_same(weights[1:], weights[:-1] - case.lr * run.grads[:-1])


@pytest.mark.parametrize("name", [n for n, says in ONE_LEVEL.covers.items() if says == "acceleration"])
def test_is_accelerated_descent(name):
    """The gradient at m_t = (τ m_{t-1} + x_t + θ(x_t − x_{t-1}))/(1 + τ), averages of weights ahead."""
    case = noisy("one_level")
    run = drive(case.problem, every_method()[name], case.lr)
    m = np.zeros(4)
    for t, xi in enumerate(run.draws, start=1):
        w, before = flat(run.w[t - 1]), flat(run.w[max(t - 2, 0)])
        theta, tau = (t - 1) / t, (t - 1) / 2
        m = (tau * m + w + theta * (w - before)) / (1 + tau)
        assert_same(run.grads[t - 1], case.levels[0].J(m, xi[0]["grad"])[0])


def test_storm_has_memory():
    case = noisy("one_level")
    method = storm_family(0.05)["SMVR"]
    run = drive(case.problem, method, case.lr)
    g = gradient_of(case, method, run)
    remembers, forgets = (storm(method, g, len(run.w), beta, 0) for beta in (0.05, 1.0))
    assert np.abs(np.subtract(remembers, forgets)).max() > 0.1
