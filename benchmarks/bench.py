"""Times nestax against hand-written code, on one core and one thread.

    python benchmarks/bench.py [single] [lanes] [levels] [dimension] [import] [--keep]

prints one table per section and which rows are slower than those of benchmarks/results/cpu.json; if
there are any, it exits with 1. With --keep the numbers are written there instead. A PyTorch row is
measured with the interpreter in NESTAX_TORCH_PYTHON, or with this one if it has PyTorch.
"""

import argparse
import importlib.util
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kept import compare_section
from measure import Cost, Timed, compare, exponent, memory, on_one_thread
from script import KEPT, SMALL, folder, parser, results, size

HERE = Path(__file__).parent
RESULTS = "cpu.json"
SMALL_LOOPS = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=100000000"
STRIDE = size(6_400, small=64)  # steps between records of a single run: records do not count
NESTAX_STEPS = (STRIDE, 21 * STRIDE)
KERNEL_STEPS = size((10_000, 610_000), small=(10, 610))
ROUNDS = size(20, small=1)
CHECKED_STEPS = size(50, small=2)


# Problems


def returns() -> Any:
    import numpy as np

    from nestax import datasets
    from portfolio import ASSETS, PERIODS

    return datasets.synthetic_returns(PERIODS, ASSETS).astype(np.float32)


def portfolio(rows: Any, project: bool = True) -> Any:
    """nestax's ready-made portfolio problem, levels as tuples."""
    from nestax import problems
    from portfolio import Settings

    problem = problems.mean_deviation(rows, risk=Settings().risk, delta=Settings().delta)
    return problem if project else _without_projection(problem)


def _without_projection(problem: Any) -> Any:
    import nestax as nx

    return nx.Problem(problem.levels, problem.w0)


def portfolio_of_dicts(rows: Any) -> Any:
    """The same chain with levels that return dictionaries."""
    import jax.numpy as jnp

    import nestax as nx
    from portfolio import Settings

    def variance(u, r):
        return {"mean": u["mean"], "variance": (r @ u["x"] - u["mean"]) ** 2}

    return nx.Problem(
        [
            nx.Level(lambda x, r: {"mean": r @ x, "x": x}, rows, name="mean"),
            nx.Level(
                variance,
                rows,
                project=lambda u: u | {"variance": jnp.maximum(u["variance"], 0)},
                name="variance",
            ),
            nx.Level(
                lambda u, risk, delta: -u["mean"] + risk * jnp.sqrt(u["variance"] + delta),
                args=(Settings().risk, Settings().delta),
                name="utility",
            ),
        ],
        w0=jnp.full(rows.shape[1], 1 / rows.shape[1], rows.dtype),
        project=nx.projections.simplex,
    )


def tanh_chain(levels: int, size: int = 10) -> Any:
    """``levels`` levels: u ↦ tanh(Au + noise) and, last, half the squared distance to a draw."""
    import jax.numpy as jnp
    import numpy as np

    import nestax as nx

    rng = np.random.default_rng(0)
    rows = rng.standard_normal((1_000, size), np.float32)
    inner = [
        nx.Level(
            lambda u, r, A: jnp.tanh(A @ u + 0.1 * r),
            rows,
            args=(rng.standard_normal((size, size), np.float32) / size**0.5,),
        )
        for _ in range(levels - 1)
    ]
    outer = nx.Level(lambda u, r: 0.5 * jnp.sum((u - r) ** 2), rows)
    return nx.Problem([*inner, outer], w0=jnp.ones(size, jnp.float32))


def wide_chain(size: int) -> Any:
    """Two levels on ``size`` weights: w·(1 + noise), then half the mean square."""
    import jax.numpy as jnp
    import numpy as np

    import nestax as nx

    noise = 0.1 * np.random.default_rng(0).standard_normal(1_000, np.float32)
    return nx.Problem(
        [
            nx.Level(lambda w, r: w * (1 + r), noise, name="scale"),
            nx.Level(lambda u: 0.5 * jnp.sum(u**2) / size, name="square"),
        ],
        w0=jnp.ones(size, jnp.float32),
    )


def nestax_run(
    problem: Any, estimator: Any, lr: float, stride: int, **options: Any
) -> Callable[[int], Any]:
    """``run(steps)`` through the public function, with as few records as it makes."""
    import optax

    from nestax import ConvergenceWarning, minimize

    options = {"batch_size": 1, "record": ["value"], "record_every": stride} | options

    def run(steps: int) -> Any:
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # batches of one row
            result = minimize(problem, estimator, optax.sgd(lr), steps=steps, **options)
        assert result.status.name == "SUCCESS", result.message  # or replays would be timed
        return result

    return run


# One run


def single() -> dict[str, Any]:
    """One run of 30 assets, batch 1, float32."""
    import numpy as np

    import nestax as nx
    from kernel import make_kernel, michelot_projection, no_projection, sort_projection
    from numpy_loop import smvr as numpy_smvr
    from portfolio import Settings, random_indices

    rows = returns()
    settings = Settings()
    free = settings._replace(lr=1e-4)  # without the simplex larger steps can diverge
    indices = random_indices(2_000)
    with_nestax = lambda problem, estimator, lr=settings.lr: Timed(
        nestax_run(problem, estimator, lr, STRIDE), *NESTAX_STEPS
    )
    with_kernel = lambda projection, settings=settings, **options: Timed(
        _kernel_run(make_kernel(projection, **options), rows, settings), *KERNEL_STEPS
    )
    smvr = nx.SMVR(beta=settings.beta)
    adjoint = nx.AdjointSMVR(beta=settings.beta)
    costs = compare(
        {
            "kernel (Michelot)": with_kernel(michelot_projection),
            "kernel (sort)": with_kernel(sort_projection),
            "kernel (Michelot, fast-math)": with_kernel(michelot_projection, fastmath=True),
            "nestax SMVR": with_nestax(portfolio(rows), smvr),
            "nestax SMVR, levels as dictionaries": with_nestax(portfolio_of_dicts(rows), smvr),
            "nestax AdjointSMVR": with_nestax(portfolio(rows), adjoint),
            "NumPy loop": Timed(
                lambda steps: numpy_smvr(rows, indices[: steps + 1], settings), 200, 2_000
            ),
        },
        ROUNDS,
    )
    unprojected = compare(
        {
            "kernel": with_kernel(no_projection, free),
            "nestax SMVR": with_nestax(portfolio(rows, project=False), smvr, free.lr),
            "nestax AdjointSMVR": with_nestax(portfolio(rows, project=False), adjoint, free.lr),
        },
        ROUNDS,
    )
    flagged = small_loops()
    path, given = nestax_path(rows, settings)
    torch = torch_row(rows, settings, given)
    differences = agreement(rows, settings, path, given)
    if "w" in torch:
        differences["PyTorch loop"] = float(np.abs(np.asarray(torch["w"]) - path[-1]).max())
    _print_single(costs, unprojected, flagged, torch)
    table = _table("Same draws, same trajectory", "implementation", "largest difference of weights")
    for name, difference in differences.items():
        table.add_row(name, f"{difference:.1e}")
    _show(table, f"float32, over {CHECKED_STEPS} steps of nestax SMVR; PyTorch: after the last.")
    return {
        "microseconds": _plain(costs),
        "microseconds_unprojected": _plain(unprojected),
        "small_loops_compiled_whole": _plain(flagged),
        "pytorch": {k: v for k, v in torch.items() if k != "w"},
        "largest_difference": differences,
    }


def _kernel_run(kernel: Any, rows: Any, settings: Any) -> Callable[[int], Any]:
    return lambda steps: kernel(rows, settings, steps=steps)


def fastest_kernel() -> dict[str, Timed]:
    """What sections without a rival of their own are compared with."""
    from kernel import make_kernel, michelot_projection
    from portfolio import Settings

    run = _kernel_run(make_kernel(michelot_projection), returns(), Settings())
    return {"kernel (Michelot)": Timed(run, *KERNEL_STEPS)}


def small_loops() -> dict[str, Cost]:
    """nestax and the kernel in a process whose XLA compiles the whole loop into one function."""
    flags = f"{os.environ['XLA_FLAGS']} {SMALL_LOOPS}"
    command = [sys.executable, __file__, "--small-loops", *(["--small"] if SMALL else [])]
    done = subprocess.run(
        command, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True, check=True
    )
    return {name: Cost(**cost) for name, cost in json.loads(done.stdout).items()}


def small_loops_child() -> None:
    """What ``small_loops`` runs: prints costs as JSON."""
    import nestax as nx
    from kernel import make_kernel, michelot_projection, sort_projection
    from portfolio import Settings

    rows = returns()
    settings = Settings()
    contenders = {
        name: Timed(_kernel_run(make_kernel(fn), rows, settings), *KERNEL_STEPS)
        for name, fn in {
            "kernel (Michelot)": michelot_projection,
            "kernel (sort)": sort_projection,
        }.items()
    }
    for name, estimator in {
        "nestax SMVR": nx.SMVR(beta=settings.beta),
        "nestax AdjointSMVR": nx.AdjointSMVR(beta=settings.beta),
    }.items():
        run = nestax_run(portfolio(rows), estimator, settings.lr, STRIDE)
        contenders[name] = Timed(run, *NESTAX_STEPS)
    print(json.dumps(_plain(compare(contenders, ROUNDS))))


def torch_row(rows: Any, settings: Any, indices: Any) -> dict[str, Any]:
    """What the PyTorch script prints, or why there is nothing."""
    import numpy as np

    python = os.environ.get("NESTAX_TORCH_PYTHON")
    if python is None and importlib.util.find_spec("torch") is None:
        return {"missing": "not installed"}
    with tempfile.TemporaryDirectory() as folder:
        case = Path(folder) / "case.npz"
        np.savez(case, rows=rows, indices=indices, settings=np.array(settings))
        command = [python or sys.executable, str(HERE / "torch_loop.py"), str(case)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"missing": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout)


def nestax_path(rows: Any, settings: Any) -> tuple[Any, Any]:
    """nestax's weights after 1, 2, … steps, and the rows that it drew, start included."""
    import jax
    import numpy as np

    import nestax as nx

    problem = portfolio(rows)
    estimator = nx.SMVR(beta=settings.beta)
    run = nestax_run(problem, estimator, settings.lr, 1, init_batch_size=1)
    result = run(1)
    path = []
    for _ in range(CHECKED_STEPS):
        path.append(np.asarray(result.w))
        again = nestax_run(problem, estimator, settings.lr, 1, start=result.carry)
        result = again(1)
    drawn = [
        [batch["value"].index[0] for batch in batches[:2]]
        for batches in (
            nx.draw_batches(problem, estimator.passes, jax.random.key(0), step, (1, 1, 0))
            for step in range(CHECKED_STEPS + 1)
        )
    ]
    return np.stack(path), np.asarray(drawn, np.int64)


def agreement(rows: Any, settings: Any, path: Any, indices: Any) -> dict[str, float]:
    """Largest difference between nestax's weights and those of the other loops, over all steps."""
    import numpy as np

    from kernel import make_kernel, michelot_projection, sort_projection
    from numpy_loop import smvr as numpy_smvr

    michelot = make_kernel(michelot_projection, given=True)
    sort = make_kernel(sort_projection, given=True)
    others = {
        "kernel (Michelot)": lambda given: michelot(rows, settings, indices=given),
        "kernel (sort)": lambda given: sort(rows, settings, indices=given),
        "NumPy loop": lambda given: numpy_smvr(rows, given, settings),
    }
    return {
        name: max(
            float(np.abs(run(indices[: step + 1]) - w).max()) for step, w in enumerate(path, start=1)
        )
        for name, run in others.items()
    }


def _print_single(
    costs: dict[str, Cost],
    unprojected: dict[str, Cost],
    flagged: dict[str, Cost],
    torch: dict[str, Any],
) -> None:
    table = _table(
        "One run: 30 assets, batch 1, float32",
        "implementation",
        "µs per step",
        "÷ kernel (Michelot)",
        "÷ kernel (sort)",
    )

    def row(name: str, cost: Cost, kernels: dict[str, Cost]) -> None:
        ratios = [cost.cpu / kernels[f"kernel ({k})"].cpu for k in ("Michelot", "sort")]
        table.add_row(name, _number(cost.cpu), *map(_number, ratios))

    for name, cost in costs.items():
        row(name, cost, costs)
    for name in ("nestax SMVR", "nestax AdjointSMVR"):
        row(f"{name}, small loops compiled whole (XLA flag)", flagged[name], flagged)
    if "cpu" in torch:
        row("PyTorch loop", Cost(torch["cpu"], torch["wall"]), costs)
    else:
        table.add_row("PyTorch loop", torch["missing"])
    plain = costs["nestax SMVR"]
    dictionaries = costs["nestax SMVR, levels as dictionaries"]
    _show(table, f"Dictionaries cost {dictionaries.cpu / plain.cpu:.2f} times tuples.")

    table = _table("The same without a projection", "implementation", "µs per step", "÷ kernel")
    for name, cost in unprojected.items():
        ratio = cost.cpu / unprojected["kernel"].cpu
        table.add_row(name, _number(cost.cpu), _number(ratio))
    _show(table)


# Many runs


def lanes() -> dict[str, Any]:
    """420 runs side by side: 21 settings × 20 seeds."""
    import optax

    import nestax as nx
    from kernel import make_kernel, michelot_projection, sort_projection
    from nestax import sweep
    from portfolio import Settings

    rows = returns()
    seeds = size(20, small=2)
    stride = size(200, small=4)
    problem = portfolio(rows)
    settings = nx.grid(beta=[0.1, 0.5, 0.9], lr=[0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
    each = [Settings(b, lr) for b, lr in zip(*settings.values(), strict=True)]

    def with_nestax(estimator: Any) -> Timed:
        run = lambda steps: sweep(
            problem,
            lambda s: (estimator(beta=s.beta), optax.sgd(s.lr)),
            settings=settings,
            seeds=seeds,
            steps=steps,
            batch_size=1,
            record=["value"],
            record_every=stride,
        )
        return Timed(run, stride, 5 * stride, len(each) * seeds)

    def with_kernel(projection: Any) -> Timed:
        kernel = make_kernel(projection)
        run = lambda steps: [kernel(rows, one, steps=steps) for one in each]
        return Timed(run, *size((1_000, 21_000), small=(10, 210)), len(each))

    ours = {
        "nestax SMVR": with_nestax(nx.SMVR),
        "nestax AdjointSMVR": with_nestax(nx.AdjointSMVR),
    }
    kernels = {
        "kernel (Michelot)": with_kernel(michelot_projection),
        "kernel (sort)": with_kernel(sort_projection),
    }
    costs = compare(kernels | ours, ROUNDS)
    used = {name: memory(lambda one=one: one.run(one.short)) for name, one in ours.items()}

    table = _table(
        "420 runs side by side: 21 settings × 20 seeds",
        "implementation",
        "µs per lane and step",
        "÷ kernel (Michelot)",
        "÷ kernel (sort)",
        "temporary MB",
        "data + carry MB",
    )
    for name, cost in costs.items():
        ratios = [_number(cost.cpu / costs[kernel].cpu) for kernel in kernels]
        sizes = []
        if name in used:
            m = used[name]
            sizes = [f"{m.temporary / 1e6:.2f}", f"{m.data / 1e6:.2f} + {m.carry / 1e6:.2f}"]
        table.add_row(name, _number(cost.cpu), *ratios, *sizes)
    _show(table, "Kernels: mean over the 21 settings, one lane after the other.")
    return {
        "microseconds": _plain(costs),
        "bytes": {name: m._asdict() for name, m in used.items()},
    }


# How cost grows


def levels() -> dict[str, Any]:
    """Cost against the number of levels."""
    import nestax as nx

    depths = size([3, 6, 12, 30], small=[2, 3])
    stride = size(256, small=4)
    contenders = fastest_kernel()
    for name, estimator in {"SMVR": nx.SMVR(), "AdjointSMVR": nx.AdjointSMVR()}.items():
        for depth in depths:
            run = nestax_run(tanh_chain(depth), estimator, 0.01, stride)
            contenders[f"{name} {depth}"] = Timed(run, stride, stride * (1 + 480 // depth))
    costs = compare(contenders, ROUNDS)

    table = _table(
        "Chains of 10-dimensional tanh levels, batch 1, float32",
        "levels",
        "SMVR, µs per step",
        "per level",
        "AdjointSMVR, µs per step",
        "per level",
    )
    for depth in depths:
        cells = []
        for name in ("SMVR", "AdjointSMVR"):
            cost = costs[f"{name} {depth}"].cpu
            cells += [_number(cost), _number(cost / depth)]
        table.add_row(str(depth), *cells)
    slopes = {}
    for label, cheap in {"exponent": 0, "exponent without the last level": 1}.items():
        slopes[label] = {
            name: exponent([k - cheap for k in depths], [costs[f"{name} {k}"].cpu for k in depths])
            for name in ("SMVR", "AdjointSMVR")
        }
        cells = [f"{slope:.2f}" for slope in slopes[label].values()]
        table.add_row(label, cells[0], "", cells[1], "")
    _show(table, "The last level is a scalar and costs little.")
    return {"microseconds": _plain(costs), **slopes}


def dimension() -> dict[str, Any]:
    """Cost and memory of the matrix-free method against the number of weights."""
    import nestax as nx

    sizes = size([1_000, 10_000, 100_000, 1_000_000], small=[100, 1_000])
    weights = size(4_000_000, small=1_000)
    contenders = {}
    for d in sizes:
        stride = max(4, weights // d)
        run = nestax_run(wide_chain(d), nx.AdjointSMVR(), 0.1, stride)
        contenders[str(d)] = Timed(run, stride, 17 * stride)
    costs = compare(fastest_kernel() | contenders, ROUNDS)
    used = {name: memory(lambda one=one: one.run(one.short)) for name, one in contenders.items()}

    table = _table(
        "AdjointSMVR on two levels, batch 1, float32",
        "weights",
        "µs per step",
        "ns per weight",
        "temporary MB",
        "carry MB",
        "carry ÷ weights",
    )
    for d in sizes:
        cost = costs[str(d)].cpu
        m = used[str(d)]
        table.add_row(
            f"{d:,}",
            _number(cost),
            _number(1e3 * cost / d),
            f"{m.temporary / 1e6:.3f}",
            f"{m.carry / 1e6:.3f}",
            f"{m.carry / (4 * d):.1f}",
        )
    slopes = {
        "microseconds": exponent(sizes, [costs[str(s)].cpu for s in sizes]),
        "bytes": exponent(sizes, [used[str(s)].temporary + used[str(s)].carry for s in sizes]),
    }
    table.add_row("exponent", f"{slopes['microseconds']:.2f}", "", f"{slopes['bytes']:.2f}")
    _show(table, "The exponent of memory is that of temporary and carry together.")
    return {
        "microseconds": _plain(costs),
        "bytes": {name: m._asdict() for name, m in used.items()},
        "exponent": slopes,
    }


# Start-up


def imports() -> dict[str, Any]:
    """Seconds until a fresh process has nestax, against JAX and Optax alone."""
    programs = {
        "import jax, optax": "import jax, optax",
        "python alone": "pass",
        "import nestax; nestax.minimize": "import nestax; nestax.minimize",
        "import nestax": "import nestax",
    }
    least = dict.fromkeys(programs, Cost(float("inf"), float("inf")))
    for _ in range(size(5, small=1)):
        for name, program in programs.items():
            took = _process_seconds(program)
            least[name] = Cost(*map(min, least[name], took))
    base = least["import jax, optax"]
    table = _table("Start-up of a fresh process", "program", "CPU seconds", "÷ import jax, optax")
    for name, cost in least.items():
        table.add_row(name, f"{cost.cpu:.3f}", f"{cost.cpu / base.cpu:.2f}")
    help_imports = help_without_jax()
    _show(table, f"nestax --help: {help_imports}")
    return {"seconds": _plain(least), "help": help_imports}


def _process_seconds(program: str) -> tuple[float, float]:
    usage = lambda: resource.getrusage(resource.RUSAGE_CHILDREN)
    before = usage()
    wall = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    wall = time.perf_counter() - wall
    after = usage()
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall


def help_without_jax() -> str:
    """Whether the command line shows its help without JAX."""
    program = (
        "import sys\n"
        "from nestax.cli import main\n"
        "sys.argv = ['nestax', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('loaded' if 'jax' in sys.modules else 'absent')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode:
        return f"does not run ({done.stderr.strip().splitlines()[-1]})"
    loaded = done.stdout.split()[-1] == "loaded"
    return "imports JAX" if loaded else "does not import JAX"


# Output


def _table(title: str, *columns: str) -> Any:
    from rich.table import Table

    table = Table(title=title)
    table.add_column(columns[0])
    for name in columns[1:]:
        table.add_column(name, justify="right")
    return table


def _show(table: Any, caption: str = "") -> None:
    from rich.console import Console

    table.caption = caption
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _number(x: float) -> str:
    """Three figures, without an exponent."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def _plain(costs: dict[str, Cost]) -> dict[str, dict[str, float]]:
    return {name: cost._asdict() for name, cost in costs.items()}


def machine() -> dict[str, str]:
    """Versions, and the processor."""
    import importlib.metadata

    packages = ("jax", "jaxlib", "numba", "numpy", "optax", "equinox")
    info = {name: importlib.metadata.version(name) for name in packages}
    return info | {"python": platform.python_version(), "processor": _processor()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    facts = {key.strip(): fact.strip() for key, _, fact in (line.partition(":") for line in lines)}
    if "model name" not in facts:
        return platform.processor()
    # Virtual machines give processors of several years the same name.
    return f"{facts['model name']}, family {facts.get('cpu family')}, model {facts.get('model')}"


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def save(name: str, section: dict[str, Any]) -> None:
    """Writes a section that ran; those measured earlier stay as they are."""
    path = results(RESULTS)
    path.write_text(json.dumps(read(path) | {name: section}, indent=2) + "\n")


SECTIONS = {
    "single": single,
    "lanes": lanes,
    "levels": levels,
    "dimension": dimension,
    "import": imports,
}


def main() -> None:
    known = parser(__doc__)
    known.add_argument("section", nargs="*", help=f"{', '.join(SECTIONS)}; all by default")
    known.add_argument("--keep", action="store_true", help="write the numbers instead of judging them")
    known.add_argument("--small-loops", action="store_true", help=argparse.SUPPRESS)
    arguments = known.parse_args()
    unknown = set(arguments.section) - set(SECTIONS)
    if unknown:
        known.error(f"no section is called {', '.join(sorted(unknown))}")
    on_one_thread()
    if arguments.small_loops:
        small_loops_child()
        return
    earlier = read(KEPT / RESULTS)
    verdicts = {}
    for name in arguments.section or SECTIONS:
        section = {"machine": machine()} | SECTIONS[name]()
        verdicts[name] = compare_section(earlier.get(name, {}), section)
        if arguments.keep or folder():
            save(name, section)
    for name, verdict in verdicts.items():
        print(f"{name}:", *verdict.lines, sep="\n    ")
    if not (arguments.keep or SMALL) and any(verdict.slower for verdict in verdicts.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
