"""Steps that scale every entry: where they end under constraints, and which squares they divide by.

    python benchmarks/adaptive_steps.py                # tables of docs/optimisers.md; needs NESTAX_DATA
    python benchmarks/adaptive_steps.py --only exact   # one of exact, noise, squares

exact    the full gradient on ten random least squares over five sets: the largest gap, with the
         Euclidean projection ("before") and with that in the norm of the step ("now")
noise    Industry-17, batches of 16, by learning rate
squares  squares of tracked gradients or of plain ones, under Adam
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial

import nestax as nx
from nestax.parts.settings import at
from nestax.table import Table
from pages import fill
from script import few, parser, size

PROBLEMS = size(10, small=2)
STEPS = size(20_000, small=50)
NOISY_STEPS = size(3_000, small=20)
SEEDS = size(5, small=2)
RATES = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2]
ASSETS = 8

SETS: dict[str, dict[str, Any]] = {
    "simplex": {"project": nx.projections.simplex},
    "box": {"project": Partial(nx.projections.box, lower=jnp.asarray(0.05), upper=jnp.asarray(0.2))},
    "budget": {
        "project": Partial(nx.projections.budget, lower=jnp.asarray(0.0), upper=jnp.asarray(0.3))
    },
    "ball": {"project": Partial(nx.projections.l2_ball, scale=jnp.asarray(0.3))},
    "l1 term": {"prox": nx.Prox.l1(0.05)},
}
RULES: dict[str, Callable[[Any], Any]] = {
    "Adam": lambda lr: nx.steps.Adam(lr),
    "AdaGrad": lambda lr: nx.steps.AdaGrad(lr),
    "RMSprop": lambda lr: nx.steps.RMSprop(lr),
    "AMSGrad": lambda lr: nx.steps.AMSGrad(lr),
    "paper, AdaGrad-type": lambda lr: nx.steps.adagrad_mean(lr),
    "paper, Adam-type": lambda lr: nx.steps.adam_type(lr),
    "paper, AMSGrad-type": lambda lr: nx.steps.amsgrad_type(lr),
    "paper, AdaBound-type": lambda lr: nx.steps.adabound_type(lr),
}


class Euclidean(nx.steps.AbstractStep):
    """A step that scales every entry, and the Euclidean projection after it."""

    rule: Any

    def init(self, w: Any) -> Any:
        return self.rule.init(w)

    def update(self, problem: Any, w: Any, grad: Any, aux: Any, state: Any):
        free = problem.replace(project=None, prox=None)
        moved, state = self.rule.update(free, w, grad, aux, state)
        lr = at(self.rule.lr, state.count - 1)
        return problem.proximal(moved, lr), state

    def ready(self, horizon: Any, dtype: Any):
        return Euclidean(self.rule.ready(horizon, dtype))

    def lifted(self, w: Any, aux: Any):
        return Euclidean(self.rule.lifted(w, aux))


def least_squares(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(60, ASSETS)) * rng.uniform(0.5, 2, ASSETS)
    return rows, rows @ rng.dirichlet(np.full(ASSETS, 0.5)) + 0.3 * rng.normal(size=60)


@functools.cache
def data() -> tuple[Any, Any]:
    """The rows and targets of all problems."""
    rows, targets = zip(*map(least_squares, range(PROBLEMS)), strict=True)
    return jnp.asarray(rows), jnp.asarray(targets)


def ends(where: dict[str, Any], step: Any, steps: int) -> np.ndarray:
    """F at the end of every problem over one set, with the full gradient."""
    level = nx.Level(lambda w, row: (row[0] @ w - row[1]) ** 2 / 2, least_squares(0), name="squares")
    problem = nx.Problem([level], jnp.full(ASSETS, 1 / ASSETS), **where)
    rule = step.ready(steps, problem.dtype)

    def one(rows: Any, targets: Any) -> Any:
        value = lambda w: jnp.mean((rows @ w - targets) ** 2) / 2

        def move(carry: Any, _: None) -> Any:
            return rule.update(problem, carry[0], jax.grad(value)(carry[0]), {}, carry[1]), None

        start = problem.w0, rule.init(problem.w0)
        (w, _), _ = jax.lax.scan(move, start, length=steps)
        return value(w) + problem.nonsmooth(w)

    return np.asarray(jax.jit(jax.vmap(one))(*data()))


def end(problem: nx.Problem, steps: int) -> float:
    """F after so many steps of descent with the full gradient."""
    step = nx.steps.Descent(0.1)
    run = nx.minimize(problem, nx.Exact(), step, steps=steps, record=[], progress=False)
    return float(problem.value(run.w))


def exact() -> dict[str, str]:
    """The largest gap over the problems of every set, before and now."""
    falling = optax.cosine_decay_schedule(0.03, STEPS)
    least = {name: ends(where, nx.steps.Descent(0.1), 3 * STEPS) for name, where in SETS.items()}
    rows = []
    for rule, make in few(RULES, 1).items():
        for words, step in (("before", Euclidean(make(falling))), ("now", make(falling))):
            gaps = [(ends(where, step, STEPS) - least[name]).max() for name, where in SETS.items()]
            rows.append([rule, words, *(f"{max(0.0, gap):.0e}" for gap in gaps)])
            print(rows[-1], flush=True)
    return {"exact": Table(["rule", "projection", *SETS], rows).to_markdown()}


def industry() -> nx.Problem:
    if "NESTAX_DATA" not in os.environ:
        return nx.problems.mean_deviation(nx.datasets.synthetic_returns(500, 6))
    return nx.problems.mean_deviation(nx.datasets.industry(17))


def gaps(problem: nx.Problem, best: float, method: Any, make: Callable[[Any], Any], batch: int) -> Any:
    """The mean gap over the last fifth of the run, by learning rate."""
    runs = nx.sweep(
        problem,
        lambda s: (method, make(s.lr)),
        settings=nx.grid(lr=RATES),
        seeds=SEEDS,
        steps=NOISY_STEPS,
        batch_size=batch,
        record=["exact_value"],
        record_every=NOISY_STEPS // 20,
        progress=False,
    )
    return runs.records["exact_value"][:, :, -4:].mean(axis=(1, 2)) - best


def noise() -> dict[str, str]:
    problem = industry()
    best = end(problem, size(20_000, 100))
    rows = []
    methods = {"Plain": nx.Plain(), "SelfTuning": nx.SelfTuning(), "SMVR(0.03)": nx.SMVR(beta=0.03)}
    steps: dict[str, Callable[[Any], Any]] = {
        "Euclidean": lambda lr: Euclidean(nx.steps.Adam(lr)),
        "in the metric": lambda lr: nx.steps.Adam(lr),
        "in the metric, squares of plain batches": lambda lr: nx.steps.Adam(lr, squares="plain"),
    }
    for name, method in few(methods, 2).items():
        for words, make in steps.items():
            if words.endswith("batches") and name != "SelfTuning":
                continue
            found = gaps(problem, best, method, make, 16)
            rows.append([name, words, *(f"{x:.1e}" for x in found)])
            print(rows[-1], flush=True)
    return {"noise": Table(["method", "projection", *map(str, RATES)], rows).to_markdown()}


def squares() -> dict[str, str]:
    """On free weights, where projections have no part in it, and on a simplex."""
    problems = {
        "portfolio on a simplex": (industry(), 16),
        "chain of five levels": (nx.problems.convex_chain(5), 16),
        "chain of five levels, batch 1": (nx.problems.convex_chain(5), 1),
        "log-mean of exponentials": (tilted(), 16),
    }
    rows = []
    for name, (problem, batch) in few(problems, 1).items():
        best = float(problem.optimum) if problem.optimum is not None else end(problem, 5 * NOISY_STEPS)
        for words, method, own in (
            ("Plain", nx.Plain(), "own"),
            ("SelfTuning, own squares", nx.SelfTuning(), "own"),
            ("SelfTuning, plain squares", nx.SelfTuning(), "plain"),
        ):
            make = lambda lr, own=own: nx.steps.Adam(lr, squares=own)
            rows.append([name, words, *(f"{x:.1e}" for x in gaps(problem, best, method, make, batch))])
            print(rows[-1], flush=True)
    return {"squares": Table(["problem", "method", *map(str, RATES)], rows).to_markdown()}


def tilted() -> nx.Problem:
    """log E e^ℓ of squares with outliers."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5))
    y = X @ rng.normal(size=5) + 0.3 * rng.standard_t(3, 400)
    levels = [
        nx.Level(
            lambda w, row: jnp.exp(0.3 * jnp.log1p((row[0] @ w - row[1]) ** 2)), (X, y), name="pain"
        ),
        nx.Level(jnp.log, name="log"),
    ]
    return nx.Problem(levels, jnp.zeros(5))


PARTS = {"exact": exact, "noise": noise, "squares": squares}
jax.config.update("jax_enable_x64", True)
if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--only", choices=PARTS)
    only = options.parse_args().only
    for part, tables in PARTS.items():
        if only in (None, part):
            fill("optimisers.md", tables())
