"""Error bars: what is believed of the trackers of every level, as columns of a record."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import Jacobian, pull_through
from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.parts.gains import Belief
from nestax.parts.remembering import norm

#: Perturbations that the believed error of the gradient is told from.
PROBES = 8
COLUMNS = ("believed_error", "plain_error", "believed_jac_error", "plain_jac_error")

Beliefs = tuple[Belief | None, ...]


def error_bars(
    problem: Problem,
    w: PyTree,
    value: tuple[PyTree, ...],
    jac: tuple[Jacobian | None, ...],
    believed: Beliefs,
    first: Array,
) -> dict[str, Array]:
    """Roots of believed squared errors and of those of plain batches, a number a level.

    0 where a level is exact. NaN where its Jacobian is not tracked, and where no two draws of a value
    have differed so far: an event that no batch has shown may be as large as it likes. Then nothing is
    known of the gradient either. ``first`` is how many draws every level had at the start.
    """
    bars = [_of_level(*level) for level in zip(problem.levels, jac, believed, first, strict=True)]
    columns = {
        name: jnp.stack([jnp.asarray(bar[k], problem.dtype) for bar in bars])
        for k, name in enumerate(COLUMNS)
    }
    known = all(V is not None or belief is None for V, belief in zip(jac, believed, strict=True))
    of_gradient = jnp.full((), jnp.nan, problem.dtype)
    if known:
        unknown = jnp.isnan(columns["believed_error"]).any()
        of_gradient = jnp.where(unknown, of_gradient, _of_gradient(problem, w, value, jac, believed))
    return columns | {"believed_grad_error": of_gradient}


def _of_level(
    level: Level, V: Jacobian | None, belief: Belief | None, first: Array
) -> tuple[Any, Any, Any, Any]:
    """Of the value, as believed and of a plain batch, and of the Jacobian; NaN where it is not kept."""
    if belief is None:
        return 0.0, 0.0, 0.0, 0.0
    values = sum(level.shape.noisy)
    roots = (belief.error, belief.spread)
    of_value = [norm(x[:values]) if values else 0.0 for x in roots]
    if values:
        most = level.source.most  # pyright: ignore[reportOptionalMemberAccess]
        everything_seen = False if most is None else first >= most
        alike = jnp.any(belief.spread[:values] == 0) & ~jnp.asarray(everything_seen)
        of_value = [jnp.where(alike, jnp.nan, x) for x in of_value]
    of_jac = [jnp.nan if V is None else norm(x[values:]) for x in roots]
    return of_value[0], of_value[1], of_jac[0], of_jac[1]


def _of_gradient(
    problem: Problem,
    w: PyTree,
    value: tuple[PyTree, ...],
    jac: tuple[Jacobian | None, ...],
    believed: Beliefs,
) -> Array:
    """Root mean square change of the gradient when every tracker moves by its error bar, at random."""
    tracked: list[Any] = list(zip(value, jac, strict=True))

    def gradient(tracked: list[Any]) -> PyTree:
        inputs = [w, *(u for u, _ in tracked[:-1])]
        pulls = [
            level.value_and_pull(x, None)[1] if level.deterministic else V.pull
            for level, x, (_, V) in zip(problem.levels, inputs, tracked, strict=True)
        ]
        return pull_through(pulls, tracked[-1][0])

    def moved(key: Array) -> list[Any]:
        out: list[Any] = []
        for i, (level, belief) in enumerate(zip(problem.levels, believed, strict=True)):
            if belief is None:
                out.append(tracked[i])
                continue
            leaves, treedef = jax.tree.flatten(tracked[i])
            noisy = level.shape.noisy
            moving = [k for k in range(len(leaves)) if k >= len(noisy) or noisy[k]]
            for k, deviation in zip(moving, belief.error, strict=True):
                x = leaves[k]
                noise = jax.random.normal(jax.random.fold_in(key, 1000 * i + k), x.shape, x.dtype)
                leaves[k] = (x + noise * deviation / x.size**0.5).astype(x.dtype)
            u, V = treedef.unflatten(leaves)
            out.append((level.project(u), V))
        return out

    base = gradient(tracked)

    def squared_change(key: Array) -> Array:
        return optax.tree.norm(optax.tree.sub(gradient(moved(key)), base), squared=True)

    # The same perturbations at every record, so that records differ by what the run did alone; one after
    # the other, for each holds a tree of the size of all trackers.
    return jnp.sqrt(jnp.mean(jax.lax.map(squared_change, jax.random.split(jax.random.key(0), PROBES))))
