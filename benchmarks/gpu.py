"""Thousands of lanes on one accelerator: nanoseconds per lane and step through ``nx.sweep``.

    PYTHONPATH=src python benchmarks/gpu.py --out gpu.json
    python benchmarks/gpu.py --small          # a minute on a CPU, to see that it runs

The portfolio has 30 assets, batch 1, float32, 21 settings and 400 or 1,600 seeds. Every
configuration is timed at two lengths after a first call that compiles, and the difference counts.
The numbers are written after every configuration, and none is begun after --budget seconds.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import nestax as nx
from nestax.loop import plan
from portfolio import ASSETS, PERIODS, Settings

STRIDE = 512
ROUNDS = 4
GRID = {"beta": [0.1, 0.5, 0.9], "lr": [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]}
FREE_LR = [1e-5, 2e-5, 3e-5, 4e-5, 5e-5, 7e-5, 1e-4]  # without the simplex larger steps diverge
ESTIMATORS = {"AdjointSMVR": nx.AdjointSMVR, "SMVR": nx.SMVR}


class Case(NamedTuple):
    """One configuration; ``ahead`` is how many steps' draws are made at once, at most."""

    estimator: str
    seeds: int
    project: bool
    ahead: int


def cases(seeds: list[int], ahead: list[int]) -> Iterator[Case]:
    """All configurations, the most interesting first."""
    for project in (True, False):
        for steps in ahead if project else ahead[-1:]:
            for count in seeds:
                for name in ESTIMATORS:
                    yield Case(name, count, project, steps)


def measure(problem: nx.Problem, case: Case, stride: int, strides: int) -> dict[str, Any]:
    """Nanoseconds per lane and step of one configuration, and what compiling it took."""
    if not case.project:
        problem = nx.Problem(problem.levels, problem.w0)
    settings = nx.grid(**(GRID if case.project else GRID | {"lr": FREE_LR}))
    estimator = ESTIMATORS[case.estimator]

    def run(steps: int) -> Any:
        return nx.sweep(
            problem,
            lambda s: (estimator(beta=s.beta), optax.sgd(s.lr)),
            settings=settings,
            seeds=case.seeds,
            steps=steps,
            batch_size=1,
            record=["value"],
            record_every=stride,
        )

    plan.AHEAD_STEPS = case.ahead
    short = stride
    long = strides * stride
    compile_seconds = seconds(lambda: run(short))
    diverged = float(np.mean(run(long).status != nx.Status.SUCCESS))
    least = {short: np.inf, long: np.inf}
    for _ in range(ROUNDS):
        for steps in least:
            least[steps] = min(least[steps], seconds(lambda steps=steps: run(steps)))
    lanes = case.seeds * len(settings["beta"])
    per_step = (least[long] - least[short]) / (long - short)
    return {
        "lanes": lanes,
        "nanoseconds": per_step / lanes * 1e9,
        "microseconds_all_lanes": per_step * 1e6,
        "compile_seconds": compile_seconds,
        "diverged_share": diverged,
    }


def seconds(call: Callable[[], Any]) -> float:
    """Wall time of a call, whatever it returns ready."""
    begin = time.perf_counter()
    jax.block_until_ready(getattr(call(), "w", None))
    return time.perf_counter() - begin


COLUMNS = {
    "estimator": "<12",
    "lanes": ">7",
    "projected": ">10",
    "ahead": ">6",
    "ns per lane, step": ">18",
    "µs, all lanes": ">14",
    "compile s": ">10",
    "% diverged": ">11",
}


def print_row(*cells: Any) -> None:
    print(*(f"{cell:{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True)))


def print_case(case: Case, result: dict[str, Any]) -> None:
    print_row(
        case.estimator,
        f"{result['lanes']:,}",
        "yes" if case.project else "no",
        case.ahead,
        f"{result['nanoseconds']:.3f}",
        f"{result['microseconds_all_lanes']:.2f}",
        f"{result['compile_seconds']:.1f}",
        f"{100 * result['diverged_share']:.1f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the numbers to this file, as JSON")
    parser.add_argument("--ahead", type=int, nargs="+", default=[64, 256], help="draws ahead")
    parser.add_argument("--seeds", type=int, nargs="+", default=[400, 1_600], help="per setting")
    parser.add_argument("--strides", type=int, default=17, help="strides of the longer run")
    parser.add_argument("--budget", type=float, default=360, help="seconds")
    parser.add_argument("--small", action="store_true", help="tiny sizes")
    arguments = parser.parse_args()
    stride = STRIDE
    strides = arguments.strides
    seeds = arguments.seeds
    if arguments.small:
        stride = 64
        strides = 9
        seeds = [2, 4]

    sys.stdout.reconfigure(line_buffering=True)
    begin = time.perf_counter()
    rows = nx.datasets.synthetic_returns(PERIODS, ASSETS).astype(np.float32)
    problem = nx.problems.mean_deviation(rows, risk=Settings().risk, delta=Settings().delta)
    device = jax.devices()[0].device_kind
    print(f"{device}, jax {jax.__version__}, {ASSETS} assets, batch 1, float32")
    print_row(*COLUMNS)
    report: dict[str, Any] = {"device": device, "jax": jax.__version__, "cases": []}
    for case in cases(seeds, arguments.ahead):
        if time.perf_counter() - begin > arguments.budget:
            print(f"stopped after {arguments.budget:g} seconds")
            break
        try:
            result = measure(problem, case, stride, strides)
            print_case(case, result)
        except Exception as error:
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            print(f"{case}: {result['error']}")
        report["cases"].append(case._asdict() | result)
        if arguments.out:
            arguments.out.write_text(json.dumps(report, indent=2) + "\n")
    print(f"took {time.perf_counter() - begin:.0f} seconds")


if __name__ == "__main__":
    main()
