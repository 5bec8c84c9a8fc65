"""A made-up convex chain of any length with noise in every value and Jacobian, and a known optimum.

level 1          f_1(w; A, b) = Aw + b                                  affine
level 2          f_2(u; c) = (u − c)²/2, entry by entry                 convex
levels 3..K−1    f_i(v; s) = v + s·v²/2, entry by entry, s ≥ 0          convex, increasing for v ≥ 0
level K          sums over the entries what level K would be, with weights t of mean one

Level 2 is least at u = E c for every entry, and all later levels increase, so w* solves (E A)w + E b =
E c for every K ≥ 2 (E tc/E t in place of E c where level 2 is the outermost). For K = 1 the only level
is ‖Aw + b‖²/2.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.errors import check_count, check_setting
from nestax.problems.tilted.tilting import nonnegative


def affine(w: Array, draw: Any) -> Array:
    A, b = draw
    return A @ w + b


def square(u: Array, c: Array) -> Array:
    return (u - c) ** 2 / 2


def grow(v: Array, s: Array) -> Array:
    return v + s * v**2 / 2


def norm_of_affine(w: Array, draw: Any) -> Array:
    u = affine(w, draw)
    return u @ u / 2


def total_of(fn: Any) -> Any:
    """Returns the outermost form of a level: its entries weighted by t and added up."""

    def outer(x: Array, draw: Any) -> Array:
        row, t = draw
        return t @ fn(x, row)

    return outer


def convex_chain(
    levels: int = 3,
    *,
    dimension: int = 3,
    rows: int = 200,
    noise: float = 0.5,
    outer_exact: bool = False,
    seed: int = 0,
    **problem: Any,
) -> Problem:
    """Builds a strongly convex problem of K levels whose optimum is known, for trying methods out.

    Args:
        levels: K ≥ 1.
        dimension: entries of w and of every inner value.
        rows: rows of every level's population.
        noise: standard deviation of the entries of A, b and c, and of the relative noise later on.
        outer_exact: make the outermost level deterministic, with the mean of its rows.
        seed: of the rows.
        problem: further arguments of ``nx.Problem``, such as a feasible set that holds the optimum.
    """
    check_count("levels", levels)
    check_setting("noise", noise, "at least 0", lambda x: x >= 0)
    rng = np.random.default_rng(seed)

    def spread(*shape: int) -> np.ndarray:
        return noise * rng.standard_normal((rows, *shape))

    slope = np.eye(dimension) + 0.3 * rng.standard_normal((dimension, dimension)) / dimension**0.5
    data: list[Any] = [(slope + spread(dimension, dimension), 1 + spread(dimension))]
    data += [rng.standard_normal(dimension) + spread(dimension)] if levels > 1 else []
    data += [0.2 * np.abs(1 + spread(dimension)) for _ in range(2, levels)]
    functions = [affine, *[square][: levels - 1], *[grow] * (levels - 2)]
    names = ["affine", *["square"][: levels - 1], *[f"grow {k}" for k in range(1, levels - 1)]]
    weights = np.abs(1 + spread(dimension))
    if levels == 1:
        functions = []
        outer = Level(norm_of_affine, data[0], name="loss")
    elif outer_exact:
        mean_row = jnp.asarray(data[-1].mean(axis=0))
        fn = functions.pop()
        outer = Level(lambda x, mean_row: jnp.sum(fn(x, mean_row)), args=(mean_row,), name="total")
    else:
        outer = Level(total_of(functions.pop()), (data[-1], weights), name="total")
    inner = [
        Level(fn, rows, name=name, project=None if fn is affine else nonnegative)
        for fn, rows, name in zip(functions, data, names, strict=False)
    ]
    best = _best(levels, data, None if outer_exact else weights)
    built = Problem([*inner, outer], w0=jnp.ones(dimension), **problem)
    return Problem(built.levels, w0=built.w0, optimum=float(built.value(best)), **problem)


def _best(levels: int, data: list[Any], weights: np.ndarray | None) -> Array:
    A, b = data[0]
    if levels == 1:
        hessian = np.einsum("nij,nik->jk", A, A)
        return jnp.asarray(np.linalg.solve(hessian, -np.einsum("nij,ni->j", A, b)))
    weights = weights if levels == 2 else None
    target = data[1].mean(axis=0) if weights is None else np.average(data[1], 0, weights)
    return jnp.asarray(np.linalg.solve(A.mean(axis=0), target - b.mean(axis=0)))
