"""The update rules, as pure functions on trees. Values and Jacobians are tracked by the same line."""

import jax
from jaxtyping import Array, PyTree


def storm(new: PyTree, keep: Array | float, tracked: PyTree, old: PyTree) -> PyTree:
    """STORM: ``g(x_t;ξ) + keep·(tracked − g(x_{t−1};ξ))``, the same draw ξ at both points.

    Exact for ever, for every ``keep``, if g carries no noise and the start was exact. Where tracked
    and old are one array, as for a component that a level hands on, nothing needs to be computed.
    Reference: Cutkosky and Orabona, NeurIPS 2019.
    """
    return jax.tree.map(lambda n, t, o: n if t is o else n + keep * (t - o), new, tracked, old)


def average(tracked: PyTree, weight: Array | float, new: PyTree) -> PyTree:
    """Moving average: ``(1 − weight)·tracked + weight·new``. Stays in the hull of what it has seen."""
    return jax.tree.map(lambda t, n: t + weight * (n - t), tracked, new)


def storm_of_blocks(
    new: PyTree, keep: Array | float, tracked: PyTree, old: PyTree, blocks: int, visit: int
) -> PyTree:
    """MSVR: STORM where g moves in all of M blocks at every step and only B of them are visited.

    ``(1 − γ)·tracked + γ·g(x_t;ξ) + γ'·(g(x_t;ξ) − g(x_{t−1};ξ))`` with γ = 1 − keep and γ' =
    (M − B)/(B(1 − γ)) + 1 − γ: the difference of one step stands for the steps since the last visit.
    Reference: Jiang, Li, Wang, Zhang and Yang, NeurIPS 2022.
    """
    more = (blocks - visit) / (visit * keep)
    return jax.tree.map(lambda u, n, o: u + more * (n - o), storm(new, keep, tracked, old), new, old)
