"""A draw depends on seed, step, level and pass only, so that methods can be compared draw by draw."""

import jax
import numpy as np
import pytest
from tests.support.cases import noisy
from tests.support.methods import PAIRING, chain_of, every_method

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


@pytest.mark.parametrize("name", PAIRING.covers)
def test_the_first_pass_of_every_method_draws_the_same_and_so_does_the_second(name):
    """Whatever other passes there are, and whichever of them the outermost level leaves out."""
    method = every_method()[name]
    problem = chain_of(method).problem
    sizes = (4,) * len(problem.levels)
    draw = lambda passes: nx.draw_batches(problem, passes, jax.random.key(3), 7, sizes)
    places = list(method.passes)
    for own, others in zip(draw(method), draw(("first", "second")), strict=True):
        for pass_name, batch in own.items():
            other = others[("first", "second")[places.index(pass_name)]]
            assert (batch is None) == (other is None)
            if batch is not None:
                np.testing.assert_array_equal(batch.index, other.index)
                np.testing.assert_array_equal(*(getattr(b, "blocks", None) for b in (batch, other)))
