"""Frank-Wolfe steps: no projection, linear minimisation over the feasible set instead."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem
from nestax.errors import POSITIVE, UNIT, ProblemError
from nestax.parts.settings import Setting, at, count, setting
from nestax.parts.step_rule import AbstractStep
from nestax.parts.tracking import average


def need_linear_oracle(name: str, problem: Problem) -> None:
    if problem.linear_oracle is None:
        raise ProblemError(
            f"{name} needs Problem(linear_oracle=...), for example nx.linear_oracles.simplex; for a "
            "projected step use nx.steps.Descent(lr)."
        )


class FrankWolfe(AbstractStep):
    """w_{t+1} = w_t + η_t (z_t − w_t), z_t = argmin <v_t, x> over the feasible set.

    Args:
        lr: η in (0, 1], a number or a schedule.
    """

    lr: Setting = setting(UNIT)

    def check(self, problem: Problem):
        need_linear_oracle("FrankWolfe", problem)

    def update(self, problem: Problem, w: PyTree, grad: PyTree, aux: dict[str, Array], state: Any):
        oracle: Any = problem.linear_oracle
        return average(w, at(self.lr, state), oracle(grad)), state + 1


class InnerFrankWolfe(AbstractStep):
    """w_{t+1} = w_t + η_t (z_t − w_t), z_t from N Frank-Wolfe steps on <v, z> + β/2·‖z − w_t‖².

    Each inner step moves towards s = argmin <v + β(z − w), x> by the exact line search
    γ = min{1, <β(w − z) − v, s − z>/(β‖s − z‖²)}. Reference: Jiang et al., ICML 2024.

    Args:
        lr: η in (0, 1], a number or a schedule.
        beta: β > 0, curvature of the inner problem.
        iterations: N ≥ 1.
    """

    lr: Setting = setting(UNIT)
    beta: Setting = setting(POSITIVE, default=1.0)
    iterations: int = count(default=10)

    def check(self, problem: Problem):
        need_linear_oracle("InnerFrankWolfe", problem)

    def update(self, problem: Problem, w: PyTree, grad: PyTree, aux: dict[str, Array], state: Any):
        oracle: Any = problem.linear_oracle
        beta = at(self.beta, state)

        def inner(_: Array, z: PyTree) -> PyTree:
            slope = jax.tree.map(lambda v, x, y: v + beta * (y - x), grad, w, z)
            towards = optax.tree.sub(oracle(slope), z)
            curvature = beta * optax.tree.norm(towards, squared=True)
            ahead = -jnp.asarray(optax.tree.vdot(slope, towards)) / jnp.where(
                curvature > 0, curvature, 1
            )
            # Beyond 1 the line would leave the feasible set.
            share = jnp.clip(ahead, 0, 1)
            return jax.tree.map(lambda y, d: y + share * d, z, towards)

        z = jax.lax.fori_loop(0, self.iterations, inner, w)
        return average(w, at(self.lr, state), z), state + 1
