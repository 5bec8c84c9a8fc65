"""What is exact about a mean-deviation portfolio: value, gap, optimum, and how long a step may be.

    F(x) = −m·x + λ·sqrt(xᵀΣx + δ),   low ≤ x ≤ high, Σx = 1

All of it follows from the mean m and the covariance Σ of the rows. In NumPy and float64, whatever JAX
computes in.
"""

import functools
from typing import NamedTuple

import numpy as np

#: F* is sought to within this, in so many rounds of so many steps of two kinds.
TIGHT = 1e-13
ROUNDS = 500
GRADIENT_STEPS = 20
NEWTON_STEPS = 8
#: A round that does not come closer ends the search below this.
ALMOST = 1e-10
#: Without bounds and next to no risk, no gradient step would be too long.
LONGEST = 1e6
#: Smaller numbers are rounding error; and most that weights in single precision miss a sum of one by.
ROUNDING = 1e-16
SINGLE = 1e-3
#: Curvature that F is taken to have in every direction, as a share of that in all.
FLAT = 1e-12
#: A step that follows the slope alone crosses the simplex about so many times.
REACH = 10.0
#: A learning rate as a share of the inverse curvature.
SHARE = 0.5
#: How far the noise of one batch moves the weights, in a method whose noise does not fade.
WANDER = 0.03


class Optimum(NamedTuple):
    """The least value of F, by how much it may be too large, and weights of that value."""

    value: float
    error: float
    w: np.ndarray


class ExactPortfolio:
    """F on some rows, and its feasible set.

    Args:
        rows: periods × assets.
        risk: λ ≥ 0.
        delta: δ > 0.
        low, high: bounds, one number per asset; infinite where there is none.
    """

    def __init__(
        self, rows: np.ndarray, *, risk: float, delta: float, low: np.ndarray, high: np.ndarray
    ):
        self.rows = np.asarray(rows, np.float64)
        self.risk = risk
        self.delta = delta
        self.low = np.asarray(low, np.float64)
        self.high = np.asarray(high, np.float64)
        self.mean = self.rows.mean(axis=0)
        centred = self.rows - self.mean
        self.covariance = centred.T @ centred / len(self.rows)

    def deviation(self, w: np.ndarray) -> float:
        return float(np.sqrt(w @ self.covariance @ w + self.delta))

    def value(self, w: np.ndarray) -> float:
        return float(-self.mean @ w + self.risk * self.deviation(w))

    def grad(self, w: np.ndarray) -> np.ndarray:
        return -self.mean + self.risk * self.covariance @ w / self.deviation(w)

    @property
    def bounded(self) -> bool:
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    def corner(self, direction: np.ndarray) -> np.ndarray:
        """argmin <direction, x> over the feasible x, which are bounded."""
        order = np.argsort(direction)
        room = self.high - self.low
        taken = np.cumsum(room[order]) - room[order]
        x = self.low.copy()
        x[order] += np.clip(1 - x.sum() - taken, 0, room[order])
        return x

    def gap(self, w: np.ndarray) -> float:
        """max <∇F(w), w − x> over the feasible x: at least F(w) − F*, because F is convex."""
        grad = self.grad(w)
        return max(float(grad @ (w - self.corner(grad))), 0.0)

    def settle(self, w: np.ndarray) -> np.ndarray:
        """Puts the weights of a run, in float64, inside their bounds and to a sum of one."""
        w = np.clip(np.asarray(w, np.float64), self.low, self.high)
        missing = 1 - w.sum()
        if abs(missing) < SINGLE:  # weights at a bound stay there
            room = (w - self.low) * (self.high - w)
        else:  # the step was so long that the projection lost all digits
            room = self.high - w if missing > 0 else w - self.low
        return np.clip(w + missing * room / (room.sum() or 1), self.low, self.high)

    @property
    def least_variance(self) -> float:
        """xᵀΣx is at least |x|² times the least eigenvalue, and |x|² at least 1/d where Σx = 1."""
        return max(float(np.linalg.eigvalsh(self.covariance)[0]), 0.0) / self.mean.size

    # The optimum

    def least(self) -> Optimum:
        """The least value of F: rounds of projected gradient steps, which find out who is at a bound,
        and of Newton steps among the others, which are exact. The gap proves it; without bounds the
        decrement of Newton's method does.
        """
        if self.risk == 0:  # F is linear
            x = self.corner(-self.mean)
            return Optimum(self.value(x), 0.0, x)
        x = self.project(np.full(self.mean.size, 1 / self.mean.size))
        rate = 1.0
        best = (np.inf, x)
        before = np.inf
        for _ in range(ROUNDS):
            x, rate = self._descend(x, rate)
            for _ in range(NEWTON_STEPS):
                move = self._newton(x)
                error = self.gap(x) if self.bounded else -float(self.grad(x) @ move) / 2
                # By the error alone: arrays cannot be compared where two errors are equal.
                best = min(best, (error, x), key=lambda pair: pair[0])
                if error <= TIGHT:
                    break
                x = self._along(x, move)
            if best[0] <= TIGHT or (best[0] > 0.9 * before and best[0] <= ALMOST):
                break  # what is left is rounding
            before = best[0]
        error, x = best
        return Optimum(self.value(x), max(float(error), 0.0), x)

    def project(self, x: np.ndarray) -> np.ndarray:
        """The feasible weights next to x: x minus a number, cut off at the bounds, with a sum of one."""
        below = (x - self.high).min()
        above = (x - self.low).max()
        if not self.bounded:
            return x + (1 - x.sum()) / x.size
        for _ in range(100):
            middle = (below + above) / 2
            over = np.clip(x - middle, self.low, self.high).sum() > 1
            below, above = (middle, above) if over else (below, middle)
        return np.clip(x - above, self.low, self.high)

    def _descend(self, x: np.ndarray, rate: float) -> tuple[np.ndarray, float]:
        """Projected gradient steps, longer as long as the gradient agrees with a parabola, else half."""
        grad = self.grad(x)
        for _ in range(GRADIENT_STEPS):
            new = self.project(x - rate * grad)
            there = self.grad(new)
            way = new - x
            # In gradients, for next to the optimum all values of F are the same to the last digit.
            if 2 * rate * (there - grad) @ way <= way @ way:
                x = new
                grad = there
                rate = min(1.5 * rate, LONGEST)
            else:
                rate /= 2
        return x, rate

    def _newton(self, x: np.ndarray) -> np.ndarray:
        """The move to the least value of the quadratic model among the assets inside their bounds."""
        move = np.zeros_like(x)
        inside = (x > self.low) & (x < self.high)
        if not inside.any():
            return move
        deviation = self.deviation(x)
        slope = self.covariance @ x / deviation
        hessian = self.risk * (self.covariance - np.outer(slope, slope)) / deviation
        hessian = hessian[np.ix_(inside, inside)]
        # Where F does not bend, as between assets that are mixtures of others, the way is long.
        hessian += FLAT * np.trace(hessian) * np.eye(len(hessian))
        ones = np.ones((len(hessian), 1))
        system = np.block([[hessian, ones], [ones.T, np.zeros((1, 1))]])
        # Least squares, for the system is singular where two assets are one.
        solution = np.linalg.lstsq(system, np.append(-self.grad(x)[inside], 0), rcond=None)[0][:-1]
        move[inside] = solution - solution.mean()
        return move

    def _along(self, x: np.ndarray, move: np.ndarray) -> np.ndarray:
        """As far along a move as the bounds allow and F falls."""
        falls = move < 0
        grows = move > 0
        reach = np.full(x.size, np.inf)  # moves until a weight is at its bound
        reach[falls] = (x - self.low)[falls] / -move[falls]
        reach[grows] = (self.high - x)[grows] / move[grows]
        length = min(1.0, float(reach.min()))

        def slope(x: np.ndarray) -> float:
            return float((self.grad(x) - self.grad(x).mean()) @ move)

        while slope(x + length * move) > abs(slope(x)) / 2 and length > ROUNDING:
            length /= 2
        new = np.clip(x + length * move, self.low, self.high)
        arrived = reach <= length
        new = np.where(arrived & falls, self.low, np.where(arrived & grows, self.high, new))
        inside = (new > self.low) & (new < self.high)
        # Rounding goes to the weights that have room for it.
        new[inside] += (1 - new.sum()) / max(inside.sum(), 1)
        return new

    # How long a step may be

    @functools.cached_property
    def _moments_across(self) -> tuple[float, float, float]:
        """Of the rows a as far as they tell assets apart: E|a|², the largest eigenvalue of E aaᵀ, and
        E|a|⁴/E|a|², which bounds what single rows add to that.

        Weights that keep their sum see nothing else of the rows.
        """
        centred = self.rows - self.mean
        across = centred - centred.mean(axis=1, keepdims=True)
        square = (across**2).sum(axis=1)
        noise = float(square.mean())
        top = float(np.linalg.eigvalsh(across.T @ across)[-1]) / len(self.rows)
        return noise, top, float((square**2).mean() / noise) if noise > 0 else 0.0

    def inverse_curvature(self, w: np.ndarray, batch_size: int) -> float:
        """1/L for the curvature L that steps on batches meet near w; 1 where F does not bend or fall.

            L = λ·(top + tail/batch_size)/deviation(w)

        with the last two of ``_moments_across``. The step is no longer than ``REACH`` says.
        """
        _, top, tail = self._moments_across
        curvature = self.risk * (top + tail / batch_size) / self.deviation(w)
        steepest = max(curvature, float(np.ptp(self.grad(w))) / REACH)
        return 1 / steepest if steepest > 0 else 1.0

    def learning_rate(self, w: np.ndarray, batch_size: int, fading: bool = True) -> float:
        """Returns a share of the inverse curvature near w.

        It is no longer than what gradients allow whose noise does not fade: sqrt(E|a|²/batch_size) for
        the mean return, and λ times that for the deviation.
        """
        rate = SHARE * self.inverse_curvature(w, batch_size)
        noise = (1 + self.risk) * np.sqrt(self._moments_across[0] / batch_size)
        return rate if fading or noise == 0 else min(rate, float(WANDER / noise))
