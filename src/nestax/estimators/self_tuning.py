"""Self-tuning trackers: every level remembers as much as its own draws say is worth remembering.

Own work. One gain for each tracked array, of a Kalman filter whose variances are seen in the draws (Kalman
1960; variances from what a filter did not predict: Mehra 1970). Filters of single-level gradients: Vuckovic
2018, Kalman gradient descent.

symbol      here             meaning
w_t         w                weights
ξ_t^i       batch["value"]   draws of level i at step t, independent across levels
u_t^i       value[i]         running value of level i, estimates f_i(u_t^{i-1})
v_t^i       jac[i]           running Jacobian of level i, where it is remembered
y, d        new, new − old   mean over the draws at the new point, and of its difference to the old one
k_1, k_2    gain             see nestax.parts.gains
P           believed         the expected squared error of each tracked array
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import Jacobian, pull_through
from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate, Trackers
from nestax.parts.gains import Belief, first_belief, follow
from nestax.parts.settings import choice


class SelfTuningState(eqx.Module):
    """Trackers of every level with what is believed of them; None for what is exact or not tracked."""

    w: PyTree
    value: tuple[PyTree, ...]
    jac: tuple[Jacobian | None, ...]
    believed: tuple[tuple[Belief | None, Belief | None], ...]
    count: Array


class SelfTuning(AbstractEstimator):
    """Values, and where wanted Jacobians, tracked with gains that set themselves.

        u_t^i = u_{t-1}^i + k_1 (f_i(u_t^{i-1}; ξ) − u_{t-1}^i) + k_2 (f_i(u_t^{i-1}; ξ) − f_i(u_{t-1}^{i-1}; ξ))

    and likewise for the Jacobian, with gains k_1, k_2 of their own. STORM, a moving average, the running
    mean and no memory are special cases, and the draws decide among them at every step. There is no
    forgetting rate to set. A batch of one draw works; from a few draws on gains are better founded.

    Args:
        derivatives: "tracked" remembers the Jacobian of every level, as SMVR does; "fresh" takes it from
            the batch, as SCSC does, at a fraction of the memory.
    """

    derivatives: str = choice("tracked", "fresh", default="tracked")
    about: ClassVar = About(
        "", "–", "–", "values, Jacobians", instead="SMVR", certainty="own work"
    )

    @property
    def passes(self):
        return {"value": Calls(2, 2 if self.derivatives == "tracked" else 1)}

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        return self._track(problem, w, batches, None)

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: SelfTuningState):
        return self._track(problem, w, batches, state)

    def _track(self, problem: Problem, w: PyTree, batches: Batches, state: SelfTuningState | None):
        """Every level in turn; without a state at the start, where nothing is remembered yet."""
        value = []
        jac = []
        believed = []
        pulls = []
        new = w
        old = None if state is None else state.w
        count = jnp.zeros((), jnp.int32) if state is None else state.count + 1
        for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
            before = None if state is None else (state.value[i], state.jac[i], state.believed[i])
            u, V, pull, belief = self._level(level, new, old, batch["value"], before, count)
            value.append(level.project(u))
            jac.append(V)
            pulls.append(pull)
            believed.append(belief)
            new = value[-1]
            old = None if state is None else state.value[i]
        state = SelfTuningState(w, tuple(value), tuple(jac), tuple(believed), count)
        return Estimate(value[-1], pull_through(pulls, value[-1]), {}), state

    def _level(
        self, level: Level, new: PyTree, old: PyTree, batch: Any, before: Any, count: Array
    ) -> tuple[PyTree, Jacobian | None, Any, tuple[Belief | None, Belief | None]]:
        """Value, tracked Jacobian, pullback of one level, and what is believed of the first two."""
        if level.deterministic:
            u, pull = level.value_and_pull(new, None)
            return u, None, pull, (None, None)
        groups = batch.in_groups()
        u_before, V_before, (belief, jac_belief) = before or (None, None, (None, None))
        if self.derivatives == "fresh":
            y, pull = level.value_and_pull_in_groups(new, groups)
            y_old = None if before is None else level.value_in_groups(old, groups)
            u, belief = _tracked(y, y_old, u_before, belief, count, level.shape.noisy)
            return u, None, pull, (belief, None)
        y, J = level.value_and_jac_in_groups(new, groups)
        y_old, J_old = (None, None) if before is None else level.value_and_jac_in_groups(old, groups)
        u, belief = _tracked(y, y_old, u_before, belief, count, level.shape.noisy)
        V, jac_belief = _tracked(J, J_old, V_before, jac_belief, count)
        return u, V, V.pull, (belief, jac_belief)

    def trackers(self, state: SelfTuningState):
        return Trackers(state.w, state.value, state.jac if self.derivatives == "tracked" else None)


def _tracked(
    new: PyTree, old: PyTree, tracked: PyTree, belief: Belief | None, count: Array, noisy: Any = None
) -> tuple[PyTree, Belief | None]:
    """A tree and what is believed of it; leaves without noise are as they are."""
    leaves, treedef = jax.tree.flatten(new)
    moving = [k for k in range(len(leaves)) if noisy is None or noisy[k]]
    of = lambda tree: [jax.tree.leaves(tree)[k] for k in moving]
    if not moving:
        return new, None
    if belief is None:
        found = [jnp.mean(x, 0) for x in of(new)]
        belief = first_belief(of(new))
    else:
        found, belief = follow(of(new), of(old), of(tracked), belief, count)
    for k, x in zip(moving, found, strict=True):
        leaves[k] = x
    return treedef.unflatten(leaves), belief
