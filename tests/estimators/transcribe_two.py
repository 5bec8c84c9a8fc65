"""What several transcriptions share: a chain of two levels, step rules in NumPy, the comparison."""

import numpy as np
from tests.support.compare import assert_same

# Step rules without a feasible set: (c, w, v) ↦ new weights, where c counts from 0


def descent(rate):
    """rate: a number, or a function of c."""
    return lambda c, w, v: w - (rate(c) if callable(rate) else rate) * v


def averaged(lr, tau):
    return lambda c, w, v: w - tau(c) * lr * v


def shrunk(rate, strength):
    """Proximal descent with r(w) = strength·‖w‖₁."""

    def step(c, w, v):
        lr = rate(c) if callable(rate) else rate
        ahead = w - lr * v
        return np.sign(ahead) * np.maximum(np.abs(ahead) - lr * strength, 0)

    return step


def bounded(lr, eps):
    def step(c, w, v):
        move = -lr * v
        return w + min(0.5, lr * eps / np.linalg.norm(move)) * move

    return step


# A transcript has one row (weights, gradient estimate, value) per step


def assert_follows(run, transcript):
    weights, grads, values = zip(*transcript, strict=True)
    assert_same(run.weights, weights)
    assert_same(run.grads, grads)
    assert_same(run.values, values)


def apart(one, other) -> float:
    """How far the last weights of two transcripts are from each other."""
    return np.linalg.norm(one[-1][0] - other[-1][0])
