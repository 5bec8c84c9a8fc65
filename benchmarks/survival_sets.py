"""Cox regression on five public sets: against exact solvers on all rows, and by small batches.

    make survival-sets     with the packages that it is checked against, in an environment of their own

Four sets come with scikit-survival and one with lifelines; words become one column a value but the
first, rows with gaps and columns that say the same as others are left out, and features are standard-
ised. On all rows ``nx.problems.exact_cox`` is compared with scikit-survival and lifelines, weights and
seconds. By small batches a linear log hazard is trained for 3,000 steps of descent whose rate falls
linearly to nothing, on three quarters of the rows, others for every seed; the rate is chosen on seeds of
its own.
"""

import functools
import importlib.metadata
import json
import os
import time as clock
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nestax as nx
from nestax.table import Table
from pages import fill
from script import SMALL, few, parser, results, size
from tables import with_error
from tracked_cox import Contender, Data, alone, concordance, empty_bank, remembered, with_bank

SETS = {
    "GBSG2": "load_gbsg2",
    "WHAS500": "load_whas500",
    "veterans": "load_veterans_lung_cancer",
    "Rossi": "",
    "FLChain": "load_flchain",
}
#: With many gaps, or a cause of death, which is known only afterwards.
WITHOUT = {"FLChain": ["chapter", "creatinine"]}
ROWS = size((6,), small=(4,))
#: Every step of two of the contenders goes over all rows, of which this one has most.
NOT_BY_BATCHES = "FLChain"
STEPS = size(3_000, small=20)
TUNING = size(3, small=1)
SEEDS = size(10, small=2)
RATES = size(tuple(float(f"{1e-4 * 10 ** (k / 2):.1g}") for k in range(7)), small=(0.1, 0.3))
HELD_OUT = 0.25
TIES = ("breslow", "efron")


def start_of_ours(data: Data, rows: int) -> Any:
    return nx.losses.risk_sets(data.time, data.event, ties="breslow")


OURS = "`nx.losses.cox`"
ALONE = "the batch alone"
BANK = "a bank, as torchsurv"
CONTENDERS = {
    ALONE: Contender(alone, lambda data, rows: (), (0.0,)),
    BANK: Contender(with_bank, empty_bank, ((30, 0.9),), lambda w, bank: bank.target),
    OURS: Contender(remembered, start_of_ours, (0.0,)),
}


@functools.cache
def public_set(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, times and events; kept in NESTAX_SURVIVAL, if that names a folder."""
    if SMALL:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(60, 3))
        return X, np.ceil(9 * rng.exponential(np.exp(-X[:, 0]))), rng.random(60) < 0.6
    kept = Path(os.environ.get("NESTAX_SURVIVAL", "/nowhere")) / f"{name}.npz"
    if kept.is_file():
        found = np.load(kept)
        return found["X"], found["time"], found["event"]
    from lifelines.datasets import load_rossi
    from sksurv import datasets
    from sksurv.column import encode_categorical

    if SETS[name]:
        table, y = getattr(datasets, SETS[name])()
        event, time = (y[field] for field in y.dtype.names)
    else:
        table = load_rossi()
        event, time = (table.pop(field).to_numpy() for field in ("arrest", "week"))
    table = encode_categorical(table.drop(columns=WITHOUT.get(name, []))).astype(float)
    whole = table.notna().all(axis=1).to_numpy()
    event, time = np.asarray(event)[whole], np.asarray(time, float)[whole]
    X = independent(table.to_numpy()[whole])
    if kept.parent.is_dir():
        np.savez_compressed(kept, X=X, time=time, event=event)
    return X, time, event


def independent(X: np.ndarray) -> np.ndarray:
    """Standardised columns, without those that are combinations of the ones before them."""
    X = X[:, X.std(axis=0) > 0]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    chosen: list[int] = []
    for k in range(X.shape[1]):
        if np.linalg.matrix_rank(X[:, [*chosen, k]], tol=1e-6 * len(X) ** 0.5) > len(chosen):
            chosen.append(k)
    return X[:, chosen]


# On all rows


def all_rows(name: str) -> dict[str, Any]:
    """Distances to the weights of others, and seconds."""
    import pandas as pd
    from lifelines import CoxPHFitter
    from sksurv.linear_model import CoxPHSurvivalAnalysis
    from sksurv.util import Surv

    X, time, event = public_set(name)
    out: dict[str, Any] = {"rows": len(X), "features": X.shape[1], "events": int(event.sum())}
    y = Surv.from_arrays(event, time)
    nx.problems.exact_cox(X, time, event).least()  # NumPy loads what it needs
    for ties in TIES:
        began = clock.perf_counter()
        own = nx.problems.exact_cox(X, time, event, ties=ties).least()
        out[f"seconds, {ties}"] = clock.perf_counter() - began
        assert own.found
        began = clock.perf_counter()
        theirs = CoxPHSurvivalAnalysis(ties=ties, tol=1e-13, n_iter=200).fit(X, y).coef_
        out[f"seconds of scikit-survival, {ties}"] = clock.perf_counter() - began
        out[f"far from scikit-survival, {ties}"] = float(np.abs(own.w - theirs).max())
    frame = pd.DataFrame(X).assign(time=time, event=event)
    began = clock.perf_counter()
    with warnings.catch_warnings(action="ignore"):
        fit = CoxPHFitter().fit(frame, "time", "event", fit_options={"precision": 1e-13})
    out["seconds of lifelines"] = clock.perf_counter() - began
    out["far from lifelines, efron"] = float(np.abs(own.w - fit.params_.to_numpy()).max())
    assert max(v for k, v in out.items() if k.startswith("far")) < 1e-6, out
    return out


# By small batches


def trained(contender: Contender, name: str, rows: int, seeds: range) -> dict[str, Any]:
    """The share of the gap that is left and the concordance on other rows: rates × seeds."""
    X, time, event = public_set(name)
    setting = jnp.asarray(contender.settings[0])
    splits, exacts = [], []
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(len(X))
        held = int(HELD_OUT * len(X))
        of = lambda part: Data(*(jnp.asarray(a[part], float) for a in (X, time, event)))
        splits.append((of(order[held:]), of(order[:held])))
        own = nx.problems.exact_cox(*(np.asarray(a) for a in splits[-1][0]), ties="breslow")
        exacts.append((own, own.value(np.zeros(X.shape[1])), own.least().value))
    stacked = lambda trees: jax.tree.map(lambda *a: jnp.stack(a), *trees)
    data = stacked([train for train, _ in splits])
    memory = stacked([contender.start(train, rows) for train, _ in splits])

    def run(rate: Any, key: Any, data: Data, memory: Any) -> Any:
        def step(carry: Any, t: Any) -> Any:
            w, memory = carry
            drawn = jax.random.choice(jax.random.fold_in(key, t), len(data.x), (rows,), replace=False)
            loss = lambda w: contender.loss(w, memory, drawn, setting, data)
            grad, memory = jax.grad(loss, has_aux=True)(w)
            return (w - rate * (1 - t / STEPS) * grad, memory), None

        start = jnp.zeros(data.x.shape[1]), memory
        return contender.weights(*jax.lax.scan(step, start, jnp.arange(STEPS))[0])

    keys = jax.vmap(jax.random.key)(jnp.asarray(list(seeds)))
    lanes = jax.jit(jax.vmap(jax.vmap(run, (None, 0, 0, 0)), (0, None, None, None)))
    ends = np.asarray(lanes(jnp.asarray(RATES), keys, data, memory))
    left = np.full(ends.shape[:2], np.inf)
    order = np.full(ends.shape[:2], np.nan)
    for i, lane in enumerate(ends):
        for j, w in enumerate(lane):
            if np.isfinite(w).all():
                own, initial, least = exacts[j]
                left[i, j] = (own.value(w) - least) / (initial - least)
                order[i, j] = concordance(w, splits[j][1])
    return {"left": left, "concordance": order}


def cell(contender: Contender, name: str, rows: int) -> dict[str, Any]:
    tuning = trained(contender, name, rows, range(1_000_000, 1_000_000 + TUNING))["left"].mean(axis=1)
    best = int(np.argmin(tuning))
    found = trained(contender, name, rows, range(100, 100 + SEEDS))
    return {"rate": RATES[best], **{key: x[best].tolist() for key, x in found.items()}}


# The page


def exact_table(kept: dict[str, Any]) -> Table:
    columns = ["set", "rows", "features", "events", "far from scikit-survival", "far from lifelines"]
    seconds = ["seconds", "of scikit-survival", "of lifelines"]
    lines = []
    for name, of in kept.items():
        far = max(of[f"far from scikit-survival, {ties}"] for ties in TIES)
        times = ["seconds, efron", "seconds of scikit-survival, efron", "seconds of lifelines"]
        sizes = f"{of['rows']:,}", of["features"], f"{of['events']:,}"
        near = f"{far:.0e}", f"{of['far from lifelines, efron']:.0e}"
        lines.append([name, *sizes, *near, *(f"{of[k]:.3f}" for k in times)])
    return Table([*columns, *seconds], lines)


def batch_table(kept: dict[str, Any]) -> Table:
    """Percent of the gap that are left, the least in bold, and what the batch alone leaves more."""
    lines = []
    for name, by_rows in kept.items():
        for rows, found in by_rows.items():
            least = min(np.mean(of["left"]) for of in found.values())
            words = []
            for of in found.values():
                word = with_error(np.asarray(of["left"]), unit=100)
                words.append(f"**{word}**" if np.mean(of["left"]) == least else word)
            more = np.asarray(found[ALONE]["left"]) - found[OURS]["left"]
            index = np.asarray(found[OURS]["concordance"]) - found[ALONE]["concordance"]
            lines.append([name, rows, *words, with_error(more, "+", 100), with_error(index, "+", 100)])
    gains = ["more left by the batch alone", "concordance gained, hundredths"]
    return Table(["set", "rows a step", *CONTENDERS, *gains], lines)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("part", nargs="*", default=["exact", "batches"], help="exact, batches, page")
    parts = options.parse_args().part
    path = results("survival_sets.json")
    kept: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    if "exact" in parts and not SMALL:
        version = importlib.metadata.version
        kept["versions"] = {name: version(name) for name in ("scikit-survival", "lifelines")}
        kept["exact"] = {name: all_rows(name) for name in SETS}
        path.write_text(json.dumps(kept))
    if "batches" in parts:
        kept["batches"] = {}
        for name in few({k: v for k, v in SETS.items() if k != NOT_BY_BATCHES}, small=1):
            kept["batches"][name] = {}
            for rows in ROWS:
                found = {label: cell(one, name, rows) for label, one in CONTENDERS.items()}
                kept["batches"][name][str(rows)] = found
                shown = {k: with_error(np.asarray(of["left"]), unit=100) for k, of in found.items()}
                print(name, rows, shown, flush=True)
                path.write_text(json.dumps(kept))
    tables = {"cox sets exact": exact_table, "cox sets batches": batch_table}
    filled = {name: of(kept[part]) for name, of in tables.items() if (part := name.split()[-1]) in kept}
    fill("survival.md", {name: table.to_markdown() for name, table in filled.items()})


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
