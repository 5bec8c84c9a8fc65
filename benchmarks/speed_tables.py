"""The tables of docs/speed.md that show benchmarks/results/cpu.json and gpu.json.

Run it after ``bench.py --keep`` or ``gpu.py --keep``; it measures nothing.
"""

import json

from nestax.table import Table
from pages import fill
from script import KEPT, parser

#: Rows of "one run", in the order of the page.
PROGRAMS = {
    "kernel (Michelot)": "Numba kernel, projection without sorting (Michelot)",
    "kernel (sort)": "Numba kernel, textbook projection by sorting",
    "nestax SMVR": "**nestax** `SMVR`",
    "nestax SMVR, levels as dictionaries": "nestax `SMVR`, levels that return dictionaries",
    "nestax AdjointSMVR": "nestax `AdjointSMVR`",
    "NumPy loop": "NumPy loop",
    "PyTorch loop": "PyTorch loop with `torch.func`",
}
KERNELS = ("kernel (sort)", "kernel (Michelot)")


def short(x: float) -> str:
    """Two digits, and all before the point."""
    return f"{x:,.0f}" if x >= 10 else f"{x:#.2g}"


def time(x: float) -> str:
    return short(x) if x >= 10 else f"{x:.2f}"


def one_run(single: dict) -> Table:
    cost = {name: each["cpu"] for name, each in single["microseconds"].items()}
    if "cpu" in single.get("pytorch", {}):
        cost["PyTorch loop"] = single["pytorch"]["cpu"]
    rows = [
        [words, time(cost[name]), *(short(cost[name] / cost[kernel]) for kernel in KERNELS)]
        for name, words in PROGRAMS.items()
        if name in cost
    ]
    return Table(
        ["program", "µs a step", "against the kernel that sorts", "against the fastest kernel"], rows
    )


def lanes(gpu: dict) -> Table:
    """With as many draws ahead as were measured for all of them."""
    cases = {
        (case["lanes"], case["estimator"], case["project"]): case["nanoseconds"]
        for case in sorted(gpu["cases"], key=lambda case: case["ahead"])
    }
    columns = [("AdjointSMVR", True), ("SMVR", True), ("AdjointSMVR", False)]
    rows = [
        [f"{count:,}", *(short(cases[count, *column]) for column in columns)]
        for count in sorted({count for count, *_ in cases})
    ]
    return Table(["lanes", "`AdjointSMVR`", "`SMVR`", "`AdjointSMVR`, no projection"], rows)


def levels(kept: dict) -> Table:
    cost = {tuple(name.split()): each["cpu"] for name, each in kept["microseconds"].items()}
    depths = [depth for name, depth in cost if name == "SMVR"]
    rows = [
        [f"`{name}`, µs a step and level", *(short(cost[name, k] / int(k)) for k in depths)]
        for name in ("SMVR", "AdjointSMVR")
    ]
    return Table(["levels K", *depths], rows)


def dimension(kept: dict) -> Table:
    sizes = list(kept["microseconds"])
    cost = [short(1e3 * kept["microseconds"][d]["cpu"] / int(d)) for d in sizes]
    used = [kept["bytes"][d] for d in sizes]
    memory = [short((each["temporary"] + each["carry"]) / 1e6) for each in used]
    rows = [["ns a step and weight", *cost], ["temporary memory and carry, MB", *memory]]
    return Table(["weights d, `AdjointSMVR`", *(f"{int(d):,}" for d in sizes)], rows)


def tables(cpu: dict, gpu: dict) -> dict[str, Table]:
    return {
        "one run": one_run(cpu["single"]),
        "lanes": lanes(gpu),
        "levels": levels(cpu["levels"]),
        "dimension": dimension(cpu["dimension"]),
    }


if __name__ == "__main__":
    parser(__doc__).parse_args()
    made = tables(*(json.loads((KEPT / name).read_text()) for name in ("cpu.json", "gpu.json")))
    fill("speed.md", {name: table.to_markdown() for name, table in made.items()})
