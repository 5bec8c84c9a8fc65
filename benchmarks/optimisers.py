"""Every optimiser of Optax and its contrib on a simplex, in a box and on free weights.

    python benchmarks/optimisers.py            # the table of docs/optimisers.md
    python benchmarks/optimisers.py --jobs 8   # in so many processes

Least squares with the full gradient, so that nothing but the optimiser decides where a run ends: what
is left of F − F* at the end, as a share of what it was at the start, at the best of some learning
rates that fall to 0 as a half cosine.
"""

import functools
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
from nestax.parts.step_rule import as_step, evaluation_weights, objective
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
    "polyak_sgd": lambda lr: optax.polyak_sgd(lr(0) if callable(lr) else lr),
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
    asked = inspect.signature(fn).parameters
    given = {"key": jax.random.key(0), "weight_dimension_numbers": None}
    return fn(lr, **{name: x for name, x in given.items() if name in asked})


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


def path(over: nx.Problem, make: Callable[[Any], Any], rate: Any, steps: int) -> jax.Array:
    """F at the end of a run with the full gradient, and a rate that falls to 0 as a half cosine."""
    falls = lambda count: rate * (1 + jnp.cos(jnp.pi * jnp.minimum(count / steps, 1))) / 2
    functions = objective(over) if over.feasible is None else {}

    def run(rule: Any) -> jax.Array:
        rule = rule.ready(steps, over.dtype)

        def step(carry: Any, _: None) -> Any:
            value, grad = over.value_and_grad(carry[0])
            return rule.update(over, carry[0], grad, {"value": value} | functions, carry[1]), None

        (w, state), _ = jax.lax.scan(step, (over.w0, rule.init(over.w0)), length=steps)
        return over.value(evaluation_weights(w, state))

    try:
        return run(as_step(make(falls)))
    except TypeError:  # it takes a number alone
        return run(as_step(make(rate)))


@functools.cache
def least(name: str) -> tuple[nx.Problem, float]:
    over = problem(name)
    find = jax.jit(lambda: path(over, nx.steps.Descent, 0.1, 4 * STEPS))
    return over, float(find())


def left(name: str, make: Callable[[Any], Any]) -> float | str:
    """What is left of the gap at the best rate, or the sentence with which the optimiser is refused."""
    over, optimum = least(name)
    try:
        as_step(make(0.1)).check(over)
        ends = jax.jit(jax.vmap(lambda rate: path(over, make, rate, STEPS)))(jnp.asarray(RATES))
    except (nx.SettingError, nx.ProblemError) as error:
        return str(error)
    return float((np.nanmin(ends) - optimum) / (float(over.value(over.w0)) - optimum))


def cells(name: str) -> list[float | str]:
    """What is left on every set, of one optimiser."""
    make = optimisers()[name]
    return [left(kind, make) for kind in SETS]


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
    write(dict(zip(names, found, strict=True)))


def write(found: dict[str, list[float | str]]) -> None:
    """The table, and the sentences below it."""
    sentences: list[str] = []
    rows = [[f"`{name}`", *(told(cell, sentences) for cell in row)] for name, row in found.items()]
    table = Table(["optimiser", *SETS], rows).to_markdown()
    notes = "\n".join(f"{k}. {words}" for k, words in enumerate(sentences, start=1))
    fill("optimisers.md", {"optimisers": f"{table}\n\n{notes}"})


jax.config.update("jax_enable_x64", True)
if __name__ == "__main__":
    main()
