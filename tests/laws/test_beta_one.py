"""beta = 1 forgets everything: what is left is the mini-batch chain rule of this step's draws."""

from typing import NamedTuple

import numpy as np
import pytest
from tests.estimators.transcribe import jacobians, mean_of_products, product
from tests.support.blocked import draws_of, visited_count
from tests.support.cases import LAW_CASES, noisy
from tests.support.compare import assert_same, flat
from tests.support.compiled import compiled_init
from tests.support.drive import FIRST_BATCH, draws_at, drive
from tests.support.methods import NO_MEMORY, chain_of, every_method, storm_family, without_memory

import nestax as nx

FORGETS = storm_family(1.0)


def run_of(name, estimator):
    case = noisy(name)
    return drive(case.problem, estimator, case.lr)


@pytest.mark.parametrize("estimator", ["SMVR", "AdjointSMVR reuse", "ProductSMVR reuse"])
@pytest.mark.parametrize("name", LAW_CASES)
def test_is_plain_with_the_same_draws(name, estimator):
    run, plain = run_of(name, FORGETS[estimator]), run_of(name, nx.Plain())
    assert_same(run.weights, plain.weights)
    assert_same(run.grads, plain.grads)
    assert_same(run.values, plain.values)


@pytest.mark.parametrize("estimator", ["AdjointSMVR fresh", "ProductSMVR fresh"])
@pytest.mark.parametrize("name", ["three_levels", "portfolio"])
def test_fresh_is_not_plain_because_its_derivatives_have_draws_of_their_own(name, estimator):
    problem = noisy(name).problem
    batches = draws_at(problem, ("value", "grad"), 0, FIRST_BATCH)
    w = problem.project(problem.w0)
    fresh, _ = compiled_init(FORGETS[estimator], problem, w, batches)
    plain, _ = compiled_init(nx.Plain(), problem, w, batches)
    assert_same(fresh.value, plain.value)
    assert np.linalg.norm(flat(fresh.grad) - flat(plain.grad)) > 1e-2


@pytest.mark.parametrize("estimator", ["AdjointSMVR lagged", "ProductSMVR lagged"])
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


# Every method, in its own form


class Look(NamedTuple):
    """What a step sees of one chain: the draws, and the inputs of the levels now and a step before."""

    draws: list
    new: list
    old: list


def looks(case, method, run, t):
    """One look, or one for every block that is visited."""
    inputs = lambda s, row: [flat(run.w[s]), *map(row, method.trackers(run.state[s]).value[:-1])]
    if case.problem.blocks is None:
        return [Look(run.drawn(t), inputs(t, flat), inputs(t - 1, flat))]
    out = []
    for place in range(visited_count(run.batches[t])):
        block, draws = draws_of(case, run.batches[t], place)
        row = lambda table, block=block: flat(table[block])
        out.append(Look(draws, inputs(t, row), inputs(t - 1, row)))
    return out


def expected(case, look, form):
    """The gradient, and the values of the inner levels."""
    inputs = {"new": look.new, "old": look.old, "mixed": [look.new[0], *look.old[1:]]}
    of = mean_of_products if form.per_draw else product_of_means
    values = [
        level.project(level.f(x, batch["value"]))
        for level, x, batch in zip(case.levels, inputs[form.values], look.draws, strict=True)
    ]
    return of(case, inputs[form.points], look.draws, form.draws), values[:-1]


def product_of_means(case, x, xi, name):
    return product(jacobians(case, x, xi, name))


def distance(case, method, form, run, t):
    """How far gradient and inner values are from what the draws of this step say."""
    seen = looks(case, method, run, t)
    told = [expected(case, look, form) for look in seen]
    off = [run.grads[t] - np.mean([grad for grad, _ in told], axis=0)]
    if form.follows:
        off += [
            u - v
            for look, (_, values) in zip(seen, told, strict=True)
            for u, v in zip(look.new[1:], values, strict=True)
        ]
    return max(np.abs(x).max() for x in off)


@pytest.mark.parametrize("name", [n for n, form in NO_MEMORY.covers.items() if form != "SVRG"])
def test_what_is_left_is_the_chain_rule_in_the_form_of_the_method(name):
    forgets, remembers, form = without_memory()[name], every_method()[name], NO_MEMORY.covers[name]
    case = chain_of(forgets)
    run = drive(case.problem, forgets, case.lr)
    assert max(distance(case, forgets, form, run, t) for t in range(1, len(run.w))) < 1e-12
    if name != "Plain":
        run = drive(case.problem, remembers, case.lr)
        assert distance(case, remembers, form, run, 3) > 1e-4


@pytest.mark.parametrize("name", [n for n, form in NO_MEMORY.covers.items() if form == "SVRG"])
def test_between_snapshots_what_is_left_is_svrg(name):
    """g(x) − g(x_s) + ḡ(x_s): of every value, and of every Jacobian or of their product."""
    method = without_memory()[name]
    case = chain_of(method)
    run = drive(case.problem, method, case.lr)
    jacobian_by_jacobian = name == "SnapshotSMVR"
    for t in range(1, len(run.w)):
        if t % method.period == 0:
            continue
        (now,) = looks(case, method, run, t)
        (after,) = looks(case, method, run, t - t % method.period + 1)
        snapshot = Look(run.drawn(t - t % method.period), after.old, None)
        svrg = lambda of, s=snapshot, n=now: of(n.new, n.draws) - of(s.new, n.draws) + of(s.new, s.draws)
        for i, level in enumerate(case.levels[:-1]):
            u = svrg(lambda x, xi, i=i, level=level: level.f(x[i], xi[i]["value"]))
            assert_same(now.new[i + 1], level.project(u))
        jacs = [
            svrg(lambda x, xi, i=i, level=level: level.J(x[i], xi[i]["value"]))
            for i, level in enumerate(case.levels)
        ]
        whole = svrg(lambda x, xi: product_of_means(case, x, xi, "value"))
        assert_same(run.grads[t], product(jacs) if jacobian_by_jacobian else whole)
