"""A draw depends on seed, step, level and pass only, so that methods can be compared draw by draw."""

import jax
import numpy as np
import pytest
from tests.helpers import noisy

import nestax as nx


def value_rows(name, passes, step):
    problem = noisy(name).problem
    sizes = (4,) * len(problem.levels)
    batches = nx.draw_batches(problem, passes, jax.random.key(3), step, sizes)
    return [batch["value"].index for batch in batches if batch["value"] is not None]


@pytest.mark.parametrize("name", ["two_levels", "portfolio"])
def test_a_second_pass_leaves_the_draws_of_the_first_alone(name):
    plain, smvr = nx.Plain().passes, nx.SMVR().passes
    fresh = nx.AdjointSMVR(mode="fresh").passes
    np.testing.assert_array_equal(value_rows(name, smvr, 7), value_rows(name, plain, 7))
    np.testing.assert_array_equal(value_rows(name, fresh, 7), value_rows(name, plain, 7))


def test_levels_passes_and_steps_have_draws_of_their_own():
    problem = noisy("two_levels").problem
    rows = [
        tuple(np.asarray(batch[name].index))
        for step in (0, 1)
        for batch in nx.draw_batches(problem, ("value", "grad"), jax.random.key(3), step, (8, 8))
        for name in ("value", "grad")
    ]
    assert len(set(rows)) == len(rows) == 8
