"""Dense SMVR on the mean-deviation portfolio as a plain NumPy loop, Jacobians as matrices."""

import numpy as np

from portfolio import Settings


def project_simplex(x: np.ndarray) -> np.ndarray:
    """Euclidean projection onto the simplex, by sorting."""
    ordered = np.sort(x)[::-1]
    theta = (np.cumsum(ordered) - 1) / np.arange(1, len(x) + 1, dtype=x.dtype)
    last = np.flatnonzero(ordered > theta)[-1]
    return np.maximum(x - theta[last], 0)


def mean_level(x: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """f_1(x) = (r·x, x) and J_1 = [rᵀ; I]."""
    value = np.concatenate([[r @ x], x])
    return value, np.vstack([r, np.eye(len(x), dtype=x.dtype)])


def variance_level(u: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """f_2(y, x) = (y, (r·x − y)²) and J_2 = [[1, 0], [−2e, 2e·rᵀ]]."""
    e = r @ u[1:] - u[0]
    jac = np.zeros((2, len(u)), u.dtype)
    jac[0, 0] = 1
    jac[1, 0] = -2 * e
    jac[1, 1:] = 2 * e * r
    return np.array([u[0], e * e]), jac


def utility_jac(u: np.ndarray, risk: np.float32, delta: np.float32) -> np.ndarray:
    """J_3 of f_3(y, z) = −y + λ·sqrt(z + δ)."""
    return np.array([[-1, risk / (2 * np.sqrt(u[1] + delta))]], u.dtype)


def smvr(rows: np.ndarray, indices: np.ndarray, settings: Settings) -> np.ndarray:
    """The weights after one step per given pair of rows; the first pair is the start."""
    beta, lr, risk, delta = map(np.float32, settings)
    keep = 1 - beta
    d = rows.shape[1]
    w = np.full(d, 1 / d, rows.dtype)
    u1, J1 = mean_level(w, rows[indices[0, 0]])
    u2, J2 = variance_level(u1, rows[indices[0, 1]])
    for a, b in indices[1:]:
        grad = (utility_jac(u2, risk, delta) @ J2 @ J1)[0]
        old_w = w
        old_u1 = u1
        w = project_simplex(w - lr * grad)

        f_new, J_new = mean_level(w, rows[a])
        f_old, J_old = mean_level(old_w, rows[a])
        u1 = f_new + keep * (u1 - f_old)
        J1 = J_new + keep * (J1 - J_old)

        f_new, J_new = variance_level(u1, rows[b])
        f_old, J_old = variance_level(old_u1, rows[b])
        u2 = f_new + keep * (u2 - f_old)
        J2 = J_new + keep * (J2 - J_old)
        u2[1] = max(u2[1], 0)
    return w
