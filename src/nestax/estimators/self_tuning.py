"""Self-tuning trackers: every level remembers as much as its own draws say is worth remembering.

Own work: a Kalman filter for every tracked array, with variances that are seen in the draws, and with
differences on the same draws as a second measurement. Before it: Kalman 1960; variances from what a
filter did not predict, Mehra 1970; filters of the gradient of one level, without differences, Vuckovic
2018 (Kalman gradient descent, arXiv 1810.12273), Yang 2020 (filter gradient descent, arXiv 2012.12418).

symbol      here             meaning
w_t         w                weights
ξ_t^i       batch["value"]   draws of level i at step t, independent across levels
u_t^i       value[i]         running value of level i, estimates f_i(u_t^{i-1})
v_t^i       jac[i]           running Jacobian of level i, where it is remembered
y, d        new, new − old   mean over the draws at the new point, and of its difference to the old one
k_1, k_2    gain             see nestax.parts.gains
√P          believed.error   the expected error of each tracked array
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import Jacobian
from nestax.chain.level import Level, Map
from nestax.chain.problem import Problem
from nestax.parts.error_bars import error_bars
from nestax.parts.estimator import About, AbstractEstimator, Batches, Calls, Estimate, Trackers
from nestax.parts.gains import Belief
from nestax.parts.remembering import Before, Seen, draws_of, gradient, look
from nestax.parts.settings import choice

#: Larger Jacobians, such as those of networks, are not remembered unless asked for.
MOST_ENTRIES = 1000


class SelfTuningState(eqx.Module):
    """Trackers of every level with what is believed of them; None for what is exact or not tracked.

    usual: root mean square of the length of plain gradients.
    first: how many draws every level had at the start, where batches may be larger.
    """

    w: PyTree
    value: tuple[PyTree, ...]
    jac: tuple[Jacobian | None, ...]
    believed: tuple[Belief | None, ...]
    usual: Array
    first: Array
    count: Array


class SelfTuning(AbstractEstimator):
    """Values and Jacobians tracked with gains that set themselves.

        y     = f_i(u_t^{i-1}; ξ),   d = y − f_i(u_{t-1}^{i-1}; ξ)
        u_t^i = u_{t-1}^i + k_1 (y − u_{t-1}^i) + k_2 d

    and likewise for the Jacobian, every array with gains k_1, k_2 of its own. STORM, a moving average,
    the running mean and no memory are special cases, and the draws decide among them at every step.
    There is no forgetting rate to set. A batch of one draw works; from a few draws on gains are better
    founded.

    Two rules keep memory from doing harm. The gradient is never longer than twice that of plain batches,
    the present or the usual one: a tracked value lacks the errors that value and derivative of one batch
    have in common, and where those cancel, as in log E e^ℓ, rare rows would throw the weights away. And
    large Jacobians are not remembered: the gradients of networks come in rare bursts, which memory
    repeats, and optimisers that divide by the size of the gradient follow what is left of them.

    Gains follow from the draws that they are applied to, so that the estimate is not exactly unbiased:
    a mean with heavy tails comes out low, by about 3 % for the exponential of a normal draw.

    Args:
        derivatives: "auto" remembers the Jacobians of levels that have at most 1,000 entries; "tracked"
            all of them, as SMVR does; "fresh" takes all of them from the batch, as SCSC does.
    """

    derivatives: str = choice("auto", "tracked", "fresh", default="auto")
    hands_plain: bool = eqx.field(static=True, default=False, kw_only=True, repr=False)
    about: ClassVar = About(
        "kalman1960", "–", "–", "values, Jacobians, spreads", instead="SMVR", certainty="own work"
    )

    #: Levels after the first are also evaluated at the inputs that plain batches would have.
    passes: ClassVar[Any] = property(lambda self: {"value": Calls(3, 3 - (self.derivatives == "fresh"))})

    def level_passes(self, problem: Problem):
        calls = [Calls(2, 1 + self._remembers(level)) for level in problem.levels]
        more = [Calls(values + 1, jacs + 1) for values, jacs in calls[1:]]
        return tuple({"value": own} for own in (calls[0], *more))

    def init(self, problem: Problem, w: PyTree, batches: Batches):
        return self._track(problem, w, batches, None)

    def update(self, problem: Problem, w: PyTree, batches: Batches, state: SelfTuningState):
        return self._track(problem, w, batches, state)

    def _track(self, problem: Problem, w: PyTree, batches: Batches, state: SelfTuningState | None):
        """Tracks every level in turn; without a state at the start, where nothing is remembered yet."""
        value: list[PyTree] = []
        seen: list[Seen] = []
        plain: list[Map] = []
        new = mean = w
        first = draws_of(batches) if state is None else state.first
        count = jnp.zeros((), jnp.int32) if state is None else state.count + 1
        for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
            before = None
            if state is not None:
                old = state.value[i - 1] if i else state.w
                before = Before(old, (state.value[i], state.jac[i]), state.believed[i], count, first[i])
            level_seen = look(level, new, batch["value"], before, self._remembers(level))
            pulled = level_seen.mean, level_seen.plain
            if i and state is not None:
                pulled = level.value_and_pull(mean, batch["value"])
            mean = level.project(pulled[0])
            plain.append(pulled[1])
            seen.append(level_seen)
            value.append(level.project(level_seen.value))
            new = value[-1]
        tracked = [one.pull for one in seen], value[-1]
        grad, usual, of_batch = gradient(tracked, (plain, mean), state and state.usual, count)
        jac, believed = zip(*((one.jac, one.belief) for one in seen), strict=True)
        state = SelfTuningState(w, tuple(value), jac, believed, usual, first, count)
        return Estimate(value[-1], grad, {}, of_batch if self.hands_plain else None), state

    def handing_plain(self):
        return dataclasses.replace(self, hands_plain=True)

    def _remembers(self, level: Level) -> bool:
        small = level.shape.jacobian_entries <= MOST_ENTRIES
        return self.derivatives == "tracked" or (self.derivatives == "auto" and small)

    def believed(self, problem: Problem, state: SelfTuningState):
        return error_bars(problem, state.w, state.value, state.jac, state.believed, state.first)

    def trackers(self, state: SelfTuningState):
        pairs = zip(state.jac, state.believed, strict=True)
        all_tracked = all(V is not None or belief is None for V, belief in pairs)
        return Trackers(state.w, state.value, state.jac if all_tracked else None)
