"""How many arrays of the size of the weights a run carries, by method: a table of docs/networks.md.

The chain is log E exp of a scalar loss, as in networks; its inner level has one output, so that its
Jacobian is as large as the weights. What a step needs besides while it computes is not counted.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import nestax as nx
from nestax.table import Table
from pages import fill
from script import parser, size

WEIGHTS = 10_000
METHODS = [
    nx.Plain(),
    nx.SCSC(0.5),
    nx.SelfTuning(),
    nx.SelfTuning(derivatives="tracked"),
    nx.NASA(),
    nx.NLASG(),
    nx.AdjointSMVR(0.5),
    nx.AdjointSMVR(0.5, mode="fresh"),
    nx.SMVR(0.5),
    nx.SnapshotSMVR(),
]
CHANGED = {3: '`SelfTuning(derivatives="tracked")`', 7: '`AdjointSMVR(mode="fresh")`'}


def copies(estimator: nx.parts.AbstractEstimator, optimizer: optax.GradientTransformation) -> float:
    """Entries that are carried, each array once, per weight."""
    rows = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    loss = lambda w, r: jnp.exp(jnp.tanh(jnp.mean(w)) * jnp.sum(r))
    levels = [nx.Level(loss, rows, name="exp"), nx.Level(jnp.log, name="log")]
    problem = nx.Problem(levels, jnp.zeros(WEIGHTS, jnp.float32))
    result = nx.minimize(problem, estimator, optimizer, steps=2, batch_size=2, record=[])
    carried = {id(x): x for x in jax.tree.leaves(result.carry.lane)}
    return sum(x.size for x in carried.values()) / WEIGHTS


def main() -> None:
    parser(__doc__).parse_args()
    cells = []
    for k, estimator in enumerate(METHODS[: size(None, small=2)]):
        optimizers = (optax.sgd(0.01), optax.adam(0.01))
        numbers = [f"{copies(estimator, optimizer):.0f}" for optimizer in optimizers]
        cells.append([CHANGED.get(k, f"`{type(estimator).__name__}`"), *numbers])
    table = Table(["method", "with `optax.sgd`", "with `optax.adam`"], cells)
    print(table)
    fill("networks.md", {"copies": table.to_markdown()})


if __name__ == "__main__":
    main()
