"""What the theorems assume about a problem, observed: Lipschitz constants and noise of every level.

On a convex region every constant is a supremum of something that belongs to one point, so no pair of
points has to be found by luck. With J = ∂f/∂x, and ‖·‖_F the Frobenius norm,

    L_f² = sup max_v ‖E J(x; ξ) v‖²         ℒ_f² = sup max_v E‖J(x; ξ) v‖²
    L_J² = sup max_v ‖E DJ(x; ξ)[v]‖_F²     ℒ_J² = sup max_v E‖DJ(x; ξ)[v]‖_F²
    σ_f² = sup E‖f(x; ξ) − f(x)‖²           σ_J² = sup E‖J(x; ξ) − J(x)‖_F²

over points x and unit vectors v. (An increment is the integral of its derivative along the segment, and
the square is convex; two points that meet show that nothing less would do.) The largest v of such a
quadratic form is found by power iteration, and the supremum becomes a maximum over sampled points.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.rows import Batch
from nestax.draws.source import Population
from nestax.errors import (
    ProblemError,
    SettingError,
    check_count,
    check_seed,
    check_setting,
)
from nestax.parts.estimator import FIRST_WEIGHTS
from nestax.programs import compute
from nestax.table import Table
from nestax.theory import theorems as theory

#: Enough for a few percent of the largest root, from a random vector of some hundred entries.
POWER_ITERATIONS = 16
#: A neighbour lies this share of the way to another point.
NEAR = 0.01
#: Entries of all the drawn Jacobians of one level that are held at a time; several copies are.
MOST_ENTRIES = 2**26


class LevelConstants(NamedTuple):
    """The constants of one level, as ``theory.Constants`` has them; 0 noise if it is deterministic."""

    level: str
    L_f: float
    L_J: float
    sigma_f: float
    sigma_J: float  # noqa: N815
    mean_L_f: float  # noqa: N815
    mean_L_J: float  # noqa: N815


@dataclasses.dataclass(frozen=True)
class ObservedConstants:
    """Result of ``estimate_constants``; print it.

    levels: the constants of every level.
    points, radius: how many points were looked at, and how far from the start they reach.
    notes: sentences about levels whose Jacobian jumps, which the theorems do not cover.
    """

    levels: tuple[LevelConstants, ...]
    points: int
    radius: float
    notes: tuple[str, ...]

    @property
    def constants(self) -> theory.Constants:
        """The largest over the levels, which is what the theorems take."""
        return theory.Constants(len(self.levels), *_worst(self.levels))

    @property
    def table(self) -> Table:
        rows = [*self.levels, ("largest", *_worst(self.levels))]
        return Table(list(LevelConstants._fields), [list(row) for row in rows])

    def __str__(self) -> str:
        where = f"observed at {self.points} points within {self.radius:.3g} of the start"
        return "\n".join([str(self.table), where, *(f"! {note}" for note in self.notes)])

    __repr__ = __str__


def estimate_constants(
    problem: Problem, *, points: int = 64, draws: int = 1024, radius: float | None = None, seed: int = 0
) -> ObservedConstants:
    """Observes the constants of the theorems, level by level: ``.constants`` goes into ``nx.theory``.

    Weights are drawn in the feasible set around the start, at all distances up to ``radius``, and sent
    through the chain of mean values; every level is looked at where they arrive. What is found are the
    largest values at those points. The constants of the theorems are suprema over all inputs and may be
    larger, or infinite; tracked values also leave the exact ones a little, which is not looked at. The
    penalty and the prox of the problem are no part of the levels.

    Args:
        problem: the chain of levels.
        points: how many weights are drawn, at least 2; the start is one of them.
        draws: how many draws of each level, at least 2. A population without row weights that has no
            more rows is used whole, so that expectations are exact. Otherwise L_f and L_J are those of
            a mean over that many draws, too large by up to their noise, sigma_J/√draws for L_f.
        radius: of the region, in the norm of w; None means the larger of 1 and ‖w_0‖.
        seed: for points and draws.
    """
    if not isinstance(problem, Problem):
        raise SettingError(f"the first argument must be an nx.Problem; got {type(problem).__name__}.")
    if problem.blocks is not None:
        raise ProblemError(
            "the constants of the theorems are those of one chain and this problem has blocks: pass "
            "problem.block(m), or problem.every_block()."
        )
    for name, count in (("points", points), ("draws", draws)):
        check_setting(name, check_count(name, count), "at least 2", lambda n: n >= 2)
    check_setting(
        *("radius", radius, "one positive number"),
        lambda r: r.ndim == 0 and r.dtype.kind in "fiu" and 0 < r < np.inf,
    )
    key = jax.random.key(check_seed(seed))
    # NumPy's numbers here: compiling random numbers would take longer than everything else.
    rng = np.random.default_rng(seed)
    start = problem.project(problem.start(jax.random.fold_in(key, FIRST_WEIGHTS)))
    radius = max(1.0, float(optax.tree.norm(start))) if radius is None else float(radius)
    directions = rng.standard_normal((points - 1, problem.shape.size))
    shares = rng.uniform(size=points - 1)
    numbers = (jnp.asarray(x, problem.dtype) for x in (radius, directions, shares))
    x = compute(_weights, problem, start, *numbers)
    levels = []
    notes = []
    for i, level in enumerate(problem.levels):
        batch = _batch(level, jax.random.fold_in(key, i), draws)
        first = jnp.asarray(rng.standard_normal((points, 4, x.shape[1])), problem.dtype)
        # Levels of one kind compile once, whatever they are called.
        squares, x = compute(_observe, level.replace(name=""), x, batch, first)
        roots = {k: float(np.sqrt(np.max(square))) for k, square in jax.device_get(squares).items()}
        if not np.all(np.isfinite([*roots.values()])) or not np.all(np.isfinite(x)):
            raise ProblemError(
                f"level {level.name!r} is not finite, or its Jacobian is not, somewhere within "
                f"{radius:.3g} of the start: give a smaller radius=, or keep its input in its domain."
            )
        if roots["mean_pair"] > 2 * roots["mean_L_J"]:
            notes.append(
                f"level {level.name!r}: its Jacobian changes more between points than its derivative at "
                "points explains: it jumps, so that there is no L_J, or it needs more points."
            )
        levels.append(_constants(level.name, roots))
    return ObservedConstants(tuple(levels), points, radius, tuple(notes))


def _worst(levels: tuple[LevelConstants, ...]) -> list[float]:
    return [max(numbers) for numbers in list(zip(*levels, strict=True))[1:]]


def _constants(name: str, roots: dict[str, float]) -> LevelConstants:
    # A mean-squared constant is never the smaller one, whatever power iteration has left undone.
    L_f = roots["L_f"]
    L_J = max(roots["L_J"], roots["pair"])
    mean_L_f = max(roots["mean_L_f"], L_f)
    mean_L_J = max(roots["mean_L_J"], roots["mean_pair"], L_J)
    return LevelConstants(name, L_f, L_J, roots["sigma_f"], roots["sigma_J"], mean_L_f, mean_L_J)


# Where to look


def _weights(
    problem: Problem,
    start: PyTree,
    radius: Array,
    directions: Float[Array, "n d"],
    shares: Float[Array, " n"],
) -> Float[Array, "n+1 d"]:
    """The start, and weights in all directions from it, at distances of all orders up to the radius.

    A long way projected ends at a corner of the feasible set, a short one inside; as the set is convex,
    what lies beyond the radius can be cut back. Without a projection the linear oracle gives corners.

    shares: in [0, 1), how far to go.
    """
    centre, unravel = ravel_pytree(start)
    corners_only = problem.feasible is None and problem.linear_oracle is not None

    def along(direction: Array, share: Array) -> Array:
        if corners_only:
            oracle: Any = problem.linear_oracle
            move = share * (ravel_pytree(oracle(unravel(direction)))[0] - centre)
        else:
            far = centre + radius * 10 ** (4 * share - 2) * _unit(direction)
            move = ravel_pytree(problem.project(unravel(far)))[0] - centre
        return centre + jnp.minimum(1, radius / _positive(jnp.linalg.norm(move))) * move

    return jnp.concatenate([centre[None], jax.vmap(along)(directions, shares)])


def _batch(level: Level, key: Array, draws: int) -> Batch | None:
    """The draws over which expectations are taken: all rows where that is exact and affordable."""
    source = level.source
    inputs = level.shape.inputs.size
    outputs = level.shape.outputs.size
    size = 1 if source is None else min(draws, source.size or draws)
    most = MOST_ENTRIES // (inputs * outputs)
    if size > most:
        advice = f"lower draws to {most:,}" if most >= 2 else "take a smaller example of the problem"
        raise SettingError(
            f"{size:,} Jacobians of level {level.name!r}, {outputs:,} × {inputs:,} each, are too many "
            f"to hold: {advice}."
        )
    if source is None:
        return None
    if isinstance(source, Population) and source.weights is None and source.size <= draws:
        return source.population()
    return source.draw(key, jnp.asarray(0), draws)


# What is there


def _observe(
    level: Level, points: Float[Array, "n d"], batch: Batch | None, first: Float[Array, "n 4 d"]
) -> tuple[dict[str, Array], Float[Array, "n m"]]:
    """Computes squares of all constants at every point, and the mean values there.

    first: what power iteration starts from, one vector for each of four constants.
    """
    # One point after the other: all Jacobians of all draws at all points would not fit.
    pairs = (points, jnp.roll(points, 1, axis=0), first)
    return jax.lax.map(lambda pair: _look(level, batch, *pair), pairs)


def _look(
    level: Level, batch: Batch | None, x: Array, other: Array, first: Float[Array, "4 d"]
) -> tuple[dict[str, Array], Array]:
    def drawn(x: Array) -> tuple[PyTree, PyTree]:
        """f(x; ξ), and the blocks of J(x; ξ) that are computed, for every draw."""
        inputs = _unravel(level, x)
        if batch is None:
            value, jac = jax.tree.map(lambda y: y[None], level.value_and_jac(inputs, None))
        else:
            value, jac = level.value_and_jac_each(inputs, batch)
        return value, jac.tiles

    (value, jac), along = jax.linearize(drawn, x)

    def forms(v: Float[Array, "4 d"]) -> Float[Array, "4"]:
        slopes = jax.vmap(lambda v: along(v)[0])(v[:2])
        curves = jax.vmap(lambda v: along(v)[1])(v[2:])
        pairs = [jax.tree.map(lambda y, k=k: y[k], tree) for tree in (slopes, curves) for k in (0, 1)]
        squares = (_square_of_mean, _mean_square)
        return jnp.stack([square(pair) for square, pair in zip(squares * 2, pairs, strict=True)])

    largest = _largest(forms, first)

    def change(y: Array) -> tuple[Array, Array]:
        return _between(jac, drawn(y)[1], jnp.sum((y - x) ** 2))

    pair, mean_pair = jax.vmap(change)(jnp.stack([other, x + NEAR * (other - x)]))
    squares = dict(zip(("L_f", "mean_L_f", "L_J", "mean_L_J"), largest, strict=True)) | {
        "sigma_f": _variance(value),
        "sigma_J": _variance(jac),
        "pair": jnp.max(pair),
        "mean_pair": jnp.max(mean_pair),
    }
    return squares, ravel_pytree(jax.tree.map(lambda y: jnp.mean(y, axis=0), value))[0]


def _unravel(level: Level, x: Array) -> PyTree:
    inputs = level.shape.inputs
    parts = jnp.split(x, np.cumsum(inputs.sizes)[:-1])
    shaped = [part.reshape(shape) for part, (shape, _) in zip(parts, inputs.leaves, strict=True)]
    return inputs.treedef.unflatten(shaped)


def _between(first: PyTree, second: PyTree, distance: Array) -> tuple[Array, Array]:
    """‖E(J(x) − J(y))‖²/‖x − y‖² and E‖J(x) − J(y)‖²/‖x − y‖²; 0 where that is rounding only."""
    change = jax.tree.map(jnp.subtract, first, second)
    rounding = (1e3 * jnp.finfo(distance.dtype).eps) ** 2 * _mean_square(first)
    visible = (distance > 0) & (_mean_square(change) > rounding)
    scale = jnp.where(visible, 1 / _positive(distance), 0)
    return scale * _square_of_mean(change), scale * _mean_square(change)


def _largest(forms: Callable[[Array], Array], first: Float[Array, "n d"]) -> Float[Array, " n"]:
    """Computes the largest value of each of n quadratic forms over unit vectors, by power iteration.

    Form k sees row k only, so that the gradient of their sum holds the gradient of each.
    """

    def step(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        values, pull = jax.vjp(forms, jax.vmap(_unit)(state[0]))
        return pull(jnp.ones_like(values))[0], values

    return jax.lax.fori_loop(0, POWER_ITERATIONS, step, (first, first[:, 0]))[1]


def _unit(v: Array) -> Array:
    return v / _positive(jnp.linalg.norm(v))


def _positive(x: Array) -> Array:
    """x, or 1 where it is 0."""
    return jnp.where(x == 0, 1, x)


# Sums over the leaves of trees of draws; a Jacobian without a computed block has no leaf


def _mean_square(tree: PyTree) -> Any:
    """E‖X‖²."""
    return sum(jnp.sum(x * x) / len(x) for x in jax.tree.leaves(tree))


def _square_of_mean(tree: PyTree) -> Any:
    """‖E X‖²."""
    return sum(jnp.sum(jnp.mean(x, axis=0) ** 2) for x in jax.tree.leaves(tree))


def _variance(tree: PyTree) -> Any:
    """E‖X − E X‖²."""
    return sum(jnp.sum(jnp.var(x, axis=0)) for x in jax.tree.leaves(tree))
