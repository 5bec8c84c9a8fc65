"""Cox's partial likelihood by small batches, with the risk of every row remembered as it was last seen.

The sum over a risk set could be tracked for every row, as in other losses. Its terms are rows of the
data, though, and remembering them is better: no batch has to stand for the rows that it does not hold,
so the noise of drawing them is gone, and there is nothing to forget and no ``beta``. What is known of a
row is as old as its last visit, and so would be a tracked sum.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import nestax.trees as trees
from nestax.errors import SettingError, choose
from nestax.parts.track import TrackState, track, track_init
from nestax.problems.survival.follow_up import TIES, check_follow_up


class RiskSets(eqx.Module):
    """Who is at risk when, of all rows of the data, and what was last seen of them; see ``risk_sets``.

    memory: the log hazard of every row.
    order: the rows by time, the last one first, so that a risk set is a beginning of it. What follows is
        in this order.
    first, last: the places of the first and of the last row with the same time.
    event: 1 where the time is that of an event.
    tied: l/d for event l = 0, 1, … of the d events at one time where ties are Efron's, else 0.
    place: of every row in the order.
    """

    memory: TrackState
    order: Array
    first: Array
    last: Array
    event: Array
    tied: Array
    place: Array


def risk_sets(time: Any, event: Any, *, ties: str = "efron", dtype: Any = float) -> RiskSets:
    """Makes the state of ``cox`` before anything was seen.

    Args:
        time: when the follow-up of every row of the data ended, at least 0.
        event: whether with an event (1, True) or censored (0, False).
        ties: "efron" or "breslow", for events at the same time.
        dtype: of the risks.

    Reference: Breslow, Biometrics 1974; Efron, J. Am. Stat. Assoc. 1977.
    """
    choose("ties", ties, TIES)
    time, happened = check_follow_up(time, event)
    order = np.lexsort((happened, -time))
    latest = -time[order]
    first = np.searchsorted(latest, latest)
    last = np.searchsorted(latest, latest, side="right") - 1
    happened = happened[order]
    tied = np.zeros(len(time))
    if ties == "efron":
        # Events stand behind censored rows of their time, so that they are counted from its end.
        deaths = np.concatenate([[0], np.cumsum(happened)])
        together = np.maximum(deaths[last + 1] - deaths[first], 1)
        tied = np.where(happened, (np.arange(len(time)) - last + together - 1) / together, 0)
    order, first, last, place = (
        jnp.asarray(x, jnp.int32) for x in (order, first, last, np.argsort(order))
    )
    event, tied = (jnp.asarray(x, dtype) for x in (happened, tied))
    memory = track_init(jnp.zeros((), dtype), n=len(time))
    return RiskSets(memory, order, first, last, event, tied, place)


def cox(risk: Float[Array, " b"], state: RiskSets, index: Any) -> tuple[Array, RiskSets]:
    """Cox's negative log partial likelihood per row, 1/n Σ_i δ_i (log S_i − h_i), of a batch.

    S_i = Σ_j e^{h_j} over the rows with T_j ≥ T_i, and δ_i tells events from censored rows; i and j
    range over all n rows of the data. S comes from the risks h as last seen, those of the batch being
    fresh. The value is the mean of δ_i (log S_i − h_i) over the batch. Its derivative is that of the
    loss of all rows, which by the risk of row j is

        1/n (e^{h_j} Λ(T_j) − δ_j),      Λ(t) = Σ_{i: T_i ≤ t} δ_i / S_i,

    times n/b. Λ is Breslow's cumulative hazard; one row is enough for a batch, and with all rows
    everything is exact. A row that was not seen yet counts with the mean hazard of the rest. A step
    takes some passes over n numbers.

    Args:
        risk: h, the log hazard of every row of the batch.
        state: ``risk_sets(time, event)`` of all rows of the data, or from the call before.
        index: the rows of the data that the batch is, all different.

    Reference: Cox, J. R. Stat. Soc. B 1972; Breslow, Biometrics 1974.
    """
    if not isinstance(state, RiskSets):
        raise SettingError(
            "cox must know the times of all rows of the data: make its state with "
            "nx.losses.risk_sets(time, event)."
        )
    if jnp.ndim(risk) != 1:
        raise SettingError(
            f"risk is a vector with one number per row of the batch; got {jnp.shape(risk)}."
        )
    risk, memory = track(risk, state.memory, index, beta=1.0)
    places = state.place[trees.row_numbers(index)]
    log_sum, weight = jax.lax.stop_gradient(_sums(state, memory.value))
    event = state.event[places]
    value = jnp.mean(event * (log_sum[places] - jax.lax.stop_gradient(risk)))
    slope = weight[places] - event
    value = value + jnp.mean(slope * (risk - jax.lax.stop_gradient(risk)))
    return value, eqx.tree_at(lambda s: s.memory, state, memory)


def _sums(sets: RiskSets, risk: Array) -> tuple[Array, Array]:
    """log S_i, and e^{h_j} Λ(T_j), of all rows in the order of the sets.

    With Efron's ties event l of d takes l/d of all tied ones out of its risk set,
    S_i = S(T_i) − l/d·D(T_i), and out of the hazard that these are exposed to.
    """
    known = jnp.isfinite(risk)
    most = jnp.max(risk, where=known, initial=-jnp.inf)
    most = jnp.where(jnp.any(known), most, 0)
    # Running sums of exponentials are many times as fast as those of logarithms. None vanishes: what is
    # more than e^80 times below the greatest hazard counts as that.
    hazard = jnp.where(known, jnp.exp(jnp.maximum(risk - most, -80)), 0)
    mean = jnp.sum(hazard) / jnp.maximum(jnp.sum(known), 1)
    hazard = jnp.where(known, hazard, jnp.where(mean > 0, mean, 1))[sets.order]
    total = jnp.cumsum(hazard)[sets.last]
    rows = len(hazard)

    def at_time(x: Array) -> Array:
        return jax.ops.segment_sum(x, sets.last, rows, indices_are_sorted=True)[sets.last]

    left = total - sets.tied * at_time(sets.event * hazard)
    added = sets.event / left
    until = jnp.cumsum(added[::-1])[::-1][sets.first]
    spared = sets.event * at_time(sets.tied * added)
    return jnp.log(left) + most, hazard * (until - spared)
