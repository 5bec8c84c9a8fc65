"""``nestax classify``: a tilted classifier from a file, beside logistic regression on the same rows."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import nestax.datasets as datasets
from nestax.cli.shell import Outcome, names_in, note
from nestax.datasets import Examples
from nestax.errors import ProblemError, SettingError
from nestax.figures import plot_bars
from nestax.table import Table

#: What is fitted, by its name in tables.
TILTED = "tilted"
PLAIN = "logistic"
WEIGHTED = "logistic, class weights"
#: The share of every class that is held out if no file has rows to look at.
HELD_OUT = 0.3
#: How often it is split anew, and all is fitted again.
REPEATS = 5

#: Shares of rows that are right: by kind ("class", "group", "all"), label, and classifier.
Accuracies = dict[str, dict[str, dict[str, float]]]


def classify_file(
    train: str,
    target: str | None,
    groups: str | None,
    drop: list[str] | None,
    test: str | None,
    held_out: float | None,
    inner_tilt: float | None,
    outer_tilt: float,
    l2: float | None,
    method: str,
    steps: int,
    batch_size: int,
    seed: int,
    repeats: int | None,
) -> Outcome:
    """Accuracy by class and group of three classifiers that saw the same rows."""
    if test is None:
        held_out = HELD_OUT if held_out is None else held_out
        repeats = REPEATS if repeats is None else repeats
    elif repeats is not None:
        raise SettingError("--repeats is for a single file, which is split: leave it out with --test.")
    seeds = range(seed, seed + (repeats or 1))
    splits = load(train, target, groups, drop, test, held_out, seeds)
    settings = {
        "inner_tilt": "auto" if inner_tilt is None else inner_tilt,
        "outer_tilt": outer_tilt,
        "l2": "auto" if l2 is None else l2,
        "method": method,
        "max_iter": steps,
        "batch_size": batch_size,
    }
    looks = [
        Look(known, new, fit_all(known, **settings, random_state=own))
        for own, (known, new) in zip(seeds, splits, strict=True)
    ]
    first = looks[0]
    known, new = first.known, first.new
    means, spreads = over_splits([look.accuracies() for look in looks])
    many = len(looks)
    how = "" if test else " held out"
    how += f", mean ± standard deviation over {many} splits" if many > 1 else ""
    source = f"{len(new):,} rows of {Path(test or train).name}{how}"
    fitted = [look.models[TILTED] for look in looks]
    model = fitted[0]
    tilts = ", ".join(f"{tilt:g}" for tilt in sorted({each.tilt_ for each in fitted}))
    tilts += " (chosen)" if inner_tilt is None else ""
    made_by = (
        f"inner tilt {tilts}, outer tilt {outer_tilt:g}, {len(known):,} rows of {Path(train).name}, "
        f"{steps:,} steps of {method}, batch size {batch_size}, seed {seed}"
    )
    kinds = [kind for kind in ("class", "group") if kind in means]
    numbers = {
        **_numbers(means, kinds),
        **({} if many == 1 else {"splits": many, "standard_deviation": _numbers(spreads, kinds)}),
        "train_rows": _counts(known),
        "test_rows": _counts(new),
        "inner_tilt": [each.tilt_ for each in fitted],
        "l2": [each.l2_ for each in fitted],
        "objective": model.objective_,
        "steps": model.n_iter_,
        "samples": model.samples_,
    }

    def draw() -> list[tuple[str, str, Any]]:
        bars = {f"{kind} {label}": row for kind in kinds for label, row in means[kind].items()}
        columns = {name: [100 * row[name] for row in bars.values()] for name in first.models}
        caption = f"Accuracy in percent on {source}. Tilted: {made_by}."
        return [("accuracy", caption, plot_bars(list(bars), columns, "accuracy, percent"))]

    shown = lambda kind: {
        label: {name: _percent(x, spreads[kind][label][name], many) for name, x in row.items()}
        for label, row in means[kind].items()
    }
    caption = f"Accuracy in percent on {source}"
    return Outcome(
        title=f"Classes of {Path(train).name}",
        summary=f"{_summary(shown('all')['balanced'], means['class'])} "
        f"{verdict(means['all']['balanced'], spreads['all']['balanced'])}",
        tables=[
            *((f"{caption}, by {kind}", _table(kind, shown(kind), known, new)) for kind in kinds),
            (f"{caption}; tilted: {made_by}", _totals(shown("all"))),
        ],
        numbers=numbers,
        records={
            "predictions": _predictions(new, model, first.predicted),
            "weights": _weights(known, model),
        },
        draw=draw,
        found={} if held_out is None else {"held_out": held_out, "repeats": many},
    )


class Look:
    """One split: rows to fit, rows to look at, and the classifiers by their names in tables."""

    def __init__(self, known: Examples, new: Examples, models: dict[str, Any]):
        self.known = known
        self.new = new
        self.models = models
        self.predicted = {name: model.predict(new.X) for name, model in models.items()}

    def accuracies(self) -> Accuracies:
        new = self.new
        classes = by_label(new.y, new.y, self.predicted)
        mean = lambda name: float(np.mean([row[name] for row in classes.values()]))
        over_all = {
            "balanced": {name: mean(name) for name in self.predicted},
            "rows": {name: float(np.mean(words == new.y)) for name, words in self.predicted.items()},
        }
        groups = {} if new.groups is None else {"group": by_label(new.groups, new.y, self.predicted)}
        return {"class": classes, **groups, "all": over_all}


def over_splits(looks: list[Accuracies]) -> tuple[Accuracies, Accuracies]:
    """Mean and standard deviation; a group that a split has no row of counts where it has some."""

    def over(of: Any) -> Accuracies:
        return {
            kind: {
                label: {
                    name: float(of([look[kind][label][name] for look in looks if label in look[kind]]))
                    for name in row
                }
                for label, row in rows.items()
            }
            for kind, rows in first.items()
        }

    first = {
        kind: {label: row for look in looks for label, row in look[kind].items()} for kind in looks[0]
    }
    return over(np.mean), over(np.std)


# The rows and the classifiers


def load(
    train: str,
    target: str | None,
    groups: str | None,
    drop: list[str] | None,
    test: str | None,
    held_out: float | None,
    seeds: Sequence[int],
) -> list[tuple[Examples, Examples]]:
    """Rows to fit, and rows to look at: of another file, or a share of every class for every seed."""
    if test is not None and held_out is not None:
        raise SettingError("--held-out is for a single file: leave out one of --test and --held-out.")
    dropped = names_in(drop)
    rows = datasets.read_examples(train, target, groups=groups, drop=dropped)
    names = np.unique(rows.y)
    where = "" if target is None else f" in column {target!r}"
    if len(names) < 2:
        raise ProblemError(f"{train} has one class only{where}, {str(names[0])!r}: two are needed.")
    if test is None:
        assert held_out is not None
        return [_split(train, where, rows, held_out, seed) for seed in seeds]
    new = datasets.read_examples(test, target, groups=groups, features=rows.features, drop=dropped)
    unknown = np.flatnonzero(~np.isin(new.y, names))
    if len(unknown):
        k = unknown[0]
        raise ProblemError(
            f"{test} has class {str(new.y[k])!r} at line {new.lines[k]}, which {train} does not have."
        )
    return [(rows, new)]


def _split(train: str, where: str, rows: Examples, share: float, seed: int) -> tuple[Examples, Examples]:
    """A share of every class is held out."""
    names, first, counts = np.unique(rows.y, return_index=True, return_counts=True)
    lonely = np.flatnonzero(counts == 1)
    if len(lonely):
        k = lonely[0]
        several = f"{len(lonely):,} classes" if len(lonely) > 1 else "a class"
        raise ProblemError(
            f"{train} has {several} of a single row{where}, such as {str(names[k])!r} at line "
            f"{rows.lines[first[k]]}: every class needs two rows or more; is this the target?"
        )
    rng = np.random.default_rng(seed)
    taken = []
    for name in names:
        members = rng.permutation(np.flatnonzero(rows.y == name))
        taken.append(members[: int(np.clip(round(share * len(members)), 1, len(members) - 1))])
    new = np.zeros(len(rows), bool)
    new[np.concatenate(taken)] = True
    return rows.rows(np.flatnonzero(~new)), rows.rows(np.flatnonzero(new))


def fit_all(rows: Examples, **settings: Any) -> dict[str, Any]:
    """The tilted classifier, and logistic regression without and with class weights."""
    from nestax.sklearn import TiltedClassifier  # first, for it says what to install

    tilted = TiltedClassifier(**settings)
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    # Within a group that mixes classes a negative tilt would take a rare one for wrong labels.
    pairs = rows.y if rows.groups is None else _pairs(rows)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tilted.fit(rows.X, rows.y, groups=pairs)
    for sentence in (str(each.message) for each in caught):
        note(f"{sentence[:1].upper()}{sentence[1:]}")
    plain = lambda weight: make_pipeline(
        StandardScaler(), LogisticRegression(max_iter=1_000, class_weight=weight)
    )
    others = {PLAIN: plain(None), WEIGHTED: plain("balanced")}
    return {TILTED: tilted, **{name: model.fit(rows.X, rows.y) for name, model in others.items()}}


def _pairs(rows: Examples) -> np.ndarray:
    """A label for every pair of group and class."""
    assert rows.groups is not None
    return np.array([f"{group!s} × {label!s}" for group, label in zip(rows.groups, rows.y, strict=True)])


def by_label(
    labels: np.ndarray, y: np.ndarray, predicted: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """The share of rows of every label that each classifier has right; common labels first."""
    names, counts = np.unique(labels, return_counts=True)
    right = {name: words == y for name, words in predicted.items()}
    return {
        str(label): {name: float(hits[labels == label].mean()) for name, hits in right.items()}
        for label in names[np.argsort(-counts, kind="stable")]
    }


# What is said about it


def _numbers(found: Accuracies, kinds: list[str]) -> dict[str, Any]:
    return {
        "balanced_accuracy": found["all"]["balanced"],
        "accuracy": found["all"]["rows"],
        **{f"accuracy_by_{kind}": found[kind] for kind in kinds},
    }


def _percent(mean: float, spread: float, many: int) -> str:
    return f"{100 * mean:.1f}" + (f" ± {100 * spread:.1f}" if many > 1 else "")


def _counts(rows: Examples) -> dict[str, int]:
    names, counts = np.unique(rows.y, return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts, strict=True)}


def _summary(balanced: dict[str, str], classes: dict[str, dict[str, float]]) -> str:
    worst = min(classes, key=lambda name: classes[name][TILTED])
    return (
        f"The balanced accuracy of the tilted classifier is {balanced[TILTED]} percent, that of "
        f"logistic regression {balanced[PLAIN]}, and {balanced[WEIGHTED]} with class weights. Its worst "
        f"class is {worst}, of which {100 * classes[worst][TILTED]:.1f} percent are found."
    )


def verdict(means: dict[str, float], spreads: dict[str, float]) -> str:
    """Which of them to take, as far as the splits tell."""
    rival = max((PLAIN, WEIGHTED), key=lambda name: means[name])
    words = "logistic regression" + (" with class weights" if rival == WEIGHTED else "")
    lead = means[TILTED] - means[rival]
    if abs(lead) <= max(spreads[TILTED], spreads[rival]):
        return f"These rows do not tell it apart from {words}."
    points = f"{100 * abs(lead):.1f} points"
    if lead > 0:
        return f"In the mean over classes it is {points} ahead of {words}."
    return f"In the mean over classes {words} is {points} ahead: take that."


def _table(kind: str, rows: dict[str, dict[str, str]], known: Examples, new: Examples) -> Table:
    labels = lambda examples: examples.y if kind == "class" else examples.groups
    count = lambda examples, label: int(np.sum(labels(examples) == label))
    return Table(
        [kind, "train rows", "test rows", TILTED, PLAIN, WEIGHTED],
        [[label, count(known, label), count(new, label), *row.values()] for label, row in rows.items()],
    )


def _totals(found: dict[str, dict[str, str]]) -> Table:
    words = {"balanced": "mean over classes (balanced accuracy)", "rows": "all rows"}
    return Table(
        ["accuracy", *found["rows"]], [[words[label], *row.values()] for label, row in found.items()]
    )


def _predictions(new: Examples, model: Any, predicted: dict[str, Any]) -> Table:
    """Every row that was looked at, by its line in the file."""
    group = [] if new.groups is None else [new.groups.tolist()]
    shares = model.predict_proba(new.X).T.tolist()
    columns = [
        new.lines.tolist(),
        *group,
        new.y.tolist(),
        *(words.tolist() for words in predicted.values()),
        *shares,
    ]
    names = ["line", *(["group"] if group else []), "target", *predicted]
    names += [f"share of {name}" for name in model.classes_]
    return Table(names, [list(row) for row in zip(*columns, strict=True)])


def _weights(known: Examples, model: Any) -> Table:
    """One row a feature, for features as they stand in the file; of two classes only the second."""
    classes = model.classes_ if len(model.classes_) > 2 else model.classes_[1:]
    rows = [[name, *slopes] for name, slopes in zip(known.features, model.coef_.T.tolist(), strict=True)]
    return Table(["feature", *map(str, classes)], [*rows, ["(intercept)", *model.intercept_.tolist()]])
