"""Timers and meters of the benchmarks.

Everything runs on one core and one thread, so CPU time is what the wall clock would show on an
idle machine, and unlike the wall clock it does not count the time given to other programs. Both are
kept.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}
XLA_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"


class Cost(NamedTuple):
    """Microseconds per step."""

    cpu: float
    wall: float


class Timed(NamedTuple):
    """Something to time: ``run(steps)`` for ``lanes`` lanes, at two lengths."""

    run: Callable[[int], Any]
    short: int
    long: int
    lanes: int = 1


def on_one_thread() -> None:
    """Starts the running script again on one core with one thread, unless that has happened."""
    if os.environ.get("NESTAX_ONE_THREAD"):
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    flags = f"{os.environ.get('XLA_FLAGS', '')} {XLA_ONE_THREAD}".strip()
    environment = os.environ | ONE_THREAD | {"XLA_FLAGS": flags, "NESTAX_ONE_THREAD": "1"}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def compare(contenders: dict[str, Timed], rounds: int) -> dict[str, Cost]:
    """The cost of every contender per lane and step, fixed costs and compilation excluded.

    The contenders take turns, so that a disturbance hits all of them, and the least of all rounds
    counts.
    """
    for one in contenders.values():
        one.run(one.short), one.run(one.long)
    least: dict[tuple[str, int], np.ndarray] = {}
    for _ in range(rounds):
        for name, one in contenders.items():
            for steps in (one.short, one.long):
                took = _time(lambda one=one, steps=steps: one.run(steps))
                least[name, steps] = np.minimum(least.get((name, steps), np.inf), took)
    costs = {}
    for name, one in contenders.items():
        took = least[name, one.long] - least[name, one.short]
        cpu, wall = took / (one.long - one.short) / one.lanes * 1e6
        costs[name] = Cost(float(cpu), float(wall))
    return costs


def _time(run: Callable[[], Any]) -> np.ndarray:
    cpu = time.process_time()
    wall = time.perf_counter()
    run()
    return np.array([time.process_time() - cpu, time.perf_counter() - wall])


def exponent(sizes: list[int], costs: list[float]) -> float:
    """The slope of log cost against log size."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


class Memory(NamedTuple):
    """Bytes: scratch space of the compiled loop, its data (arguments), and what it carries."""

    temporary: int
    data: int
    carry: int


def memory(call: Callable[[], Any]) -> Memory:
    """The memory of the compiled loop that ``call``, a ``minimize`` or ``sweep``, runs."""
    with loop_calls() as calls:
        call()
    loop, arguments = calls[-1]
    analysis = loop.lower(*arguments).compile().memory_analysis()
    data, carry, *_ = arguments
    return Memory(analysis.temp_size_in_bytes, _bytes(data), _bytes(carry))


@contextlib.contextmanager
def loop_calls() -> Iterator[list[tuple[Any, tuple[Any, ...]]]]:
    """Collects nestax's calls of its compiled loop: the function, and (data, carry, …)."""
    import nestax.loop.chunks

    calls = []
    program = nestax.loop.chunks.program

    def noting(fn: Any, *facts: Any, **more: Any) -> Any:
        compiled = program(fn, *facts, **more)

        def noted(*arguments: Any) -> Any:
            calls.append((compiled, arguments))
            return compiled(*arguments)

        return noted if fn.__name__ == "advance" else compiled

    with mock.patch.object(nestax.loop.chunks, "program", noting):
        yield calls


def _bytes(tree: Any) -> int:
    """Bytes of all arrays in a tree, each counted once."""
    import jax

    arrays = {id(x): x for x in jax.tree.leaves(tree)}
    return sum(x.nbytes for x in arrays.values())
