"""Large carries: measured, refused, and overwritten where memory is short."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nestax as nx
from nestax.loop import compiled as drive


def response(w, x):
    return x * w


def misfit(u):
    return jnp.sum((u - 0.3) ** 2)


@pytest.fixture
def problem():
    rows = np.random.default_rng(0).normal(size=(6, 5, 3))
    levels = [nx.Level(response, nx.Blocks(rows, visit=2), name="response"), nx.Level(misfit)]
    return nx.Problem(levels, w0=jnp.ones(3))


@pytest.fixture
def memory(monkeypatch):
    """From the first call on everything counts as large, and so much is free."""

    def set_free(free):
        monkeypatch.setattr(drive, "LARGE_BYTES", 0)
        monkeypatch.setattr(drive, "free_memory", lambda: (free, "a small device"))

    return set_free


def run(problem, lr=0.1, **options):
    method = nx.PerBlock(nx.SCSC(0.5))
    return nx.minimize(problem, method, optax.sgd(lr), steps=20, batch_size=2, record_every=5, **options)


def size_of():
    """Bytes of what is carried, by hand: w, value and gradient, and a row for each of the blocks with
    w, u, the tracked objective, and the number of visits as a 32-bit integer."""
    return 8 * (3 + 1 + 3) + 6 * (8 * (3 + 3 + 1) + 4)


def test_tables_that_do_not_fit_are_refused_with_numbers(problem, memory):
    memory(size_of() - 1)
    with pytest.raises(
        nx.SettingError, match=r"trackers \(6 blocks\) take 0\.00 GiB, and a small device"
    ):
        run(problem)


def test_two_copies_where_they_fit_and_one_where_not(problem, memory, capsys):
    usual = run(problem)
    assert "nestax:" not in capsys.readouterr().err  # not large
    memory(2 * size_of())
    kept = run(problem)
    assert "take 0.00 GiB of the 0.00 GiB free on a small device" in capsys.readouterr().err
    memory(2 * size_of() - 1)
    short = run(problem)
    for result in (kept, short):
        assert np.array_equal(result.w, usual.w)
        assert np.array_equal(result.records["exact_value"], usual.records["exact_value"])


def test_one_copy_leaves_the_weights_when_a_run_fails(problem, memory):
    memory(2 * size_of() - 1)
    with pytest.warns(nx.DivergenceWarning, match="one copy of the trackers only"):
        result = run(problem, lr=1e300)
    assert result.status is nx.Status.NONFINITE
    assert np.isfinite(result.w).all()
    assert "one copy of the trackers only" in result.message
    with pytest.raises(nx.SettingError, match="one copy of the trackers only, so that nothing"):
        run(problem, patience=2)


def test_a_sweep_of_large_carries_is_the_same_sweep(problem, memory):
    build = lambda s: (nx.PerBlock(nx.SCSC(0.5)), optax.sgd(s.lr))
    options = {"settings": nx.grid(lr=[0.1, 0.2]), "seeds": 2, "steps": 20, "batch_size": 2}
    usual = nx.sweep(problem, build, record=["exact_value"], **options)
    memory(float("inf"))
    again = nx.sweep(problem, build, record=["exact_value"], **options)
    assert np.array_equal(usual.w, again.w)
    assert np.array_equal(usual.records["exact_value"], again.records["exact_value"])


def test_free_memory_is_a_plausible_number():
    free, where = drive.free_memory()
    assert free > 2**20
    assert where
