"""Small problems, each with its levels and Jacobians written out in NumPy."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tests.support.compare import flat

import nestax as nx

ROWS = 40


class NumpyLevel(NamedTuple):
    """One level on flat vectors: ``value(x, *draw)`` and ``jac(x, *draw)``, outputs × inputs."""

    value: Callable[..., Any]
    jac: Callable[..., Any]
    project: Callable[[np.ndarray], np.ndarray] = lambda u: u

    def f(self, x, draws):
        return np.mean([np.atleast_1d(self.value(x, *draw)) for draw in draws], axis=0)

    def J(self, x, draws):
        return np.mean([np.atleast_2d(self.jac(x, *draw)) for draw in draws], axis=0)


class Case(NamedTuple):
    """A problem, the same levels in NumPy, a step size, and the projection of w in NumPy."""

    problem: nx.Problem
    levels: tuple[NumpyLevel, ...]
    lr: float
    project: Callable[[np.ndarray], np.ndarray] = lambda w: w

    @property
    def w0(self):
        return flat(self.problem.w0)


def rng_of(name: str) -> np.random.Generator:
    return np.random.default_rng([ord(c) for c in name])


def sigmoid(s):
    return 1 / (1 + np.exp(-s))


# One level: logistic loss


def logistic(w, draw):
    a, y = draw
    return jnp.logaddexp(0.0, a @ w) - y * (a @ w)


def one_level() -> Case:
    rng = rng_of("one level")
    rows = (rng.normal(size=(ROWS, 4)), rng.choice([0.0, 1.0], ROWS))
    problem = nx.Problem([nx.Level(logistic, rows, name="loss")], w0=rng.normal(size=4))
    level = NumpyLevel(
        value=lambda w, a, y: np.log1p(np.exp(a @ w)) - y * (a @ w),
        jac=lambda w, a, y: (sigmoid(a @ w) - y) * a,
    )
    return Case(problem, (level,), lr=0.2)


# Two levels, 4 → 3 → 1


def affine(w, draw):
    A, b = draw
    return A @ w + b


def waves(u, c):
    return c @ jnp.sin(u) + u @ u / 2


def two_levels() -> Case:
    rng = rng_of("two levels")
    inner = (
        rng.normal(size=(3, 4)) + 0.5 * rng.normal(size=(ROWS, 3, 4)),
        rng.normal(size=(ROWS, 3)),
    )
    outer = 1 + rng.normal(size=(ROWS, 3))
    problem = nx.Problem(
        [nx.Level(affine, inner, name="affine"), nx.Level(waves, outer, name="waves")],
        w0=rng.normal(size=4),
    )
    levels = (
        NumpyLevel(value=lambda w, A, b: A @ w + b, jac=lambda w, A, b: A),
        NumpyLevel(value=lambda u, c: c @ np.sin(u) + u @ u / 2, jac=lambda u, c: c * np.cos(u) + u),
    )
    return Case(problem, levels, lr=0.05)


# Three levels, 4 → 3 → 2 → 1, noise in every value and every Jacobian


#: Holds every mean of the first level along the runs here, but not every tracked value.
RANGE = (-0.14, 0.79)


def squash(w, draw):
    A, b = draw
    return jnp.tanh(A @ w) + b


def into_range(u):
    return jnp.clip(u, *RANGE)


def quadratic(u, draw):
    B, c = draw
    return B @ (u * u) + c * u[:2]


def bowl(v, draw):
    s, t = draw
    return s @ v + t * (v @ v) / 2


def bowl_data(rng):
    return (rng.normal(size=(ROWS, 2)), 1 + rng.uniform(size=ROWS))


def three_levels() -> Case:
    rng = rng_of("three levels")
    first = (
        rng.normal(size=(3, 4)) + 0.4 * rng.normal(size=(ROWS, 3, 4)),
        0.3 * rng.normal(size=(ROWS, 3)),
    )
    second = (
        0.5 * rng.normal(size=(2, 3)) + 0.3 * rng.normal(size=(ROWS, 2, 3)),
        1 + 0.5 * rng.normal(size=(ROWS, 2)),
    )
    problem = nx.Problem(
        [
            nx.Level(squash, first, project=into_range, name="squash"),
            nx.Level(quadratic, second, name="quadratic"),
            nx.Level(bowl, bowl_data(rng), name="bowl"),
        ],
        w0=0.5 * rng.normal(size=4),
    )
    levels = (
        NumpyLevel(
            value=lambda w, A, b: np.tanh(A @ w) + b,
            jac=lambda w, A, b: (1 - np.tanh(A @ w) ** 2)[:, None] * A,
            project=lambda u: np.clip(u, *RANGE),
        ),
        NumpyLevel(
            value=lambda u, B, c: B @ u**2 + c * u[:2],
            jac=lambda u, B, c: 2 * B * u + np.hstack([np.diag(c), np.zeros((2, 1))]),
        ),
        NumpyLevel(value=lambda v, s, t: s @ v + t * v @ v / 2, jac=lambda v, s, t: s + t * v),
    )
    return Case(problem, levels, lr=0.05)


# Portfolio: inputs handed on unchanged, a projected value, a deterministic level, a simplex

RISK, DELTA = 0.2, 0.1


def simplex_by_sorting(w):
    descending = np.sort(w)[::-1]
    excess = (np.cumsum(descending) - 1) / np.arange(1, w.size + 1)
    support = np.flatnonzero(descending > excess)[-1]
    return np.maximum(w - excess[support], 0)


def portfolio() -> Case:
    problem = nx.problems.mean_deviation(
        nx.datasets.synthetic_returns(200, 5), risk=RISK, delta=DELTA
    ).with_data(variance=nx.datasets.synthetic_returns(200, 5, seed=1))

    def deviation_jac(yx, r):
        y, x = yx[0], yx[1:]
        off = r @ x - y
        return np.vstack([np.eye(6)[0], 2 * off * np.concatenate([[-1.0], r])])

    levels = (
        NumpyLevel(
            value=lambda x, r: np.concatenate([[r @ x], x]),
            jac=lambda x, r: np.vstack([r, np.eye(5)]),
        ),
        NumpyLevel(
            value=lambda yx, r: np.array([yx[0], (r @ yx[1:] - yx[0]) ** 2]),
            jac=deviation_jac,
            project=lambda yz: np.array([yz[0], max(yz[1], 0.0)]),
        ),
        NumpyLevel(
            value=lambda yz: -yz[0] + RISK * np.sqrt(yz[1] + DELTA),
            jac=lambda yz: np.array([-1.0, RISK / (2 * np.sqrt(yz[1] + DELTA))]),
        ),
    )
    return Case(problem, levels, lr=0.02, project=simplex_by_sorting)


# Trees: dictionaries of weights, values and draws; some outputs see only some inputs


def tree_inner(w, draw):
    return {
        "grid": jnp.tanh(draw["A"] @ w["b"]),
        "kept": w["a"],
        "mean": draw["c"] @ w["a"],
    }


def tree_middle(u, draw):
    m, s = draw
    return {
        "left": m * jnp.sum(u["grid"] ** 2) + u["mean"],
        "right": (s + u["mean"]) * u["kept"],
    }


def tree_outer(v, draw):
    e, q = draw
    return q @ v["right"] + e * v["left"] ** 2 / 2 + v["right"] @ v["right"] / 2


def tree_inner_numpy() -> NumpyLevel:
    def grid(w, A):
        return np.tanh(A @ w[2:].reshape(2, 2))

    def jac(w, A, c):
        J = np.zeros((7, 6))
        J[:4, 2:] = np.einsum("ij,ik,jl->ijkl", 1 - grid(w, A) ** 2, A, np.eye(2)).reshape(4, 4)
        J[4:6, :2] = np.eye(2)
        J[6, :2] = c
        return J

    value = lambda w, A, c: np.concatenate([grid(w, A).ravel(), w[:2], [c @ w[:2]]])
    return NumpyLevel(value, jac)


def tree_middle_numpy() -> NumpyLevel:
    def jac(u, m, s):
        J = np.zeros((3, 7))
        J[0, :4], J[0, 6] = 2 * m * u[:4], 1
        J[1:, 4:6], J[1:, 6] = np.diag(s + u[6]), u[4:6]
        return J

    def value(u, m, s):
        return np.concatenate([[m * np.sum(u[:4] ** 2) + u[6]], (s + u[6]) * u[4:6]])

    return NumpyLevel(value, jac)


def tree() -> Case:
    rng = rng_of("tree")
    inner = {
        "A": rng.normal(size=(2, 2)) + 0.3 * rng.normal(size=(ROWS, 2, 2)),
        "c": 1 + 0.5 * rng.normal(size=(ROWS, 2)),
    }
    middle = (0.5 + 0.3 * rng.normal(size=ROWS), 0.5 + 0.3 * rng.normal(size=(ROWS, 2)))
    outer = (1 + rng.uniform(size=ROWS), rng.normal(size=(ROWS, 2)))
    problem = nx.Problem(
        [
            nx.Level(tree_inner, inner, name="inner"),
            nx.Level(tree_middle, middle, name="middle"),
            nx.Level(tree_outer, outer, name="outer"),
        ],
        w0={"a": 0.4 * rng.normal(size=2), "b": 0.6 * rng.normal(size=(2, 2))},
    )
    outer_level = NumpyLevel(
        value=lambda v, e, q: q @ v[1:] + e * v[0] ** 2 / 2 + v[1:] @ v[1:] / 2,
        jac=lambda v, e, q: np.concatenate([[e * v[0]], q + v[1:]]),
    )
    return Case(problem, (tree_inner_numpy(), tree_middle_numpy(), outer_level), lr=0.05)


# Two levels, 4 → 3 → 1: noise and curvature in the inner Jacobian, a range for the inner values


@functools.cache
def bent_two_levels(outer_noisy: bool = True, rows: int = ROWS, shrink: float = 0.0) -> Case:
    """The rows of b add up to 0, so every mean of tanh(Aw) + b is inside [−1, 1].

    shrink: strength of an ℓ1 term.
    """
    rng = rng_of("bent two levels")
    A = rng.normal(size=(3, 4)) + 0.4 * rng.normal(size=(rows, 3, 4))
    b = rng.normal(size=(rows, 3))
    c = 1 + rng.normal(size=(ROWS, 3))
    outer = nx.Level(waves, c) if outer_noisy else nx.Level(lambda u: waves(u, jnp.asarray(c[0])))
    inner = nx.Level(squash, (A, b - b.mean(axis=0)), project=lambda u: jnp.clip(u, -1, 1))
    levels = (
        NumpyLevel(
            value=lambda w, A, b: np.tanh(A @ w) + b,
            jac=lambda w, A, b: (1 - np.tanh(A @ w) ** 2)[:, None] * A,
            project=lambda u: np.clip(u, -1, 1),
        ),
        NumpyLevel(
            value=lambda u, c=c[0]: c @ np.sin(u) + u @ u / 2,
            jac=lambda u, c=c[0]: c * np.cos(u) + u,
        ),
    )
    prox = nx.Prox.l1(shrink) if shrink else None
    return Case(nx.Problem([inner, outer], w0=0.8 * rng.normal(size=4), prox=prox), levels, lr=0.1)


def without_range(case: Case) -> Case:
    """Levels in NumPy that do not know the range of their values."""
    return case._replace(levels=tuple(level._replace(project=lambda u: u) for level in case.levels))


CASES = {
    "one_level": one_level,
    "two_levels": two_levels,
    "three_levels": three_levels,
    "portfolio": portfolio,
    "tree": tree,
}


#: What laws over every estimator range over; two levels show nothing that three do not.
LAW_CASES = tuple(name for name in CASES if name != "two_levels")


@functools.cache
def noisy(name: str) -> Case:
    return CASES[name]()


# The same chains with something changed


def equal_rows(level: nx.Level, row: Any) -> nx.Level:
    """The level with all its rows equal to one: stochastic in form, without noise."""
    copies = jax.tree.map(lambda x, r: jnp.broadcast_to(r, x.shape), level.source.data, row)
    blocks = isinstance(level.source, nx.Blocks)
    return level.replace(data=nx.Blocks(copies, visit=level.source.visit) if blocks else copies)


@functools.cache
def quiet(name: str) -> Case:
    """The same chain where all rows of a level are equal."""
    case = noisy(name)
    return case._replace(problem=without_noise(case.problem, kth_row))


def without_noise(problem: nx.Problem, pick: Callable[[nx.Level, int], Any]) -> nx.Problem:
    """The same chain where all rows of level k are equal to ``pick(level, k)``."""
    levels = [
        level if level.deterministic else equal_rows(level, pick(level, k))
        for k, level in enumerate(problem.levels)
    ]
    return problem.replace(levels=levels, exact=None, optimum=None)


def kth_row(level: nx.Level, k: int) -> Any:
    return jax.tree.map(lambda x: x[k], level.source.data)


def mean_row(level: nx.Level, k: int) -> Any:
    """The mean of the rows of a level, in every block where there are blocks."""
    del k
    axis = 1 if isinstance(level.source, nx.Blocks) else 0
    return jax.tree.map(lambda x: jnp.mean(x, axis, keepdims=True), level.source.data)


@functools.cache
def exact_middle() -> Case:
    """Three levels, the middle one without noise."""
    case = noisy("three_levels")
    first, middle, last = case.problem.levels
    row = jax.tree.map(lambda x: x[0], middle.source.data)
    problem = nx.Problem(
        [first, nx.Level(lambda u: quadratic(u, row), name="exact"), last], case.problem.w0
    )
    known = [np.asarray(x) for x in row]
    level = NumpyLevel(
        value=lambda u: case.levels[1].value(u, *known), jac=lambda u: case.levels[1].jac(u, *known)
    )
    return case._replace(problem=problem, levels=(case.levels[0], level, case.levels[2]))


@functools.cache
def portfolio_with_oracle() -> Case:
    """The portfolio, with linear minimisation over the simplex."""
    case = noisy("portfolio")
    return case._replace(problem=case.problem.replace(linear_oracle=nx.linear_oracles.simplex))
