"""Means that few rows carry, of which batches without these rows know nothing."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.rows import Here
from nestax.draws.source import Population
from nestax.parts.estimator import Batches
from nestax.parts.plug_in import plug_in
from nestax.parts.remembering import norm
from nestax.programs import compute

#: The largest batch that is suggested.
LARGEST_BATCH = 1024
#: Few rows carry a mean if they are no more than these, or fewer than one in the largest batch.
FEW = 32
#: As long as they are a smaller share of all rows than this.
RARE = 0.01
#: Larger populations are looked at by draws alone.
MOST_MEMBERS = 2**20


def levels_with_few(problem: Problem, w: PyTree, batches: Batches) -> dict[str, "Carried"]:
    """Returns the levels whose mean few rows carry, by name."""
    carried = {
        level.name: Carried(np.asarray(rows), _is_population(level))
        for level, rows in zip(problem.levels, compute(_contributions, problem, w, batches), strict=True)
        if rows is not None
    }
    return {name: rows for name, rows in carried.items() if rows.few}


class Carried(NamedTuple):
    """What every row adds to F through the mean of a level, without its sign.

    members: whether these are all rows of a population; draws otherwise.
    """

    parts: np.ndarray
    members: bool

    @property
    def size(self) -> int:
        return len(self.parts)

    @property
    def shares(self) -> np.ndarray:
        """The largest first; NaN if nothing can be told."""
        parts = -np.sort(-self.parts.astype(np.float64))
        with np.errstate(invalid="ignore"):
            return parts / parts.sum()

    @property
    def effective(self) -> float:
        """How many equal rows would be as noisy a mean."""
        return float(1 / np.sum(self.shares**2))

    @property
    def few(self) -> bool:
        return self.effective < min(max(FEW, self.size / LARGEST_BATCH), RARE * self.size)

    def sentence(self, name: str) -> str:
        some = math.ceil(self.effective)
        percent = min(99, math.floor(100 * self.shares[:some].sum()))
        rows = "rows" if self.members else "draws looked at"
        carry, them = ("carries", "it") if some == 1 else ("carry", "them")
        exact = ", or all rows at times, nx.Exact() or nx.SnapshotSMVR()" if self.members else ""
        return (
            f"level {name!r}: {some} of {self.size:,} {rows} {carry} {percent} % of its mean; batches "
            f"without {them} look free of noise, and no memory of means helps: take a weaker tilt (a "
            f"larger penalty or temperature), larger batches, weights that draw {them} "
            f"more often{exact}."
        )


def _is_population(level: Level) -> bool:
    source = level.source
    if not isinstance(source, Population) or not isinstance(source.holder, Here):
        return False
    return source.size <= MOST_MEMBERS


def _contributions(problem: Problem, w: PyTree, batches: Batches) -> list[Array | None]:
    """What every row adds to F through every level, to first order; None where rows have no values."""
    values, pulls = plug_in(problem, w, batches)
    inputs = [w, *values[:-1]]
    adjoint = jnp.ones_like(values[-1])
    out: list[Array | None] = []
    levels = zip(problem.levels, batches, inputs, pulls, strict=True)
    for level, batch, x, pull in reversed(list(levels)):
        known = None if level.batched or level.deterministic else batch["value"]
        if known is not None and _is_population(level):
            known = level.source.population()  # pyright: ignore[reportOptionalMemberAccess]
        out.append(None if known is None else _parts(level, x, known, adjoint))
        adjoint = pull(adjoint)
    return out[::-1]


def _parts(level: Level, x: PyTree, rows: Any, adjoint: PyTree) -> Array:
    """Σ|p·f(x; row)| for every row, over the outputs that see it, in a unit of its own."""
    noisy = level.shape.noisy
    # Only shares are asked for, and in a unit of its own no adjoint is too small.
    size = norm(adjoint)
    unit = jnp.where(size > 0, size, 1)
    slopes = [p / unit for p, sees in zip(jax.tree.leaves(adjoint), noisy, strict=True) if sees]

    def of_row(k: Array) -> Array:
        values = jax.tree.leaves(level.value(x, rows.part(k, 1)))
        noisy_values = [v for v, sees in zip(values, noisy, strict=True) if sees]
        pairs = zip(slopes, noisy_values, strict=True)
        return sum((jnp.sum(jnp.abs(p * v)) for p, v in pairs), start=jnp.zeros(()))

    parts = jax.lax.map(of_row, jnp.arange(rows.size), batch_size=256)
    return parts if rows.weights is None else parts * rows.weights
