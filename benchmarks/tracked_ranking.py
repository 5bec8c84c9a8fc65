"""Average precision of a small network on mammography by small batches, for docs/tracked-results.md.

    make tracked-ranking      against LibAUC's own loss and optimiser; needs NESTAX_DATA; ten minutes

260 calcifications among 11,183 candidates, another third of the rows held out for every seed. All
contenders have the same network, batches of 64 rows, the same number of steps, and a rate that falls
linearly to nothing. The rate, what the memory forgets, and whether scores pass through a sigmoid first,
are chosen on seeds of their own, by the average precision of the rows held out there.
"""

import functools
import gzip
import importlib.metadata
import os
import time as clock
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from sklearn.metrics import average_precision_score

import nestax as nx
from nestax.table import Table
from pages import fill
from script import SMALL, in_parts, size
from tables import with_error

ROWS = 64
#: Positive rows of a batch where they are chosen; they come first.
POSITIVE = 8
STEPS = size(2_000, small=5)
TUNING = size(3, small=1)
SEEDS = size(10, small=2)
RATES = size((3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1), small=(1e-3,))
FORGOTTEN = size((0.03, 0.1, 0.3, 0.6, 0.9), small=(0.3,))
WIDTH = 32
MARGIN = 1.0

Weights = list[tuple[Array, Array]]


class Split(NamedTuple):
    """Rows of one seed; features and labels."""

    x: np.ndarray
    y: np.ndarray
    held_x: np.ndarray
    held_y: np.ndarray


@functools.cache
def mammography() -> tuple[np.ndarray, np.ndarray]:
    """Standardised features and labels, or 300 rows that are made up."""
    if SMALL:
        rng = np.random.default_rng(0)
        X = rng.standard_normal((300, 6))
        return X, X[:, 0] + rng.standard_normal(300) > 2
    if "NESTAX_DATA" not in os.environ:
        raise SystemExit("mammography.csv.gz is looked for in the folder NESTAX_DATA, which is not set.")
    with gzip.open(Path(os.environ["NESTAX_DATA"]) / "mammography.csv.gz", "rt") as file:
        table = np.asarray([line.replace("'", "").split(",") for line in file], float)
    X = table[:, :-1]
    return (X - X.mean(0)) / X.std(0), table[:, -1] > 0


@functools.cache
def split(seed: int) -> Split:
    """With the same share of positive rows in both parts."""
    X, y = mammography()
    rng = np.random.default_rng(seed)
    held = np.zeros(len(y), bool)
    for label in (0, 1):
        rows = rng.permutation(np.flatnonzero(y == label))
        held[rows[: len(rows) // 3]] = True
    X, y = X.astype(np.float32), y.astype(np.float32)
    return Split(X[~held], y[~held], X[held], y[held])


# Batches: the rows of all steps


def as_they_come(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.stack([rng.choice(len(y), ROWS, replace=False) for _ in range(STEPS)])


def balanced(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As many positive rows in every batch, which LibAUC's loss cannot do without."""
    positive, negative = (np.flatnonzero(y == label) for label in (1, 0))
    some = [rng.choice(positive, POSITIVE, replace=False) for _ in range(STEPS)]
    others = [rng.choice(negative, ROWS - POSITIVE, replace=False) for _ in range(STEPS)]
    return np.concatenate([some, others], axis=1)


# Contenders: losses of scores, labels and rows


def cross_entropy(h: Array, y: Array, rows: Array, memory: Any, forgotten: Array) -> Any:
    return jnp.mean(optax.sigmoid_binary_cross_entropy(h, y)), memory


def tracked(h: Array, y: Array, rows: Array, memory: Any, forgotten: Array) -> Any:
    return nx.losses.average_precision(h, y, memory, rows, margin=MARGIN, beta=forgotten)


def of_libauc(h: Array, y: Array, rows: Array, memory: Array, forgotten: Array) -> Any:
    """LibAUC's APLoss: averages of a positive row and all of the batch, itself among them, from 0 on."""
    loss = jnp.maximum(MARGIN - (h[:POSITIVE, None] - h[None, :]), 0) ** 2
    fresh = jax.lax.stop_gradient(jnp.stack([jnp.mean(loss * y, 1), jnp.mean(loss, 1)], axis=1))
    moved = (1 - forgotten) * memory[rows[:POSITIVE]] + forgotten * fresh
    above, all_above = moved[:, :1], moved[:, 1:]
    value = jnp.mean((above - all_above * y) / all_above**2 * loss)
    return value, memory.at[rows[:POSITIVE]].set(moved)


def soap(rate: Any) -> optax.GradientTransformation:
    """LibAUC's SOAP as it comes: Adam after a clipped gradient and some decay of the weights."""
    return optax.chain(optax.clip(1.0), optax.add_decayed_weights(1e-5), optax.adam(rate))


class Contender(NamedTuple):
    """A loss, its memory for n rows, an optimiser, how batches are drawn, and what is tried."""

    loss: Callable[..., Any]
    start: Callable[[int], Any]
    optimizer: Callable[[Any], optax.GradientTransformation]
    batches: Callable[[np.ndarray, np.random.Generator], np.ndarray]
    forgotten: tuple[float, ...] = FORGOTTEN
    squeezed: tuple[bool, ...] = (False, True)


def two_ranks(n: int) -> nx.TrackState:
    return nx.track_init(jnp.zeros(2), n=n)


nothing = lambda n: ()
zeros = lambda n: jnp.zeros((n, 2))
OURS = "`average_precision`, balanced"
THEIRS = "LibAUC's `APLoss` and `SOAP`, balanced"
CONTENDERS = {
    "cross-entropy": Contender(cross_entropy, nothing, optax.adam, as_they_come, (1.0,), (False,)),
    "cross-entropy, balanced": Contender(cross_entropy, nothing, optax.adam, balanced, (1.0,), (False,)),
    "without memory, balanced": Contender(tracked, two_ranks, optax.adam, balanced, (1.0,)),
    "`average_precision`": Contender(tracked, two_ranks, optax.adam, as_they_come),
    OURS: Contender(tracked, two_ranks, optax.adam, balanced),
    THEIRS: Contender(of_libauc, zeros, soap, balanced),
    "LibAUC's `APLoss` and Adam, balanced": Contender(of_libauc, zeros, optax.adam, balanced),
}


# Runs


def first_weights(key: Array, features: int) -> Weights:
    """As PyTorch begins a network."""
    weights = []
    for inputs, outputs in ((features, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)):
        key, matrix, shift = jax.random.split(key, 3)
        uniform = functools.partial(jax.random.uniform, minval=-(inputs**-0.5), maxval=inputs**-0.5)
        weights.append((uniform(matrix, (inputs, outputs)), uniform(shift, (outputs,))))
    return weights


def score(weights: Weights, x: Array) -> Array:
    for matrix, shift in weights[:-1]:
        x = jax.nn.relu(x @ matrix + shift)
    matrix, shift = weights[-1]
    return (x @ matrix + shift)[:, 0]


def trained(
    contender: Contender,
    squeezed: bool,
    rate: Any,
    forgotten: Any,
    first: Weights,
    x: Any,
    y: Any,
    rows: Any,
) -> Weights:
    """The weights at the end of one run, which takes as many steps as ``rows`` has rows."""
    optimizer = contender.optimizer(lambda t: rate * (1 - t / STEPS))

    def step(carry: Any, rows: Array) -> Any:
        w, memory, state = carry

        def loss(w: Weights) -> Any:
            h = score(w, x[rows])
            return contender.loss(jax.nn.sigmoid(h) if squeezed else h, y[rows], rows, memory, forgotten)

        grad, memory = jax.grad(loss, has_aux=True)(w)
        updates, state = optimizer.update(grad, state, w)
        return (optax.apply_updates(w, updates), memory, state), None

    start = first, contender.start(len(x)), optimizer.init(first)
    return jax.lax.scan(step, start, rows)[0][0]


def finals(
    contender: Contender, seeds: list[int], rates: Any, forgotten: Any, squeezed: bool
) -> np.ndarray:
    """Average precision of the rows held out: (rates, forgotten, seeds); 0 where a run diverged."""
    splits = [split(seed) for seed in seeds]
    rows = [contender.batches(s.y, np.random.default_rng(k)) for k, s in zip(seeds, splits, strict=True)]
    stacked = lambda arrays: jnp.asarray(np.stack(arrays))

    def lane(rate: Array, forgotten: Array, key: Array, x: Array, y: Array, rows: Array, held: Array):
        w = trained(contender, squeezed, rate, forgotten, first_weights(key, x.shape[1]), x, y, rows)
        return score(w, held)

    over_seeds = jax.vmap(lane, (None, None, 0, 0, 0, 0, 0))
    over_forgotten = jax.vmap(over_seeds, (None, 0, *5 * [None]))
    over = jax.jit(jax.vmap(over_forgotten, (0, *6 * [None])))
    data = (stacked([s.x for s in splits]), stacked([s.y for s in splits]), stacked(rows))
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds))
    given = jnp.asarray(rates), jnp.asarray(forgotten), keys, *data, stacked([s.held_x for s in splits])
    scores = np.asarray(over(*given))
    found = np.zeros(scores.shape[:3])
    for place in np.ndindex(*found.shape):
        if np.isfinite(scores[place]).all():
            found[place] = average_precision_score(splits[place[2]].held_y, scores[place])
    return found


def cell(contender: Contender) -> dict[str, Any]:
    tuning = [1_000_000 + k for k in range(TUNING)]
    tried = np.stack(
        [finals(contender, tuning, RATES, contender.forgotten, of).mean(2) for of in contender.squeezed]
    )
    i, j, k = np.unravel_index(np.argmax(tried), tried.shape)
    best = {"squeezed": contender.squeezed[i], "rate": RATES[j], "forgotten": contender.forgotten[k]}
    seeds = list(range(SEEDS))
    ends = finals(contender, seeds, [best["rate"]], [best["forgotten"]], best["squeezed"])
    return {**best, "tuning": tried.tolist(), "precision": ends[0, 0].tolist()}


@jax.enable_x64(True)
def check_libauc(steps: int = 100, rate: float = 3e-3, forgotten: float = 0.3) -> float:
    """The largest distance to the weights of LibAUC's own loss and optimiser, on equal batches."""
    import torch
    from libauc.losses import APLoss
    from libauc.optimizers import SOAP

    contender = CONTENDERS[THEIRS]
    data = split(0)
    rows = balanced(data.y, np.random.default_rng(0))[:steps]
    x, y = data.x.astype(float), data.y.astype(float)
    first = [(m.astype(float), s.astype(float)) for m, s in first_weights(jax.random.key(0), x.shape[1])]
    model = torch.nn.Sequential()
    for matrix, shift in first:
        linear = torch.nn.Linear(*matrix.shape).double()
        parts = {"weight": np.asarray(matrix).T, "bias": np.asarray(shift)}
        linear.load_state_dict({name: torch.tensor(part) for name, part in parts.items()})
        model.extend([linear, torch.nn.ReLU()])
    model.pop(-1)
    loss = APLoss(data_len=len(x), gamma=forgotten, margin=MARGIN, device="cpu")
    loss.u_all, loss.u_pos = loss.u_all.double(), loss.u_pos.double()
    optimizer = SOAP(model.parameters(), lr=rate, mode="adam", verbose=False, device="cpu")
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / STEPS)
    features, labels = torch.tensor(x), torch.tensor(y)
    for drawn in torch.tensor(rows):
        optimizer.zero_grad()
        loss(model(features[drawn]), labels[drawn], drawn).backward()
        optimizer.step()
        falling.step()
    ours = trained(contender, False, rate, forgotten, first, *map(jnp.asarray, (x, y, rows)))
    theirs = [p.detach().numpy().T for p in model.parameters()]
    far = max(np.abs(a - b).max() for a, b in zip(jax.tree.leaves(ours), theirs, strict=True))
    assert far < 1e-7, far
    return float(far)


def precision_table(kept: dict[str, Any]) -> Table:
    lines = []
    for name, of in kept.items():
        found = np.asarray(of["precision"])
        apart = "–" if name == OURS else with_error(found - kept[OURS]["precision"], "+", 100)
        memory = of["forgotten"] if len(CONTENDERS[name].forgotten) > 1 else "–"
        sigmoid = "yes" if of["squeezed"] else "no"
        lines.append([name, with_error(found, unit=100), apart, of["rate"], memory, sigmoid])
    columns = ["loss", "average precision", f"minus {OURS}", "rate", "forgotten", "sigmoid"]
    return Table(columns, lines)


def measure() -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name in (OURS, THEIRS) if SMALL else CONTENDERS:
        contender = CONTENDERS[name]
        began = clock.perf_counter()
        one = cells[name] = cell(contender)
        shown = with_error(np.asarray(one["precision"]), unit=100)
        chosen = one["rate"], one["forgotten"], one["squeezed"]
        print(f"{name}: {shown} {chosen} {clock.perf_counter() - began:.0f} s", flush=True)
    return cells


def check() -> dict[str, Any]:
    return {"libauc": importlib.metadata.version("libauc"), "far": check_libauc()}


def write(kept: dict[str, Any]) -> None:
    fill("tracked-results.md", {"ranking": precision_table(kept["cells"]).to_markdown()})


if __name__ == "__main__":
    in_parts(__doc__, "tracked_ranking.json", check, measure, write)
