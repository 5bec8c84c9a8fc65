"""Every optimiser of Optax and its contrib on a simplex, in a box and on free weights.

    python benchmarks/optimisers.py            # the table of docs/optimisers.md
    python benchmarks/optimisers.py --jobs 8   # in so many processes

Least squares with the full gradient, so that nothing but the optimiser decides where a run ends: what
is left of F − F* at the end, as a share of what it was at the start, at the best of some learning
rates that fall to 0 as a half cosine.
"""

import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import nestax as nx
from nestax.table import Table
from pages import fill
from script import few, parser, size

STEPS = size(3_000, small=20)
RATES = (0.003, 0.03, 0.3, 3.0)
#: What is left counts as arrived up to this share.
ARRIVED = 1e-3
SETS: dict[str, Callable[..., Any] | None] = {
    "simplex": nx.projections.simplex,
    "box": jax.tree_util.Partial(nx.projections.box, lower=jnp.asarray(0.05), upper=jnp.asarray(0.2)),
    "free": None,
}
#: What is no optimiser, but a part of one or a wrapper.
PARTS = ("scale", "add", "apply", "set", "clip", "zero", "trace", "ema", "centralize", "normalize_by")
#: A wrapper that is below, a former form that Optax refuses by itself, and one for gradients of single
#: rows, which an estimate is no longer.
ELSEWHERE = ("schedule_free", "optimistic_adam", "dpsgd")
#: Wrappers, around the optimiser that they are tried with.
WRAPPED: dict[str, Callable[[Any], Any]] = {
    "MultiSteps(sgd)": lambda lr: optax.MultiSteps(optax.sgd(lr), 2),
    "apply_if_finite(adam)": lambda lr: optax.apply_if_finite(optax.adam(lr), 3),
    "chain(clip_by_global_norm, adam)": lambda lr: optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(lr)
    ),
    "chain(clip, sgd)": lambda lr: optax.chain(optax.clip(0.1), optax.sgd(lr)),
    "sgd, momentum": lambda lr: optax.sgd(lr, 0.9),
    "contrib.mechanize(sgd)": lambda lr: optax.contrib.mechanize(optax.sgd(lr)),
    "contrib.schedule_free(sgd)": lambda lr: optax.contrib.schedule_free(optax.sgd(lr), lr),
    "contrib.sam(sgd)": lambda lr: optax.contrib.sam(optax.sgd(lr), optax.sgd(0.01), 2),
    "contrib.reduce_on_plateau": lambda lr: optax.chain(
        optax.sgd(lr), optax.contrib.reduce_on_plateau()
    ),
    "polyak_sgd": lambda lr: optax.polyak_sgd(lr),
    "lbfgs, no line search": lambda lr: optax.lbfgs(lr, linesearch=None),
}
OURS: dict[str, Callable[[Any], Any]] = {
    "nx.steps.Adam": nx.steps.Adam,
    "nx.steps.AMSGrad": nx.steps.AMSGrad,
    "nx.steps.AdaGrad": nx.steps.AdaGrad,
    "nx.steps.RMSprop": nx.steps.RMSprop,
    "nx.steps.adam_type": nx.steps.adam_type,
    "nx.steps.adagrad_mean": nx.steps.adagrad_mean,
    "nx.steps.amsgrad_type": nx.steps.amsgrad_type,
    "nx.steps.adabound_type": nx.steps.adabound_type,
}


def optimisers() -> dict[str, Callable[[Any], Any]]:
    """By name, a function from a learning rate to the optimiser: all that Optax has."""
    return dict(sorted(_of_optax())) | WRAPPED | OURS


def _of_optax() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Functions that take a learning rate, and those that return an optimiser without one."""
    for prefix, module in (("", optax), ("contrib.", optax.contrib)):
        for name in dir(module):
            fn = getattr(module, name)
            if not inspect.isfunction(fn) or name.startswith(("_", *PARTS)) or name in ELSEWHERE:
                continue
            asked = inspect.signature(fn).parameters
            if "learning_rate" in asked:
                yield prefix + name, lambda lr, fn=fn: _made(fn, lr)
            elif name in ("cocob",):
                yield prefix + name, lambda lr, fn=fn: fn()


def _made(fn: Callable[..., Any], lr: Any) -> Any:
    """An optimiser with the settings that it cannot do without."""
    given = {
        "key": jax.random.key(0),
        "weight_dimension_numbers": None,
    }
    asked = inspect.signature(fn).parameters.values()
    needed = {p.name for p in asked if p.default is p.empty} - {"learning_rate"}
    return fn(lr, **{name: x for name, x in given.items() if name in needed})


def problem(name: str, assets: int = 6) -> nx.Problem:
    """Least squares over a set whose faces hold its optimum."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(40, assets)) * np.geomspace(0.5, 2, assets)
    wanted = rows @ rng.dirichlet(np.full(assets, 0.5)) + 0.3 * rng.normal(size=40)
    if name != "simplex":
        wanted = 0.3 * wanted
    level = nx.Level(lambda w, row: (row[0] @ w - row[1]) ** 2 / 2, (rows, wanted), name="squares")
    w0 = jnp.full(assets, 1 / assets)
    return nx.Problem([level], w0, project=SETS[name])


def least(over: nx.Problem) -> float:
    run = nx.minimize(over, nx.Exact(), optax.sgd(0.1), steps=size(20_000, 200), record=["exact_value"])
    return float(run.records["exact_value"].min())


def left(over: nx.Problem, optimum: float, make: Callable[[Any], Any]) -> float | str:
    """What is left of the gap at the best rate, or the sentence with which the optimiser is refused."""
    falling = lambda lr: optax.cosine_decay_schedule(lr, STEPS)
    start = float(over.value(over.w0)) - optimum
    ends = []
    for rate in RATES:
        try:
            try:
                optimizer = make(falling(rate))
            except TypeError:  # takes a number alone
                optimizer = make(rate)
            run = nx.minimize(
                over, nx.Exact(), optimizer, steps=STEPS, record=["exact_value"], record_every=STEPS
            )
        except (nx.SettingError, nx.ProblemError) as error:
            return str(error)
        ends.append((float(over.value(run.w)) - optimum) / start)
    return float(np.nanmin(ends))


def cells(name: str) -> list[float | str]:
    """What is left on every set, of one optimiser."""
    make = optimisers()[name]
    out = []
    for kind in SETS:
        over = problem(kind)
        out.append(left(over, least(over), make))
    return out


def told(cell: float | str, sentences: list[str]) -> str:
    """A cell of the table: what is left, or the number of a sentence."""
    if isinstance(cell, float):
        return "arrives" if cell < ARRIVED else f"{cell:.0%} left"
    if cell not in sentences:
        sentences.append(cell)
    return f"refused ({sentences.index(cell) + 1})"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--jobs", type=int, default=1)
    jobs = options.parse_args().jobs
    names = list(few(optimisers(), 3))
    if jobs > 1:
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            found = list(pool.map(cells, names))
    else:
        found = [cells(name) for name in names]
    sentences: list[str] = []
    rows = [[f"`{n}`", *(told(c, sentences) for c in row)] for n, row in zip(names, found, strict=True)]
    table = Table(["optimiser", *SETS], rows).to_markdown()
    notes = "\n".join(f"{k}. {words}" for k, words in enumerate(sentences, start=1))
    print(table, notes, sep="\n")
    fill("optimisers.md", {"optimisers": f"{table}\n\n{notes}"})


jax.config.update("jax_enable_x64", True)
if __name__ == "__main__":
    main()
