"""Cox's partial likelihood of a linear log hazard over all rows: value, derivatives, optimum.

    F(w) = 1/E Σ_i (log S_i − w·x_i) + l2/2·‖w‖²,      S_i = Σ_j e^{w·x_j} over the rows at risk

i ranges over the E events; with Efron's ties S_i is less, see ``follow_up``. Running sums over sorted
rows make the cost of F grow with the rows, and that of its derivatives with rows × features². In NumPy
and float64, whatever JAX computes in.
"""

from typing import NamedTuple

import numpy as np

from nestax.problems.survival.follow_up import FollowUp

#: Newton's method ends when a step changes no log hazard by more than this; the next one would change
#: them by about its square.
SMALL = 1e-8
STEPS = 50
#: Curvature that counts as none, as a share of the largest one, for features of one scale.
FLAT = 1e-12
ROUNDING = 1e-14
#: Where curvature falls to such a share of that at the start, F goes down without end.
LOST = 1e-8
HALVINGS = 40


class Optimum(NamedTuple):
    """The least value of F, weights of that value, and whether they were found.

    They are not where some direction orders all events as they happened, because F then falls without
    end along it.
    """

    value: float
    w: np.ndarray
    found: bool


class ExactCox:
    """F on some rows.

    Args:
        x: the rows, a table.
        sets: their risk sets.
        l2: of the penalty, at least 0.
    """

    def __init__(self, x: np.ndarray, sets: FollowUp, l2: float = 0.0):
        x = np.asarray(x, np.float64)[sets.order]
        self.x = x - x.mean(axis=0)  # hazards are compared with each other alone
        self.sets = sets
        self.l2 = l2
        self._strata = np.flatnonzero(np.diff(sets.stratum, prepend=-1))

    def value(self, w: np.ndarray) -> float:
        risk = self.x @ w
        _, _, log_sum = self._hazards(risk)
        return float(np.mean(log_sum - risk[self.sets.events]) + self.l2 / 2 * w @ w)

    def grad(self, w: np.ndarray) -> np.ndarray:
        hazard, total, _ = self._hazards(self.x @ w)
        return self._slope(hazard * self._exposed(1 / total)) + self.l2 * w

    def grad_and_hessian(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hazard, total, _ = self._hazards(self.x @ w)
        weight = hazard * self._exposed(1 / total)
        mean = self._at_risk(hazard[:, None] * self.x) / total[:, None]
        second = self.x.T @ (weight[:, None] * self.x) - mean.T @ mean
        hessian = second / len(total) + self.l2 * np.eye(len(w))
        return self._slope(weight) + self.l2 * w, hessian

    def least(self) -> Optimum:
        """By Newton's method with steps halved until F falls; F is convex."""
        w = np.zeros(self.x.shape[1])
        value = self.value(w)
        basis = None
        for _ in range(STEPS):
            grad, hessian = self.grad_and_hessian(w)
            basis = self._basis(hessian) if basis is None else basis
            values, vectors = np.linalg.eigh(basis.T @ hessian @ basis)
            if values.size and values[0] < LOST:
                break
            move = -basis @ (vectors @ (vectors.T @ (basis.T @ grad) / values))
            length = np.abs(self.x @ move).max()
            if length <= SMALL:
                return Optimum(self.value(w + move), w + move, True)
            for k in range(HALVINGS):
                new = w + 0.5**k * move
                below = self.value(new)
                if below <= value + 0.5**k * grad @ move / 10 + ROUNDING * (1 + abs(value)):
                    break
            else:
                break
            w = new
            value = below
        return Optimum(value, w, False)

    def _basis(self, hessian: np.ndarray) -> np.ndarray:
        """Directions of curvature one; columns may be combinations of others, and of any scale."""
        scale = self.x.std(axis=0)
        unit = 1 / np.where(scale > 0, scale, 1)
        values, vectors = np.linalg.eigh(unit[:, None] * hessian * unit)
        curved = values > FLAT * values[-1]
        return unit[:, None] * vectors[:, curved] / np.sqrt(values[curved])

    def cumulative_hazards(self, w: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of every stratum: places of its events, first one first, and Σ 1/S_i up to each of them."""
        _, _, log_sum = self._hazards(self.x @ w)
        out = []
        for stratum in range(len(self._strata)):
            events = np.flatnonzero(self.sets.stratum[self.sets.events] == stratum)[::-1]
            out.append((self.sets.events[events], np.cumsum(np.exp(-log_sum[events]))))
        return out

    def _hazards(self, risk: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """e^{h − c} of every place, c being the largest h of a stratum, and S_i e^{−c} and log S_i."""
        most = np.maximum.reduceat(risk, self._strata)[self.sets.stratum]
        hazard = np.exp(risk - most)
        events = self.sets.events
        # An event is at risk itself, which differences of running sums may lose.
        total = np.maximum(self._at_risk(hazard), (1 - self.sets.spared) * hazard[events])
        return hazard, total, np.log(total) + most[events]

    def _slope(self, weight: np.ndarray) -> np.ndarray:
        events = self.sets.events
        return (self.x.T @ weight - self.x[events].sum(axis=0)) / len(events)

    def _at_risk(self, x: np.ndarray) -> np.ndarray:
        """Returns the sum of x over every risk set."""
        sets = self.sets
        column = (-1, *[1] * (x.ndim - 1))
        out = self._running(x)[sets.stop - 1]
        out -= sets.spared.reshape(column) * self._together(x[sets.events])
        if sets.late is not None:
            late = self._running(x[sets.late.order])[sets.late.stop - 1]
            out -= (sets.late.stop > sets.late.start).reshape(column) * late
        return out

    def _exposed(self, y: np.ndarray) -> np.ndarray:
        """The sum of y over the events whose risk set a place is in: the transpose of ``_at_risk``."""
        sets = self.sets
        out = self._running(np.bincount(sets.stop - 1, y, len(sets.order)), back=True)
        out[sets.events] -= self._together(sets.spared * y)
        if sets.late is not None:
            some = sets.late.stop > sets.late.start
            last = np.bincount(sets.late.stop[some] - 1, y[some], len(out))
            out[sets.late.order] -= self._running(last, back=True)
        return out

    def _running(self, x: np.ndarray, back: bool = False) -> np.ndarray:
        """Running sums inside every stratum, from its first place on or from its last one.

        Differences of sums over all of them would lose what is small beside the rest.
        """
        turn = slice(None, None, -1 if back else 1)
        parts = np.split(x, self._strata[1:])
        return np.concatenate([np.cumsum(part[turn], axis=0)[turn] for part in parts])

    def _together(self, y: np.ndarray) -> np.ndarray:
        """Of every event, the sum of y over the events of its time."""
        first, number = np.unique(self.sets.tied, return_inverse=True)
        return np.add.reduceat(y, first, axis=0)[number]
