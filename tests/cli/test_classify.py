"""``nestax classify`` from a file to accuracies, and files that cannot be used."""

import csv
import dataclasses
import gzip
import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import nestax as nx
from nestax.cli import app
from nestax.cli.classify import fit_all, load, over_splits, verdict
from nestax.cli.surface import Classify

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib").use("Agg")

FEATURES = ["size & weight", "<b>", "$c_{$"]
NAMES = np.array(["yes", "no"])
TILTED = ["--steps", "480", "--seed", "3"]


def made(rows, rare, seed):
    """Rows of two classes, one of which is rare."""
    rng = np.random.default_rng(seed)
    y = (np.arange(rows) % rare == 0).astype(int)
    return rng.normal(size=(rows, 3)) * [1, 10, 0.1] + np.outer(1.5 * y, [1, 10, 0.1]), 1 - y


def write(path, X, y, sites=None):
    with path.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow([*FEATURES, "verdict", *(["site"] if sites is not None else [])])
        for k, row in enumerate(X.tolist()):
            writer.writerow([*row, NAMES[y[k]], *([sites[k]] if sites is not None else [])])
    return path


def invoke(*arguments):
    return CliRunner().invoke(app, ["classify", *map(str, arguments)])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return (
        write(folder / "train.csv", *made(300, 10, 0)),
        write(folder / "test.csv", *made(200, 2, 1)),
    )


@pytest.fixture(scope="module")
def run(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    train, test = files
    done = invoke(train, "--target", "verdict", "--test", test, "--json", "--out", out, *TILTED)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout), out


def test_numbers_are_those_of_the_estimators(run):
    found, _ = run
    (X, y), (new, truth) = made(300, 10, 0), made(200, 2, 1)
    scaled = lambda model: make_pipeline(StandardScaler(), model)
    models = {
        "tilted": nx.sklearn.TiltedClassifier(
            max_iter=480,
            random_state=3,
        ),
        "logistic": scaled(LogisticRegression()),
        "logistic, class weights": scaled(LogisticRegression(class_weight="balanced")),
    }
    for name, model in models.items():
        predicted = model.fit(X, NAMES[y]).predict(new)
        assert found["balanced_accuracy"][name] == balanced_accuracy_score(NAMES[truth], predicted)
        assert found["accuracy"][name] == np.mean(predicted == NAMES[truth])
        rare = NAMES[truth] == "yes"
        assert found["accuracy_by_class"]["yes"][name] == np.mean(predicted[rare] == "yes")
    assert found["train_rows"] == {"no": 270, "yes": 30}
    assert found["test_rows"] == {"no": 100, "yes": 100}
    assert found["samples"] == 2 * 16 * (480 + 10)
    assert (found["status"], "accuracy_by_group" in found) == ("SUCCESS", False)


def test_the_folder_has_predictions_weights_and_a_page(run):
    found, out = run
    with (out / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["line"]) for row in rows] == list(range(2, 202))
    right = np.mean([row["target"] == row["tilted"] for row in rows])
    assert right == found["accuracy"]["tilted"]
    assert float(rows[0]["share of no"]) + float(rows[0]["share of yes"]) == pytest.approx(1)
    with (out / "weights.csv").open() as file:
        weights = {row["feature"]: float(row["yes"]) for row in csv.DictReader(file)}
    assert list(weights) == [*FEATURES, "(intercept)"]
    X, _ = made(200, 2, 1)
    scores = X @ [weights[name] for name in FEATURES] + weights["(intercept)"]
    assert [row["tilted"] == "yes" for row in rows] == (scores > 0).tolist()
    about = json.loads((out / "settings.json").read_text())
    assert (about["settings"]["target"], about["settings"]["held_out"]) == ("verdict", None)
    page = (out / "report.html").read_text()
    for words in (
        "verdict",
        "logistic, class weights",
        "200 rows of test.csv",
        "(chosen)",
    ):
        assert words in page
    assert page.count("<svg") == 1


@pytest.mark.slow
def test_groups_are_reported_and_no_class_of_them_is_lost(tmp_path):
    """In mixed groups the rare class would be taken for wrong labels, so pairs are the groups."""
    X, y = made(400, 5, 2)
    path = write(tmp_path / "rows.csv", X, y, sites=np.where(np.arange(400) % 4 == 1, "west", "east"))
    done = invoke(
        path, "--target", "verdict", "--groups", "site", "--held-out", "0.25", "--repeats", "1", *TILTED
    )
    assert done.exit_code == 0, done.output
    assert done.stderr == "nestax classify: compiling …\n"
    assert "on 100 rows of rows.csv held out, by group" in done.stdout
    lines = done.stdout.splitlines()
    east, west, rare = (
        next(line.split() for line in lines if line.startswith(w)) for w in ("east", "west", "yes")
    )
    assert int(east[1]) + int(west[1]) == 300
    assert rare[1:3] == ["60", "20"]
    assert float(rare[3]) > 60


def test_pairs_of_group_and_class_are_the_groups(monkeypatch):
    """What the estimator is given; the slow test above has it run."""
    seen = {}

    class Told(nx.sklearn.TiltedClassifier):
        def fit(self, X, y, groups=None):
            seen["groups"] = groups
            return super().fit(X, y)

    monkeypatch.setattr(nx.sklearn, "TiltedClassifier", Told)
    X, y = made(300, 10, 0)
    site, index = np.array(["east", "west"] * 150), np.arange(300)
    rows = nx.datasets.Examples(X, NAMES[y], site, tuple(FEATURES), index)
    fit_all(rows, max_iter=480, random_state=3)
    assert set(seen["groups"]) == {"east × yes", "east × no", "west × no"}
    fit_all(dataclasses.replace(rows, groups=None), max_iter=480, random_state=3)
    np.testing.assert_array_equal(seen["groups"], NAMES[y])


def test_a_share_of_every_class_is_held_out(files):
    options = Classify(train=str(files[0]), target="verdict", held_out=0.2, seed=5)
    ((known, new),) = load(options)
    assert (len(known), len(new)) == (240, 60)
    assert np.mean(new.y == "yes") == 0.1
    assert sorted([*known.lines, *new.lines]) == list(range(2, 302))
    again, other = load(dataclasses.replace(options, repeats=2))
    np.testing.assert_array_equal(new.lines, again[1].lines)
    assert not np.array_equal(new.lines, other[1].lines)


def test_a_libsvm_file_needs_no_target_and_the_share_is_recorded(tmp_path):
    X, y = made(300, 10, 0)
    lines = [
        " ".join([str(label), *(f"{k}:{x!r}" for k, x in enumerate(row, 1))])
        for label, row in zip(y.tolist(), X.tolist(), strict=True)
    ]
    (tmp_path / "train").write_bytes(gzip.compress("\n".join(lines).encode()))
    out = tmp_path / "run"
    done = invoke(tmp_path / "train", "--drop", "2", "--json", "--out", out, "--repeats", "2", *TILTED)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["train_rows"], found["test_rows"]) == ({"0": 21, "1": 189}, {"0": 9, "1": 81})
    settings = json.loads((out / "settings.json").read_text())["settings"]
    assert (settings["held_out"], settings["target"], settings["drop"]) == (0.3, None, ["2"])
    assert settings["repeats"] == found["splits"] == 2
    page = (out / "report.html").read_text()
    assert "90 rows of train held out, mean ± standard deviation over 2 splits" in page
    mean = found["balanced_accuracy"]["tilted"]
    spread = found["standard_deviation"]["balanced_accuracy"]["tilted"]
    assert spread > 0
    assert f'<td class="number">{100 * mean:.1f} ± {100 * spread:.1f}</td>' in page
    with (out / "weights.csv").open() as file:
        assert [row["feature"] for row in csv.DictReader(file)] == ["1", "3", "(intercept)"]


def test_the_mean_over_splits_and_how_far_they_lie_apart():
    look = lambda share, groups: {
        "class": {"a": {"tilted": share}},
        "group": {name: {"tilted": share} for name in groups},
        "all": {"rows": {"tilted": share}},
    }
    mean, spread = over_splits([look(0.5, ["west"]), look(1.0, ["west", "east"])])
    assert (mean["class"]["a"]["tilted"], spread["class"]["a"]["tilted"]) == (0.75, 0.25)
    assert (mean["group"]["west"]["tilted"], mean["group"]["east"]["tilted"]) == (0.75, 1.0)
    assert spread["group"]["east"]["tilted"] == 0.0


@pytest.mark.parametrize(
    ("tilted", "weighted", "words"),
    [
        (0.82, 0.89, "logistic regression with class weights is 7.0 points ahead: take that"),
        (0.885, 0.89, "do not tell it apart from logistic regression with class weights."),
        (0.95, 0.80, "it is 7.0 points ahead of logistic regression."),
    ],
)
def test_a_verdict_says_what_to_take(tilted, weighted, words):
    means = {"tilted": tilted, "logistic": 0.88, "logistic, class weights": weighted}
    assert words in verdict(means, dict.fromkeys(means, 0.01))


def test_columns_of_words_are_left_out_of_both_files(files, tmp_path):
    """With the names that the message tells; the test file may lack them."""
    train, test = files
    named = tmp_path / "named.csv"
    rows = train.read_text().splitlines()
    named.write_text("\n".join(["name," + rows[0], *(f"Ann,{row}" for row in rows[1:])]))
    line = refuse(named, "--target", "verdict", "--test", test)
    assert "words instead of numbers in column 'name' (such as 'Ann')" in line
    assert "--drop name," in line
    options = Classify(train=str(named), target="verdict", drop=["name"], test=str(test))
    ((known, new),) = load(options)
    assert known.features == new.features == tuple(FEATURES)


def refuse(*arguments):
    """The one line on standard error."""
    done = invoke(*arguments)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith("nestax classify: ")
    return line


GOOD = ["a,b,y", "1,2,x", "2,1,z", "3,1,x", "0,2,z"]


def changed(line, words):
    return "\n".join([*GOOD[:line], words, *GOOD[line + 1 :]]) + "\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (changed(2, "high,1,z"), "line 3, column 'a' ('high'): write numbers for words, or leave"),
        (changed(2, ",1,z"), "missing cells at line 3, column 'a'"),
        (changed(2, "2,1,"), "missing cells at line 3, column 'y'"),
        (changed(3, "inf,1,x"), "too large to compute with at line 4, column 'a' ('inf')"),
        (changed(3, "3,1e200,x"), "too large to compute with at line 4, column 'b'"),
        (changed(3, "3,1"), "line 4 has 2"),
        (changed(0, "a,a,y"), "2 columns named 'a'"),
        (changed(0, "a,b,Y"), "has no column 'y'"),
        (changed(2, "2,1,w"), "2 classes of a single row in column 'y', such as 'w' at line 3"),
        ("a,b,y\n1,2,x\n2,1,x\n", "one class only in column 'y', 'x'"),
        ("y\nx\nz\n", "no column besides 'y'"),
        ("a,b,y\n", "no rows"),
        ("", "is empty"),
    ],
)
def test_a_bad_file_is_one_sentence(text, words, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    line = refuse(path, "--target", "y", "--out", tmp_path / "out")
    assert words in line
    assert "rows.csv" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,y,b\n1,x,2\n2,new,1\n", "has class 'new' at line 3, which"),
        ("a,y\n1,x\n", "lacks column 'b': it needs the columns of the train file"),
        ("a,b,c,y\n1,2,3,x\n", "has beside the features column 'c'"),
    ],
)
def test_a_test_file_that_does_not_fit_is_one_sentence(text, words, tmp_path):
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("\n".join(GOOD))
    test.write_text(text)
    assert words in refuse(train, "--target", "y", "--test", test)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "verdit"], "has no column 'verdit'; did you mean 'verdict'?"),
        (["--target", "verdict", "--groups", "verdict"], "another column than the target"),
        (["--target", "verdict", "--groups", "site"], "has no column 'site'; there are"),
        (["--target", "verdict", "--inner-tilt", "nan"], "inner_tilt must be a finite number"),
        (["--target", "verdict", "--method", "SMVRR"], "did you mean 'SMVR'?"),
        (["--target", "verdict", "--test", "x.csv", "--held-out", "0.2"], "--test and --held-out"),
        (["--target", "verdict", "--test", "none.csv"], "none.csv"),
        (["--target", "verdict", "--test", "x.csv", "--repeats", "3"], "--repeats is for a single file"),
    ],
)
def test_settings_that_do_not_fit(arguments, words, files):
    assert words in refuse(files[0], *arguments)
