"""What a step costs in a chain with blocks: time and memory beside the table, for M blocks, B visited.

The chain is one gradient step on a sinusoid's network of 1-40-40-1 units (d = 1,761 weights) and the
loss after it, tracked by PerBlock(AdjointSMVR(mode="fresh")) in float32. Time per step should grow with
B and not with M; so should memory beside the table.
Writes benchmarks/results/blocks.csv and the table of docs/blocks.md.

    python benchmarks/blocks.py
"""

import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import nestax as nx
from measure import loop_calls
from nestax.loop.chunks import Compiled
from nestax.run.prepare import Budget, prepare
from nestax.table import Table
from pages import fill
from script import parser, results, size

UNITS = (1, 40, 40, 1)
ROWS = 20
BATCH = 10
STEPS = size(100, small=4)
VISITS = size((4, 8, 16), small=(4, 8))
BLOCKS = size((100, 1_000, 10_000), small=(20,))


def predict(w, x):
    """The network with all its weights in one vector."""
    h = x[:, None]
    at = 0
    for k, (ins, outs) in enumerate(itertools.pairwise(UNITS)):
        W = w[at : at + ins * outs].reshape(ins, outs)
        b = w[at + ins * outs : at + ins * outs + outs]
        h = h @ W + b
        at = at + ins * outs + outs
        h = jnp.tanh(h) if k < len(UNITS) - 2 else h
    return h[:, 0]


def loss(w, draws):
    x, y = draws
    return jnp.mean((predict(w, x) - y) ** 2)


def adapt(w, draws):
    return w - 0.01 * jax.grad(loss)(w, draws)


def sinusoids(blocks: int, visit: int) -> nx.Problem:
    """One sinusoid a block, of random amplitude and phase."""
    rng = np.random.default_rng(0)
    amplitude = rng.uniform(0.1, 5, (blocks, 1))
    phase = rng.uniform(0, np.pi, (blocks, 1))
    x = rng.uniform(-5, 5, (2, blocks, ROWS))
    support, query = [(row, amplitude * np.sin(row + phase)) for row in x]
    size = sum(a * b + b for a, b in itertools.pairwise(UNITS))
    levels = [
        nx.Level(adapt, nx.Blocks(support, visit=visit), batched=True, name="adapted"),
        nx.Level(loss, nx.Blocks(query, visit=visit), batched=True, name="loss"),
    ]
    return nx.Problem(levels, w0=jnp.asarray(0.1 * rng.standard_normal(size), jnp.float32))


def compiled(problem: nx.Problem, estimator) -> Compiled:
    run = prepare(
        problem,
        nx.Method(estimator, optax.sgd(1e-3)),
        Budget(steps=STEPS, batch_size=BATCH, record_every=STEPS, record=["value"]),
        jax.random.key(0),
    )
    return run.compiled


def temporary_bytes(run: Compiled, steps: int) -> int:
    """What the compiled steps need beside their arguments and what they return."""
    with loop_calls() as calls:
        run.advance(run.start(), 1, steps)
    program, arguments = calls[-1]
    return program.lower(*arguments).compile().memory_analysis().temp_size_in_bytes


def measure(blocks: int, visit: int) -> list:
    problem = sinusoids(blocks, visit)
    run = compiled(problem, nx.PerBlock(nx.AdjointSMVR(0.3, mode="fresh")))
    at = run.start()
    table = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(at.carry.state))
    run.advance(at, 1, STEPS)  # compiles
    took: dict[int, list[float]] = {STEPS: [], 3 * STEPS: []}
    for _ in range(5):
        for steps, times in took.items():
            begin = time.process_time()
            jax.block_until_ready(run.advance(at, 1, steps).after.carry)
            times.append(time.process_time() - begin)
    # What is paid once a call, such as the copy of the table, falls out of the difference. Time of all
    # cores together, which does not count what else runs on the machine.
    step = (min(took[3 * STEPS]) - min(took[STEPS])) / (2 * STEPS)
    return [blocks, visit, table / 2**20, temporary_bytes(run, STEPS) / 2**20, 1e6 * step]


if __name__ == "__main__":
    parser(__doc__).parse_args()
    rows = []
    for visit in VISITS:
        for blocks in BLOCKS:
            rows.append(measure(blocks, visit))
            print(*rows[-1], flush=True)
    table = Table(["M", "B", "table, MB", "beside it, MB", "CPU µs per step"], rows)
    table.to_csv(results("blocks.csv"))
    shown = Table(table.columns, [[f"{m:,}", b, *(f"{x:,.3g}" for x in rest)] for m, b, *rest in rows])
    fill("blocks.md", {"step table": shown.to_markdown()})
