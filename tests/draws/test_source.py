"""Draws: functions of key and step, with the distribution they claim."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.compiled import quick_jit

import nestax as nx
from nestax.draws.rows import Batch
from nestax.draws.source import shuffled

ROWS = np.arange(10.0)[:, None]


def draws(source, steps, size, seed=0):
    one = jax.jit(lambda step: source.draw(jax.random.key(seed), step, size))
    return [one(jnp.asarray(step)) for step in range(steps)]


def test_a_draw_is_a_function_of_key_and_step():
    source = nx.Population(ROWS)
    again = source.draw(jax.random.key(0), jnp.asarray(3), 4)
    np.testing.assert_array_equal(draws(source, 4, 4)[3].index, again.index)
    np.testing.assert_array_equal(again.draws, ROWS[np.asarray(again.index)])
    other = source.draw(jax.random.key(1), jnp.asarray(3), 4)
    assert not np.array_equal(again.index, other.index)


def test_rows_are_drawn_evenly():
    counts = np.bincount(
        np.concatenate([b.index for b in draws(nx.Population(ROWS), 20, 1000)]), minlength=10
    )
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000)


def test_weighted_rows_are_drawn_by_weight():
    weights = np.arange(1.0, 11.0)
    source = nx.Population(ROWS, weights=weights)
    counts = np.bincount(np.concatenate([b.index for b in draws(source, 20, 1000)]), minlength=10)
    expected = 20_000 * weights / weights.sum()
    assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_without_replacement_an_epoch_holds_no_row_twice(size):
    per_epoch = 10 // size
    batches = draws(nx.Population(ROWS, replace=False), 3 * per_epoch, size)
    epochs = np.concatenate([b.index for b in batches]).reshape(3, -1)
    for epoch in epochs:
        assert len(set(epoch.tolist())) == per_epoch * size
    assert not np.array_equal(epochs[0], epochs[1])


def test_a_batch_without_replacement_cannot_exceed_the_population():
    with pytest.raises(nx.ProblemError, match="needs at least 11 rows"):
        nx.Population(ROWS, replace=False).draw(jax.random.key(0), jnp.asarray(0), 11)


@pytest.mark.parametrize("n", [1, 2, 7, 64, 1000])
def test_shuffling_is_a_permutation_and_mixes(n):
    shuffle = quick_jit(lambda key: shuffled(key, jnp.arange(n), n))
    permutation = np.asarray(shuffle(jax.random.key(5)))
    assert sorted(permutation.tolist()) == list(range(n))
    if n == 1000:
        fixed = np.mean([np.mean(shuffle(jax.random.key(k)) == np.arange(n)) for k in range(50)])
        assert fixed < 5 / n
        steps = np.corrcoef(permutation[:-1], permutation[1:])[0, 1]
        assert abs(steps) < 0.15


def test_a_sampler_draws_from_keys():
    source = nx.Sampler(lambda key: jax.random.normal(key, (2,)))
    first, second = draws(source, 2, 5)
    assert first.draws.shape == (5, 2)
    assert len(np.unique(np.concatenate([first.draws, second.draws]))) == 20


@pytest.mark.parametrize(
    ("size", "most", "groups"),
    [
        (64, 100, 16),  # never more than 16
        (64, 4, 4),
        (64, 1, 2),  # one group says nothing about how much groups differ
        (18, 16, 9),
        (22, 16, 11),
        (23, 16, 23),  # does not divide well: every draw by itself
        (46, 4, 46),
        (46, 3, 2),
        (254, 16, 254),
        (257, 16, 1),
        (514, 16, 2),
    ],
)
def test_a_batch_in_groups_of_equal_size(size, most, groups):
    cut = Batch(np.arange(float(size))).in_groups(most).draws
    np.testing.assert_array_equal(cut, np.arange(float(size)).reshape(groups, size // groups))


def test_groups_draw_one_member_of_each_and_count_both():
    source = nx.Groups([ROWS, 100 + ROWS[:3]])
    (batch,) = draws(source, 1, 6)
    first, second = batch.draws
    assert first.shape == second.shape == (6, 1)
    assert np.all(second >= 100)
    assert (source.size, source.cost) == (13, 2)


@pytest.mark.erratum("E25")
def test_levels_and_passes_draw_independently():
    problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(1000, 3))
    batches = nx.draw_batches(problem, ("value", "grad"), jax.random.key(0), 1, (64, 64, 0))
    indices = [b[name].index for b in batches[:2] for name in ("value", "grad")]
    for a in range(4):
        for b in range(a):
            assert np.mean(np.asarray(indices[a]) == np.asarray(indices[b])) < 0.1
    assert batches[2] == {"value": None, "grad": None}
