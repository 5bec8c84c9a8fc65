"""The whole mathematics of a run, for one lane: its start, one step, one record. Pure.

    step rule on the carried estimate → new w → project → draws for (key, step) → estimator.update

The carried estimate always belongs to the carried weights.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.problem import Problem
from nestax.loop.columns import measure, way
from nestax.loop.plan import Plan
from nestax.parts.estimator import (
    FIRST_WEIGHTS,
    Batches,
    Drawn,
    Estimate,
    draw_batches,
    first_batches,
    refresh_batches,
)
from nestax.parts.step_rule import Method, evaluation_weights


class Carry(eqx.Module):
    """Everything a lane needs to go on.

    average: running mean of the weights, where it is the output that was asked for.
    """

    w: PyTree
    estimate: Estimate
    state: PyTree
    opt_state: PyTree
    average: PyTree


class Lane(eqx.Module):
    """One of many runs side by side: what it is, given its setting.

    problem: what every lane draws from.
    method: what runs; in a grid ``method(problem, setting)`` gives the problem and the method of a
        lane. It is called while tracing, so every number in the setting may be traced.
    horizon: the length of the run, for schedules that ask for it.
    """

    problem: Problem
    method: Method | Callable[[Problem, Any], tuple[Problem, Method]]
    horizon: Array
    plan: Plan = eqx.field(static=True)

    @property
    def micro_batch(self) -> tuple[int | None, ...]:
        """For every level how many draws are evaluated at once; None where all of a batch are."""
        pairs = zip(self.problem.levels, self.plan.micro_batch, strict=True)
        return tuple(most or level.micro_batch for level, most in pairs)

    def ready(self, setting: PyTree) -> tuple[Problem, Method]:
        """Problem and method of this lane, with defaults filled in, in the dtype of w."""
        problem, method = self.problem, self.method
        if not isinstance(method, Method):
            problem, method = method(problem, trees.cast(setting, problem.dtype))
        problem = problem.in_parts(self.plan.micro_batch)
        return problem, method.ready(problem, self.horizon, self.plan.sizes)

    def start(self, setting: PyTree, key: Array) -> Carry:
        """Weights, and the estimate made from the first batches."""
        problem, method = self.ready(setting)
        w = problem.project(problem.start(jax.random.fold_in(key, FIRST_WEIGHTS)))
        batches = first_batches(self.problem, method.estimator, key, self.plan.first_sizes)
        estimate, state = method.estimator.init(problem, w, Drawn(batches))
        average = trees.as_average(w) if self.plan.average else None
        return Carry(w, estimate, state, method.step.init(w), average)

    def draw(self, setting: PyTree, key: Array, step: Array) -> Batches:
        """The batches of a step, which lanes of equal seed share."""
        _, method = self.ready(setting)
        return draw_batches(self.problem, method.estimator, key, step, self.plan.sizes)

    def step(
        self, setting: PyTree, key: Array, batches: Batches, carry: Carry, step: Array, refresh: bool
    ) -> Carry:
        """One step: the whole mathematics of a run."""
        problem, method = self.ready(setting)
        value, grad = problem.add_penalty(carry.w, carry.estimate.value, carry.estimate.grad)
        aux = carry.estimate.aux | {"value": value}
        if carry.estimate.plain is not None:
            aux |= {"plain": problem.add_penalty(carry.w, value, carry.estimate.plain)[1]}
        w, opt_state = method.step.update(problem, carry.w, grad, aux, carry.opt_state)
        if refresh:
            batches = refresh_batches(self.problem, method.estimator, key, step)
            estimate, state = method.estimator.refresh(problem, w, Drawn(batches), carry.state)
        else:
            estimate, state = method.estimator.update(problem, w, Drawn(batches), carry.state)
        return Carry(w, estimate, state, opt_state, self._average(carry.average, w, step))

    def _average(self, average: PyTree, w: PyTree, step: Array) -> PyTree:
        if self.plan.average is None:
            return None
        share = 2 if self.plan.average == "weighted" else 1
        return jax.tree.map(lambda a, w: a + (w - a) * share / (step + 1), average, w)

    def output(self, carry: Carry) -> PyTree:
        """The weights that were asked for: the last ones, or their average."""
        if self.plan.average is None:
            return evaluation_weights(carry.w, carry.opt_state)
        return jax.tree.map(lambda a, w: a.astype(w.dtype), carry.average, carry.w)

    def observe(self, setting: PyTree, key: Array, carry: Carry) -> dict[str, Array]:
        """One record, and whether everything that the lane carries is finite."""
        problem, method = self.ready(setting)
        w = self.output(carry)
        estimate, state = carry.estimate, carry.state
        record = measure(problem, method.estimator, self.plan.columns, w, estimate, state)
        start = problem.project(problem.start(jax.random.fold_in(key, FIRST_WEIGHTS)))
        record |= way(problem, start, w, carry.w, estimate, record.pop("grad", None))
        return record | {"finite": trees.all_finite(carry)}
