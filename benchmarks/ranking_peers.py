"""Partial areas and average precision of small networks against LibAUC, for docs/tracked-results.md.

    make ranking-peers      against LibAUC's own loss and optimiser; needs NESTAX_DATA; half an hour

Two sets: mammography, a perceptron, 2,000 steps; and images of CIFAR-10, made half as wide and as high,
of which the last five classes are to come first after 19 of 20 of their images were left out; a small
convolutional network, 1,000 steps. All contenders on a set have the same network, the same batches of 64
rows, 8 of them positive, and Adam with a rate that falls linearly to nothing, unless it says otherwise.
The rate, what the memory forgets, and whether scores pass through a sigmoid first, are chosen on seeds
of their own, by the measure on the rows held out there.
"""

import functools
import importlib.metadata
import io
import itertools
import json
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
from sklearn.metrics import average_precision_score, roc_auc_score

import nestax as nx
import tracked_ranking
from nestax.table import Table
from pages import fill
from script import SMALL, few, in_parts, results, size
from tables import with_error
from tracked_ranking import MARGIN, POSITIVE, ROWS, cross_entropy, nothing, soap, two_ranks

#: What a distance from equal weights costs the adversary; LibAUC's default.
PRICE = 1.0
#: The share of false alarms up to which the area counts.
ALARMS = 0.05
#: Rows of the rare class for every twenty others, and images a class that are held out.
RARITY = 20
SIDE = 16


class Set(NamedTuple):
    """Rows and labels, how a network on them begins and scores, and how long and often it is trained."""

    rows: Callable[[], tuple[np.ndarray, np.ndarray]]
    split: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
    first: Callable[[Array, tuple[int, ...]], Any]
    score: Callable[[Any, Array], Array]
    steps: int
    tuning: int
    seeds: int
    rates: tuple[float, ...]
    forgotten: tuple[float, ...]


# The images


@functools.cache
def images() -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers to 255, images × rows × columns × colours, and whether of the last five classes."""
    if SMALL:
        rng = np.random.default_rng(0)
        return rng.integers(0, 256, (400, SIDE, SIDE, 3), np.uint8), np.arange(400) % 2
    from PIL import Image

    if "NESTAX_DATA" not in os.environ:
        raise SystemExit("cifar10_jpeg.npz is looked for in the folder NESTAX_DATA, which is not set.")
    kept = np.load(Path(os.environ["NESTAX_DATA"]) / "cifar10_jpeg.npz")
    found = []
    begin = 0
    data = kept["train_bytes"].tobytes()
    for end in kept["train_ends"].tolist():
        image = np.asarray(Image.open(io.BytesIO(data[begin:end])), np.float32)
        found.append(image.reshape(SIDE, 2, SIDE, 2, 3).mean(axis=(1, 3)))
        begin = end
    return np.round(found).astype(np.uint8), (kept["train_labels"] > 4).astype(int)


def rare_images(y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows held out, a fifth, of all others and of some positive ones."""
    rng = np.random.default_rng(seed)
    train, held = [], []
    for label, share in ((0, 1), (1, RARITY)):
        rows = rng.permutation(np.flatnonzero(y == label))
        rows = rows[: len(rows) // share]
        held.append(rows[: len(rows) // 5])
        train.append(rows[len(rows) // 5 :])
    return np.concatenate(train), np.concatenate(held)


def first_filters(key: Array, shape: tuple[int, ...]) -> Any:
    del shape
    weights = []
    for inputs, outputs in ((27, 16), (144, 32), (288, 32), (32, 1)):
        key, matrix = jax.random.split(key)
        scale = (2 / inputs) ** 0.5
        weights.append((scale * jax.random.normal(matrix, (inputs, outputs)), jnp.zeros(outputs)))
    return weights


def convolved(weights: Any, x: Array) -> Array:
    """Three convolutions of 3 × 3 that leave every second pixel, a mean, and a linear score."""
    x = x.astype(jnp.float32) / 127.5 - 1
    for matrix, shift in weights[:-1]:
        side = x.shape[1] // 2
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        parts = [x[:, i : i + 2 * side : 2, j : j + 2 * side : 2] for i in range(3) for j in range(3)]
        x = jax.nn.relu(jnp.concatenate(parts, axis=-1) @ matrix + shift)
    matrix, shift = weights[-1]
    return (x.mean(axis=(1, 2)) @ matrix + shift)[:, 0]


# Mammography, as in tracked_ranking


def candidates() -> tuple[np.ndarray, np.ndarray]:
    X, y = tracked_ranking.mammography()
    return X.astype(np.float32), y.astype(int)


def third(y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of ``tracked_ranking.split``."""
    rng = np.random.default_rng(seed)
    held = np.zeros(len(y), bool)
    for label in (0, 1):
        rows = rng.permutation(np.flatnonzero(y == label))
        held[rows[: len(rows) // 3]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def perceptron(key: Array, shape: tuple[int, ...]) -> Any:
    return tracked_ranking.first_weights(key, shape[-1])


SETS = {
    "images": Set(
        images,
        rare_images,
        first_filters,
        convolved,
        size(1_000, small=3),
        size(1, small=1),
        size(4, small=2),
        size((3e-3, 1e-2), small=(1e-3,)),
        size((0.1, 0.6), small=(0.3,)),
    ),
    "mammography": Set(
        candidates,
        third,
        perceptron,
        tracked_ranking.score,
        size(2_000, small=3),
        size(3, small=1),
        size(10, small=2),
        size((1e-3, 3e-3, 1e-2, 3e-2), small=(1e-3,)),
        size((0.03, 0.1, 0.3, 0.6, 0.9), small=(0.3,)),
    ),
}


# Contenders: losses of scores, labels, rows and memory; positive rows come first


def balanced(y: np.ndarray, rng: np.random.Generator, steps: int) -> np.ndarray:
    positive, negative = (np.flatnonzero(y == label) for label in (1, 0))
    some = [rng.choice(positive, POSITIVE, replace=False) for _ in range(steps)]
    others = [rng.choice(negative, ROWS - POSITIVE, replace=False) for _ in range(steps)]
    return np.concatenate([some, others], axis=1)


def pairs(h: Array) -> Array:
    """Squared hinges, positive rows × others."""
    return jnp.maximum(MARGIN - (h[:POSITIVE, None] - h[None, POSITIVE:]), 0) ** 2


def area(h: Array, y: Array, rows: Array, memory: Any, forgotten: Array) -> Any:
    """The loss of ``nx.problems.partial_auc``, by a logarithm of a tracked mean for a positive row."""
    value, memory = nx.losses.log_mean_exp(pairs(h) / PRICE, memory, rows[:POSITIVE], beta=forgotten)
    return PRICE * jnp.mean(value), memory


def area_of_libauc(h: Array, y: Array, rows: Array, memory: Array, forgotten: Array) -> Any:
    """LibAUC's pAUC_DRO_Loss: an average of exponentials for a positive row, from 0 on."""
    loss = pairs(h)
    power = jnp.exp(jax.lax.stop_gradient(loss) / PRICE)
    moved = (1 - forgotten) * memory[rows[:POSITIVE]] + forgotten * jnp.mean(power, axis=1)
    return jnp.mean(power / moved[:, None] * loss), memory.at[rows[:POSITIVE]].set(moved)


def sopas(rate: Any) -> optax.GradientTransformation:
    """LibAUC's SOPAs as it comes."""
    return optax.chain(optax.clip(2.0), optax.add_decayed_weights(1e-5), optax.adam(rate))


class Contender(NamedTuple):
    """A loss, its memory for n rows, an optimiser, and what is tried."""

    loss: Callable[..., Any]
    start: Callable[[int], Any]
    optimizer: Callable[[Any], optax.GradientTransformation] = optax.adam
    forgets: bool = True
    squeezed: tuple[bool, ...] = (False, True)


one_mean = lambda n: nx.track_init(0.0, n=n)
zeros = lambda n: jnp.zeros(n)
PLAIN = Contender(cross_entropy, nothing, optax.adam, False, (False,))
AREA = {
    "cross-entropy": PLAIN,
    "without memory": Contender(area, one_mean, optax.adam, False),
    "nestax": Contender(area, one_mean),
    "LibAUC": Contender(area_of_libauc, zeros, sopas),
    "LibAUC and Adam": Contender(area_of_libauc, zeros),
}
PRECISION = {
    "cross-entropy": PLAIN,
    "without memory": Contender(tracked_ranking.tracked, two_ranks, optax.adam, False),
    "nestax": Contender(tracked_ranking.tracked, two_ranks),
    "LibAUC": Contender(tracked_ranking.of_libauc, lambda n: jnp.zeros((n, 2)), soap),
    "LibAUC and Adam": Contender(tracked_ranking.of_libauc, lambda n: jnp.zeros((n, 2))),
}


class Measure(NamedTuple):
    contenders: dict[str, Contender]
    of: Callable[[np.ndarray, np.ndarray], float]


MEASURES = {
    "partial area": Measure(AREA, functools.partial(roc_auc_score, max_fpr=ALARMS)),
    "average precision": Measure(PRECISION, average_precision_score),
}
#: Average precision on mammography is in ``tracked_ranking``.
CASES = {
    "partial area, mammography": ("partial area", "mammography"),
    "partial area, images": ("partial area", "images"),
    "average precision, images": ("average precision", "images"),
}


# Runs


def trained(
    contender: Contender,
    task: Set,
    squeezed: Any,
    rate: Any,
    forgotten: Any,
    first: Any,
    x: Array,
    y: Array,
    at: Array,
    rows: Array,
) -> Any:
    """The weights at the end. ``at`` says where the training rows are in x, ``rows`` are all batches."""
    optimizer = contender.optimizer(lambda t: rate * (1 - t / task.steps))

    def step(carry: Any, rows: Array) -> Any:
        w, memory, state = carry

        def loss(w: Any) -> Any:
            h = task.score(w, x[at[rows]])
            h = jnp.where(squeezed, jax.nn.sigmoid(h), h)
            return contender.loss(h, y[at[rows]], rows, memory, forgotten)

        grad, memory = jax.grad(loss, has_aux=True)(w)
        updates, state = optimizer.update(grad, state, w)
        return (optax.apply_updates(w, updates), memory, state), None

    start = first, contender.start(len(at)), optimizer.init(first)
    return jax.lax.scan(step, start, rows)[0][0]


def finals(contender: Contender, task: Set, of: Any, seeds: list[int], tried: Any) -> np.ndarray:
    """The measure on the rows held out: settings × seeds; 0 where a run diverged."""
    X, y = task.rows()
    splits = [task.split(y, seed) for seed in seeds]
    batches = [
        balanced(y[train], np.random.default_rng(seed), task.steps)
        for seed, (train, _) in zip(seeds, splits, strict=True)
    ]
    train, held = (jnp.asarray(np.stack(part)) for part in zip(*splits, strict=True))
    x, labels = jnp.asarray(X), jnp.asarray(y, jnp.float32)

    def lane(setting: Any, key: Array, at: Array, rows: Array, held: Array) -> Array:
        first = task.first(key, x.shape)
        w = trained(contender, task, *setting, first, x, labels, at, rows)
        return jax.lax.map(lambda row: task.score(w, x[row][None])[0], held, batch_size=500)

    over = jax.jit(jax.vmap(jax.vmap(lane, (None, 0, 0, 0, 0)), (0, *4 * [None])))
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds))
    settings = tuple(jnp.asarray(column) for column in zip(*tried, strict=True))
    scores = np.asarray(over(settings, keys, train, jnp.asarray(np.stack(batches)), held))
    found = np.zeros(scores.shape[:2])
    for place in np.ndindex(*found.shape):
        if np.isfinite(scores[place]).all():
            found[place] = of(y[splits[place[1]][1]], scores[place])
    return found


def cell(contender: Contender, task: Set, of: Any) -> dict[str, Any]:
    tuning = [1_000_000 + k for k in range(task.tuning)]
    forgotten = task.forgotten if contender.forgets else (1.0,)
    tried = list(itertools.product(contender.squeezed, task.rates, forgotten))
    means = finals(contender, task, of, tuning, tried).mean(axis=1)
    best = tried[int(np.argmax(means))]
    ends = finals(contender, task, of, list(range(task.seeds)), [best])
    chosen = dict(zip(("squeezed", "rate", "forgotten"), best, strict=True))
    return {**chosen, "tuning": means.tolist(), "found": ends[0].tolist()}


@jax.enable_x64(True)
def check_libauc(steps: int = 100, rate: float = 3e-3, forgotten: float = 0.3) -> float:
    """The largest distance to the weights of LibAUC's own loss and optimiser, on equal batches."""
    import torch
    from libauc.losses import pAUC_DRO_Loss
    from libauc.optimizers import SOPAs

    task = SETS["mammography"]
    X, y = task.rows()
    train, _ = task.split(y, 0)
    rows = balanced(y[train], np.random.default_rng(0), steps)
    first = [(m.astype(float), s.astype(float)) for m, s in task.first(jax.random.key(0), X.shape)]
    model = torch.nn.Sequential()
    for matrix, shift in first:
        linear = torch.nn.Linear(*matrix.shape).double()
        parts = {"weight": np.asarray(matrix).T, "bias": np.asarray(shift)}
        linear.load_state_dict({name: torch.tensor(part) for name, part in parts.items()})
        model.extend([linear, torch.nn.ReLU()])
    model.pop(-1)
    loss = pAUC_DRO_Loss(len(train), gamma=forgotten, margin=MARGIN, Lambda=PRICE, device="cpu")
    loss.u_pos = loss.u_pos.double()
    optimizer = SOPAs(model.parameters(), lr=rate, mode="adam", verbose=False, device="cpu")
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / task.steps)
    features, labels = torch.tensor(X[train].astype(float)), torch.tensor(y[train])
    for drawn in torch.tensor(rows):
        optimizer.zero_grad()
        loss(torch.sigmoid(model(features[drawn])), labels[drawn], drawn).backward()
        optimizer.step()
        falling.step()
    data = jnp.asarray(X.astype(float)), jnp.asarray(y, float), jnp.asarray(train), jnp.asarray(rows)
    ours = trained(AREA["LibAUC"], task, True, rate, forgotten, first, *data)
    theirs = [p.detach().numpy().T for p in model.parameters()]
    far = max(np.abs(a - b).max() for a, b in zip(jax.tree.leaves(ours), theirs, strict=True))
    assert far < 1e-7, far
    return float(far)


def check() -> dict[str, Any]:
    return {"libauc": importlib.metadata.version("libauc"), "far": check_libauc()}


def measure() -> dict[str, Any]:
    path = results("ranking_peers.json")
    before = json.loads(path.read_text()) if path.exists() else {}
    cells: dict[str, Any] = {}
    for case, (measured, name) in few(CASES, small=2).items():
        cells[case] = {}
        for label, contender in few(MEASURES[measured].contenders, small=3).items():
            began = clock.perf_counter()
            one = cells[case][label] = cell(contender, SETS[name], MEASURES[measured].of)
            shown = with_error(np.asarray(one["found"]), unit=100)
            chosen = one["rate"], one["forgotten"], one["squeezed"]
            path.write_text(json.dumps(before | {"cells": cells}))
            print(f"{case}, {label}: {shown} {chosen} {clock.perf_counter() - began:.0f} s", flush=True)
    return cells


def table(kept: dict[str, Any]) -> Table:
    lines = []
    for case, by_name in kept.items():
        for label, of in by_name.items():
            found = np.asarray(of["found"])
            apart = "–"
            if label != "nestax":
                apart = with_error(found - np.asarray(by_name["nestax"]["found"]), "+", 100)
            memory = of["forgotten"] if AREA[label].forgets else "–"
            sigmoid = "yes" if of["squeezed"] else "no"
            shown = with_error(found, unit=100)
            lines.append([case, label, shown, apart, of["rate"], memory, sigmoid])
    columns = ["measure and set", "loss", "found", "minus nestax", "rate", "forgotten", "sigmoid"]
    return Table(columns, lines)


def write(kept: dict[str, Any]) -> None:
    fill("tracked-results.md", {"ranking peers": table(kept["cells"]).to_markdown()})


if __name__ == "__main__":
    in_parts(__doc__, "ranking_peers.json", check, measure, write)
