"""What does not fit: batches are cut, large carries overwritten, and what is too large is refused."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.asked import asked

import nestax as nx
from nestax.loop import chunks as drive
from nestax.loop import memory as sizing


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
    return nx.minimize(
        problem, method, optax.sgd(lr), steps=20, batch_size=2, record_every=5, **asked(**options)
    )


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


def test_one_copy_of_what_is_large_is_the_same_run(problem, memory, capsys):
    usual = run(problem)
    assert "nestax:" not in capsys.readouterr().err  # not large
    memory(2 * size_of())
    patient = run(problem, patience=100)
    assert "take 0.00 GiB of the 0.00 GiB free on a small device" in capsys.readouterr().err
    overwritten = run(problem)
    for result in (patient, overwritten):
        assert np.array_equal(result.w, usual.w)
        assert np.array_equal(result.records["exact_value"], usual.records["exact_value"])


def test_one_copy_leaves_the_weights_when_a_run_fails(problem, memory):
    memory(2 * size_of() - 1)
    with pytest.warns(nx.ConvergenceWarning, match="one copy of the trackers only"):
        result = run(problem, lr=1e300)
    assert result.status is nx.Status.NONFINITE
    assert np.isfinite(result.w).all()
    assert "one copy of the trackers only" in result.message
    with pytest.raises(nx.SettingError, match="one copy of the trackers only, and start= is one"):
        run(problem, start=result.carry)


def test_a_sweep_of_large_carries_is_the_same_sweep(problem, memory):
    build = lambda s: (nx.PerBlock(nx.SCSC(0.5)), optax.sgd(s.lr))
    options = {"settings": nx.grid(lr=[0.1, 0.2]), "seeds": 2, "steps": 20, "batch_size": 2}
    usual = nx.sweep(problem, build, record=["exact_value"], **options)
    memory(float("inf"))
    again = nx.sweep(problem, build, record=["exact_value"], **options)
    assert np.array_equal(usual.w, again.w)
    assert np.array_equal(usual.records["exact_value"], again.records["exact_value"])


def test_free_memory_is_a_plausible_number():
    free, where = sizing.free_memory()
    assert free > 2**20
    assert where


# Batches


@pytest.fixture
def chain():
    """One draw holds a hundred numbers behind tanh, and has four outputs."""
    rows = np.random.default_rng(0).normal(size=(40, 100))
    levels = [
        nx.Level(lambda w, r: jnp.tanh(r * w).reshape(4, 25).sum(1), rows, name="inner"),
        nx.Level(lambda u: jnp.sum((u - 0.3) ** 2), name="outer"),
    ]
    return nx.Problem(levels, w0=jnp.ones(100))


@pytest.fixture
def free(monkeypatch):
    """From the first call on so much is free for batches, and every batch counts as large."""

    def set_free(bytes_free):
        monkeypatch.setattr(sizing, "LARGE_BYTES", 0)
        monkeypatch.setattr(sizing, "free_memory", lambda: (bytes_free, "a small device"))

    return set_free


def descend(chain, estimator=None, **options):
    options = {"steps": 10, "batch_size": 8, "init_batch_size": 8} | options
    return nx.minimize(chain, estimator or nx.Plain(), optax.sgd(0.01), **asked(**options))


def test_batches_that_fit_are_whole(chain, free, capsys):
    usual = descend(chain)
    assert usual.micro_batch == {}
    free(2 * 8 * chain.levels[0].held())  # a half is for batches
    result = descend(chain)
    assert result.micro_batch == {}
    assert np.array_equal(result.w, usual.w)
    assert "nestax" not in capsys.readouterr().err


def test_batches_that_do_not_fit_are_cut_into_powers_of_two(chain, free, capsys):
    usual = descend(chain)
    free(2 * 8 * chain.levels[0].held() - 2)
    result = descend(chain)
    assert result.micro_batch == {"inner": 4}
    np.testing.assert_allclose(result.w, usual.w, rtol=1e-12)
    assert "so many draws at a time, by level: 'inner' 4; all at once" in capsys.readouterr().err


def test_a_large_start_is_cut_where_a_step_is_not(chain, free):
    free(2 * 8 * chain.levels[0].held())
    result = descend(chain, init_batch_size=80)
    assert result.micro_batch == {"inner": 8}  # a batch of a step is whole


def test_rows_of_jacobians_count_where_a_method_has_them_and_runs_side_by_side_count(chain, free):
    held = chain.levels[0].held()
    free(2 * 2 * 8 * held)  # two points of eight draws
    assert descend(chain, nx.AdjointSMVR(0.5)).micro_batch == {}
    assert descend(chain, nx.SMVR(0.5)).micro_batch == {"inner": 2}  # four rows at each
    build = lambda s: (nx.AdjointSMVR(0.5), optax.sgd(s.lr))
    options = {"settings": nx.grid(lr=[0.1, 0.2]), "seeds": 2, "steps": 4, "batch_size": 8}
    sweep = nx.sweep(chain, build, init_batch_size=8, **options)
    assert sweep.micro_batch == {"inner": 2}


def test_a_draw_that_does_not_fit_is_refused_with_numbers(chain, free):
    free(chain.levels[0].held())
    with pytest.raises(
        nx.SettingError,
        match=r"one draw of level 'inner' holds 0\.00 GiB .* a small device has 0\.00 GiB",
    ):
        descend(chain)


def in_parts(chain, most):
    """The chain whose first level is evaluated so many draws at a time."""
    inner, outer = chain.levels
    return chain.replace(levels=[inner.replace(micro_batch=most), outer])


@pytest.mark.parametrize("estimator", [nx.Plain(), nx.SMVR(0.5), nx.AdjointSMVR(0.5), nx.SelfTuning()])
def test_a_micro_batch_changes_nothing_but_rounding(chain, estimator):
    whole = descend(chain, estimator)
    parts = descend(in_parts(chain, 3), estimator)
    np.testing.assert_allclose(parts.w, whole.w, rtol=1e-9)
    assert parts.micro_batch == {"inner": 3}


def test_a_checkpoint_knows_the_parts_of_batches(chain, free, tmp_path):
    """Also where they are the memory's: a level that is told them goes on where there is more."""
    free(2 * 8 * chain.levels[0].held() - 2)
    descend(chain, checkpoint=tmp_path / "run")
    free(2**40)
    with pytest.raises(nx.SettingError, match="micro_batch of level 'inner' was 4 and is not there"):
        descend(chain, checkpoint=tmp_path / "run", resume=True, steps=20)
    again = descend(in_parts(chain, 4), checkpoint=tmp_path / "run", resume=True, steps=20)
    assert again.records["step"][-1] == 20


def test_a_result_keeps_its_parts_of_batches(chain, tmp_path):
    descend(in_parts(chain, 4)).save(tmp_path / "result.safetensors")
    assert nx.load(tmp_path / "result.safetensors").micro_batch == {"inner": 4}
