"""Stages: one run with settings that change, nothing drawn at a hand-over, one compilation."""

import jax.numpy as jnp
import numpy as np
import pytest

import nestax as nx
from nestax.programs import TRACES
from nestax.run.stages import stage_schedules

from experiments.smooth_chain import smooth_chain

STAGES = [nx.theory.Stage(5, 0.1, 0.5), nx.theory.Stage(3, 0.05, 0.2), nx.theory.Stage(4, 0.02, 0.1)]
FACTS = {"batch_size": 2, "record": ["value"], "record_every": 4}


@pytest.fixture(scope="module")
def problem():
    return nx.problems.convex_chain(levels=3)


def test_a_step_and_the_update_after_it_belong_to_one_stage():
    lr, beta = stage_schedules(STAGES)
    rates = [float(lr(jnp.asarray(c))) for c in range(13)]
    np.testing.assert_allclose(rates, [0.1] * 5 + [0.05] * 3 + [0.02] * 5)
    betas = [float(beta(jnp.asarray(n))) for n in range(1, 13)]
    np.testing.assert_allclose(betas, [0.5] * 5 + [0.2] * 3 + [0.1] * 4)


@pytest.mark.erratum("E6")
def test_stages_are_runs_that_continue_each_other(problem):
    """The hand-over passes weights and trackers of one step, and draws nothing."""
    whole = nx.solve_stages(problem, STAGES, **FACTS)
    carry = None
    for stage in STAGES:
        method = nx.SMVR(beta=stage.beta)
        part = nx.minimize(
            problem, method, nx.steps.Descent(stage.lr), steps=stage.steps, start=carry, **FACTS
        )
        carry = part.carry
    np.testing.assert_allclose(whole.w, part.w, rtol=1e-12)
    assert whole.carry.cost == part.carry.cost
    assert whole.records["samples"][-1] == 3 * (20 + 2 * 12)


def test_other_stages_compile_nothing(problem):
    nx.solve_stages(problem, STAGES, **FACTS)
    before = dict(TRACES)
    longer = [nx.theory.Stage(7, 0.2, 0.4), nx.theory.Stage(5, 0.1, 0.3), nx.theory.Stage(20, 0.05, 0.1)]
    nx.solve_stages(problem, longer, **FACTS)
    assert before == TRACES


def test_random_ends_are_within_their_stages(problem):
    long = [nx.theory.Stage(40, 0.1, 0.5), nx.theory.Stage(80, 0.05, 0.2)]
    steps = {
        nx.solve_stages(problem, long, output="random", seed=s, **FACTS).carry.step for s in range(3)
    }
    assert len(steps) == 3
    assert max(steps) < 120


def test_any_estimator_with_a_beta_can_be_staged(problem):
    matrix_free = nx.solve_stages(problem, STAGES, nx.AdjointSMVR(mode="fresh"), **FACTS)
    assert matrix_free.carry.step == 12
    with pytest.raises(nx.SettingError, match=r"NLASG has no beta .* use nx.SMVR"):
        nx.solve_stages(problem, STAGES, nx.NLASG(), **FACTS)
    with pytest.raises(nx.SettingError, match="at least one"):
        nx.solve_stages(problem, [], **FACTS)


@pytest.mark.erratum("E11")
def test_the_regulariser_is_exact_and_centred_at_the_start(problem):
    changed = nx.theory.regularised(problem, 0.3)
    w = problem.w0 + jnp.asarray([1.0, -2.0, 0.5])
    value, grad = problem.value_and_grad(w)
    new_value, new_grad = changed.value_and_grad(w)
    np.testing.assert_allclose(new_value, value + 0.15 * 5.25)
    np.testing.assert_allclose(new_grad, grad + 0.3 * (w - problem.w0))
    np.testing.assert_allclose(changed.metrics["objective"](w), value)
    with pytest.raises(nx.SettingError, match="mu must be positive"):
        nx.theory.regularised(problem, 0.0)


def test_stages_come_close_to_the_optimum_of_a_strongly_convex_chain():
    problem = smooth_chain("strongly convex", 2)
    facts = {"batch_size": 4, "record": ["gap"], "record_every": 100, "seed": 1}
    stages = nx.theory.halving(steps=200, lr=2.0, beta=0.3, stages=6)
    staged = nx.solve_stages(problem, stages, **facts).records["gap"]
    assert staged[-20:].mean() < 1e-3 * staged[0]
    assert staged[-20:].mean() < staged[40:60].mean() / 2  # a constant rate stays where it is
