"""The proximal gradient step, w ← prox_{η r}(w − η v): projected descent where r is a feasible set."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, PyTree

from nestax.errors import check_setting
from nestax.problem import Problem
from nestax.step import AbstractStep
from nestax.tracking import as_setting, at


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
