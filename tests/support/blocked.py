"""Chains with blocks: their rows in NumPy, and hand-driven runs on them."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from tests.support.cases import NumpyLevel, noisy, without_range
from tests.support.drive import BATCH, STEPS

import nestax as nx

M = 5
B = 2
LR = 0.05


class Blocked(NamedTuple):
    """A problem with blocks, its levels in NumPy, and one NumPy tree of rows per block and level."""

    problem: nx.Problem
    levels: tuple[NumpyLevel, ...]
    rows: list[list[Any]]
    lr: float = LR


def blocked(
    name: str = "three_levels", *, visit: int = B, blocks: int = M, outer=True, ranges=True, **options
) -> Blocked:
    """The chain of that name with rows of its own in every block, shifted from block to block.

    outer: whether the outermost level draws; ranges: whether levels know the range of their values.
    """
    case = noisy(name) if ranges else without_range(noisy(name))
    rng = np.random.default_rng(3)
    rows = []
    levels = []
    drawn = case.problem.levels if outer else case.problem.levels[:-1]
    for level in drawn:
        rows.append([_rows(rng, level.source.data) for _ in range(blocks)])
        source = nx.Blocks(rows[-1], visit=visit, **options)
        onto = level.onto if ranges else None
        levels.append(nx.Level(level.fn, source, name=level.name, project=onto))
    known = case.levels
    if not outer:
        exact = jax.tree.map(lambda x: np.asarray(x[0]), case.problem.levels[-1].source.data)
        fn = case.problem.levels[-1].fn
        levels.append(nx.Level(lambda u: fn(u, exact), name="exact"))
        last = case.levels[-1]
        known = (
            *known[:-1],
            NumpyLevel(lambda u: last.value(u, *_draw(exact)), lambda u: last.jac(u, *_draw(exact))),
        )
    return Blocked(nx.Problem(levels, case.problem.w0), known, rows)


def _rows(rng: np.random.Generator, data: Any) -> Any:
    """The rows in another order, and shifted, so that blocks are independent of each other."""
    order = rng.permutation(len(jax.tree.leaves(data)[0]))
    return jax.tree.map(lambda x: np.asarray(x)[order] + 0.3 * rng.standard_normal(x.shape), data)


def _draw(row: Any) -> tuple:
    return tuple(np.asarray(x) for x in jax.tree.leaves(row))


def drive_blocks(case: Blocked, estimator, *, steps: int = STEPS, lr: float = LR, seed: int = 1):
    """Weights, estimates, states and visits of a run with plain descent."""
    problem, sizes = case.problem, (BATCH,) * len(case.problem.levels)
    estimator = estimator.defaults(problem, steps, sizes)
    key = jax.random.key(seed)

    @eqx.filter_jit
    def draw(step):
        return nx.draw_batches(problem, estimator, key, step, sizes)

    init, update = eqx.filter_jit(estimator.init), eqx.filter_jit(estimator.update)
    first = nx.draw_batches(problem, estimator, key, 0, sizes, every_block=estimator.blocks == "table")
    w = problem.w0
    estimate, state = init(problem, w, first)
    out = [(w, estimate, state, first)]
    for step in range(1, steps + 1):
        w = w - lr * estimate.grad
        batches = draw(jnp.asarray(step))
        estimate, state = update(problem, w, batches, state)
        out.append((w, estimate, state, batches))
    return [list(column) for column in zip(*out, strict=True)]


def draws_of(case: Blocked, batches, place: int) -> tuple[int, list[dict]]:
    """The block at one place among those visited, and per level and pass its rows as NumPy draws."""
    blocks = [np.asarray(v.blocks) for batch in batches for v in batch.values() if v is not None]
    assert all(np.array_equal(b, blocks[0]) for b in blocks)
    block, out = int(blocks[0][place]), []
    for i, batch in enumerate(batches):
        picked = {}
        for name, visit in batch.items():
            if visit is None:
                picked[name] = [()]
                continue
            picked[name] = [
                _draw(jax.tree.map(lambda x, k=k: x[k], case.rows[i][block]))
                for k in np.asarray(visit.index)[place]
            ]
        out.append(picked)
    return block, out


def visited_count(batches) -> int:
    return next(len(v.blocks) for batch in batches for v in batch.values() if v is not None)
