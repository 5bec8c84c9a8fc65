"""A run says how far it may be trusted, and warns, once, where it has clearly not arrived."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nestax as nx
from nestax.run.verdict import Word, judge

ROWS = np.random.default_rng(0).normal(size=(300, 3))
TARGET = ROWS @ np.array([1.0, -1.0, 0.5]) + 0.3 * np.random.default_rng(1).normal(size=300)


def squares(scale=1.0, unit=1.0, **more):
    """Least squares whose value and whose weights may have any scale."""
    level = nx.Level(lambda w, r: (r[:3] @ (w / unit) - r[3]) ** 2, np.c_[ROWS, TARGET], name="squares")
    outer = nx.Level(lambda u: scale * u, name="scaled")
    return nx.Problem([level, outer], **({"w0": np.zeros(3)} | more))


def go(problem, lr, method=None, steps=400, **more):
    settings = {"steps": steps, "batch_size": 8} | more
    return nx.minimize(problem, method or nx.Plain(), optax.sgd(lr), **settings)


def warned(run):
    """The one warning of a run, and its result."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run()
    assert len(caught) == 1
    assert issubclass(caught[0].category, nx.ConvergenceWarning)
    return caught[0], result


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_the_verdict_does_not_depend_on_the_units_of_f_and_of_the_weights(scale, unit):
    problem = squares(scale, unit)
    rate = 0.05 * unit**2 / scale
    assert go(problem, rate).verdict.word is Word.STATIONARY
    assert go(problem, rate, steps=8).verdict.word is Word.FALLING
    assert go(problem, 1e-3 * rate).verdict.word is Word.FALLING


def test_a_run_that_still_falls_says_by_how_much_and_what_to_do():
    warning, result = warned(lambda: go(squares(), 1e-4))
    first, last = result.records["exact_value"][[0, -1]]
    words = str(warning.message)
    assert words.startswith(f"Still falling: the exact value went from {first:.4g} to {last:.4g}, ")
    assert words.endswith("Take more steps, or a larger learning rate.")
    assert words == str(result.verdict)
    assert words in repr(result)
    assert words in result._repr_html_()
    assert result.verdict.arrived is False
    assert warning.filename == __file__


def test_what_is_left_is_the_fall_to_first_order():
    """Without constraints: the distance so far times the length of the exact gradient."""
    result = go(squares(), 0.05, nx.Exact(), steps=12, record_every=1)
    w = np.asarray(result.w)
    gradient = 2 * ROWS.T @ (ROWS @ w - TARGET) / len(ROWS)
    moved = np.linalg.norm(w)
    np.testing.assert_allclose(result.records["moved"][-1], moved, rtol=1e-6)
    np.testing.assert_allclose(result.records["left"][-1], moved * np.linalg.norm(gradient), rtol=1e-6)


def test_under_a_constraint_what_is_left_goes_to_the_end_of_the_set():
    """On the simplex with a linear F it leads towards the best vertex, though ∇F is nearly normal."""
    rows = np.tile([1000.0, 1001.0, 1003.0], (10, 1))
    problem = nx.Problem(
        [nx.Level(lambda w, r: r @ w, rows)], np.full(3, 1 / 3), project=nx.projections.simplex
    )
    result = go(problem, 1e-3, nx.Exact(), steps=20, record_every=1)
    w = np.asarray(result.w)
    best = rows[0] @ w - 1000.0
    moved = np.linalg.norm(w - 1 / 3)
    assert result.records["moved"][-1] == pytest.approx(moved)
    assert 0 < result.records["left"][-1] <= best * (1 + 1e-9)
    far = go(problem, 1.0, nx.Exact(), steps=20)
    assert far.records["left"][-1] == pytest.approx(0, abs=1e-9)
    assert far.verdict.word is Word.STATIONARY


def test_a_rate_that_dies_stops_short():
    warning, result = warned(lambda: go(squares(), optax.exponential_decay(0.003, 10, 0.7), nx.Exact()))
    assert result.verdict.word is Word.STUCK
    assert "hardly moves any more" in str(warning.message)


def test_a_rate_that_is_too_large_bounces():
    _, result = warned(lambda: go(squares(), 0.25, batch_size=1, steps=2_000))
    assert result.verdict.word is Word.BOUNCING
    assert "Lower the learning rate" in result.verdict.reason


def test_a_small_swing_is_a_noise_floor_and_no_reason_to_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = go(squares(), 0.05, batch_size=1, steps=4_000)
    assert result.verdict.word in (Word.NOISE_FLOOR, Word.STATIONARY)
    assert result.verdict.arrived


def test_a_run_the_wrong_way_says_so():
    warning, result = warned(lambda: go(squares(), -0.01))
    assert result.verdict.word is Word.ABOVE
    for part in ("Above its start", "Lower the learning rate first", "enlarge the batch", "project="):
        assert part in str(warning.message)


def test_weights_that_have_not_moved_say_so():
    warning, result = warned(lambda: go(squares(), 0.0, steps=1))
    assert result.verdict.word is Word.STILL
    assert "have not moved in 1 step." in str(warning.message)


def test_a_run_that_is_not_finite_any_more_warns_with_its_message():
    bowl = nx.Problem(
        [nx.Level(lambda w, r: r * w, np.ones(4)), nx.Level(lambda u: jnp.exp(u * u))], jnp.asarray(2.0)
    )
    warning, result = warned(lambda: go(bowl, -0.1, batch_size=2))
    assert result.status is nx.Status.NONFINITE
    assert result.verdict.word is Word.DIVERGED
    assert str(warning.message) == result.message


def test_it_is_one_class_that_can_be_switched_off():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", nx.ConvergenceWarning)
        assert not go(squares(), 1e-4).verdict.arrived


def test_who_ends_a_run_or_goes_on_with_one_is_not_warned():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        part = go(squares(), 1e-3, callback=lambda record: record["step"] >= 8)
        assert not part.verdict.arrived
        go(squares(), 1e-3, start=part.carry, steps=8)
        go(squares(), 1e-3, stop=lambda record: record["step"] >= 8)


def simulated():
    draw = nx.Sampler(lambda key: jnp.array([1.0, 2.0]) + jax.random.normal(key, (2,)))
    outer = nx.Level(lambda u: (u[0] - 1) ** 2 + u[1] @ u[1])
    return nx.Problem([nx.Level(lambda w, z: (z @ w, w), draw), outer], np.array([-1.0, -1.0]))


def test_of_a_simulator_error_bars_tell_and_without_them_nothing_does():
    assert go(simulated(), 0.02, nx.SelfTuning(), steps=1_000).verdict.word is Word.STATIONARY
    assert go(simulated(), 1e-5, nx.SelfTuning()).verdict.word is Word.FALLING
    assert go(simulated(), 1e-3, nx.SMVR(0.1), steps=100).verdict.word is Word.FALLING
    unknown = go(simulated(), 0.05, nx.SMVR(0.1), steps=1_000).verdict
    assert unknown.word is Word.UNKNOWN
    assert unknown.arrived is None
    assert "nx.SelfTuning()" in unknown.reason


def test_without_records_nothing_is_said():
    assert go(squares(), 0.05, record=[]).verdict.word is Word.UNKNOWN
    assert judge({"step": np.arange(3)}, nx.Status.SUCCESS, "").word is Word.UNKNOWN


def test_a_result_from_a_file_has_the_same_verdict(tmp_path):
    result = go(squares(), 1e-3)
    result.save(tmp_path / "run")
    assert nx.load(tmp_path / "run").verdict == result.verdict


def test_few_records_tell_a_fall_too():
    assert go(squares(), 1e-3, record_every=100).verdict.word is Word.FALLING


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_narrow_weights_have_verdicts(dtype):
    assert go(squares(w0=np.zeros(3, dtype)), 1e-4).verdict.word in (Word.FALLING, Word.STILL)
    assert go(squares(w0=np.zeros(3, dtype)), 0.05).verdict.arrived


def test_lanes_have_their_columns_too():
    lanes = nx.sweep(
        squares(),
        lambda s: (nx.Plain(), optax.sgd(s.lr)),
        settings=nx.grid(lr=[1e-4, 0.05]),
        seeds=2,
        steps=100,
        batch_size=8,
    )
    assert lanes.records["left"].shape == lanes.records["moved"].shape == (2, 2, 101)
    assert (lanes.records["moved"][:, :, 0] == 0).all()
    assert (lanes.records["moved"][0] < lanes.records["moved"][1])[:, 1:].all()
