"""The same portfolios by a cone solver."""

import numpy as np
import pytest


def cone_optimum(returns: np.ndarray, risk: float = 0.2, low: float = 0.0, high: float = 1.0) -> float:
    """The least −mean + risk·deviation, to about 1e-10: beyond that the solver may not get."""
    cp = pytest.importorskip("cvxpy")
    mean, root = returns.mean(axis=0), np.linalg.cholesky(np.cov(returns.T, bias=True))
    x = cp.Variable(len(mean))
    goal = cp.Minimize(-mean @ x + risk * cp.norm(root.T @ x))
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-10)
    bounds = [x >= low] if high >= 1 and low >= 0 else [x >= low, x <= high]
    cp.Problem(goal, [*bounds, cp.sum(x) == 1]).solve(solver="CLARABEL", **tight)
    return float(goal.value)
