"""What whole programs take, what compiles again, what stays in memory: three tables of docs/speed.md.

    python benchmarks/compilations.py              # all; ten minutes and more
    python benchmarks/compilations.py starts       # processes from their start, alone
    python benchmarks/compilations.py calls        # second calls alone
    python benchmarks/compilations.py memory 500   # so many different problems in one process

A compilation is what JAX's own log reports, whatever asked for it. Writes
benchmarks/results/compilations.json and docs/speed.md.
"""

import json
import logging
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import nestax as nx
from nestax.table import Table
from pages import fill
from script import few, parser, results, size

RESULTS = "compilations.json"
#: After so many problems memory is looked at.
MARKS = size((1, 25, 50, 100, 200, 300, 400, 500), small=(1, 2))


class Compilations(logging.Handler):
    """Counts the programs that JAX compiles."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.count = 0
        jax.config.update("jax_log_compiles", True)
        for name in ("jax._src.interpreters.pxla", "jax._src.dispatch"):
            logger = logging.getLogger(name)
            logger.addHandler(self)
            logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().startswith("Compiling")


def portfolio(risk: float = 0.2) -> nx.Problem:
    """That of the README, with functions that are written anew for every call."""
    returns = nx.datasets.synthetic_returns(5_000, 10)
    positive = lambda z: (z[0], z[1].clip(1e-4))
    return nx.Problem(
        levels=[
            nx.Level(lambda x, r: (r @ x, x), data=returns, name="mean"),
            nx.Level(
                lambda yx, r: (yx[0], (r @ yx[1] - yx[0]) ** 2),
                returns,
                project=positive,
                name="variance",
            ),
            nx.Level(lambda z: -z[0] + risk * jnp.sqrt(z[1]), name="utility"),
        ],
        w0=jnp.full(10, 0.1),
        project=nx.projections.simplex,
    )


def run(optimizer: Any, problem: nx.Problem | None = None, steps: int = 2_000, **more: Any) -> None:
    problem = portfolio() if problem is None else problem
    nx.minimize(problem, nx.SMVR(beta=0.1), optimizer, steps=steps, batch_size=16, **more)


def compare(seeds: int) -> None:
    facts: dict[str, Any] = {"samples": 20_000, "batch_size": 16, "tune_seeds": 2, "progress": False}
    nx.compare(portfolio(), ["NLASG", "SMVR"], seeds=seeds, **facts)


#: A first call, and a second one that differs.
CALLS: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
    "the same again": (lambda: run(optax.sgd(0.1)), lambda: run(optax.sgd(0.1))),
    "`optax.sgd`, another learning rate": (lambda: run(optax.sgd(0.1)), lambda: run(optax.sgd(0.03))),
    "`optax.adam`, another learning rate": (lambda: run(optax.adam(0.1)), lambda: run(optax.adam(0.03))),
    "a schedule, another learning rate and length": (
        lambda: run(optax.adam(optax.cosine_decay_schedule(0.1, 2_000))),
        lambda: run(optax.adam(optax.cosine_decay_schedule(0.03, 1_000))),
    ),
    "`inject_hyperparams`, another learning rate": (
        lambda: run(optax.inject_hyperparams(optax.adam)(learning_rate=0.1)),
        lambda: run(optax.inject_hyperparams(optax.adam)(learning_rate=0.03)),
    ),
    "another number of steps": (
        lambda: run(optax.sgd(0.1), steps=2_000),
        lambda: run(optax.sgd(0.1), steps=3_456),
    ),
    "another beta and seed": (
        lambda: run(optax.sgd(0.1)),
        lambda: nx.minimize(
            portfolio(), nx.SMVR(beta=0.3), optax.sgd(0.1), steps=2_000, batch_size=16, seed=7
        ),
    ),
    "`nx.compare` of two methods, another number of seeds": (lambda: compare(3), lambda: compare(12)),
    "another number inside a level": (
        lambda: run(optax.sgd(0.1)),
        lambda: run(optax.sgd(0.1), portfolio(risk=0.5)),
    ),
}


README = (Path(__file__).parent.parent / "README.md").read_text()
PASTED = re.search("```python\n(.*?)```", README, re.DOTALL).group(1)
SPED_UP = f"import nestax\nnestax.speed_up()\n{PASTED}"
COMPARED = """
nx.compare(problem, ["NLASG", "SMVR"], samples=20_000, batch_size=16, tune_seeds=2, seeds=3)
"""
STARTS: dict[str, list[str]] = {
    "README's first example": ["-c", PASTED],
    "the same after `nx.speed_up()`": ["-c", SPED_UP],
    "README's problem, and `nx.compare` of two methods": ["-c", PASTED.split("result =")[0] + COMPARED],
    "`nestax demo`": ["-m", "nestax", "demo"],
}


def starts() -> list[list[Any]]:
    """Seconds of CPU time of whole processes: with an empty folder of compiled programs, and again."""
    rows = []
    for name, words in few(STARTS).items():
        with tempfile.TemporaryDirectory() as place:
            took = []
            for folder in ("first", "second"):
                (Path(place) / folder).mkdir()
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run(
                    [sys.executable, *words],
                    cwd=Path(place) / folder,
                    env=os.environ | {"NESTAX_COMPILED": f"{place}/compiled"},
                    check=True,
                    capture_output=True,
                )
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        rows.append([name, *took])
        print(name, *(f"{x:.2f}" for x in took), flush=True)
    return rows


def second_calls() -> list[list[Any]]:
    """Seconds of CPU time and compilations of a first and of a second call."""
    compilations = Compilations()
    rows = []
    for name, calls in few(CALLS).items():
        jax.clear_caches()
        row: list[Any] = [name]
        for call in calls:
            before = compilations.count
            begin = time.process_time()
            call()
            row += [time.process_time() - begin, compilations.count - before]
        rows.append(row)
        print(name, *(f"{x:.2f}" if isinstance(x, float) else x for x in row[1:]), flush=True)
    return rows


def resident() -> float:
    """Mebibytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def memory(count: int) -> list[list[Any]]:
    """Memory after so many problems, every one with rows and functions of its own."""
    rng = np.random.default_rng(0)
    rows = []
    begin = time.perf_counter()
    for k in range(count):
        width = 2 + k % 7
        shift = float(k)
        problem = nx.Problem(
            [
                nx.Level(lambda w, r, c=shift: jnp.tanh(r @ w) + c, rng.normal(size=(20 + k, width))),
                nx.Level(lambda u, c=shift: (u - c - 0.3) ** 2),
            ],
            w0=jnp.zeros(width),
        )
        nx.minimize(problem, nx.SMVR(beta=0.1), optax.sgd(0.1), steps=20, batch_size=2)
        if k + 1 in MARKS:
            rows.append([k + 1, round(resident())])
            print(*rows[-1], f"{time.perf_counter() - begin:.0f} s", flush=True)
    return rows


def write(found: dict[str, Any]) -> None:
    results(RESULTS).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    parts = {}
    if "starts" in found:
        rows = [[name, f"{a:.1f}", f"{b:.1f}"] for name, a, b in found["starts"]]
        parts["starts"] = Table(["process", "first: s", "again: s"], rows).to_markdown()
    if "calls" in found:
        columns = ["second call", "first: s", "compiled", "second: s", "compiled "]
        rows = [[name, f"{a:.1f}", b, f"{c:.2f}", d] for name, a, b, c, d in found["calls"]]
        parts["second calls"] = Table(columns, rows).to_markdown()
    if "memory" in found:
        marks = [f"{count:,}" for count, _ in found["memory"]]
        parts["memory"] = Table(
            ["problems", *marks], [["MiB", *(f"{size:,}" for _, size in found["memory"])]]
        ).to_markdown()
    fill("speed.md", parts)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument(
        "what", nargs="?", choices=("all", "memory", "starts", "calls"), default="all"
    )
    arguments.add_argument("count", nargs="?", type=int, default=MARKS[-1], help="different problems")
    given = arguments.parse_args()
    earlier = results(RESULTS)
    found = json.loads(earlier.read_text()) if earlier.exists() else {}
    if given.what in ("all", "memory"):  # first, in a process that has done nothing else
        found["memory"] = memory(given.count)
    if given.what in ("all", "starts"):
        found["starts"] = starts()
    if given.what in ("all", "calls"):
        found["calls"] = second_calls()
    write(found)
