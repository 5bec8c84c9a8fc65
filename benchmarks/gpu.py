"""Thousands of lanes on one accelerator: nanoseconds per lane and step through ``nx.sweep``.

    PYTHONPATH=src:benchmarks python benchmarks/gpu.py [--keep]

The portfolio has 30 assets, batch 1, float32, 21 settings and 400 or 1,600 seeds. Every
configuration is timed at two lengths after a first call that compiles, and the difference counts.
None is begun after --budget seconds. At the end stands which are slower than on the same device in
benchmarks/results/gpu.json; if there are any, or one fails, the exit code is 1. With --keep the numbers
are written there instead, after every configuration. Nothing but nestax and what it needs is imported.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import nestax as nx
from kept import SLOWER, Verdict, compare
from nestax.loop import plan
from portfolio import ASSETS, PERIODS, Settings
from script import KEPT, SMALL, folder, parser, results, size

RESULTS = "gpu.json"
STRIDE = size(512, small=8)
ROUNDS = size(4, small=1)
ROWS = size(PERIODS, small=500)
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


def measure(problem: nx.Problem, case: Case, strides: int) -> dict[str, Any]:
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
            record_every=STRIDE,
        )

    plan.AHEAD_STEPS = case.ahead
    short = STRIDE
    long = strides * STRIDE
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


def judge(report: dict[str, Any]) -> Verdict:
    """A device has no rival to be compared with, so nanoseconds are, on the device that they are of."""
    path = KEPT / RESULTS
    kept = json.loads(path.read_text()) if path.exists() else {}
    if kept.get("device") != report["device"]:
        return Verdict([f"not compared: the kept numbers are those of {kept.get('device')}"], False)
    return compare(nanoseconds(kept), nanoseconds(report), SLOWER)


def nanoseconds(report: dict[str, Any]) -> dict[str, float]:
    """Per lane and step, by configuration."""
    return {
        ", ".join(f"{key} {case[key]}" for key in Case._fields): case["nanoseconds"]
        for case in report["cases"]
        if "nanoseconds" in case
    }


def main() -> None:
    known = parser(__doc__)
    known.add_argument("--keep", action="store_true", help="write the numbers instead of judging them")
    known.add_argument(
        "--ahead", type=int, nargs="+", default=size([64, 256], small=[4]), help="draws ahead"
    )
    known.add_argument(
        "--seeds", type=int, nargs="+", default=size([400, 1_600], small=[2]), help="per setting"
    )
    known.add_argument("--strides", type=int, default=size(17, small=3), help="of the longer run")
    known.add_argument("--budget", type=float, default=360, help="seconds")
    arguments = known.parse_args()

    sys.stdout.reconfigure(line_buffering=True)
    begin = time.perf_counter()
    rows = nx.datasets.synthetic_returns(ROWS, ASSETS).astype(np.float32)
    problem = nx.problems.mean_deviation(rows, risk=Settings().risk, delta=Settings().delta)
    device = jax.devices()[0].device_kind
    print(f"{device}, jax {jax.__version__}, {ASSETS} assets, batch 1, float32")
    print_row(*COLUMNS)
    report: dict[str, Any] = {"device": device, "jax": jax.__version__, "cases": []}
    for case in cases(arguments.seeds, arguments.ahead):
        if time.perf_counter() - begin > arguments.budget:
            print(f"stopped after {arguments.budget:g} seconds")
            break
        try:
            result = measure(problem, case, arguments.strides)
            print_case(case, result)
        except Exception as error:
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            print(f"{case}: {result['error']}")
        report["cases"].append(case._asdict() | result)
        if arguments.keep or folder():
            results(RESULTS).write_text(json.dumps(report, indent=2) + "\n")
    print(f"took {time.perf_counter() - begin:.0f} seconds")
    verdict = judge(report)
    print(*verdict.lines, sep="\n")
    failed = any("error" in case for case in report["cases"])
    if failed or (verdict.slower and not (arguments.keep or SMALL)):
        sys.exit(1)


if __name__ == "__main__":
    main()
