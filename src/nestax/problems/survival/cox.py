"""Cox's partial likelihood: a coupled problem with one block per event, K = 2.

    F(w) = 1/E Σ_i (log S_i − h_i) = 1/E Σ_i log(S_i·e^{−h_i}),   S_i = Σ_j s_ij e^{h_j}

i ranges over the E events, j over the rows at risk at the time of i, in the same stratum. The log hazard
is h = h(w; x). s_ij is 1, or 1 − l/d where j is tied with i, event l = 0, 1, … of d (Efron).

level 1   f_1^i(w; j) = |R_i|·s_ij·e^{h_j − h_i}, j from R_i      at_risk: the hazard at risk, beside i
level 2   f_2(u) = log u                                          log, deterministic

R_i are the rows that left at the time of i or later, which is a piece of one sorted list. Those that
came later than that as well (left truncation) are in it with s_ij = 0.

Cox, J. R. Stat. Soc. B 1972; Breslow, Biometrics 1974; Efron, J. Am. Stat. Assoc. 1977. As many coupled
expectations: Wang, Yang, ICML 2022.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.conditional import Conditional
from nestax.errors import ProblemError, SettingError
from nestax.problems.coupled.pairs import Score, default_visit
from nestax.problems.losses import fit_together, of_rows
from nestax.problems.survival.exact import ExactCox
from nestax.problems.survival.follow_up import FollowUp, follow_up


class Sets(eqx.Module):
    """What ``FollowUp`` says, for compiled code.

    stratum, first: of every place.
    events, last, spared: of every event; ``last`` is the last place of its risk set.
    tied: of every event, the place of the first one with the same time; they end at ``last``.
    late_order, late_first: the list of late rows; late_last, of every event; None without one.
    came: of every place, its place in the list of late rows.
    """

    stratum: Array
    first: Array
    events: Array
    last: Array
    tied: Array
    spared: Array
    late_order: Array | None
    late_first: Array | None
    late_last: Array | None
    came: Array | None

    def __init__(self, sets: FollowUp, dtype: Any):
        self.stratum = whole(sets.stratum)
        self.first = _begins(sets.stratum)
        self.events = whole(sets.events)
        self.last = whole(sets.stop - 1)
        self.tied = whole(sets.events[sets.tied])
        self.spared = jnp.asarray(sets.spared, dtype)
        self.late_order = self.late_first = self.late_last = self.came = None
        if sets.late is not None:
            self.late_order = whole(sets.late.order)
            self.late_first = _begins(sets.stratum[sets.late.order])
            # −1 where nobody of the stratum was late.
            last = np.where(sets.late.stop > sets.late.start, sets.late.stop - 1, -1)
            self.late_last = whole(last)
            self.came = whole(np.argsort(sets.late.order))

    def shares(self, event: Array, position: Array) -> Array:
        """s_ij."""
        share = 1 - self.spared[event] * (position >= self.tied[event])
        if self.came is None or self.late_last is None:
            return share
        return share * (self.came[position] > self.late_last[event])

    @eqx.filter_jit  # outside of compiled code a scan is hundreds of small programs
    def log_sums(self, risk: Array) -> Array:
        """log S_i of every event, from the risks of all places."""
        most = jax.ops.segment_max(risk, self.stratum, len(risk), indices_are_sorted=True)[self.stratum]
        hazard = jnp.exp(risk - jax.lax.stop_gradient(most))
        total = _running(hazard, self.first)[self.last]
        together = jnp.zeros_like(hazard).at[self.events].set(hazard[self.events])
        starts = jnp.zeros(len(risk), bool).at[self.tied].set(True) | self.first
        total = total - self.spared * _running(together, starts)[self.last]
        if self.late_order is not None and self.late_last is not None:
            late = _running(hazard[self.late_order], self.late_first)[self.late_last]
            total = total - jnp.where(self.late_last >= 0, late, 0)
        # An event is at risk itself, which a difference may lose to rounding.
        total = jnp.maximum(total, (1 - self.spared) * hazard[self.events])
        return jnp.log(total) + jax.lax.stop_gradient(most)[self.events]


def whole(x: Any) -> Array:
    return jnp.asarray(x, jnp.int32)


def _begins(stratum: np.ndarray) -> Array:
    """Marks the first place of every stratum."""
    return jnp.asarray(np.diff(stratum, prepend=-1) != 0)


def _running(x: Array, first: Any) -> Array:
    """Running sums that begin anew where ``first`` says so."""

    def join(a: Any, b: Any) -> Any:
        return a[0] | b[0], jnp.where(b[0], b[1], a[1] + b[1])

    return jax.lax.associative_scan(join, (first, x))[1]


class AtRisk(eqx.Module):
    """Level 1; a draw is an event and a place."""

    model: Callable[[PyTree, Any], Array]
    rows: Array
    sets: Sets
    counts: Array

    def __call__(self, w: PyTree, draw: tuple[Array, Array]) -> Array:
        event, position = draw
        risk = self.model(w, self.rows[position]) - self.model(w, self.rows[self.sets.events[event]])
        return self.counts[event] * self.sets.shares(event, position) * jnp.exp(risk)


class AtLeast(eqx.Module):
    """Projection of S_i·e^{−h_i}, of which event i itself makes that much."""

    least: Array

    def __call__(self, u: Array) -> Array:
        return jnp.maximum(u, self.least)


class MeanPartialLoss(eqx.Module):
    """F in closed form, from running sums over all rows."""

    model: Callable[[PyTree, Any], Array]
    rows: Array
    sets: Sets

    def __call__(self, w: PyTree) -> Array:
        risk = of_rows(lambda x: self.model(w, x), self.rows)
        return jnp.mean(self.sets.log_sums(risk) - risk[self.sets.events])


def cox(
    X: Any,
    time: Any,
    event: Any,
    *,
    ties: str = "efron",
    strata: Any = None,
    entry: Any = None,
    visit: int | None = None,
    model: Callable[[PyTree, Any], Any] | None = None,
    w0: PyTree = None,
    l2: float = 0.0,
    **problem: Any,
) -> Problem:
    """Cox's partial likelihood, for any model of the log hazard.

    F is the mean over events. Memory is a few numbers for every row, and a step costs the same however
    many rows there are. Exact values take one pass over the rows, in closed form.

    Args:
        X: one row an example.
        time: when the follow-up of every row ended, at least 0.
        event: whether with an event (1, True) or censored (0, False).
        ties: "efron" or "breslow", for events at the same time.
        strata: a label for every row; rows of different strata are never compared.
        entry: when every row came under observation, before its time: it is at risk at t if
            entry < t ≤ time. None means before all events.
        visit: how many events a step visits; all, but at most 16, by default. From the risk set of each
            it draws ``batch_size`` rows.
        model, w0, l2, problem: as in ``nx.problems.term``; by default a linear log hazard, w·x.
    """
    sets = follow_up(time, event, strata=strata, entry=entry, ties=ties)
    fit = fit_together([("the data", X, np.asarray(event, float))], "squared", model, w0, False, l2)
    X, _ = fit.parts[0]
    rows = X[sets.order]
    order = Sets(sets, fit.dtype)
    risk = Score(fit.row_loss.model)
    events = len(sets.events)
    visit = default_visit(visit, events)
    if visit > events:
        raise ProblemError(f"visit must be at most the number of events, {events}; got {visit}.")
    number = sets.stop - sets.start
    sampled = Conditional(
        np.arange(events), np.arange(len(rows)), visit=visit, ranges=(sets.start, number)
    )
    counts = jnp.asarray(number, fit.dtype)
    least = AtLeast(jnp.asarray(1 - sets.spared.max(), fit.dtype))
    return Problem(
        [
            Level(AtRisk(risk, rows, order, counts), sampled, project=least, name="at_risk"),
            Level(jnp.log, name="log"),
        ],
        w0=fit.w0,
        penalty=fit.penalty,
        exact=MeanPartialLoss(risk, rows, order),
        **problem,
    )


def exact_cox(
    X: Any,
    time: Any,
    event: Any,
    *,
    ties: str = "efron",
    strata: Any = None,
    entry: Any = None,
    l2: float = 0.0,
) -> ExactCox:
    """What is exact about ``cox`` with a linear log hazard: value, derivatives, ``least()``.

    Args:
        X, time, event, ties, strata, entry, l2: as for ``cox``.
    """
    sets = follow_up(time, event, strata=strata, entry=entry, ties=ties)
    X = np.asarray(X, float)
    if X.ndim != 2 or len(X) != len(sets.order) or not np.isfinite(X).all():
        raise SettingError(
            f"X must be a table of finite numbers with {len(sets.order)} rows, as time has; got an "
            f"array of shape {X.shape}."
        )
    return ExactCox(X, sets, l2)
