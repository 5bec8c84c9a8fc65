"""TiltedClassifier against logistic regression, on classes made rare and labels made wrong.

Every source is split into train and test rows (7 : 3, stratified), ten times. In the train rows the
least frequent class is thinned out to one row for every twenty others, and then three labels in ten are
shuffled among themselves; the test rows stay as they are. All three classifiers have their default
settings, except that logistic regression may take more steps; the features are scaled for all of them.
The same without wrong labels says what these cost.

Writes benchmarks/results/tilted_classifier.csv and the tables of docs/scikit-learn.md. With NESTAX_DATA
set, four further sources join the four that come with scikit-learn.
"""

import os
from collections.abc import Callable

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import nestax as nx
from nestax.table import Table
from pages import fill
from script import few, parser, results, size

SEEDS = size(10, small=2)
IMBALANCE = 20
NOISE = (0.3, 0.0)


def sources() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    digits, digit = load_digits(return_X_y=True)
    out = {
        "breast cancer, diagnostic": load_breast_cancer(return_X_y=True),
        "digits, 8 against the rest": (digits, digit == 8),
        "digits, odd against even": (digits, digit % 2),
        "wine, three classes": load_wine(return_X_y=True),
    }
    if "NESTAX_DATA" in os.environ:
        out |= {name: nx.datasets.libsvm(name) for name in ("australian", "breast-cancer", "svmguide1")}
        out["HIV-1 cleavage"] = nx.datasets.hiv1()
    return out


CLASSIFIERS: dict[str, Callable] = {
    "LogisticRegression": lambda seed: scaled(LogisticRegression(max_iter=1_000)),
    '… class_weight="balanced"': lambda seed: scaled(
        LogisticRegression(max_iter=1_000, class_weight="balanced")
    ),
    "TiltedClassifier": lambda seed: nx.sklearn.TiltedClassifier(random_state=seed),
}


def scaled(classifier):
    return make_pipeline(StandardScaler(), classifier)


def accuracies(X: np.ndarray, y: np.ndarray, noise: float) -> np.ndarray:
    """Balanced accuracy in percent, seeds × classifiers."""
    out = []
    for seed in range(SEEDS):
        train, test = train_test_split(np.arange(len(y)), test_size=0.3, stratify=y, random_state=seed)
        rows, labels, _ = nx.datasets.corrupt(
            X[train], y[train], imbalance=IMBALANCE, noise=noise, seed=seed
        )
        fitted = [make(seed).fit(rows, labels) for make in CLASSIFIERS.values()]
        out.append([100 * balanced_accuracy_score(y[test], c.predict(X[test])) for c in fitted])
    return np.asarray(out)


def words(mean: float, deviation: float | None = None) -> str:
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"


if __name__ == "__main__":
    parser(__doc__).parse_args()
    columns = ["source", *CLASSIFIERS]
    numbers = []
    tables = []
    for noise in NOISE:
        means = []
        rows = []
        for name, (X, y) in few(sources(), small=1).items():
            found = accuracies(X, y, noise)
            means.append(found.mean(axis=0))
            rows.append([name, *map(words, means[-1], found.std(axis=0, ddof=1))])
            numbers += [
                [name, noise, seed, *map(float, accuracy)] for seed, accuracy in enumerate(found)
            ]
            print(noise, *rows[-1], flush=True)
        rows.append(["**mean**", *map(words, np.mean(means, axis=0))])
        share = f"{noise:.0%} of the train labels shuffled:" if noise else "No label shuffled:"
        tables.append(f"{share}\n\n{Table(columns, rows).to_markdown()}")
    header = ["source", "noise", "seed", *CLASSIFIERS]
    Table(header, numbers).to_csv(results("tilted_classifier.csv"))
    fill("scikit-learn.md", {"tilted classifier tables": "\n\n".join(tables)})
