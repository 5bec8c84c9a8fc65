"""Saved results, figures, frames."""

import json

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import save_file

import nestax as nx
from nestax.figures import plot_run
from nestax.run.result import diagnose


@pytest.fixture(scope="module")
def result():
    rows = np.random.default_rng(0).normal(size=(30, 2))
    problem = nx.Problem(
        [
            nx.Level(lambda w, r: {"u": r @ w["x"][0] + w["y"]}, rows, name="inner"),
            nx.Level(lambda u: u["u"] ** 2, name="outer"),
        ],
        {"x": [jnp.ones(2)], "y": jnp.asarray(0.5)},
    )
    return nx.minimize(problem, nx.SMVR(radius=2.0), optax.sgd(0.1), steps=10, batch_size=2)


def test_a_saved_result_comes_back(result, tmp_path):
    result.save(tmp_path / "r.safetensors")
    back = nx.load(tmp_path / "r.safetensors")
    np.testing.assert_array_equal(back.w["x"][0], result.w["x"][0])
    np.testing.assert_array_equal(back.w["y"], result.w["y"])
    assert back.w["y"].shape == ()
    assert back.records.keys() == result.records.keys()
    assert (back.status, back.message, back.carry.cost) == (
        result.status,
        result.message,
        result.carry.cost,
    )


def test_what_is_no_result_gets_a_sentence(tmp_path):
    with pytest.raises(nx.ProblemError, match="there is no file"):
        nx.load(tmp_path / "missing")
    (tmp_path / "broken").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00nonsense")
    with pytest.raises(nx.ProblemError, match="is not a result that nestax wrote"):
        nx.load(tmp_path / "broken")
    old = {"nestax": json.dumps({"status": "SUCCESS"})}
    save_file({"w/0": np.zeros(2)}, tmp_path / "old", metadata=old)
    with pytest.raises(nx.ProblemError, match="old was written by another version of nestax: use that"):
        nx.load(tmp_path / "old")


def test_a_damaged_result_is_not_believed(result, tmp_path):
    path = tmp_path / "r.safetensors"
    result.save(path)
    blob = path.read_bytes()
    for at in np.linspace(8, len(blob) - 1, 40).astype(int):
        broken = bytearray(blob)
        broken[at] ^= 1
        path.write_bytes(broken)
        with pytest.raises(nx.ProblemError, match=r"or it is damaged|another version"):
            nx.load(path)


def test_a_frame_has_a_column_per_level(result):
    frame = result.to_frame()
    assert {"step", "value", "ball_active[0]", "ball_active[1]"} <= set(frame.columns)
    assert len(frame) == 11


def test_figures_are_written(result, tmp_path):
    pytest.importorskip("matplotlib").use("Agg")
    result.plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 5_000
    problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(50, 3))
    sweep = nx.sweep(
        problem,
        lambda s: (nx.SMVR(), optax.sgd(s.lr)),
        settings=nx.grid(lr=[0.01, 0.1]),
        seeds=3,
        steps=5,
    )
    sweep.plot(tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 5_000


def test_noise_that_is_tracked_hides_no_value():
    """It lies behind the value, does not set the limits, and the legend is beside the curves."""
    pytest.importorskip("matplotlib").use("Agg")
    records = {"samples": np.arange(5), "exact_value": np.linspace(1, 0.9, 5), "value": np.arange(5.0)}
    figure = plot_run(records, None)
    (axis,) = figure.axes
    exact, tracked = axis.lines
    assert tracked.zorder < exact.zorder
    with_held_out = plot_run(records | {"held_out": np.linspace(1, 2, 5)}, None)
    assert [len(axis.lines) for axis in with_held_out.axes] == [3]
    assert with_held_out.axes[0].get_ylim()[1] > 2
    assert 0.85 < axis.get_ylim()[0] < axis.get_ylim()[1] < 1.05
    assert axis.get_legend() is None
    assert len(figure.legends) == 1


def test_a_notebook_draws_a_figure_once(result, monkeypatch):
    """It draws what is open, and what the cell returns."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    plt = pytest.importorskip("matplotlib.pyplot")
    before = plt.get_fignums()
    result.plot()
    assert len(plt.get_fignums()) == len(before) + 1
    plt.close()
    monkeypatch.setattr(matplotlib, "get_backend", lambda: "module://matplotlib_inline.backend_inline")
    assert result.plot().axes
    assert plt.get_fignums() == before


def test_the_summary_of_a_result_is_two_lines(result):
    assert repr(result).startswith("Result(SUCCESS: step=10, samples=40")
    assert repr(result).count("\n") == 1  # the records, and the verdict on them


def test_a_diagnosis_has_a_sentence_for_every_level(tmp_path):
    problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(500, 3))
    result = nx.minimize(problem, optimizer=optax.sgd(0.01), steps=200, batch_size=8)
    sentences = result.diagnosis.splitlines()
    assert [sentence.split("'")[1] for sentence in sentences] == ["mean", "variance", "utility"]
    assert "memory paid" in sentences[0]
    assert "nothing to remember" in sentences[2]
    result.save(tmp_path / "run.safetensors")
    assert nx.load(tmp_path / "run.safetensors").diagnosis == result.diagnosis


def test_a_diagnosis_says_where_memory_did_not_pay():
    columns = ("believed_error", "plain_error", "believed_jac_error", "plain_jac_error")
    numbers = (0.99, 1.0, np.nan, np.nan)
    records = {name: np.full((4, 1), x) for name, x in zip(columns, numbers, strict=True)}
    sentence = diagnose(records | {"step": np.arange(4)}, ("inner",))[0]
    assert sentence.startswith("level 'inner': memory did not pay.")
    assert "derivative" not in sentence


def rare(source):
    """The square of a mean to which all rows seen so far add nothing."""
    return nx.Problem(
        [
            nx.Level(lambda w, row: w + row, source, name="event"),
            nx.Level(lambda w: (w - 1) ** 2, name="square"),
        ],
        jnp.asarray(2.0),
    )


@pytest.mark.parametrize(("steps", "share"), [(299, "1 %"), (1, "100 %")])
def test_a_level_whose_draws_never_differed_has_no_known_error(steps, share, tmp_path):
    rows = np.zeros(100_000)
    rows[0] = 1.0
    result = nx.minimize(rare(rows), nx.SelfTuning(), optax.sgd(0.1), steps=steps, batch_size=4)
    assert np.isnan(result.records["believed_error"][:, 0]).all()
    event, square = result.diagnosis.splitlines()
    assert event.startswith(
        f"level 'event': in {steps + 1:,} batches no two draws of its value differed"
    )
    assert f"at 95 % confidence an event in up to {share} of the batches may be missing." in event
    assert "exact" in square
    result.save(tmp_path / "run.safetensors")
    assert nx.load(tmp_path / "run.safetensors").diagnosis == result.diagnosis
    assert np.isnan(result.to_frame()["believed_error[0]"]).all()
    assert result.plot(tmp_path / "run.png").axes


def test_a_batch_of_all_rows_is_exact_though_its_draws_are_alike():
    everything = nx.Population(np.zeros(8), replace=False)
    settings = {"steps": 3, "batch_size": 8, "init_batch_size": 8}
    result = nx.minimize(rare(everything), nx.SelfTuning(), optax.sgd(0.1), **settings)
    assert result.diagnosis.splitlines()[0] == "level 'event': exact, so there is nothing to remember."


def test_a_diagnosis_leaves_out_records_before_the_first_difference():
    columns = ("believed_error", "plain_error", "believed_jac_error", "plain_jac_error")
    numbers = (0.1, 1.0, np.nan, np.nan)
    records = {name: np.full((6, 1), x) for name, x in zip(columns, numbers, strict=True)}
    records["believed_error"][:4] = np.nan
    sentence = diagnose(records | {"step": np.arange(6)}, ("inner",))[0]
    assert sentence.startswith("level 'inner': memory paid.")


def test_a_method_without_error_bars_says_so():
    problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(500, 3))
    result = nx.minimize(problem, nx.Plain(), optax.sgd(0.01), steps=5)
    assert "keeps no error bars" in result.diagnosis


def test_error_bars_of_levels_and_of_the_gradient_are_near_the_errors():
    """Over seeds; level by level the tests of the method say more."""
    problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(500, 3))
    runs = nx.sweep(
        problem,
        lambda s: (nx.SelfTuning(), optax.sgd(s.lr)),
        settings=nx.grid(lr=[0.01]),
        seeds=16,
        steps=200,
        batch_size=8,
        record=["value_error", "jac_error", "grad_error"],
    )
    late = lambda name: np.mean(runs.records[name][0, :, 100:] ** 2, axis=(0, 1))
    for believed, true in (("believed_error", "value_error"), ("believed_jac_error", "jac_error")):
        ratio = late(believed)[:2] / late(true)[:2]
        assert ((ratio > 1 / 3) & (ratio < 3)).all(), (believed, ratio)
    assert 1 / 3 < late("believed_grad_error") / late("grad_error") < 3
