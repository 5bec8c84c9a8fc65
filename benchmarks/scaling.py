"""How much faster more devices are, for lanes and for rows, and where that ends: docs/many-devices.md.

Devices are cores of this processor: ``python benchmarks/scaling.py``. Weak scaling gives every device as
much as one had, strong scaling shares it. Efficiency is what a step costs one device over what it costs
all of them, divided by their number in strong scaling. Every number of devices is a process of its own.
"""

import json
import math
import os
import subprocess
import sys
import time
from typing import Any

from script import SMALL, parser, results, size

DEVICES = (1, 2, 4, 8, 16)
SETTINGS = size(256, small=16)
ROWS = size(10_000_000, small=6_400)
COLUMNS = 8
#: Steps of the shorter and of the longer run of a pair, whose difference is what is measured.
STEPS = {"lanes": size((1_000, 5_000), small=(10, 20)), "rows": size((2, 8), small=(1, 2))}
#: What a network between machines has, for the model: seconds a message, bytes a second (100 Gbit/s).
LATENCY = 5e-6
BANDWIDTH = 12.5e9


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--one", nargs=3, metavar=("WHAT", "COUNT", "MANY"))
    chosen = options.parse_args()
    if chosen.one:
        what, count, many = chosen.one
        print(json.dumps(measure(what, int(count), int(many))))
        return
    cores = len(os.sched_getaffinity(0))
    path = results("scaling.json")
    rows = json.loads(path.read_text())["rows"] if path.exists() and not SMALL else []
    done = {(row["what"], row["kind"], row["devices"]) for row in rows}
    for what, whole in {"lanes": SETTINGS, "rows": ROWS}.items():
        for kind in ("weak", "strong"):
            for count in [0, *(n for n in DEVICES if n <= max(2, cores))]:
                if (what, kind, count) in done:
                    continue
                many = share(what, kind, whole, count)
                rows.append({"what": what, "kind": kind, "devices": count} | one(what, count, many))
                path.write_text(json.dumps({"cores": cores, "rows": rows}, indent=1) + "\n")
    print(table(rows))
    print(model(rows))


def share(what: str, kind: str, whole: int, count: int) -> int:
    """How many settings or rows a run has; 0 devices stand for a run without a mesh."""
    if what == "lanes":
        return whole * max(count, 1) if kind == "weak" else 4 * whole
    return whole // 16 * max(count, 1) if kind == "weak" else whole


def one(what: str, count: int, many: int) -> dict[str, Any]:
    """A measurement in a process of its own, on as many cores as devices."""
    flags = f"--xla_force_host_platform_device_count={max(count, 1)}"
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    arguments = [what, str(count), str(many), *(["--small"] if SMALL else [])]
    cores = sorted(os.sched_getaffinity(0))[: max(count, 1)]
    done = subprocess.run(
        [sys.executable, __file__, "--one", *arguments],
        env=env,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measure(what: str, count: int, many: int) -> dict[str, Any]:
    """Seconds a step: the difference of two runs of one program, so that nothing else counts."""
    run = {"lanes": lanes, "rows": rows_of}[what](count or None, many)
    short, long = STEPS[what]
    run(short)  # compiles
    best = math.inf
    for _ in range(2):
        times = []
        for steps in (short, long):
            begin = time.perf_counter()
            run(steps)
            times.append(time.perf_counter() - begin)
        best = min(best, times[1] - times[0])
    return {"many": many, "seconds": best / (long - short)}


def lanes(mesh: int | None, many: int) -> Any:
    import numpy as np
    import optax

    import nestax as nx

    problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(10_000, 30))
    settings = {"lr": np.geomspace(1e-3, 1e-1, many)}
    build = lambda s: (nx.SMVR(beta=0.1), optax.sgd(s.lr))
    facts = {"settings": settings, "seeds": 1, "batch_size": 4, "record": ("value",), "devices": mesh}
    return lambda steps: nx.sweep(problem, build, steps=steps, record_every=STEPS["lanes"][0], **facts)


def rows_of(mesh: int | None, many: int) -> Any:
    import numpy as np
    import optax

    import nestax as nx

    returns = np.random.default_rng(0).normal(size=(many, COLUMNS)).astype(np.float32)
    problem = nx.problems.mean_deviation(returns).replace(exact=None)
    facts = {"record_every": STEPS["rows"][0], "record": ("value",), "batch_size": 1, "devices": mesh}
    return lambda steps: nx.minimize(problem, nx.Exact(), optax.sgd(0.01), steps=steps, **facts)


def efficiency(rows: list[dict[str, Any]], row: dict[str, Any], base: int) -> float:
    """Against ``base`` devices: 1, or 0 for a run without a mesh."""
    same = lambda r: (r["what"], r["kind"]) == (row["what"], row["kind"])
    first = next(r for r in rows if same(r) and r["devices"] == base)
    return first["seconds"] / row["seconds"] / (row["devices"] if row["kind"] == "strong" else 1)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| what | scaling | devices | settings or rows | ms a step | efficiency | against no mesh |"
    ]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        if row["devices"]:
            told = [efficiency(rows, row, 1), efficiency(rows, row, 0)]
            cells = [row["what"], row["kind"], row["devices"], f"{row['many']:,}"]
            cells += [f"{1e3 * row['seconds']:.3g}", *(f"{x:.2f}" for x in told)]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def model(rows: list[dict[str, Any]]) -> str:
    """A full pass over the rows on up to 1,024 devices of a network, from what one device takes here.

    Two passes a level, values and derivatives, each of which gathers max(64, n) sums of d + 2 numbers.
    """
    alone = next(r for r in rows if (r["what"], r["kind"], r["devices"]) == ("rows", "strong", 1))
    lines = ["| devices | computes, ms | gathers, ms | efficiency |", "| --- | --- | --- | --- |"]
    for count in (2**k for k in range(0, 11, 2)):
        compute = alone["seconds"] / count
        size = max(64, count) * (COLUMNS + 2) * 4
        gather = 0.0 if count == 1 else 4 * (LATENCY * math.log2(count) + size / BANDWIDTH)
        share = compute / (compute + gather)
        lines.append(f"| {count:,} | {1e3 * compute:.3g} | {1e3 * gather:.3g} | {share:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
