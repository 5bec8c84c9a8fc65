"""Groups of rows in one table; windows of rows, and runs as NumPy, are tested with the portfolio."""

import jax
import numpy as np

from nestax.sklearn.windows import GroupsWindow, filled_size


def test_sizes_are_powers_of_two():
    assert [filled_size(rows, 64) for rows in (1, 64, 65, 128, 129)] == [64, 64, 128, 128, 256]


def test_every_member_of_a_group_is_drawn_as_often_as_the_others():
    """One member of every group a draw; nothing that only fills up the table is ever drawn."""
    groups = [(np.full((rows, 2), float(rows)), np.arange(rows)) for rows in (3, 1, 600)]
    window = GroupsWindow(groups)
    assert window.data[0].shape == (1024, 2)
    assert window.cost == 3
    batch = window.draw(jax.random.key(0), 7, 30_000)
    for (X, y), (rows, members) in zip(groups, batch.draws, strict=True):
        assert (np.asarray(rows) == X[0]).all()
        times = np.bincount(members, minlength=len(y)) / 30_000
        np.testing.assert_allclose(times, 1 / len(y), atol=5 / np.sqrt(30_000 * len(y)))
    assert jax.tree.map(np.shape, batch.draws) == (((30_000, 2), (30_000,)),) * 3
    again = window.draw(jax.random.key(0), 7, 30_000)
    np.testing.assert_array_equal(batch.draws[2][1], again.draws[2][1])
    other = window.draw(jax.random.key(0), 8, 30_000)
    assert not np.array_equal(batch.draws[2][1], other.draws[2][1])
