"""Cox's partial likelihood by small batches, with and without memory, for docs/tracked-results.md.

    make tracked-cox       everything, with the packages that it is checked against; ten minutes

GBSG2 (686 rows, 8 covariates), a linear log hazard, another quarter of the rows held out for every seed.
Every contender takes the same batches and plain descent whose rate falls linearly to nothing. Its rate,
and the settings of its memory where it has one, are chosen on seeds of their own, by what is left of the
gap to the least exact loss of the training rows.
"""

import functools
import importlib.metadata
import json
import time as clock
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import nestax as nx
from nestax.table import Table
from pages import fill
from real_data import breast_cancer_study
from script import SMALL, few, parser, results, size
from tables import with_error

ROWS = size((2, 6, 12, 24), small=(4,))
STEPS = size(3_000, small=20)
TUNING = size(3, small=1)
#: Those from 0 on were looked at while the loss was made.
SEEDS = size(tuple(range(100, 110)), small=(0, 1))
HELD_OUT = 0.25
RATES = size(tuple(float(f"{1e-4 * 10 ** (k / 2):.1g}") for k in range(9)), small=(0.1, 0.3))
BETAS = size((0.01, 0.03, 0.1, 0.3, 0.6, 0.9), small=(0.1,))
#: Batches in the bank, and what is kept of the weights that fill it.
BANKS = size(tuple((n, keep) for n in (3, 10, 30, 100) for keep in (0.0, 0.5, 0.9)), small=((3, 0.9),))
LARGEST_BANK = max(int(n) for n, _ in BANKS)


class Data(NamedTuple):
    """The training rows of one seed."""

    x: Array
    time: Array
    event: Array


class Contender(NamedTuple):
    """A way to compute the loss of a batch.

    loss: ``loss(w, memory, rows, setting, data)`` returns value and memory.
    start: ``start(data, rows)`` makes a memory.
    settings: of the memory, to be tuned.
    weights: which ones are reported.
    """

    loss: Callable[..., Any]
    start: Callable[[Data, int], Any]
    settings: tuple[Any, ...]
    weights: Callable[[Array, Any], Array] = lambda w, memory: w


def partial_likelihood(risk: Array, time: Array, event: Array) -> Array:
    """Of some rows taken as if there were no others, per event: the loss of pycox and torchsurv."""
    at_risk = jnp.where(time[None, :] >= time[:, None], risk[None, :], -jnp.inf)
    each = jnp.where(event > 0, jax.nn.logsumexp(at_risk, axis=1) - risk, 0)
    return jnp.sum(each) / jnp.maximum(jnp.sum(event), 1)


def alone(w: Array, memory: Any, rows: Array, setting: Any, data: Data) -> Any:
    x, time, event = (a[rows] for a in data)
    return partial_likelihood(x @ w, time, event), memory


class Bank(NamedTuple):
    """Rows of the last batches, newest first, with risks by weights that follow the trained ones."""

    target: Array
    risk: Array
    time: Array
    event: Array


def empty_bank(data: Data, rows: int) -> Bank:
    size = LARGEST_BANK * rows
    return Bank(jnp.zeros(data.x.shape[1]), jnp.zeros(size), jnp.full(size, -jnp.inf), jnp.zeros(size))


def with_bank(w: Array, bank: Bank, rows: Array, setting: Any, data: Data) -> Any:
    """What torchsurv's Momentum does: the batch among older ones, whose risks do not move.

    The batch counts among those of the bank, and what is divided by are the times with an event.
    """
    batches, keep = setting
    x, time, event = (a[rows] for a in data)
    inside = jnp.arange(len(bank.risk)) < (batches - 1) * len(rows)
    # A row that ended before all others, without an event, is in no risk set.
    times = jnp.concatenate([time, jnp.where(inside, bank.time, -jnp.inf)])
    events = jnp.concatenate([event, jnp.where(inside, bank.event, 0)])
    risk = jnp.concatenate([x @ w, bank.risk])
    order = jnp.argsort(times)
    times, events, risk = times[order], events[order], risk[order]
    first = jnp.searchsorted(times, times)
    later = jax.lax.cumlogsumexp(risk, reverse=True)[first]
    different = jnp.sum(jnp.zeros_like(events).at[first].max(events))
    value = jnp.sum(jnp.where(events > 0, later - risk, 0)) / jnp.maximum(different, 1)
    target = keep * bank.target + (1 - keep) * jax.lax.stop_gradient(w)
    push = lambda new, old: jnp.concatenate([new, old])[: len(old)]
    bank = Bank(target, push(x @ target, bank.risk), push(time, bank.time), push(event, bank.event))
    return value, bank


def from_nothing(w: Array, table: Array, rows: Array, gamma: Array, data: Data) -> Any:
    """A table as in LibAUC: averages that begin at 0, of means over the batch as it is."""
    x, time, event = (a[rows] for a in data)
    risk = x @ w
    fresh = jnp.mean((time[None, :] >= time[:, None]) * jnp.exp(risk)[None, :], axis=1)
    moved = (1 - gamma) * table[rows] + gamma * jax.lax.stop_gradient(fresh)
    each = jnp.where(event > 0, fresh / moved - risk, 0)
    return jnp.sum(each) / jnp.maximum(jnp.sum(event), 1), table.at[rows].set(moved)


def sums(w: Array, memory: Any, rows: Array, beta: Array, data: Data) -> Any:
    """A table of tracked sums, to which the other rows of a batch add as if they were all others."""
    n, b = len(data.x), len(rows)
    x, time, event = (a[rows] for a in data)
    risk = x @ w
    share = jnp.where(jnp.eye(b, dtype=bool), 0, jnp.log((n - 1) / (b - 1)))
    at_risk = jnp.where(time[None, :] >= time[:, None], risk[None, :] + share, -jnp.inf)
    fresh = jax.nn.logsumexp(at_risk, axis=1)
    total, memory = nx.track(fresh, memory, rows, beta=beta, log=True)
    return jnp.mean(jnp.where(event > 0, total - risk, 0)), memory


def sum_table(data: Data, rows: int) -> nx.TrackState:
    """The sums of all rows as they are at the first weights, which are 0."""
    sizes = jnp.sum(data.time[None, :] >= data.time[:, None], axis=1)
    state = nx.track_init(0.0, n=len(data.x))
    return eqx.tree_at(lambda state: state.value, state, jnp.log(sizes.astype(float)))


def remembered(w: Array, memory: Any, rows: Array, setting: Any, data: Data) -> Any:
    return nx.losses.cox(data.x[rows] @ w, memory, rows)


def no_risks(data: Data) -> nx.losses.RiskSets:
    return nx.losses.risk_sets(data.time, data.event, ties="breslow")


OURS = "`nx.losses.cox`"
ALONE = "the batch alone"
CONTENDERS = few(
    {
        ALONE: Contender(alone, lambda data, rows: (), (0.0,)),
        "a bank, as torchsurv": Contender(with_bank, empty_bank, BANKS, lambda w, bank: bank.target),
        "a table, as LibAUC": Contender(from_nothing, lambda data, rows: jnp.zeros(len(data.x)), BETAS),
        "a table of sums": Contender(sums, sum_table, BETAS),
        OURS: Contender(remembered, lambda data, rows: no_risks(data), (0.0,)),
    },
    small=5,
)


def run(
    contender: Contender, rate: Array, setting: Any, key: Array, data: Data, memory: Any, rows: int
) -> Array:
    """The weights at the end of one run."""

    def step(carry: Any, t: Array) -> Any:
        w, memory = carry
        drawn = jax.random.choice(jax.random.fold_in(key, t), len(data.x), (rows,), replace=False)
        loss = lambda w: contender.loss(w, memory, drawn, setting, data)
        grad, memory = jax.grad(loss, has_aux=True)(w)
        return (w - rate * (1 - t / STEPS) * grad, memory), None

    start = jnp.zeros(data.x.shape[1]), memory
    return contender.weights(*jax.lax.scan(step, start, jnp.arange(STEPS))[0])


# Data, and what is exact


class Split(NamedTuple):
    """One seed: rows to train on, rows held out, and the least exact loss of the former."""

    train: Data
    test: Data
    best: np.ndarray
    least: float
    initial: float


@jax.jit
def exact(w: Array, data: Data) -> Array:
    """The loss of all training rows."""
    risk = data.x @ w
    at_risk = jnp.where(data.time[None, :] >= data.time[:, None], risk[None, :], -jnp.inf)
    return jnp.mean(jnp.where(data.event > 0, jax.nn.logsumexp(at_risk, axis=1) - risk, 0))


def optimum(data: Data) -> np.ndarray:
    """By Newton's method."""
    w = jnp.zeros(data.x.shape[1])
    for _ in range(20):
        w = w - jnp.linalg.solve(jax.hessian(exact)(w, data), jax.grad(exact)(w, data))
    return np.asarray(w)


@functools.cache
def split(seed: int) -> Split:
    X, time, event = breast_cancer_study()
    order = np.random.default_rng(seed).permutation(len(X))
    held = int(HELD_OUT * len(X))
    of = lambda rows: Data(*(jnp.asarray(a[rows]) for a in (X, time, event)))
    train = of(order[held:])
    best = optimum(train)
    start = jnp.zeros(X.shape[1])
    return Split(train, of(order[:held]), best, float(exact(best, train)), float(exact(start, train)))


def concordance(w: np.ndarray, data: Data) -> float:
    """Of pairs whose order is known, the share that the risk puts right."""
    risk, time, event = (np.asarray(a) for a in (data.x @ w, data.time, data.event))
    known = (event[:, None] > 0) & (time[:, None] < time[None, :])
    known |= (event[:, None] > event[None, :]) & (time[:, None] == time[None, :])
    ahead = risk[:, None] - risk[None, :]
    return float(np.mean((ahead > 0)[known] + 0.5 * (ahead == 0)[known]))


# What is measured


def finals(contender: Contender, rows: int, seeds: list[int], rates: Any, settings: Any) -> np.ndarray:
    """Weights, of shape (settings, rates, seeds, covariates)."""
    splits = [split(seed) for seed in seeds]
    stacked = lambda each: jax.tree.map(lambda *a: jnp.stack(a), *each)
    data = stacked([s.train for s in splits])
    memory = stacked([contender.start(s.train, rows) for s in splits])
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds))
    lane = lambda setting, rate, *seed: run(contender, rate, setting, *seed, rows)
    over_seeds = jax.vmap(lane, (None, None, 0, 0, 0))
    over_rates = jax.vmap(over_seeds, (None, 0, None, None, None))
    over = jax.vmap(over_rates, (0, None, None, None, None))
    return np.asarray(jax.jit(over)(jnp.asarray(settings), jnp.asarray(rates), keys, data, memory))


def left(weights: np.ndarray, one: Split) -> float:
    """The share of the initial gap."""
    gap = (float(exact(jnp.asarray(weights), one.train)) - one.least) / (one.initial - one.least)
    return gap if np.isfinite(gap) else np.inf


def cell(contender: Contender, rows: int) -> dict[str, Any]:
    tuning = [1_000_000 + k for k in range(TUNING)]
    found = finals(contender, rows, tuning, RATES, contender.settings)
    gaps = np.asarray(
        [[[left(w, split(s)) for w, s in zip(lane, tuning, strict=True)] for lane in of] for of in found]
    ).mean(axis=2)
    setting, rate = np.unravel_index(np.argmin(gaps), gaps.shape)
    chosen = contender.settings[setting]
    seeds = list(SEEDS)
    ends = finals(contender, rows, seeds, [RATES[rate]], [chosen])[0, 0]
    splits = [split(seed) for seed in seeds]
    return {
        "rate": RATES[rate],
        "setting": chosen,
        "tuning": gaps.tolist(),
        "left": [left(w, s) for w, s in zip(ends, splits, strict=True)],
        "concordance": [concordance(w, s.test) for w, s in zip(ends, splits, strict=True)],
    }


# Against the packages themselves


def check_optimum() -> float:
    """The largest distance to the weights of scikit-survival."""
    from sksurv.linear_model import CoxPHSurvivalAnalysis
    from sksurv.metrics import concordance_index_censored
    from sksurv.util import Surv

    far = []
    for seed in SEEDS:
        one = split(seed)
        x, time, event = (np.asarray(a) for a in one.train)
        fit = CoxPHSurvivalAnalysis(ties="breslow", tol=1e-12, n_iter=100)
        theirs = fit.fit(x, Surv.from_arrays(event > 0, time)).coef_
        far.append(np.abs(theirs - one.best).max())
        x, time, event = (np.asarray(a) for a in one.test)
        index = concordance_index_censored(event > 0, time, x @ one.best)[0]
        np.testing.assert_allclose(concordance(one.best, one.test), index, atol=1e-12)
    assert max(far) < 1e-8, max(far)
    return float(max(far))


def check_bank(steps: int = 100, rows: int = 6, rate: float = 0.1) -> float:
    """The largest distance to the weights of torchsurv's Momentum, over some steps on equal batches.

    Times are replaced by their order: of an event and a censored row at one time torchsurv takes either
    to be the earlier one, as its sort has it, unless two events are tied as well.
    """
    import torch
    from torchsurv.loss.cox import neg_partial_log_likelihood
    from torchsurv.loss.momentum import Momentum

    data = split(0).train
    data = data._replace(time=jnp.argsort(jnp.argsort(data.time)).astype(float))
    x, time, event = (torch.tensor(np.asarray(a), dtype=torch.float32) for a in data)  # as it computes
    backbone = torch.nn.Linear(x.shape[1], 1, bias=False)
    torch.nn.init.zeros_(backbone.weight)
    breslow = functools.partial(neg_partial_log_likelihood, ties_method="breslow")
    batches, keep = 10, 0.9
    theirs = Momentum(backbone, breslow, batchsize=rows, steps=batches, rate=keep)
    w, bank, far = jnp.zeros(x.shape[1]), empty_bank(data, rows), []
    grad = jax.jit(jax.grad(lambda *given: with_bank(*given, (batches, keep), data), has_aux=True))
    rng = np.random.default_rng(0)
    for _ in range(steps):
        drawn = rng.choice(len(x), rows, replace=False)
        theirs.zero_grad()
        theirs(x[drawn], event[drawn] > 0, time[drawn]).backward()
        with torch.no_grad():
            theirs.online.weight -= rate * theirs.online.weight.grad
        slope, bank = grad(w, bank, jnp.asarray(drawn))
        w = w - rate * slope
        far.append(np.abs(theirs.online.weight.detach().numpy()[0] - w).max())
    assert max(far) < 1e-5, max(far)
    return float(max(far))


def checked() -> dict[str, Any]:
    version = importlib.metadata.version
    return {
        "scikit-survival": {"version": version("scikit-survival"), "far": check_optimum()},
        "torchsurv": {"version": version("torchsurv"), "far": check_bank()},
    }


# The page


def gaps_table(kept: dict[str, Any]) -> Table:
    """Percent of the initial gap that are left; the least in a row is set bold."""
    lines = []
    for rows, found in kept.items():
        least = min(np.mean(of["left"]) for of in found.values())
        words = {name: with_error(np.asarray(of["left"]), unit=100) for name, of in found.items()}
        bold = lambda name, found=found, least=least: np.mean(found[name]["left"]) == least
        cells = {name: f"**{word}**" if bold(name) else word for name, word in words.items()}
        lines.append([rows, *(cells.get(name, "–") for name in CONTENDERS)])
    return Table(["rows a step", *CONTENDERS], lines)


def concordance_table(kept: dict[str, Any], best: list[float]) -> Table:
    def word(of: dict[str, Any] | None) -> str:
        if of is None:
            return "–"
        return f"{np.mean(of['concordance']):.4f}" if np.isfinite(of["left"]).all() else "diverged"

    lines = [
        [rows, *(word(found.get(name)) for name in CONTENDERS), f"{np.mean(best):.4f}"]
        for rows, found in kept.items()
    ]
    return Table(["rows a step", *CONTENDERS, "optimum"], lines)


def difference_table(kept: dict[str, Any]) -> Table:
    """Others minus ours, paired: percent of the gap, and hundredths of concordance."""
    lines = []
    for rows, found in kept.items():
        for name, of in found.items():
            if name != OURS and np.isfinite(of["left"]).all():
                gap, index = (
                    100 * (np.asarray(of[key]) - found[OURS][key]) for key in ("left", "concordance")
                )
                lines.append([rows, name, with_error(gap, "+"), with_error(index, "+")])
    return Table(["rows a step", "against", "more left, percent", "concordance, hundredths"], lines)


def settings_table(kept: dict[str, Any]) -> Table:
    lines = [
        [rows, name, of["rate"], of["setting"] if len(CONTENDERS[name].settings) > 1 else "–"]
        for rows, found in kept.items()
        for name, of in found.items()
    ]
    return Table(["rows a step", "loss", "learning rate", "memory"], lines)


def measure(path: Path) -> None:
    found: dict[str, Any] = {"checked": {} if SMALL else checked(), "cells": {}}
    print(found["checked"], flush=True)
    for rows in ROWS:
        cells = found["cells"][str(rows)] = {}
        for name, contender in CONTENDERS.items():
            began = clock.perf_counter()
            cells[name] = cell(contender, rows)
            shown = with_error(np.asarray(cells[name]["left"]), unit=100)
            chosen = cells[name]["rate"], cells[name]["setting"]
            print(f"{rows} {name}: {shown} {chosen} {clock.perf_counter() - began:.0f} s", flush=True)
            path.write_text(json.dumps(found))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--write", action="store_true", help="only the page, from kept numbers")
    path = results("tracked_cox.json")
    if not options.parse_args().write:
        measure(path)
    cells = json.loads(path.read_text())["cells"]
    best = [concordance(s.best, s.test) for s in map(split, SEEDS)]
    fill(
        "tracked-results.md",
        {
            "cox gaps": gaps_table(cells).to_markdown(),
            "cox concordance": concordance_table(cells, best).to_markdown(),
            "cox differences": difference_table(cells).to_markdown(),
            "cox settings": settings_table(cells).to_markdown(),
        },
    )


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
