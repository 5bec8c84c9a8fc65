"""Networks through ``nx.minimize`` against loops written by hand in JAX: time, memory, compiling.

    PYTHONPATH=src:benchmarks python benchmarks/networks.py --out FOLDER   # FOLDER/networks.json
    … --models perceptron --batches 128 --methods Plain SCSC  # some of the cases
    … --growth                                                # 1e3 to 1e8 weights, with a figure
    … --read networks.json more.json --write                  # docs/speed.md, from such files
    … --small                                                 # everything tiny, to see that it runs

The loss is λ log E exp(ℓ/λ), robust against shifts of the data, with Adam. Both programs draw the same
rows and are first held against each other. Times are per step, from calls of two lengths in one process,
the programs taking turns: on the clock on the wall, and on a CPU of all cores together. Memory is what
the compiled programs need at most, data included. Compiling is all that comes before the first step,
tracing too. Numbers are written after every case, and none is begun after --budget seconds.
"""

import argparse
import contextlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

import nestax as nx
import nestax.loop.chunks
from measure import Timed, compare
from nestax.figures import COLOURS
from nestax.run.prepare import Budget, as_method, prepare
from nestax.table import Table
from network_loops import BETA, LOOPS, SOFTNESS, in_range, objective
from network_models import CLASSES, NETWORKS, SMALL_NETWORKS, Network, perceptron
from pages import fill, page
from script import parser, results

METHODS: dict[str, Callable[[], Any]] = {
    "Plain": nx.Plain,
    "SCSC": lambda: nx.SCSC(beta=BETA),
    "AdjointSMVR": lambda: nx.AdjointSMVR(beta=BETA),
    "SelfTuning": nx.SelfTuning,
    "SMVR": lambda: nx.SMVR(beta=BETA),
}
RESULTS = "networks.json"
LEARNING_RATE = 1e-3
SEED = 0
#: Rows that are drawn from.
ROWS = 4096
#: How far the two programs may be apart after a few steps, relative to how far they went. On a CPU it is
#: 5e-5 at most, and with a forgetting rate of 0.12 in place of 0.1 more than 3e-3. Other devices
#: multiply matrices with fewer digits.
TOLERANCE = {"cpu float32": 5e-4, "float32": 2e-2, "bfloat16": 0.2}

# Growth: square layers, so that nearly all weights are in few arrays.
GROWTH_WEIGHTS = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8]
GROWTH_BATCH = 16
GROWTH_ROWS = 64
GROWTH_LAYERS = 4
#: How often a step must pass over as many numbers as there are weights. The optimiser reads the
#: gradient, two moments and the weights and writes all but the first: 7. Every forward and every
#: backward pass reads weights, every gradient is written. STORM reads three arrays and writes one.
PASSES = {"Plain": 7 + 2 + 1, "SCSC": 7 + 3 + 1, "AdjointSMVR": 7 + 5 + 2 + 4, "SMVR": 7 + 4 + 2 + 4}


class Case(NamedTuple):
    """One comparison; ``batched`` says how nestax is given the loss, of a draw or of a batch."""

    model: str
    batch: int
    method: str
    batched: bool
    dtype: str


class Programs:
    """Compiles programs ahead of their first call, and keeps what that took and what they need."""

    def __init__(self):
        self.seconds = 0.0
        self.compiled: dict[Any, Any] = {}

    def call(self, key: Any, jitted: Any, *arguments: Any) -> Any:
        if key not in self.compiled:
            begin = time.perf_counter()
            self.compiled[key] = jitted.lower(*arguments).compile()
            self.seconds += time.perf_counter() - begin
        return self.compiled[key](*arguments)

    def peak(self) -> int:
        """Bytes that the largest of the programs needs, with its arguments and results."""

        def of(program: Any) -> int:
            told = program.memory_analysis()
            kept = told.argument_size_in_bytes + told.output_size_in_bytes - told.alias_size_in_bytes
            return kept + told.temp_size_in_bytes

        return max(map(of, self.compiled.values()))


class Hand:
    """A loop of ``network_loops``: so many steps a call, with the state of the last one given away."""

    def __init__(self, network: Network, data: Any, w0: Any, case: Case, steps_per_call: int):
        each = lambda w, draws: jnp.exp(network.losses(w, draws, case.dtype) / SOFTNESS)
        loop = LOOPS[case.method](each, optax.adam(LEARNING_RATE))
        key = jax.random.key(SEED)

        def draw(data: Any, step: Any) -> Any:
            """The rows that nestax's first level draws."""
            own = jax.random.fold_in(jax.random.fold_in(key, 0), step)
            index = jax.random.randint(own, (case.batch,), 0, len(data[1]))
            return jax.tree.map(lambda x: x[index], data)

        def steps(data: Any, state: Any, first: Any) -> Any:
            one = lambda k, state: loop.step(state, draw(data, first + k))
            if steps_per_call == 1:  # XLA is slow with convolutions inside of a loop on a CPU
                return one(0, state)
            return jax.lax.fori_loop(0, steps_per_call, one, state)

        self.programs = Programs()
        self.steps = jax.jit(steps, donate_argnums=1)
        self.steps_per_call = steps_per_call
        self.data = data
        self.at = loop.first
        # A copy, because the state is given away and w0 is needed again.
        start = jax.jit(lambda data, w: loop.start(jax.tree.map(jnp.copy, w), draw(data, 0)))
        self.state = self.programs.call("start", start, data, w0)

    def run(self, steps: int) -> None:
        for _ in range(steps // self.steps_per_call):
            first = jnp.asarray(self.at, jnp.int32)
            self.state = self.programs.call("steps", self.steps, self.data, self.state, first)
            self.at += self.steps_per_call
        jax.block_until_ready(self.state)

    def reached(self) -> dict[str, Any]:
        """Weights, the mean gradient that Adam remembers, and the objective where it is tracked."""
        found = {"w": self.state["w"], "gradient": self.state["optimizer"][0].mu}
        return found | ({"value": objective(self.state["u"])} if "u" in self.state else {})


class Library:
    """The run that ``nx.minimize`` would follow, in chunks of any length and without tracing again."""

    def __init__(self, network: Network, data: Any, w0: Any, case: Case):
        inner = lambda w, draw: jnp.exp(network.losses(w, draw, case.dtype) / SOFTNESS)
        if case.batched:
            inner = lambda w, draws, each=inner: jnp.mean(each(w, draws))
        levels = [
            nx.Level(inner, data, project=in_range, batched=case.batched, name="exponential"),
            nx.Level(objective, name="logarithm"),
        ]
        problem = nx.Problem(levels, w0)
        begin = time.perf_counter()
        self.programs = Programs()
        self.traced = prepare(
            problem,
            as_method(problem, METHODS[case.method](), optax.adam(LEARNING_RATE)),
            Budget(steps=10**6, batch_size=case.batch, init_batch_size=case.batch, record=["value"]),
            jax.random.key(SEED),
        ).compiled
        self.programs.seconds += time.perf_counter() - begin
        with self._noted():
            self.at = self.traced.start()

    def run(self, steps: int) -> None:
        with self._noted():
            self.at = self.traced.advance(self.at, 1, steps).after

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        usual = nestax.loop.chunks.program

        def program(*facts: Any) -> Callable[..., Any]:
            return lambda *arguments: self.programs.call(facts, usual(*facts), *arguments)

        with mock.patch.object(nestax.loop.chunks, "program", program):
            yield

    def reached(self) -> dict[str, Any]:
        carry = self.at.carry
        return {"w": carry.w, "gradient": carry.opt_state[0].mu, "value": carry.estimate.value}


def apart(library: Library, hand: Hand, w0: Any) -> dict[str, float]:
    """How far two programs are apart, relative to the way that they went; on the host."""
    flat = lambda tree: np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
    origin = flat(w0)
    ours = {name: flat(x) for name, x in library.reached().items()}
    distances = {}
    for name, tree in hand.reached().items():
        theirs = flat(tree)
        way = theirs - origin if name == "w" else theirs
        distances[name] = float(np.linalg.norm(ours[name] - theirs) / np.linalg.norm(way))
    return distances


class Bench:
    """Measures cases, and keeps the loop without memory, which all methods are held against."""

    def __init__(self, seconds: float, rounds: int):
        self.seconds = seconds
        self.rounds = rounds
        self.reference: tuple[Any, Hand] | None = None

    def measure(
        self, network: Network, case: Case, rows: int, steps_per_call: int, check: bool = True
    ) -> dict[str, Any]:
        key = jax.random.key(SEED + 1)
        data = jax.jit(network.data, static_argnums=1)(key, rows)
        w0 = jax.jit(network.init)(key)
        library = Library(network, data, w0, case)
        hand = Hand(network, data, w0, case, steps_per_call)
        distances = {}
        for program in (library, hand):
            program.run(max(2, steps_per_call))
        if check:
            distances = apart(library, hand, w0)
            kind = f"{jax.default_backend()} {case.dtype}"
            most = TOLERANCE.get(kind, TOLERANCE[case.dtype])
            wrong = {name: distance for name, distance in distances.items() if not distance < most}
            assert not wrong, f"the programs are apart, relative to how far they went: {wrong}"
        programs = {"nestax": library, "hand": hand}
        if case.method != "Plain":
            programs["reference"] = self._reference(network, data, w0, case, steps_per_call)
        begin = time.perf_counter()
        hand.run(steps_per_call)
        took = time.perf_counter() - begin
        calls = int(np.clip(self.seconds / took, 3, 1000))
        timed = {
            name: Timed(one.run, steps_per_call, calls * steps_per_call)
            for name, one in programs.items()
        }
        costs = compare(timed, self.rounds)
        costs.setdefault("reference", costs["hand"])
        if case.method == "Plain":
            self.reference = (_place(network, case), hand)
        return {
            "weights": sum(x.size for x in jax.tree.leaves(w0)),
            "steps": calls * steps_per_call,
            "apart": distances,
            "microseconds": {name: cost.wall for name, cost in costs.items()},
            "cpu_microseconds": {name: cost.cpu for name, cost in costs.items()},
            "bytes": {name: one.programs.peak() for name, one in programs.items()},
            "compile_seconds": {name: one.programs.seconds for name, one in programs.items()},
        }

    def _reference(self, network: Network, data: Any, w0: Any, case: Case, steps: int) -> Hand:
        place = _place(network, case)
        if self.reference is None or self.reference[0] != place:
            hand = Hand(network, data, w0, case._replace(method="Plain"), steps)
            hand.run(steps)
            self.reference = (place, hand)
        return self.reference[1]


def _place(network: Network, case: Case) -> Any:
    return network, case.batch, case.dtype


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    dtype = "bfloat16" if arguments.bfloat16 else "float32"
    for model in arguments.models:
        for batch in arguments.batches:
            for method in arguments.methods:
                if arguments.small and model != "perceptron" and method != "Plain":
                    continue
                for form in arguments.forms:
                    yield Case(model, batch, method, form == "batch", dtype)


# What is printed and written

COLUMNS = [
    "network",
    "batch",
    "method",
    "by hand: ms",
    "nestax: ms",
    "ratio",
    "to Plain by hand",
    "memory: ratio",
    "compiling: s",
    "by hand: s",
]


def times(case: dict[str, Any], platform: str) -> dict[str, float]:
    """Microseconds a step: on a CPU those of all cores together, which other programs hardly change."""
    return case["cpu_microseconds" if platform == "cpu" else "microseconds"]


def row(case: dict[str, Any], platform: str) -> list[Any]:
    """One line of the table."""
    took = times(case, platform)
    name = case["model"] + (", loss of a batch" if case["batched"] else "")
    return [
        name + (", bfloat16" if case["dtype"] == "bfloat16" else ""),
        case["batch"],
        f"`{case['method']}`",
        f"{took['hand'] / 1e3:.4g}",
        f"{took['nestax'] / 1e3:.4g}",
        f"{took['nestax'] / took['hand']:.2f}",
        f"{took['nestax'] / took['reference']:.2f}",
        f"{case['bytes']['nestax'] / case['bytes']['hand']:.2f}",
        f"{case['compile_seconds']['nestax']:.1f}",
        f"{case['compile_seconds']['hand']:.1f}",
    ]


def write(report: dict[str, Any]) -> None:
    """Fills the parts of docs/speed.md that a report has numbers for."""
    place = "networks" if report["platform"] == "cpu" else f"networks on a {report['platform']}"
    done = [case for case in report["cases"] if "error" not in case]
    parts = {}
    if done:
        parts[place] = Table(COLUMNS, [row(case, report["platform"]) for case in done]).to_markdown()
    if report["growth"]:
        figure = page(f"images/networks-growth-{report['platform']}.png")
        draw_growth(report, figure)
        words = "µs a step against the number of weights, and against what memory allows"
        parts[f"{place}, growth"] = f"![{words}](images/{figure.name})"
    fill("speed.md", parts)


def draw_growth(report: dict[str, Any], path: Path) -> None:
    """Left: µs a step against weights, with what memory allows. Right: nestax over the loop by hand."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for number, method in enumerate(dict.fromkeys(point["method"] for point in report["growth"])):
        points = [point for point in report["growth"] if point["method"] == method]
        points = [point for point in points if "error" not in point]
        weights = [point["weights"] for point in points]
        seen = [times(point, report["platform"]) for point in points]
        took = {who: [one[who] for one in seen] for who in ("nestax", "hand")}
        style = {"color": COLOURS[number], "lw": 1.6}
        left.plot(weights, took["nestax"], "o-", ms=4, label=method, **style)
        left.plot(weights, took["hand"], "--", **style)
        left.plot(weights, [floor(method, d, report["bandwidth"]) for d in weights], ":", **style)
        right.plot(weights, np.divide(took["nestax"], took["hand"]), "o-", ms=4, label=method, **style)
    grey = {"color": "0.35", "lw": 1.6}
    for dash, word in {"-": "nestax", "--": "by hand", ":": "what memory allows"}.items():
        left.plot([], [], dash, label=word, **grey)
    right.axhline(1, color="0.35", lw=0.8)
    left.set_yscale("log")
    left.set_ylabel("µs a step")
    right.set_ylabel("nestax over the loop by hand")
    right.set_ylim(0, None)
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_xlabel("weights")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    left.legend(frameon=False, fontsize=8, ncols=2)
    each = " a core" if report["platform"] == "cpu" else ""
    figure.suptitle(
        f"{report['device']}, {report['bandwidth'] / 1e9:,.0f} GB/s{each}", fontsize="medium"
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def bandwidth(bytes_: int, rounds: int) -> float:
    """Bytes that the device reads and writes per second, adding one to a long array again and again.

    On a CPU per second of one core.
    """
    add = jax.jit(lambda x, n: jax.lax.fori_loop(0, n, lambda _, x: x + 1, x))
    x = jnp.zeros(bytes_ // 4, jnp.float32)
    run = lambda steps: add(x, steps).block_until_ready()
    cost = compare({"copy": Timed(run, 4, 24)}, rounds)["copy"]
    took = cost.cpu if jax.default_backend() == "cpu" else cost.wall
    return 2 * bytes_ / (took * 1e-6)


def floor(method: str, weights: int, bandwidth: float) -> float:
    """µs that a step takes at least, to read and write float32 numbers as often as it must."""
    return PASSES[method] * 4 * weights / bandwidth * 1e6


def grown(weights: float) -> Network:
    """About so many weights in square layers."""
    width = max(2, round((weights / GROWTH_LAYERS) ** 0.5))
    return perceptron(*[width] * (GROWTH_LAYERS + 1), CLASSES)


def growth_cases(arguments: argparse.Namespace) -> Iterator[tuple[Case, Network]]:
    methods = [method for method in arguments.methods if method in PASSES]
    methods = methods[:1] if arguments.small else methods
    for weights in arguments.weights:
        for method in methods:
            dtype = "bfloat16" if arguments.bfloat16 else "float32"
            yield Case(f"{weights:g}", GROWTH_BATCH, method, False, dtype), grown(weights)


class Report:
    """Everything measured so far, printed as it comes and written after every case."""

    def __init__(self, out: Path, begin: float, budget: float):
        device = jax.devices()[0]
        self.out = out
        self.begin = begin
        self.budget = budget
        self.found: dict[str, Any] = {
            "device": device.device_kind,
            "platform": device.platform,
            "jax": jax.__version__,
            "cases": [],
            "growth": [],
        }

    def add(self, kind: str, case: Case, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Measures a case; what goes wrong is part of the report."""
        try:
            result = measure()
        except Exception as error:
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        self.found[kind].append(case._asdict() | result)
        self.out.write_text(json.dumps(self.found, indent=1) + "\n")
        return self.found[kind][-1]

    def late(self) -> bool:
        late = time.perf_counter() - self.begin > self.budget
        if late:
            print(f"stopped after {self.budget:g} seconds")
        return late


def compare_networks(report: Report, bench: Bench, arguments: argparse.Namespace) -> None:
    networks = SMALL_NETWORKS if arguments.small else NETWORKS
    platform = report.found["platform"]
    heavy = platform == "cpu" and not arguments.small
    rows = 64 if arguments.small else ROWS
    widths = [36, *(max(12, len(name) + 1) for name in COLUMNS[1:])]
    line = lambda cells: print(*(f"{c:>{n}}" for c, n in zip(cells, widths, strict=True)))
    line(COLUMNS)
    for case in cases(arguments):
        if report.late():
            return
        # A step of the large ones takes long on a CPU, and by hand convolutions are quick outside of
        # loops only.
        steps = 1 if heavy and case.model != "perceptron" else 4
        run = lambda case=case, steps=steps: bench.measure(networks[case.model], case, rows, steps)
        result = report.add("cases", case, run)
        if "error" not in result:
            line(map(str, row(result, platform)))


def compare_growth(report: Report, bench: Bench, arguments: argparse.Namespace) -> None:
    large = 2**24 if arguments.small else 2**28
    report.found["bandwidth"] = bandwidth(large, bench.rounds)
    print(f"{report.found['bandwidth'] / 1e9:.1f} GB/s")
    print(f"{'weights':>12} {'method':>12} {'nestax: µs':>12} {'by hand':>12} {'floor':>12}")
    for case, network in growth_cases(arguments):
        if report.late():
            break
        # Small networks take microseconds, less than a call.
        steps = 4 if float(case.model) > 1e6 else 64

        def run(case=case, network=network, steps=steps) -> dict[str, Any]:
            return bench.measure(network, case, GROWTH_ROWS, steps, check=False)

        result = report.add("growth", case, run)
        if "error" not in result:
            took = times(result, report.found["platform"])
            least = floor(case.method, result["weights"], report.found["bandwidth"])
            numbers = (took["nestax"], took["hand"], least)
            print(f"{result['weights']:12,} {case.method:>12}", *(f"{x:12,.1f}" for x in numbers))
    if report.found["growth"]:
        draw_growth(report.found, report.out.with_suffix(".png"))


def joined(files: list[Path]) -> dict[str, Any]:
    """Reports of one device as one."""
    reports = [json.loads(file.read_text()) for file in files]
    first, *others = reports
    # What else ran on the machine can only have lowered it.
    first["bandwidth"] = max(report.get("bandwidth", 0.0) for report in reports)
    for other in others:
        for kind in ("cases", "growth"):
            first[kind] += other[kind]
    return first


def main() -> None:
    known = parser(__doc__)
    known.add_argument("--models", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    known.add_argument("--batches", type=int, nargs="+", default=[128, 512])
    known.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    known.add_argument("--forms", nargs="+", choices=["draw", "batch"], default=["draw"])
    known.add_argument("--bfloat16", action="store_true", help="compute in it; weights are float32")
    known.add_argument("--growth", action="store_true", help="numbers of weights instead")
    known.add_argument("--weights", type=float, nargs="+", default=GROWTH_WEIGHTS, help="how many")
    known.add_argument("--seconds", type=float, default=1.0, help="of the longer run, about")
    known.add_argument("--rounds", type=int, default=3)
    known.add_argument("--budget", type=float, default=3600, help="seconds")
    known.add_argument("--read", type=Path, nargs="+", help="reports to take instead of measuring")
    known.add_argument("--write", action="store_true", help="fill docs/speed.md")
    arguments = known.parse_args()
    if arguments.small and arguments.write:
        known.error("numbers of --small mean nothing: leave --write out.")
    if arguments.small:
        arguments.batches = [32]
        arguments.weights = GROWTH_WEIGHTS[:1]
        arguments.seconds = 0.01
        arguments.rounds = 1
        jax.config.update("jax_disable_most_optimizations", True)  # compile quickly rather than well

    sys.stdout.reconfigure(line_buffering=True)
    begin = time.perf_counter()
    if arguments.read:
        found = joined(arguments.read)
    else:
        report = Report(results(RESULTS), begin, arguments.budget)
        found = report.found
        print(f"{found['device']}, jax {found['jax']}")
        bench = Bench(arguments.seconds, arguments.rounds)
        if not arguments.growth or arguments.small:
            compare_networks(report, bench, arguments)
        if arguments.growth or arguments.small:
            compare_growth(report, bench, arguments)
        print(f"took {time.perf_counter() - begin:.0f} seconds")
    if arguments.write:
        write(found)
    if any("error" in case for case in found["cases"] + found["growth"]):
        sys.exit("some cases have no numbers")


if __name__ == "__main__":
    main()
