"""What the noise of tracked values does to a tilted classifier, and learning rates beyond the paper's.

    python benchmarks/tilted_noise.py          # results/tilted_noise.csv and the page; needs NESTAX_DATA
    python benchmarks/tilted_noise.py --page   # only the table of docs/tilted-results.md, from that file

Splits are others than those that ``python -m experiments term`` tunes on and reports. F falls with the
length of the weights, so what a run ends at is how far it has come. A batch plugged into the logarithm
gives a gradient of another length than the true one: ``pull`` is the mean over batches of the plug-in
gradient along the true one, as a multiple of it, at the end of the full gradient's run. It also gives
the rare class another weight.
"""

import csv
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nestax.run.sweep import grid
from nestax.table import Table
from pages import fill
from script import KEPT, SMALL, parser, results, size

from experiments import tilted
from experiments.sets import two_classes

FIRST_SEED = 2_000_000
SPLITS = size(8, small=2)
BATCHES = size(20_000, small=500)
STEPS = size(tilted.STEPS, small=tilted.RECORDS)
RATES = (1.0, 2.0, 5.0)
METHODS = ("SCSC", "SMVR")
COLUMNS = [
    "set",
    "method",
    "lr",
    "beta",
    "F",
    "length of w",
    "rare %",
    "overall %",
    "gradient error",
    "pull",
    "rare weight",
    "in batches",
]


#: Rows of the page: method, learning rate, forgetting rate.
SHOWN = [
    (tilted.FULL, "1.0", "–"),
    *((method, "1.0", beta) for beta in ("0.1", "0.9") for method in METHODS),
    *((method, "2.0", "0.9") for method in METHODS),
    ("SMVR", "2.0", "0.1"),
]


def page() -> Table:
    """F, error of the gradient and accuracy on the rare class, of what is kept."""
    with (KEPT / "tilted_noise.csv").open(newline="") as file:
        found = {
            (row["set"], row["method"], row["lr"], row["beta"]): row for row in csv.DictReader(file)
        }
    sets = list(dict.fromkeys(name for name, *_ in found))
    rows = []
    for method, lr, beta in SHOWN:
        each = [found[name, method, lr, beta] for name in sets]
        words = (
            f"`{method}`, lr {float(lr):g}, β {beta}" if beta != "–" else f"{method}, lr {float(lr):g}"
        )
        rows.append([words, *map(cell, each)])
    return Table(["F, gradient error, rare %", *sets], rows)


def cell(row: dict[str, str]) -> str:
    error = float(row["gradient error"])
    return f"{float(row['F']):.4f}, {error:.3f}, {float(row['rare %']):.1f}".replace(" 0.000,", " 0,")


def main() -> None:
    rows = []
    for name, (X, y) in two_classes(full=not SMALL).items():
        X = tilted.features(X)
        seeds = [FIRST_SEED + k for k in range(SPLITS)]
        lanes = [tilted.Lane(seed, tilted.split_rows(X, y, seed)) for seed in seeds]
        runner = tilted.Runner(tilted.BATCH_SIZE, STEPS)
        full = [tilted.full_descent(lane.problem(), jnp.asarray(STEPS)) for lane in lanes]
        biases = np.asarray([bias(lane, w) for lane, w in zip(lanes, full, strict=True)])
        print(f"{name}: pull {biases[:, 0].min():.3f} to {biases[:, 0].max():.3f}", flush=True)
        at_end = [*ends(lanes, full), 0.0, *map(float, biases.mean(axis=0))]
        rows.append([name, tilted.FULL, tilted.FULL_STEP, "–", *at_end])
        for method in METHODS:
            contender = tilted.CONTENDERS[method]
            settings = grid(lr=RATES, beta=contender.values)
            runs = [runner.run(contender, settings, lane) for lane in lanes]
            for k, (lr, beta) in enumerate(zip(*settings.values(), strict=True)):
                error = np.mean([run.records["grad_error"][k, 0, -10:] for run in runs])
                measured = ends(lanes, [run.w[k, 0] for run in runs])
                rows.append([name, method, float(lr), float(beta), *measured, float(error), *["–"] * 3])
        jax.clear_caches()
    Table(COLUMNS, rows).to_csv(results("tilted_noise.csv"))


def ends(lanes: list, weights: list) -> list[float]:
    fits = tilted.measure(lanes, weights)
    return [float(x.mean()) for x in (fits.loss, fits.length, fits.rare, fits.overall)]


def risk(w: jax.Array, share: jax.Array, groups: list) -> tuple[jax.Array, jax.Array]:
    """F, and the weight of the second class in its gradient: p_g u_g^{t/τ}, over their sum.

    Rows z are multiplied by their sign, so that z·w is a margin; u_g is the mean of e^{τℓ}, τ = −2.
    """
    means = jnp.stack([jnp.mean(jax.nn.sigmoid(z @ w) ** 2) for z in groups])
    parts = share * means**-5.0
    return jnp.log(parts.sum()) / 10, parts[1] / parts.sum()


@jax.jit
def plugged_in(w: jax.Array, share: jax.Array, groups: list) -> tuple[Any, Any]:
    """The gradient and the weight of the rare class: mean over many batches, and true."""
    found = jax.grad(risk, has_aux=True)

    def drawn(key: jax.Array) -> Any:
        keys = jax.random.split(key, len(groups))
        draw = lambda k, z: z[jax.random.randint(k, (tilted.BATCH_SIZE,), 0, len(z))]
        return found(w, share, [draw(k, z) for k, z in zip(keys, groups, strict=True)])

    each = jax.lax.map(drawn, jax.random.split(jax.random.key(0), BATCHES), batch_size=500)
    return jax.tree.map(lambda x: x.mean(axis=0), each), found(w, share, groups)


def bias(lane: tilted.Lane, w: jax.Array) -> tuple[float, float, float]:
    """The pull, and the weight of the rare class, true and in batches."""
    rows = np.asarray([len(labels) for _, labels in lane.split.groups])
    signed = [jnp.asarray(X * (2 * labels[:, None] - 1)) for X, labels in lane.split.groups]
    (mean, drawn), (grad, true) = plugged_in(w, jnp.asarray(rows / rows.sum()), signed)
    return float(mean @ grad / (grad @ grad)), float(true), float(drawn)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--page", action="store_true", help="measure nothing")
    jax.config.update("jax_enable_x64", True)
    if not arguments.parse_args().page:
        main()
    fill("tilted-results.md", {"noise": page().to_markdown()})
