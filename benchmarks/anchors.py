"""Memory and time of problems of pairs for many anchors, into docs/ranking.md. About ten minutes.

    python benchmarks/anchors.py

Every case is a process of its own. A step of SOX visits 64 anchors, all held against the same 64 rows.
"held" is what lies in memory between two steps: rows, table and weights. "beside it" is what the
compiled steps need besides; "process" is how much the process has grown, at its most, since JAX was
ready. The time is that of all cores together.
"""

import json
import resource
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import nestax as nx
from blocks import temporary_bytes
from nestax.run.prepare import Budget, prepare
from nestax.table import Table
from pages import fill
from script import SMALL, few, parser, results, size

FEATURES = 16
VISIT = 64
STEPS = size(200, small=4)
ANCHORS = size((1_000, 50_000, 1_000_000), small=(200,))


def perceptron(w, x):
    return jnp.tanh(x @ w["inner"]) @ w["outer"]


def weights(outputs: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {"inner": (FEATURES, 32), "outer": (32, outputs) if outputs > 1 else (32,)}
    return {name: 0.3 * rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def contrastive(n: int) -> nx.Problem:
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((n, FEATURES), np.float32)
    view = lambda: shared + 0.3 * rng.standard_normal((n, FEATURES), np.float32)
    return nx.problems.contrastive(view(), view(), model=perceptron, w0=weights(8), visit=VISIT)


def ranking(build, n: int) -> nx.Problem:
    """As many positive rows as others, so that there are n anchors among 2n rows."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2 * n, FEATURES), np.float32)
    y = np.arange(2 * n) % 2
    X[:, 0] += y
    return build(X, y, model=perceptron, w0=weights(1), visit=VISIT)


PROBLEMS = {
    "contrastive": contrastive,
    "average precision": lambda n: ranking(nx.problems.average_precision, n),
    "partial AUC": lambda n: ranking(nx.problems.partial_auc, n),
}


def most_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name: str, n: int) -> dict[str, float]:
    jax.block_until_ready(jnp.ones(8) + 1)
    before = most_memory()
    problem = PROBLEMS[name](n)
    compiled = prepare(
        problem,
        nx.Method(nx.SOX(0.3, 0.3), optax.sgd(1e-3)),
        Budget(steps=STEPS, batch_size=VISIT, record_every=STEPS, record=["value"]),
        jax.random.key(0),
    ).compiled
    at = compiled.start()
    whole = jax.tree.leaves((problem, at.carry))
    held = {
        id(x): x.nbytes
        for x in whole
        if isinstance(x, jax.Array) and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    }
    compiled.advance(at, 1, STEPS)  # compiles
    took: dict[int, list[float]] = {STEPS: [], 3 * STEPS: []}
    for _ in range(5):
        for steps, times in took.items():
            begin = time.process_time()
            jax.block_until_ready(jax.tree.leaves(compiled.advance(at, 1, steps).after.carry))
            times.append(time.process_time() - begin)
    grown = most_memory() - before
    return {
        "held": sum(held.values()) / 2**20,
        "beside": temporary_bytes(compiled, STEPS) / 2**20,
        "process": grown,
        "step": 1e6 * (min(took[3 * STEPS]) - min(took[STEPS])) / (2 * STEPS),
    }


if __name__ == "__main__":
    words = parser(__doc__)
    words.add_argument("--case", nargs=2, metavar=("PROBLEM", "N"), help="one case, as JSON")
    given = words.parse_args()
    if given.case:
        print(json.dumps(measure(given.case[0], int(given.case[1]))))
        sys.exit()
    rows = []
    for name in few(PROBLEMS):
        for n in ANCHORS:
            call = [sys.executable, __file__, "--case", name, str(n), *(["--small"] if SMALL else [])]
            told = subprocess.run(call, check=True, capture_output=True, text=True).stdout
            one = json.loads(told.splitlines()[-1])
            rows.append([name, n, *one.values()])
            print(*rows[-1], flush=True)
    columns = ["problem", "anchors", "held, MB", "beside it, MB", "process, MB", "CPU µs per step"]
    Table(columns, rows).to_csv(results("anchors.csv"))
    shown = [[name, f"{n:,}", *(f"{x:,.3g}" for x in rest)] for name, n, *rest in rows]
    fill("ranking.md", {"anchors table": Table(columns, shown).to_markdown()})
