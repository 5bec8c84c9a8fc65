"""The proximal gradient step, w ← prox_{η r}(w − η v): projected descent where r is a feasible set."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem
from nestax.errors import check_setting
from nestax.parts.step import AbstractStep
from nestax.parts.tracking import Decay, as_setting, at, scaled


class Descent(AbstractStep):
    """w_{t+1} = prox_{η_t r}(w_t − η_t v_t); r is ``Problem(prox=...)`` or the feasible set.

    Args:
        lr: η > 0, a number or a schedule of the number of steps taken (and the horizon).
    """

    lr: Any = eqx.field(converter=as_setting)

    def __check_init__(self):
        check_setting("lr", self.lr, "positive", lambda x: x > 0)

    def update(self, problem: Problem, w: PyTree, grad: PyTree, aux: dict[str, Array], state: Any):
        lr = at(self.lr, state)
        return problem.proximal(jax.tree.map(lambda x, v: x - lr * v, w, grad), lr), state + 1


#: The forgetting rate of SMVR and its relatives where none is given: the shape of Theorem 1.
FALLING_BETA = scaled(None, 0.1, Decay(2 / 3))


def descent_beside(beta: Any, lr: Any) -> Descent:
    """The step beside an estimator with forgetting rate ``beta``.

    Of constant length if beta is given, as in experiments; falling like (1 + t/100)^(−1/3) if it is left
    to fall as well, as in the theory.
    """
    if beta is None:
        return Descent(scaled(lr, 0.1, Decay(1 / 3)))
    return Descent(0.1 if lr is None else lr)
