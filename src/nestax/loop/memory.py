"""What a run holds against what is free: whether batches are cut, and how. Host arithmetic."""

import math
import sys
from pathlib import Path
from typing import Any

import jax

from nestax.chain.problem import Problem
from nestax.devices.hosts import Hosts
from nestax.errors import SettingError
from nestax.parts.estimator import AbstractEstimator, first_batches

#: Bytes that are worth a thought.
LARGE_BYTES = 2**28
#: How much of the free memory evaluations may take; weights, trackers and draws have the rest.
SHARE = 0.5

#: For every level the most draws that are evaluated at once; None where all of a batch are.
MicroBatch = tuple[int | None, ...]


def parts_that_fit(
    problem: Problem,
    estimator: AbstractEstimator,
    sizes: tuple[int, ...],
    first_sizes: tuple[int, ...],
    lanes: int,
    hosts: Hosts | None = None,
) -> MicroBatch:
    """The largest parts of batches that fit into memory: whole batches, almost always.

    What an evaluation holds is first bounded by all that it makes.

    Args:
        problem: the chain, as the method sees it.
        estimator: with everything filled in.
        sizes, first_sizes: draws per level, of a step and of the start.
        lanes: how many runs there are side by side on a device.
        hosts: the processes that decide alike, by the one with the least memory.
    """
    refresh = estimator.refresh_batch if isinstance(estimator.refresh_batch, int) else 0
    chains = lanes * (1 if problem.blocks is None else problem.blocks.visit)
    drawing = [k for k, level in enumerate(problem.levels) if level.source is not None]
    passes = estimator.level_passes(problem)
    points = {k: max(1, sum(calls.derivatives for calls in passes[k].values())) for k in drawing}
    draws = {k: max(sizes[k] * points[k], first_sizes[k], refresh) for k in drawing}
    draws |= {k: most for k in drawing if (most := problem.levels[k].micro_batch)}
    shapes = {k: problem.levels[k].shape for k in drawing}
    bound = sum(draws[k] * shapes[k].made * (1 + shapes[k].rows) * chains for k in drawing)
    whole: MicroBatch = (None,) * len(problem.levels)
    if bound <= LARGE_BYTES:
        return whole
    dense = _keeps_jacobians(problem, estimator, first_sizes)
    per_draw = {k: problem.levels[k].held() * (shapes[k].rows if dense else 1) * chains for k in drawing}
    free, where = free_memory()
    free = free if hosts is None else hosts.least(free)
    if sum(draws[k] * per_draw[k] for k in drawing) <= SHARE * free:
        return whole
    most = {k: max(sizes[k], first_sizes[k], refresh) for k in drawing}
    return _cut(problem, lanes, points, draws, per_draw, most, free, where)


def _cut(
    problem: Problem,
    lanes: int,
    points: dict[int, int],
    draws: dict[int, int],
    per_draw: dict[int, int],
    batch: dict[int, int],
    free: float,
    where: str,
) -> MicroBatch:
    """Parts that fit into the free memory, and a line about them. They are powers of two, so that they
    are the same again where a little less is free.

    Args:
        points, draws, per_draw: of every level that draws: at how many points of a batch derivatives are
            evaluated, how many draws are evaluated, and the bytes that each holds.
        batch: the draws of its largest batch.
    """
    need = {k: draws[k] * per_draw[k] for k in draws}
    room = SHARE * free / sum(need.values())

    def gib(size: float) -> str:
        return f"{size / 2**30:,.2f} GiB"

    in_runs = f" in {lanes:,} runs" if lanes > 1 else ""
    out: list[int | None] = [None] * len(problem.levels)
    for k in draws:
        most = int(room * draws[k] / points[k])
        if most < 1:
            raise SettingError(
                f"one draw of level {problem.levels[k].name!r} holds {gib(points[k] * per_draw[k])} "
                f"while it is evaluated{in_runs}, and {where} has {gib(free)} free: use jax.checkpoint "
                "inside the level, compute in bfloat16, or take fewer runs at a time."
            )
        most = 2 ** int(math.log2(most))
        if most < batch[k]:
            out[k] = most
    told = [f"{problem.levels[k].name!r} {out[k]:,}" for k in draws if out[k] is not None]
    if told:
        print(
            f"nestax: so many draws at a time, by level: {', '.join(told)}; all at once would hold "
            f"about {gib(sum(need.values()))}{in_runs}, and {where} has {gib(free)} free. Levels "
            "with micro_batch= set other numbers.",
            file=sys.stderr,
        )
    return tuple(out)


def _keeps_jacobians(problem: Problem, estimator: AbstractEstimator, sizes: tuple[int, ...]) -> bool:
    """Whether the rows of Jacobians are computed side by side, as methods do that remember them."""

    def state(key: Any, w: Any) -> Any:
        return estimator.trackers(
            estimator.init(problem, w, first_batches(problem, estimator, key, sizes))[1]
        )

    told = jax.eval_shape(state, jax.random.key(0), problem.shape.structs())
    return told.jac is not None


def free_memory() -> tuple[float, str]:
    """Bytes that the device has left, and its name; infinite where nobody knows."""
    device = jax.local_devices()[0]
    told = device.memory_stats()
    if told:
        return told["bytes_limit"] - told["bytes_in_use"], str(device)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return math.inf, "this machine"
    return 1024 * int(kilobytes), "this machine"
