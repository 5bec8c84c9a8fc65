"""Dense SMVR on the mean-deviation portfolio as a hand-written Numba kernel.

This is what an engineer would write who needs this one problem, this one method and this one step
rule, and nothing else. Of the Jacobians

    J_1 = [rᵀ; I]        J_2 = [[1, 0], [−2e, 2e·rᵀ]]        J_3 = [−1, λ / (2·sqrt(z + δ))]

only the rows that are not known beforehand are tracked, nothing is allocated inside the loop, rows
are read where they lie, and the random numbers are a three-line xorshift. The arithmetic is float32
and IEEE unless fast-math is asked for, which XLA leaves off too.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from portfolio import Settings

F32 = np.float32
ZERO = F32(0)
HALF = F32(0.5)
ONE = F32(1)
TWO = F32(2)


def sort_projection(x, out):
    """Euclidean projection onto the simplex, by sorting."""
    d = x.shape[0]
    ordered = np.sort(x)
    total = ZERO
    theta = ZERO
    for k in range(d):
        total += ordered[d - 1 - k]
        candidate = (total - ONE) / F32(k + 1)
        if ordered[d - 1 - k] > candidate:
            theta = candidate
    for i in range(d):
        out[i] = max(x[i] - theta, ZERO)


def michelot_projection(x, out):
    """Euclidean projection onto the simplex, by dropping entries below θ until none is left."""
    d = x.shape[0]
    total = ZERO
    for i in range(d):
        total += x[i]
    size = d
    theta = (total - ONE) / F32(d)
    while True:
        total = ZERO
        left = 0
        for i in range(d):
            if x[i] > theta:
                total += x[i]
                left += 1
        if left >= size or left == 0:  # it can grow by rounding alone
            break
        size = left
        theta = (total - ONE) / F32(left)
    for i in range(d):
        out[i] = max(x[i] - theta, ZERO)


def no_projection(x, out):
    """All of space is feasible."""
    out[:] = x


@numba.njit
def given_row(state, indices, t, level, n):
    """The row that was asked for."""
    return state, indices[t, level]


@numba.njit
def random_row(state, indices, t, level, n):
    """A uniform row: xorshift64, and a multiplication instead of a division."""
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    state ^= state << np.uint64(17)
    return state, ((state >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32)


def make_kernel(
    projection: Callable[..., Any], *, given: bool = False, fastmath: bool = False
) -> Callable[..., np.ndarray]:
    """A compiled kernel with the projection and the source of rows built in."""
    compiled = numba.njit(fastmath=fastmath, error_model="numpy")
    project = compiled(projection)
    pick = given_row if given else random_row

    @compiled
    def kernel(rows, indices, steps, seed, beta, lr, risk, delta):
        n, d = rows.shape
        state = np.uint64(seed)
        keep = ONE - beta
        w = np.full(d, ONE / F32(d), np.float32)
        old = w.copy()
        moved = w.copy()

        # The start: one row per level. y and z are the tracked mean and variance, v1 the tracked
        # gradient of the mean, (v2y, v2) that of the variance with respect to y and x.
        state, k = pick(state, indices, 0, 0, n)
        v1 = rows[k].copy()
        y = ZERO
        for i in range(d):
            y += v1[i] * w[i]
        state, k = pick(state, indices, 0, 1, n)
        v2 = rows[k].copy()
        e = ZERO
        for i in range(d):
            e += v2[i] * w[i]
        e -= y
        z = e * e
        v2y = -TWO * e
        for i in range(d):
            v2[i] *= TWO * e

        for t in range(1, steps + 1):
            slope = HALF * risk / np.sqrt(z + delta)
            pull = slope * v2y - ONE
            for i in range(d):
                old[i] = w[i]
                moved[i] = w[i] - lr * (pull * v1[i] + slope * v2[i])
            project(moved, w)

            state, k = pick(state, indices, t, 0, n)
            r = rows[k]
            new_dot = ZERO
            old_dot = ZERO
            for i in range(d):
                new_dot += r[i] * w[i]
                old_dot += r[i] * old[i]
                v1[i] = r[i] + keep * (v1[i] - r[i])
            old_y = y
            y = new_dot + keep * (y - old_dot)

            state, k = pick(state, indices, t, 1, n)
            r = rows[k]
            new_dot = ZERO
            old_dot = ZERO
            for i in range(d):
                new_dot += r[i] * w[i]
                old_dot += r[i] * old[i]
            new_e = new_dot - y
            old_e = old_dot - old_y
            z = max(new_e * new_e + keep * (z - old_e * old_e), ZERO)
            v2y = -TWO * new_e + keep * (v2y + TWO * old_e)
            for i in range(d):
                v2[i] = TWO * new_e * r[i] + keep * (v2[i] - TWO * old_e * r[i])
        return w

    def run(
        rows: np.ndarray,
        settings: Settings,
        *,
        steps: int | None = None,
        indices: np.ndarray | None = None,
        seed: int = 1,
    ) -> np.ndarray:
        """The weights after ``steps`` random steps, or after all given rows."""
        if indices is None:
            indices = np.zeros((0, 2), np.int64)
        else:
            steps = len(indices) - 1
        return kernel(rows, indices, steps, seed, *map(F32, settings))

    return run
