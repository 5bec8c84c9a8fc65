"""The proximal gradient step, w ← prox_{η r}(w − η v): projected descent where r is a feasible set."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem
from nestax.errors import POSITIVE
from nestax.parts.estimator import AbstractEstimator
from nestax.parts.settings import Decay, Schedule, Setting, at, scaled, setting
from nestax.parts.step_rule import AbstractStep


class Descent(AbstractStep):
    """w_{t+1} = prox_{η_t r}(w_t − η_t v_t); r is ``Problem(prox=...)`` or the feasible set.

    Args:
        lr: η > 0, a number or a schedule of the number of steps taken (and the horizon).
    """

    lr: Setting = setting(POSITIVE)

    def update(self, problem: Problem, w: PyTree, grad: PyTree, aux: dict[str, Array], state: Any):
        lr = at(self.lr, state)
        return problem.proximal(jax.tree.map(lambda x, v: x - lr * v, w, grad), lr), state + 1


def step_of(estimator: AbstractEstimator, problem: Problem) -> AbstractStep:
    """Returns the step rule that a method was published with; plain descent where it names none."""
    step = estimator.published_step(problem)
    return Descent(0.1 if estimator.lr is None else estimator.lr) if step is None else step


def with_rate(estimator: AbstractEstimator, problem: Problem, lr: float | None) -> AbstractEstimator:
    """Gives a method a learning rate if it has none of its own and takes plain gradient steps."""
    plain = estimator.lr is None and isinstance(step_of(estimator, problem), Descent)
    return dataclasses.replace(estimator, lr=lr) if plain else estimator


def falling_beta() -> Schedule:
    """The forgetting rate of SMVR and its relatives where none is given: the shape of Theorem 1."""
    return Schedule(Decay(2 / 3), scale=0.1)


def beta_of_order_root(count: Array, steps: Array) -> Array:
    """min(1/2, 10/√N): a forgetting rate of the published order; the factor is ours."""
    del count
    return jnp.minimum(0.5, 10 * steps**-0.5)


def descent_beside(beta: Any, lr: Any) -> Descent:
    """Returns the step beside an estimator with forgetting rate ``beta``.

    Of constant length if beta is given, as in experiments; falling like (1 + t/100)^(−1/3) if it is left
    to fall as well, as in the theory.
    """
    if beta is None:
        return Descent(scaled(lr, 0.1, Decay(1 / 3)))
    return Descent(0.1 if lr is None else lr)
