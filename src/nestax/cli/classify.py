"""``nestax classify``: a tilted classifier from a file, beside logistic regression on the same rows."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import nestax.datasets as datasets
from nestax.cli.shell import Outcome, names_in, note
from nestax.cli.surface import Classify
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


def run(options: Classify) -> Outcome:
    """Compares the accuracy by class and group of three classifiers that saw the same rows."""
    options = completed(options)
    splits = load(options)
    settings = {
        "inner_tilt": "auto" if options.inner_tilt is None else options.inner_tilt,
        "outer_tilt": options.outer_tilt,
        "l2": "auto" if options.l2 is None else options.l2,
        "method": options.method,
        "max_iter": options.steps,
        "batch_size": options.batch_size,
    }
    looks = [
        Look(known, new, fit_all(known, **settings, random_state=options.seed + number))
        for number, (known, new) in enumerate(splits)
    ]
    return describe(options, looks)


def describe(options: Classify, looks: list["Look"]) -> Outcome:
    """Tells the accuracies over all splits, and what the first of them has fitted."""
    means, stds = over_splits([look.accuracies() for look in looks])
    first = looks[0]
    known, new = first.known, first.new
    models = [look.models[TILTED] for look in looks]
    many = len(looks)
    train = Path(options.train).name
    source = f"{len(new):,} rows of {Path(options.test or train).name}"
    source += "" if options.test else " held out"
    source += f", mean ± standard deviation over {many} splits" if many > 1 else ""
    tilts = ", ".join(f"{tilt:g}" for tilt in sorted({model.tilt_ for model in models}))
    tilts += " (chosen)" if options.inner_tilt is None else ""
    made_by = (
        f"inner tilt {tilts}, outer tilt {options.outer_tilt:g}, {len(known):,} rows of {train}, "
        f"{options.steps:,} steps of {options.method}, batch size {options.batch_size}, "
        f"seed {options.seed}"
    )
    kinds = [kind for kind in ("class", "group") if kind in means]
    caption = f"Accuracy in percent on {source}"

    def draw() -> list[tuple[str, str, Any]]:
        bars = {f"{kind} {label}": row for kind in kinds for label, row in means[kind].items()}
        columns = {name: [100 * row[name] for row in bars.values()] for name in first.models}
        figure = plot_bars(list(bars), columns, "accuracy, percent")
        return [("accuracy", f"{caption}. Tilted: {made_by}.", figure)]

    def in_percent(kind: str) -> dict[str, dict[str, str]]:
        return {
            label: {name: _percent(mean, stds[kind][label][name], many) for name, mean in row.items()}
            for label, row in means[kind].items()
        }

    shown = {kind: in_percent(kind) for kind in (*kinds, "all")}
    return Outcome(
        title=f"Classes of {train}",
        summary=f"{_summary(shown['all']['balanced'], means['class'])} "
        f"{verdict(means['all']['balanced'], stds['all']['balanced'])}",
        tables=[
            *((f"{caption}, by {kind}", _table(kind, shown[kind], known, new)) for kind in kinds),
            (f"{caption}; tilted: {made_by}", _totals(shown["all"])),
        ],
        numbers={
            **_numbers(means, kinds),
            **({} if many == 1 else {"splits": many, "standard_deviation": _numbers(stds, kinds)}),
            "train_rows": _counts(known.y),
            "test_rows": _counts(new.y),
            "inner_tilt": [model.tilt_ for model in models],
            "l2": [model.l2_ for model in models],
            "objective": models[0].objective_,
            "steps": models[0].n_iter_,
            "samples": models[0].samples_,
        },
        records={
            "predictions": _predictions(new, models[0], first.predicted),
            "weights": _weights(known, models[0]),
        },
        draw=draw,
        found={} if options.test else {"held_out": options.held_out, "repeats": many},
    )


def completed(options: Classify) -> Classify:
    """Fills in how a single file is split; of two files none is."""
    if options.test is None:
        held_out = HELD_OUT if options.held_out is None else options.held_out
        repeats = REPEATS if options.repeats is None else options.repeats
        return dataclasses.replace(options, held_out=held_out, repeats=repeats)
    if options.repeats is not None:
        raise SettingError("--repeats is for a single file, which is split: leave it out with --test.")
    if options.held_out is not None:
        raise SettingError("--held-out is for a single file: leave out one of --test and --held-out.")
    return options


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
        over_all: dict[str, dict[str, float]] = {"balanced": {}, "rows": {}}
        for name, labels in self.predicted.items():
            over_all["balanced"][name] = float(np.mean([row[name] for row in classes.values()]))
            over_all["rows"][name] = float(np.mean(labels == new.y))
        groups = {} if new.groups is None else {"group": by_label(new.groups, new.y, self.predicted)}
        return {"class": classes, **groups, "all": over_all}


def over_splits(splits: list[Accuracies]) -> tuple[Accuracies, Accuracies]:
    """Computes mean and standard deviation; a group counts in the splits that have a row of it."""

    def over(statistic: Any, kind: str) -> dict[str, dict[str, float]]:
        rows = [split[kind] for split in splits]
        return {
            label: {
                name: float(statistic([row[label][name] for row in rows if label in row]))
                for name in shares
            }
            for label, shares in {label: row[label] for row in rows for label in row}.items()
        }

    means, stds = ({kind: over(of, kind) for kind in splits[0]} for of in (np.mean, np.std))
    return means, stds


# The rows and the classifiers


def load(options: Classify) -> list[tuple[Examples, Examples]]:
    """Reads rows to fit, and rows to look at: of another file, or a share of every class, split anew
    so many times."""
    train, test = options.train, options.test
    drop = names_in(options.drop)
    rows = datasets.read_examples(train, options.target, groups=options.groups, drop=drop)
    names = np.unique(rows.y)
    where = "" if options.target is None else f" in column {options.target!r}"
    if len(names) < 2:
        raise ProblemError(f"{train} has one class only{where}, {str(names[0])!r}: two are needed.")
    if test is None:
        assert options.held_out is not None
        seeds = range(options.seed, options.seed + (options.repeats or 1))
        return [_split(train, where, rows, options.held_out, seed) for seed in seeds]
    new = datasets.read_examples(
        test, options.target, groups=options.groups, features=rows.features, drop=drop
    )
    unknown = np.flatnonzero(~np.isin(new.y, names))
    if len(unknown):
        k = unknown[0]
        raise ProblemError(
            f"{test} has class {str(new.y[k])!r} at line {new.lines[k]}, which {train} does not have."
        )
    return [(rows, new)]


def _split(train: str, where: str, rows: Examples, share: float, seed: int) -> tuple[Examples, Examples]:
    """Holds out a share of every class."""
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
    """Fits the tilted classifier, and logistic regression without and with class weights."""
    from nestax.sklearn import TiltedClassifier  # first, for it says what to install

    tilted = TiltedClassifier(**settings)
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    # Within a group that mixes classes a negative tilt would take a rare one for wrong labels.
    pairs = rows.y
    if rows.groups is not None:
        pairs = np.array([f"{group!s} × {y!s}" for group, y in zip(rows.groups, rows.y, strict=True)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tilted.fit(rows.X, rows.y, groups=pairs)
    for sentence in (str(warning.message) for warning in caught):
        note(f"{sentence[:1].upper()}{sentence[1:]}")
    models: dict[str, Any] = {TILTED: tilted}
    for name, weight in ((PLAIN, None), (WEIGHTED, "balanced")):
        logistic = LogisticRegression(max_iter=1_000, class_weight=weight)
        models[name] = make_pipeline(StandardScaler(), logistic).fit(rows.X, rows.y)
    return models


def by_label(
    labels: np.ndarray, y: np.ndarray, predicted: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """Returns the share of rows of every label that each classifier has right; common labels first."""
    names, counts = np.unique(labels, return_counts=True)
    right = {name: predictions == y for name, predictions in predicted.items()}
    return {
        str(label): {name: float(hits[labels == label].mean()) for name, hits in right.items()}
        for label in names[np.argsort(-counts, kind="stable")]
    }


# What is said about it


def _numbers(shares: Accuracies, kinds: list[str]) -> dict[str, Any]:
    return {
        "balanced_accuracy": shares["all"]["balanced"],
        "accuracy": shares["all"]["rows"],
        **{f"accuracy_by_{kind}": shares[kind] for kind in kinds},
    }


def _percent(mean: float, std: float, many: int) -> str:
    return f"{100 * mean:.1f}" + (f" ± {100 * std:.1f}" if many > 1 else "")


def _counts(labels: Any) -> dict[str, int]:
    names, counts = np.unique(labels, return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts, strict=True)}


def _summary(balanced: dict[str, str], classes: dict[str, dict[str, float]]) -> str:
    worst = min(classes, key=lambda name: classes[name][TILTED])
    return (
        f"The balanced accuracy of the tilted classifier is {balanced[TILTED]} percent, that of "
        f"logistic regression {balanced[PLAIN]}, and {balanced[WEIGHTED]} with class weights. Its worst "
        f"class is {worst}, of which {100 * classes[worst][TILTED]:.1f} percent are found."
    )


def verdict(means: dict[str, float], stds: dict[str, float]) -> str:
    """Tells which of them to take, as far as the splits tell."""
    rival = max((PLAIN, WEIGHTED), key=lambda name: means[name])
    words = "logistic regression" + (" with class weights" if rival == WEIGHTED else "")
    lead = means[TILTED] - means[rival]
    if abs(lead) <= max(stds[TILTED], stds[rival]):
        return f"These rows do not tell it apart from {words}."
    points = f"{100 * abs(lead):.1f} points"
    if lead > 0:
        return f"In the mean over classes it is {points} ahead of {words}."
    return f"In the mean over classes {words} is {points} ahead: take that."


def _table(kind: str, shares: dict[str, dict[str, str]], known: Examples, new: Examples) -> Table:
    train, test = (_counts(rows.y if kind == "class" else rows.groups) for rows in (known, new))
    return Table(
        [kind, "train rows", "test rows", TILTED, PLAIN, WEIGHTED],
        [
            [label, train.get(label, 0), test.get(label, 0), *row.values()]
            for label, row in shares.items()
        ],
    )


def _totals(shares: dict[str, dict[str, str]]) -> Table:
    names = {"balanced": "mean over classes (balanced accuracy)", "rows": "all rows"}
    return Table(
        ["accuracy", *shares["rows"]],
        [[names[label], *row.values()] for label, row in shares.items()],
    )


def _predictions(new: Examples, model: Any, predicted: dict[str, Any]) -> Table:
    """Lists every row that was looked at, by its line in the file."""
    columns = {
        "line": new.lines,
        **({} if new.groups is None else {"group": new.groups}),
        "target": new.y,
        **predicted,
    }
    shares = zip(model.classes_, model.predict_proba(new.X).T, strict=True)
    columns |= {f"share of {name}": column for name, column in shares}
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return Table(list(columns), [list(row) for row in rows])


def _weights(known: Examples, model: Any) -> Table:
    """One row a feature, for features as they stand in the file; of two classes only the second."""
    classes = model.classes_ if len(model.classes_) > 2 else model.classes_[1:]
    rows = [[name, *slopes] for name, slopes in zip(known.features, model.coef_.T.tolist(), strict=True)]
    return Table(["feature", *map(str, classes)], [*rows, ["(intercept)", *model.intercept_.tolist()]])
