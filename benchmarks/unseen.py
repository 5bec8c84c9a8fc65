"""Memory that sets itself on problems that none of its constants was chosen on.

    python benchmarks/unseen.py         everything, into docs/memory.md; half an hour on one core
    python benchmarks/unseen.py CASE    some of it, by name

As benchmarks/memory.py: learning rates and forgetting rates chosen on three seeds, reported on eight
others, with the same draws for all methods.
"""

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import nestax as nx
from memory import OURS, PLAIN, Case, at_best, cell, sized, with_error
from memory_problems import half_decades, least_value
from nestax.table import Table
from pages import fill
from real_data import industry
from script import parser, results, size

METHODS = size((PLAIN, "SCSC", "SMVR", OURS), small=(PLAIN, OURS))


def deviation(industries: int, step: Any, rates: tuple[float, ...]) -> Case:
    returns = industry(industries)
    optimum = float(nx.problems.exact_portfolio(returns, delta=1e-12).least().value)
    problem = nx.problems.mean_deviation(returns, delta=1e-12, least_variance=0.01, optimum=optimum)
    return Case(problem, 16, 4_000, step, rates, optimum)


def log_utility() -> Case:
    problem = nx.problems.log_utility(industry(12))
    found = nx.minimize(problem, nx.Exact(), optax.sgd(10.0), steps=20_000, record=["exact_value"])
    floor = float(found.records["exact_value"].min())
    return Case(problem, 16, 4_000, optax.sgd, half_decades(1e-1, 8), floor)


def hedging() -> Case:
    """log E e^loss of a call hedged in four instruments; the exact value by 200,000 draws."""
    mixing = np.random.default_rng(0).normal(size=(4, 4)) / 2

    def draw(key):
        return jax.random.normal(key, (4,))

    def loss(w, z):
        moves = jnp.expm1(jnp.asarray(mixing) @ z / 2)
        return jnp.exp(jnp.maximum(moves[0], 0) + moves[1] - moves @ w)

    level = nx.Level(loss, nx.Sampler(draw), project=lambda u: jnp.maximum(u, 1e-3))
    many = jax.vmap(draw)(jax.random.split(jax.random.key(1), size(200_000, small=100)))
    exact = lambda w: jnp.log(jnp.mean(jax.vmap(loss, (None, 0))(w, many)))
    problem = nx.Problem([level, nx.Level(jnp.log)], jnp.zeros(4), exact=exact)
    floor = least_value(problem.replace(levels=problem.levels), jnp.zeros(4))
    return Case(problem, 4, 6_000, optax.sgd, half_decades(1e-3, 8), floor)


def heavy_tails(batch: int) -> Case:
    """Five levels like x ↦ tanh(Ax) + b, with noise of Student's t (three degrees of freedom)."""
    rng = np.random.default_rng(0)
    levels = []
    for _ in range(4):
        A = rng.normal(size=(3, 3)) / np.sqrt(3) + 0.5 * np.eye(3)
        noise = rng.standard_t(3, size=(2_000, 3, 4)) / 2
        noise = noise - noise.mean(axis=0)
        levels.append(
            nx.Level(lambda x, n, A=A: jnp.tanh(A @ x) + 0.1 * x + n[:, :3] @ x / 3 + n[:, 3], noise)
        )
    target = jnp.asarray(rng.normal(size=3) / 4)
    levels.append(nx.Level(lambda x: jnp.sum((x - target) ** 2) / 2))
    problem = nx.Problem(levels, jnp.ones(3))
    floor = least_value(problem, jnp.ones(3))
    return Case(problem, batch, 4_000, optax.sgd, half_decades(1e-3, 7), floor)


def made_up_times() -> Case:
    """Cox's partial likelihood of made-up times on the covariates of 300 days of Industry-10."""
    X = industry(10)[:300]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    rng = np.random.default_rng(0)
    times = rng.exponential(np.exp(-X[:, :4] @ [0.5, -0.5, 0.3, 0.0]))
    rests = [X[times >= times[i]] - X[i] for i in range(len(X))]
    level = nx.Level(
        lambda w, x: jnp.exp(x @ w),
        nx.Blocks(rests, visit=8),
        project=lambda u: jnp.maximum(u, 1e-3),
    )
    problem = nx.Problem([level, nx.Level(jnp.log)], jnp.zeros(X.shape[1]))
    later = jnp.asarray(times[None, :] >= times[:, None])

    def exact(w):
        score = jnp.asarray(X) @ w
        rest = jnp.where(later, score[None, :], -jnp.inf)
        return jnp.mean(jax.nn.logsumexp(rest, axis=1) - score - jnp.log(jnp.sum(later, axis=1)))

    problem = problem.replace(exact=exact)
    floor = least_value(problem, jnp.zeros(X.shape[1]))
    return Case(problem, 2, 3_000, optax.sgd, half_decades(1e-3, 7), floor)


CASES = {
    "Industry-12, deviation, batch 16": functools.partial(
        deviation, 12, optax.sgd, half_decades(1e-3, 8)
    ),
    "Cox, made-up times, 2 rows": made_up_times,
    "hedging, simulator, batch 4": hedging,
    "five levels, heavy tails, batch 16": functools.partial(heavy_tails, 16),
    "five levels, heavy tails, batch 1": functools.partial(heavy_tails, 1),
    "log utility, Industry-12, batch 16": log_utility,
    "Industry-17, deviation, Adam": functools.partial(deviation, 17, optax.adam, half_decades(3e-4, 5)),
}
SMALL_CASES = ["five levels, heavy tails, batch 16"]


def measured(name: str) -> dict[str, object]:
    case = sized(CASES[name]())
    found = {method: cell(case, method) for method in METHODS}
    runs = {method: at_best(case, found[method]) for method in METHODS}
    print(name, *(f"{method}: {with_error(runs[method])}" for method in METHODS), flush=True)
    return {"problem": name} | {method: with_error(runs[method]) for method in METHODS}


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("names", nargs="*", metavar="CASE")
    names = arguments.parse_args().names or size(list(CASES), small=SMALL_CASES)
    jax.config.update("jax_enable_x64", True)
    path = results("unseen.json")
    kept = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        kept[name] = measured(name)
        path.write_text(json.dumps(kept))
    if len(kept) == len(CASES) or size(False, small=True):
        rows = [[kept[name][column] for column in ("problem", *METHODS)] for name in kept]
        fill("memory.md", {"unseen": Table(["problem", *METHODS], rows).to_markdown()})
