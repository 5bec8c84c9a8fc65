"""``nestax reproduce``: the experiments of the SMVR paper."""

from pathlib import Path
from typing import Any

import numpy as np

import nestax.datasets as datasets
from nestax.cli.shell import Outcome, note
from nestax.errors import SettingError
from nestax.paper import Portfolios, reproduce_maml, reproduce_portfolio, reproduce_term
from nestax.paper.maml import FULL, QUICK
from nestax.paper.portfolio import INDUSTRIES, ROWS
from nestax.table import Table

#: Runs that are reported and runs that choose the settings, of all markets and of the smallest.
FULL_SEEDS = (20, 8)
QUICK_SEEDS = (5, 3)


def portfolio_figures(
    full: bool,
    industries: str | None,
    seeds: int | None,
    tune_seeds: int | None,
    cells: Path | None,
) -> Outcome:
    """Figures 1 and 2, on all markets of the paper or on the smallest."""
    reported, tuning = FULL_SEEDS if full else QUICK_SEEDS
    seeds = seeds or reported
    tune_seeds = tune_seeds or tuning
    result = reproduce_portfolio(
        _markets(full, industries), seeds=seeds, tune_seeds=tune_seeds, cells=cells, tell=note
    )
    *_, (_, compiling, running) = result.seconds().rows
    balls = "SMVR with its Jacobians kept in a ball, and the share of steps at which it was active"
    return Outcome(
        title=f"Risk-averse portfolios: {', '.join(result.trials)}",
        summary=" ".join(result.findings())
        + f" Compiling the grid took {compiling:.0f} s, computing it {running:.0f} s.",
        tables=[
            (f"Gap F(w) − F* in percent a day at equal samples, {seeds} runs", result.gaps()),
            ("SnapshotSMVR by passes over the rows per level: mean gap, and the worst", result.epochs()),
            ("Chosen settings, cost and seconds", result.details()),
            ("Seconds by method", result.seconds()),
            (balls, result.radii()),
            ("Norms of the true Jacobians", result.norms()),
        ],
        numbers=_numbers(result),
        records={"methods": result.details(), "radii": result.radii(), "curves": result.curves()},
        draw=lambda: [
            (
                "figure-1",
                "Figure 1: gap F(w) − F* in percent a day, and gradient mapping, against samples drawn "
                f"over all levels; mean and band of one standard deviation over {seeds} runs, every "
                "method at the setting that other seeds chose.",
                result.plot_methods(),
            ),
            (
                "figure-2",
                "Figure 2: the gap of SMVR at the setting of Figure 1, with every tracked Jacobian in a "
                "ball of the given radius, Frobenius above and spectral below.",
                result.plot_radii(),
            ),
        ],
        found={"seeds": seeds, "tune_seeds": tune_seeds},
    )


def _markets(full: bool, industries: str | None) -> dict[str, Any]:
    """The real returns; made-up ones if nothing was asked for and there is no copy of the smallest."""
    copies = datasets.available()
    copy = dict(zip(copies.column("name"), copies.column("local copy"), strict=True))["industry10"]
    if not full and industries is None and copy == "–":
        note("There is no copy of Industry-10, so the returns are made up; NESTAX_DATA may name one.")
        return {"made-up": datasets.synthetic_returns(ROWS, INDUSTRIES[0])}
    usual = INDUSTRIES if full else INDUSTRIES[:1]
    counts = usual if industries is None else [_count(word) for word in industries.split(",")]
    return {f"Industry-{count}": datasets.industry(count, rows=ROWS) for count in counts}


def _count(word: str) -> int:
    if word.strip() not in map(str, INDUSTRIES):
        known = ", ".join(map(str, INDUSTRIES))
        raise SettingError(f"industries must be some of {known}; got {word.strip()!r}.")
    return int(word)


def _numbers(result: Portfolios) -> dict[str, Any]:
    tables = {"methods": result.details(), "radii": result.radii(), "norms": result.norms()}
    rows = lambda table: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return {name: rows(table) for name, table in tables.items()}


def term_table(
    full: bool,
    batches: str,
    only: str | None,
    seeds: int | None,
    tune_seeds: int | None,
    cells: Path | None,
) -> Outcome:
    """Figure 3 and Table 2, on all sets of the paper or on breast cancer."""
    reported, tuning = FULL_SEEDS if full else QUICK_SEEDS
    seeds = seeds or reported
    tune_seeds = tune_seeds or tuning
    result = reproduce_term(
        _chosen_sets(full, only),
        seeds=seeds,
        tune_seeds=tune_seeds,
        batches=batches,
        cells=cells,
        tell=note,
    )
    accuracies = result.accuracies()
    losses = result.losses()
    details = result.details()
    return Outcome(
        title=f"Rare and mislabelled classes, {batches} batches: {', '.join(result.trials)}",
        summary=" ".join(result.findings()) + f" The methods took {result.seconds():.0f} s.",
        tables=[
            (f"Table 2: test accuracy in percent, mean ± deviation over {seeds} splits", accuracies),
            ("F at the end of the budget, and how far above the full gradient", losses),
            ("SMVR less other methods on the same split, mean ± standard error", result.apart()),
            ("Chosen settings, cost, result and seconds", details),
            ("Rows of every split", result.rows()),
        ],
        numbers={
            "methods": [dict(zip(details.columns, row, strict=True)) for row in details.rows],
            "findings": result.findings(),
        },
        records={
            "accuracies": accuracies,
            "losses": losses,
            "apart": result.apart(),
            "methods": details,
            "rows": result.rows(),
            "curves": result.curves(),
            "findings": Table(["finding"], [[finding] for finding in result.findings()]),
        },
        draw=lambda: [
            (
                "figure-3",
                "Figure 3: F(w) and the norm of its gradient against samples drawn; mean and band of one"
                f" deviation over {seeds} splits, every method at the setting that other splits "
                "chose. The level line is where as many steps of the full gradient end.",
                result.plot(),
            )
        ],
        found={"seeds": seeds, "tune_seeds": tune_seeds, "batches": batches},
    )


def _chosen_sets(full: bool, only: str | None) -> dict[str, tuple[Any, Any]]:
    """Those that are named, or all."""
    sets = _sets(full)
    names = list(sets) if only is None else [name.strip() for name in only.split(";")]
    for name in names:
        if name not in sets:
            there = "; ".join(sets)
            hint = "" if full else ", and with --full there are more"
            raise SettingError(f"only: no data set is called {name!r}; there are {there}{hint}.")
    return {name: sets[name] for name in names}


def _sets(full: bool) -> dict[str, tuple[Any, Any]]:
    """Features and labels 0 and 1; without a copy of breast cancer the set that scikit-learn brings."""
    if not full:
        return _breast_cancer()
    parts = [datasets.libsvm(name) for name in ("svmguide1", "svmguide1.t")]
    X, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    return {
        "HIV-1": datasets.hiv1(),
        "Australian": _zero_and_one(*datasets.libsvm("australian")),
        "Breast-cancer": _zero_and_one(*datasets.libsvm("breast-cancer")),
        "svmguide1": (X, y),
    }


def _breast_cancer() -> dict[str, tuple[Any, Any]]:
    copies = datasets.available()
    copy = dict(zip(copies.column("name"), copies.column("local copy"), strict=True))["breast-cancer"]
    if copy != "–":
        return {"Breast-cancer": _zero_and_one(*datasets.libsvm("breast-cancer"))}
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError:
        raise SettingError(
            "there is no copy of breast-cancer: set NESTAX_DATA to a folder that holds one, or "
            "pip install 'nestax[sklearn]' for a similar set."
        ) from None
    note(
        "There is no copy of LIBSVM's breast-cancer, so the later set that scikit-learn brings is used; "
        "NESTAX_DATA may name a folder."
    )
    X, benign = load_breast_cancer(return_X_y=True)
    return {"Breast-cancer of scikit-learn": (X, 1 - np.asarray(benign))}


def _zero_and_one(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return X, (y > 0).astype(int)


def few_shot_figure(
    full: bool,
    shots: int | None,
    only: str | None,
    steps: int | None,
    cells: Path | None,
    tuned: Path | None,
) -> Outcome:
    """Figure 4, at full size or as a sketch."""
    setup = FULL if full else QUICK
    if steps is not None:
        setup = setup._replace(steps=steps)
    result = reproduce_maml(
        datasets.omniglot(side=setup.side),
        shots=(1, 5) if shots is None else (shots,),
        setup=setup,
        methods=None if only is None else [name.strip() for name in only.split(";")],
        cells=cells,
        tuned=tuned,
        tell=note,
    )
    accuracies = result.accuracies()
    details = result.details()
    apart = result.apart()
    words = "The same, one method less another in the same run, ± standard error"
    paired = [(words, apart)] if apart.rows else []
    return Outcome(
        title="Five-step meta-learning of handwriting",
        summary=" ".join(result.findings()),
        tables=[
            (
                "Accuracy on test tasks in percent, by thirds of the images that all have drawn",
                accuracies,
            ),
            *paired,
            ("Chosen settings and cost", details),
        ],
        numbers={
            "methods": [dict(zip(accuracies.columns, row, strict=True)) for row in accuracies.rows],
            "findings": result.findings(),
        },
        records={
            "accuracies": accuracies,
            "apart": apart,
            "methods": details,
            "curves": result.curves(),
        },
        draw=lambda: [
            (
                "figure-4",
                "Figure 4: accuracy after five steps on the given number of images a class, against "
                f"images drawn; {setup.tasks:,} training tasks, {setup.visit} of them a step; mean and "
                "range over runs, every method at the setting that did best on training tasks.",
                result.plot(),
            )
        ],
        found={"setup": setup._asdict()},
    )
