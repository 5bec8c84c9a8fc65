"""Figure 4 of the paper in small, on made-up images: cells, and what is read off them."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import nestax as nx
from nestax.problems.few_shot.networks import Network
from nestax.run.sweep import Point

from experiments import commands, maml
from experiments.handwriting import Omniglot
from experiments.maml import Cell, FewShot, SetUp, reproduce_maml

SMALL = SetUp(
    side=7,
    filters=2,
    tasks=6,
    episodes=8,
    visit=2,
    steps=4,
    seeds=2,
    train_tasks=3,
    test_tasks=4,
    records=2,
)
CHEAP = ["Plain-ADAM", "Adam, episodes"]


@pytest.fixture(scope="module")
def images():
    return Omniglot(np.random.default_rng(0).integers(0, 256, (30, 20, 7, 7), np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("experiment") / "cells"


def linear(classes, side, filters):
    """Compiles in no time."""
    init = lambda key: 0.1 * jax.random.normal(key, (side * side, classes))
    return Network(init, lambda w, x: x.ravel() @ w)


@pytest.fixture(scope="module")
def result(images, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maml, "convolutional", linear)
        patch.setattr(maml, "INNER_STEPS", 1)
        return reproduce_maml(images, shots=(1,), setup=SMALL, methods=CHEAP, cells=folder)


def test_cells_hold_what_was_run(result, folder):
    assert {file.name for file in folder.iterdir()} == {
        "1-shot-plain-adam.json",
        "1-shot-adam-episodes.json",
    }
    for name, file in zip(CHEAP, ("plain-adam", "adam-episodes"), strict=True):
        cell = json.loads((folder / f"1-shot-{file}.json").read_text())
        assert Cell(**cell) == result.cells[name, 1]
        assert (cell["method"], cell["shots"], cell["setup"]) == (name, 1, list(SMALL))
        # A step: two tasks, in each an inner step on one image and ten query images, of five classes.
        assert cell["images"] == [110 * (1 + k) for k in (0, 2, 4)]
        assert np.shape(cell["train"]) == np.shape(cell["test"]) == (2, 3)
        assert np.all((np.asarray(cell["test"]) >= 0) & (np.asarray(cell["test"]) <= 1))
        assert len(cell["grid"]) == 2
        assert cell["chosen"] == {"lr": pytest.approx((0.001, 0.003)[int(np.argmax(cell["grid"]))])}
        assert max(cell["grid"]) == pytest.approx(np.asarray(cell["train"])[0, 2:].mean())


def test_cells_are_found_again(result, images, folder, monkeypatch):
    def refuse(*_):
        raise AssertionError("computed again")

    monkeypatch.setattr(maml, "run_cell", refuse)
    lines = []
    again = reproduce_maml(
        images, shots=(1,), setup=SMALL, methods=["Plain-ADAM"], cells=folder, tell=lines.append
    )
    assert again.cells == result.cells  # that of the other method is shown as well
    assert [line[:18].rstrip() for line in lines] == ["1-shot Plain-ADAM", "1-shot Adam, episo"]
    with pytest.raises(AssertionError, match="computed again"):
        reproduce_maml(images, shots=(5,), setup=SMALL, methods=CHEAP, cells=folder)
    with pytest.raises(nx.ProblemError, match=r"plain-adam\.json was made with other sizes: delete it"):
        reproduce_maml(images, shots=(1,), setup=SMALL._replace(steps=6), methods=CHEAP, cells=folder)


def test_a_cell_goes_on_after_the_runs_that_are_done(result, images, tmp_path, monkeypatch):
    monkeypatch.setattr(maml, "convolutional", linear)
    monkeypatch.setattr(maml, "INNER_STEPS", 1)
    whole, real = result.cells["Plain-ADAM", 1], maml.sweep
    ran = []

    def stopped(*args, settings, seeds, steps, **kwargs):
        ran.append((float(settings["lr"][0]), *seeds))
        if len(ran) == 3:
            raise KeyboardInterrupt
        return real(*args, settings=settings, seeds=seeds, steps=steps, **kwargs)

    monkeypatch.setattr(maml, "sweep", stopped)
    with pytest.raises(KeyboardInterrupt):
        maml.run_cell("Plain-ADAM", images, 1, SMALL, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {
        "1-shot-plain-adam-setting-0-seed-0.json",
        "1-shot-plain-adam-setting-1-seed-0.json",
    }
    best = whole.chosen["lr"]
    assert ran == [(0.001, 0), (0.003, 0), (best, 1)]
    cell = maml.run_cell("Plain-ADAM", images, 1, SMALL, tmp_path)
    assert ran[3:] == [(best, 1), (best, 0), (best, 0)]  # the last two for their time
    assert dataclasses.replace(cell, step_ms=0) == dataclasses.replace(whole, step_ms=0)
    assert [file.name for file in tmp_path.iterdir()] == ["1-shot-plain-adam.json"]


def test_longer_runs_take_the_settings_of_cells(result, images, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(maml, "convolutional", linear)
    monkeypatch.setattr(maml, "INNER_STEPS", 1)
    real, ran = maml.sweep, []

    def watched(*args, settings, seeds, **kwargs):
        ran.append((float(settings["lr"][0]), *seeds))
        return real(*args, settings=settings, seeds=seeds, **kwargs)

    monkeypatch.setattr(maml, "sweep", watched)
    earlier = dataclasses.replace(result.cells["Plain-ADAM", 1], chosen={"lr": 0.003})
    (tmp_path / "1-shot-plain-adam.json").write_text(json.dumps(dataclasses.asdict(earlier)))
    longer = {"setup": SMALL._replace(steps=8), "methods": ["Plain-ADAM"], "tuned": tmp_path}
    cell = reproduce_maml(images, shots=(1,), **longer).cells["Plain-ADAM", 1]
    assert cell.chosen == {"lr": pytest.approx(0.003)}
    assert len(cell.grid) == 1
    assert ran[:2] == [(pytest.approx(0.003), seed) for seed in (0, 1)]
    with pytest.raises(nx.ProblemError, match=r"5-shot-plain-adam\.json is missing: settings are taken"):
        reproduce_maml(images, shots=(5,), **longer)
    with pytest.raises(nx.ProblemError, match=r"Plain-ADAM has no setting with lr 0\.5: tune it again"):
        maml.run_cell("Plain-ADAM", images, 1, SMALL, chosen={"lr": 0.5})


@pytest.mark.parametrize("content", ["{", "[]", "{}", '"cell"'])
def test_damaged_cells_are_refused(images, tmp_path, content):
    (tmp_path / "1-shot-scsc.json").write_text(content)
    with pytest.raises(nx.ProblemError, match=r"scsc\.json is no cell of this experiment: delete it"):
        reproduce_maml(images, shots=(1,), setup=SMALL, methods=[], cells=tmp_path)


def test_an_unknown_method_is_refused(images):
    with pytest.raises(nx.SettingError, match="no method is called 'SMRV'; there are A-TSCGD; NLASG;"):
        reproduce_maml(images, methods=["SMRV"])


def test_every_method_can_be_built(images):
    """Its settings are in range, and it fits the chain of the real network."""
    problems = {episodes: maml.task_problem(images, 1, SMALL, episodes) for episodes in (False, True)}
    for rival in maml.RIVALS.values():
        for value in rival.values:
            built = rival.build(Point(lr=np.float32(0.1), **{rival.knob: np.float32(value)}))
            built[0].check(problems[rival.episodes])
    for problem, size in zip(problems.values(), [(6, 10), (8, 1)], strict=True):
        assert (problem.blocks.blocks, problem.blocks.rows) == size
        assert len(problem.levels) == 6
        w0 = problem.start(jax.random.key(0))
        assert jax.eval_shape(problem.metrics["test"], w0).shape == ()


def test_restarts_forget_everything_now_and_then():
    beta = maml.Restarts(np.float32(3))
    assert [float(beta(np.int32(count))) for count in range(7)] == [1, 0, 0, 1, 0, 0, 1]


# Tables and figure


def cell_of(method, test, images, grid=(0.5,)):
    return Cell(
        method=method,
        shots=1,
        setup=list(SMALL),
        chosen={"lr": 0.1, "beta": 0.5},
        images=images,
        train=[test],
        test=[test],
        grid=list(grid),
        step_ms=2.0,
        device="cpu",
    )


@pytest.fixture
def known():
    """One method draws twice as much a step as another; a third diverged."""
    cells = [
        cell_of("SCSC", [0.2, 0.4, 0.6, 0.8], [0, 300, 600, 900]),
        cell_of("SMVR", [0.2, 0.5, 0.7, 0.9], [600, 1200, 1800, 2400]),
        cell_of("NLASG", [0.2] * 4, [0, 300, 600, 900], (0.0, 0.0)),
    ]
    return FewShot({(cell.method, 1): cell for cell in cells}, SMALL)


def test_accuracies_are_at_equal_images(known):
    assert known.budget(1) == 900
    table = known.accuracies()
    rows = {row[1]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert [rows["SCSC"][k] for k in ("1/3", "2/3", "3/3", "last step")] == [40, 60, 80, 80]
    # Before its first record the start is all there is; the last step is further than the budget.
    assert [rows["SMVR"][k] for k in ("1/3", "2/3", "3/3", "last step")] == [20, 20, 20, 90]
    assert set(table.rows[2][3:]) == {"diverged"}


def test_differences_are_those_of_the_same_run(known):
    assert known.apart().rows == []  # of one run there is no error
    twice = lambda name, test: dataclasses.replace(
        known.cells["SMVR", 1], method=name, test=test, images=[0, 300, 600, 900]
    )
    own = twice("SMVR-ADAM", [[0.2, 0.5, 0.6, 0.9], [0.2, 0.5, 0.6, 0.7], [0.2, 0.5, 0.6, 0.7]])
    plain = twice("Plain-ADAM", [[0.2, 0.4, 0.5, 0.7], [0.2, 0.4, 0.5, 0.6]])
    both = FewShot({("SMVR-ADAM", 1): own, ("Plain-ADAM", 1): plain}, SMALL)
    (row,) = both.apart().rows
    assert row == [1, "SMVR-ADAM", "Plain-ADAM", 2, "+10.0 ± 0.0", "+10.0 ± 0.0", "+15.0 ± 5.0"]


def test_the_command_shows_differences_where_there_are_several_runs(known):
    titles = {}
    twice = [[0.2, 0.4, 0.5, 0.7], [0.2, 0.4, 0.5, 0.6]]
    own = dataclasses.replace(known.cells["SMVR", 1], train=twice, test=twice)
    pair = ("SMVR-ADAM", "Plain-ADAM")
    several = FewShot({(name, 1): dataclasses.replace(own, method=name) for name in pair}, SMALL)
    for found in (known, several):
        outcome = commands.few_shot_figure(found)
        titles[len(found.cells)] = [title for title, _ in outcome.tables]
        assert outcome.records["apart"].rows == found.apart().rows
    assert titles[2][1].startswith("The same, one method less another in the same run")
    assert titles[3] == [titles[2][0], titles[2][2]]


def test_findings_name_all_methods_as_they_fall(known):
    first, *_, third, diverged, missing = known.findings()
    assert first == "1-shot, 1/3 of 900 images: SCSC 40.0 %; SMVR 20.0 %."
    assert third == "1-shot, 3/3 of 900 images: SCSC 80.0 %; SMVR 20.0 %."
    assert diverged == "1-shot, diverged: NLASG."
    assert missing.startswith("1-shot, not computed: A-TSCGD; SMVR, restarts; SMVR-ADAM; SMVR, first")


def test_tables_and_figure(result, known):
    details = dict(zip(result.details().columns, result.details().rows[0], strict=True))
    assert details["images a step"] == 110
    assert details["visits a task"] == pytest.approx(4 * 2 / 6, abs=0.05)
    assert len(result.curves()) == 2 * 2 * 3
    assert known.details().rows[0][3] == "beta 0.5"
    figure = known.plot()
    axes = figure.axes
    assert [axis.get_title() for axis in axes] == ["1-shot, training tasks", "1-shot, test tasks"]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["SCSC", "SMVR"]
    line = next(line for line in axes[1].get_lines() if line.get_label() == "SMVR")
    np.testing.assert_allclose(line.get_ydata(), [20, 50, 70, 90])
    both = FewShot(
        known.cells | {("Plain-ADAM", 5): dataclasses.replace(known.cells["SCSC", 1], shots=5)}, SMALL
    )
    assert len(both.plot().axes) == 4
