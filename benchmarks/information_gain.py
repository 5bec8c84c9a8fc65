"""Designs by expected information gain, with few draws a logarithm, into docs/conditional.md. Minutes.

    python benchmarks/information_gain.py

A linear measurement of a Gaussian cause, on a ball, whose gain is known in closed form. Outcomes never
come back, so that no memory can help: plain batches have a bias that only larger batches make less, and
``nx.Multilevel`` has none. Both visit 16 outcomes a step, for 1,000 steps, and draw as often: Multilevel
has half the batch, of which it takes two on average. What is left of the gap between the start and the
best design is a mean over the seeds; the learning rate is chosen on others.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax

import nestax as nx
from nestax.table import Table
from pages import fill
from script import parser, results, size
from tables import with_error

SPREAD = np.asarray([1.0, 0.7, 0.5])
NOISE = 0.6
START = np.asarray([0.3, 0.2, 0.9])
ROWS = size((2, 8, 32), small=(2,))
STEPS = size(1_000, small=10)
RATES = (0.03, 0.1, 0.3)
TUNING = size(3, small=1)
SEEDS = size(10, small=2)


def gain(w: np.ndarray) -> np.ndarray:
    """½ log(1 + wᵀΣw/σ²), of many designs."""
    return np.log1p(np.sum((SPREAD * w) ** 2, axis=-1) / NOISE**2) / 2


def experiment() -> nx.Problem:
    return nx.problems.information_gain(
        lambda key: jnp.asarray(SPREAD) * jax.random.normal(key, (3,)),
        lambda w, cause, key: w @ cause + NOISE * jax.random.normal(key),
        lambda w, cause, outcome: -(((outcome - w @ cause) / NOISE) ** 2) / 2,
        w0=jnp.asarray(START),
        project=lambda w: w / jnp.maximum(1, jnp.linalg.norm(w)),
        visit=16,
    )


def left(method: nx.parts.AbstractEstimator, rows: int) -> list[float]:
    """Shares of the gap at the end, at the rate that is best for other seeds."""
    runs = nx.sweep(
        experiment(),
        lambda s: (method, optax.sgd(optax.linear_schedule(s.lr, 0, STEPS))),
        settings=nx.grid(lr=RATES),
        seeds=TUNING + SEEDS,
        steps=STEPS,
        batch_size=rows,
        init_batch_size=rows,
        record=["value"],
        record_every=STEPS,
        progress=False,
    )
    best = gain(np.asarray([1.0, 0, 0]))
    found = (best - gain(np.asarray(runs.w))) / (best - gain(START))
    chosen = np.argmin(found[:, :TUNING].mean(axis=1))
    return found[chosen, TUNING:].tolist()


if __name__ == "__main__":
    parser(__doc__).parse_args()
    jax.config.update("jax_enable_x64", True)
    kept = {}
    for rows in ROWS:
        kept[str(rows)] = {
            "Plain": left(nx.Plain(), rows),
            "Multilevel": left(nx.Multilevel(), rows // 2),
        }
        print(rows, {name: with_error(np.asarray(of), unit=100) for name, of in kept[str(rows)].items()})
    results("information_gain.json").write_text(json.dumps(kept))
    lines = []
    for rows, found in kept.items():
        plain, ours = (np.asarray(of) for of in found.values())
        lines.append([rows, *(with_error(of, unit=100) for of in (plain, ours))])
        lines[-1].append(with_error(plain - ours, "+", 100))
    columns = ["draws an outcome", "`Plain`, percent left", "`Multilevel`", "difference"]
    fill("conditional.md", {"information gain": Table(columns, lines).to_markdown()})
