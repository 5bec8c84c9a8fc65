"""The step length that the estimator itself computes."""

from typing import Any

import jax
from jaxtyping import Array, PyTree

from nestax.chain.problem import Problem
from nestax.errors import SettingError
from nestax.parts.step_rule import AbstractStep


class Suggested(AbstractStep):
    """w_{t+1} = prox_{η r}(w_t − η_t v_t), η_t = ``aux["rate"]`` of the estimate, as STORM has it."""

    def update(self, problem: Problem, w: PyTree, grad: PyTree, aux: dict[str, Array], state: Any):
        if "rate" not in aux:
            raise SettingError("Suggested needs an estimator that suggests a rate, such as nx.STORM().")
        lr = aux["rate"]
        return problem.proximal(jax.tree.map(lambda x, v: x - lr * v, w, grad), lr), state + 1
