"""The problems on which memory is measured: small ones, large noise and little, networks, blocks.

Every problem has one noise-free measure: F(w) minus ``floor``, which is the least value of F where that
is known and a bound below it elsewhere. Data: NESTAX_DATA for the industries, HIV-1 and Australian sets;
the German breast cancer study (GBSG2) comes with the package lifelines.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
from sklearn.datasets import load_digits, load_svmlight_file

import nestax as nx
from nestax.problems.few_shot.networks import perceptron
from real_data import breast_cancer_study, industry

from experiments.cleavage import hiv1


class Case(NamedTuple):
    """A problem with what a comparison on it needs.

    batch: draws a level and step. steps: of a method that draws one batch a level and step.
    step: learning rate to optimiser; rates: the learning rates of the grid.
    """

    problem: nx.Problem
    batch: int
    steps: int
    step: Callable[[Any], Any]
    rates: tuple[float, ...]
    floor: float = 0.0

    @property
    def samples(self) -> int:
        costs = [level.source.cost for level in self.problem.levels if level.source is not None]
        starts = [level.source.start_cost for level in self.problem.levels if level.source is not None]
        return self.batch * (self.steps * sum(costs) + 10 * sum(starts))


def half_decades(first: float, count: int) -> tuple[float, ...]:
    """1, 3, 10, 30, … times the first."""
    return tuple(float(f"{first * 10 ** (k / 2):.1g}") for k in range(count))


def folder() -> Path:
    return Path(os.environ["NESTAX_DATA"])


def least_value(problem: nx.Problem, w: Any, **options: Any) -> float:
    """Of a convex F, by L-BFGS on the population."""
    flat, unravel = jax.flatten_util.ravel_pytree(w)
    of = jax.jit(jax.value_and_grad(lambda w: problem.value(unravel(w))))
    fun = lambda w: tuple(np.asarray(x, float) for x in of(jnp.asarray(w, flat.dtype)))
    options = {"maxiter": 5_000, "ftol": 0, "gtol": 1e-10} | options
    return float(
        scipy.optimize.minimize(fun, np.asarray(flat), jac=True, method="L-BFGS-B", options=options).fun
    )


def portfolio(industries: int, batch: int) -> Case:
    returns = industry(industries)
    optimum = nx.problems.exact_portfolio(returns, delta=1e-12).least().value
    problem = nx.problems.mean_deviation(returns, delta=1e-12, least_variance=0.01, optimum=optimum)
    steps = {1: 20_000, 16: 4_000, 128: 1_000}[batch]
    return Case(problem, batch, steps, optax.sgd, half_decades(1e-3, 8), float(optimum))


def tutorial() -> Case:
    """The tilted loss of docs/getting-started.md."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1_000, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.1 * rng.standard_t(3, size=1_000)
    problem = nx.Problem(
        [
            nx.Level(
                lambda w, row: jnp.exp(0.5 * jnp.abs(row[0] @ w - row[1])),
                (x, y),
                project=lambda u: jnp.maximum(u, 1.0),
                name="tilted loss",
            ),
            nx.Level(lambda u: 2.0 * jnp.log(u), name="log"),
        ],
        w0=jnp.zeros(3),
    )
    found = scipy.optimize.minimize(
        jax.jit(lambda w: problem.value(w)),
        [1.0, -2.0, 0.5],
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12},
    )
    rates = (5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2)
    return Case(problem, 16, 3_000, optax.adam, rates, float(found.fun))


@functools.cache
def cleavage_groups() -> list[tuple[np.ndarray, np.ndarray]]:
    """HIV-1 with class 1 twenty times rarer and 30 % of the labels shuffled."""
    X, y = hiv1(path=folder())
    rng = np.random.default_rng(0)
    rare = rng.permutation(np.flatnonzero(y == 1))[: (y == 0).sum() // 20]
    rows = np.concatenate([np.flatnonzero(y == 0), rare])
    X = X[rows].astype(float)
    y = y[rows].astype(float)
    some = rng.permutation(len(y))[: int(0.3 * len(y))]
    y[some] = y[rng.permutation(some)]
    return nx.problems.groups_of(X, y)


def tilted(pooled: bool) -> Case:
    """Hierarchical tilted risk: batches with 8 members of either class, or 16 of all rows together."""
    groups = cleavage_groups()
    problem = nx.problems.hierarchical_term(groups, floor=0.1)
    rates = half_decades(0.01, 7)
    if not pooled:
        return Case(problem, 8, 2_000, optax.sgd, rates)
    row_loss = problem.levels[0].fn.row_loss
    share = np.asarray([len(y) for _, y in groups])
    scale = np.concatenate(
        [np.tile(share.sum() / n * np.eye(len(groups))[g], (n, 1)) for g, n in enumerate(share)]
    )
    rows = (np.concatenate([X for X, _ in groups]), np.concatenate([y for _, y in groups]), scale)

    def losses(w, row, *tilt):
        x, y, scale = row
        loss = row_loss(w, (x, y))
        return scale * nx.problems.tilted.tilting.tilted(jnp.full(scale.shape, loss), *tilt)

    first = problem.levels[0].replace(fn=losses, data=rows, structure=None)
    rest = [level.replace(structure=None) for level in problem.levels[1:]]
    return Case(nx.Problem([first, *rest], problem.w0, exact=problem.exact), 16, 2_000, optax.sgd, rates)


def digits(noise: float, batch: int) -> Case:
    """log E e^ℓ of a perceptron on handwritten digits, a share of the labels replaced."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    wrong = rng.random(len(y)) < noise
    y = np.where(wrong, rng.integers(0, 10, len(y)), y)
    network = perceptron(64, 32, 10)
    w0 = lambda key: jax.tree.map(lambda x: x.astype(jnp.float32), network.init(key))
    problem = nx.problems.term(
        (X / 16).astype(np.float32), y, "multinomial", 1.0, model=network.apply, w0=w0
    )
    steps = {4: 6_000, 32: 3_000}[batch]
    return Case(problem, batch, steps, optax.adam, half_decades(3e-4, 5))


def cox(draws: int) -> Case:
    """Partial likelihood: a block for every event, its rows those still at risk (Breslow's ties)."""
    X, time, event = breast_cancer_study()
    died = np.flatnonzero(event)
    at_risk = [X[time >= time[i]] - X[i] for i in died]
    sizes = np.asarray([len(rows) for rows in at_risk])
    levels = [
        nx.Level(
            lambda w, x: jnp.exp(x @ w),
            nx.Blocks(at_risk, visit=8),
            project=lambda u: jnp.maximum(u, 1 / 686),
            name="risk",
        ),
        nx.Level(jnp.log, name="log"),
    ]
    x = jnp.asarray(X)
    alive = jnp.asarray(time[None, :] >= time[died][:, None])

    def exact(w):
        score = x @ w
        rest = jnp.where(alive, score[None, :], -jnp.inf)
        return jnp.mean(jax.nn.logsumexp(rest, axis=1) - score[died] - jnp.log(sizes))

    problem = nx.Problem(levels, w0=jnp.zeros(8), exact=exact)
    return Case(
        problem, draws, 3_000, optax.sgd, half_decades(1e-3, 7), least_value(problem, jnp.zeros(8))
    )


def ranking() -> Case:
    """Average precision of a linear score on the Australian set."""
    X, y = load_svmlight_file(str(folder() / "australian_scale.libsvm.gz"))
    X = np.asarray(X.todense())
    y = (y > 0).astype(float)
    problem = nx.problems.average_precision(X, y, visit=16)
    return Case(problem, 4, 2_000, optax.sgd, half_decades(1e-2, 7), -1.0)


def contrast() -> Case:
    """The left half of a digit against the right half."""
    X = load_digits().images[:200] / 16
    X = X - X.mean(axis=0)
    left = X[:, :, :4].reshape(200, -1)
    right = X[:, :, 4:][:, :, ::-1].reshape(200, -1)
    problem = nx.problems.contrastive(left, right, dimension=8, temperature=0.2, visit=16)
    floor = least_value(problem, problem.w0, maxiter=500)
    return Case(problem, 4, 2_000, optax.adam, half_decades(1e-3, 6), floor)


def bellman() -> Case:
    """Mean squared Bellman residual of a linear value function; next states come from a simulator."""
    states, features, discount = 100, 10, 0.9
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.full(states, 0.05), states)
    phi = rng.standard_normal((states, features)) / features**0.5
    truth = phi @ rng.standard_normal(features)
    reward = truth[:, None] - discount * truth[None, :] + rng.standard_normal((states, states))
    args = tuple(map(jnp.asarray, (np.log(P + 1e-300), phi, reward)))

    def residual(w, key, logits, phi, reward):
        after = jax.random.categorical(key, logits)
        return reward[jnp.arange(states), after] + discount * phi[after] @ w - phi @ w

    A = discount * P @ phi - phi
    b = np.sum(P * reward, axis=1)
    exact = lambda w: jnp.mean((jnp.asarray(A) @ w + jnp.asarray(b)) ** 2)
    best = np.linalg.lstsq(A, -b, rcond=None)[0]
    problem = nx.Problem(
        [
            nx.Level(residual, nx.Sampler(lambda key: key), args=args, name="residual"),
            nx.Level(lambda u: jnp.mean(u**2), name="square"),
        ],
        w0=jnp.zeros(features),
        exact=exact,
    )
    return Case(problem, 4, 2_000, optax.sgd, half_decades(1e-2, 7), float(exact(best)))


def few_shot(visit: int) -> Case:
    """Two inner steps on sinusoids, 16 tasks."""
    network = perceptron(1, 20, 20, 1)
    w0 = lambda key: jax.tree.map(lambda x: x.astype(jnp.float32), network.init(key))
    problem = nx.problems.maml(network.apply, nx.datasets.sinusoids(16), w0, visit=visit, inner_steps=2)
    return Case(problem, 4, 500, optax.adam, half_decades(1e-3, 5))


CASES: dict[str, Callable[[], Case]] = {
    **{
        f"Industry-{n}, batch {b}": functools.partial(portfolio, n, b)
        for n in (10, 30)
        for b in (1, 16, 128)
    },
    "tutorial": tutorial,
    "tilted, stratified": functools.partial(tilted, False),
    "tilted, pooled": functools.partial(tilted, True),
    **{
        f"digits, {noise:.0%} wrong, batch {b}": functools.partial(digits, noise, b)
        for noise in (0.0, 0.2)
        for b in (4, 32)
    },
    **{f"Cox, {draws} rows": functools.partial(cox, draws) for draws in (2, 6, 24)},
    "average precision": ranking,
    "contrastive": contrast,
    "Bellman": bellman,
    "sinusoids, all tasks": functools.partial(few_shot, 16),
    "sinusoids, 4 of 16": functools.partial(few_shot, 4),
}
