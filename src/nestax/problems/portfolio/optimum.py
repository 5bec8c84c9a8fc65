"""What is exact about a portfolio: its least value, with a proof, and how long a step may be."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nestax.chain.problem import Problem
from nestax.cli.shell import note

#: F* is sought to within this; the full gradient gets so many rounds of so many steps.
TIGHT, ROUNDS, STEPS = 1e-13, 10, 4_000
#: Without risk F is linear, and no step would be too long.
LONGEST = 1e6
#: A step that follows the slope alone crosses the simplex about so many times.
REACH = 10.0


class Reference(NamedTuple):
    """The exact optimum of a portfolio.

    value: the least value of F.
    error: how far above the least value it may be, proved by convexity.
    w: weights of that value.
    """

    value: float
    error: float
    w: Array


def find_optimum(problem: Problem) -> Reference:
    """F* by the full gradient of the closed form, until the proof of it is tight."""
    w, rate, error = problem.w0, jnp.ones(()), np.inf
    for _ in range(ROUNDS):
        w, rate = _descend(problem, w, rate)
        error = _most_gap(problem, w)
        if error <= TIGHT:
            break
    else:
        note(f"The exact optimum is known to within {error:.0e} only.")
    value = problem.value(w) if problem.optimum is None else problem.optimum
    return Reference(float(value), max(error, 0.0), w)


@eqx.filter_jit
def _descend(problem: Problem, w: Array, rate: Array) -> tuple[Array, Array]:
    """Projected gradient steps, longer as long as the gradient agrees with a parabola, else half."""
    closed_form: Any = problem.exact
    gradient = jax.grad(closed_form)

    def step(_: int, at: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        w, grad, rate = at
        new = problem.project(w - rate * grad)
        there, way = gradient(new), new - w
        # In gradients, for next to the optimum all values of F are the same to the last digit.
        fits = 2 * rate * (there - grad) @ way <= way @ way
        keep = lambda x, y: jnp.where(fits, x, y)
        return keep(new, w), keep(there, grad), keep(jnp.minimum(1.1 * rate, LONGEST), rate / 2)

    w, _, rate = jax.lax.fori_loop(0, STEPS, step, (w, gradient(w), rate))
    return w, rate


def _most_gap(problem: Problem, w: Array) -> float:
    """How far F(w) is above its least value at most: the Frank-Wolfe gap, for F is convex."""
    value, grad = problem.value_and_grad(w)
    if problem.optimum is not None:
        return float(value - problem.optimum)
    assert problem.linear_oracle is not None  # where the set is unbounded the least value is known
    return float(grad @ (w - problem.linear_oracle(grad)))


def inverse_curvature(problem: Problem, rows: np.ndarray, w: Array, batch_size: int) -> float:
    """1/L, the length of a step that batches of rows can be trusted with, between the start and w.

    Weights move where they sum to zero, so only differences between assets bend F. Batches of rows a
    with heavy tails bend it more than the population does, by a share E|a|⁴/(batch·E|a|²·|E aa'|).
    """
    across = rows - rows.mean(axis=0)
    across = across - across.mean(axis=1, keepdims=True)
    square = (across**2).sum(axis=1)
    top = np.linalg.eigvalsh(across.T @ across / len(rows))[-1]
    tails = (square**2).mean() / (square.mean() * top) if top > 0 else 0.0
    steepest = max(_steepness(problem, x) for x in (problem.w0, w))
    return 1 / (steepest * (1 + tails / batch_size)) if steepest > 0 else 1.0


def _steepness(problem: Problem, w: Array) -> float:
    """The largest second derivative of F where weights sum to zero; without risk the slope counts."""
    closed_form: Any = problem.exact
    level = np.eye(len(w)) - 1 / len(w)
    bend = np.linalg.eigvalsh(level @ np.asarray(jax.hessian(closed_form)(w)) @ level)[-1]
    return max(float(bend), float(np.ptp(jax.grad(closed_form)(w))) / REACH)
