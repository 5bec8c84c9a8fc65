"""A KL-robust loss of a network by small batches, with and without memory, for docs/tracked-results.md.

    make tracked-robust       against LibAUC's own loss and optimiser; needs NESTAX_DATA; ten minutes

svmguide1 (3,089 rows, 4 features, standardised), of whose labels a tenth is turned round, another half
of the rows held out for every seed, with labels as they are. The network has one hidden layer of 16.
Every contender takes the same batches, Adam unless it says otherwise, and a rate that falls linearly to
nothing. The rate, and what the memory forgets, are chosen on seeds of their own, by the exact robust
loss of all training rows.
"""

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

import nestax as nx
from nestax.table import Table
from pages import fill
from script import SMALL, in_parts, size
from tables import with_error

ROWS = size((2, 4, 8, 16, 64), small=(4,))
STEPS = size(2_000, small=20)
TUNING = size(3, small=1)
SEEDS = size(10, small=2)
RATES = size(tuple(float(f"{1e-4 * 10 ** (k / 2):.1g}") for k in range(9)), small=(0.01,))
BETAS = size((0.01, 0.03, 0.1, 0.3, 0.6), small=(0.1,))
#: Of LibAUC: 10 is what it comes with, the others forget about as much as these betas.
ALPHAS = size((-6.0, -5.0, -4.0, -2.0, -1.0, 10.0), small=(-1.0,))
MOMENTUM = 0.9
HIDDEN = 16
TEMPERATURE = 0.5
TURNED = 0.1


class Data(NamedTuple):
    """Features, and labels −1 and 1."""

    x: Array
    y: Array


class Contender(NamedTuple):
    """``loss(losses, before, memory, beta)``; ``before`` holds the losses at the last weights."""

    loss: Callable[..., Any]
    start: Callable[[], Any]
    betas: tuple[float, ...] = (1.0,)
    optimizer: Callable[[Any], optax.GradientTransformation] = optax.adam


def alone(losses: Array, before: Array, memory: Any, beta: Array) -> Any:
    return TEMPERATURE * (jax.nn.logsumexp(losses / TEMPERATURE) - np.log(len(losses))), memory


def from_nothing(losses: Array, before: Array, memory: Array, beta: Array) -> Any:
    """An average that begins at 0, as in LibAUC's losses for partial AUC."""
    fresh = jnp.mean(jnp.exp(losses / TEMPERATURE))
    memory = (1 - beta) * memory + beta * jax.lax.stop_gradient(fresh)
    return TEMPERATURE * fresh / memory, memory


def of_libauc(losses: Array, before: Array, memory: Array, alpha: Array) -> Any:
    """LibAUC's EntLossClassification of one row, whose classes are the rows of the batch.

    It remembers ν, a logarithm, and moves e^ν to the mean by the share of e^{α + ν} in 1 + e^{α + ν}.
    """
    s = losses / TEMPERATURE
    fresh = jax.lax.stop_gradient(jax.nn.logsumexp(s) - np.log(len(s) - 1))
    moved = memory + jnp.logaddexp(0, alpha + fresh) - jnp.logaddexp(0, alpha + memory)
    memory = jnp.where(memory == 0, fresh, moved)
    return TEMPERATURE * jnp.sum(jnp.exp(s - memory)) / (len(s) - 1), memory


def tracked(losses: Array, before: Array, memory: Any, beta: Array) -> Any:
    return nx.losses.kl_robust(losses, memory, temperature=TEMPERATURE, beta=beta)


def self_setting(losses: Array, before: Array, memory: Any, beta: Array) -> Any:
    of = lambda s: jnp.exp(s / TEMPERATURE)
    # Losses are positive, so their exponentials are at least 1.
    least = lambda u: jnp.maximum(u, 1)
    u, memory = nx.track(of(losses), memory, gain="auto", previous=of(before), project=least)
    return TEMPERATURE * jnp.log(u), memory


number = lambda: jnp.zeros(())
OURS = "`nx.losses.kl_robust`"
ALONE = "the batch alone"
THEIRS = "LibAUC's `EntLoss` and `SCENT`"
CONTENDERS = {
    ALONE: Contender(alone, lambda: ()),
    "an average from 0": Contender(from_nothing, number, BETAS),
    THEIRS: Contender(of_libauc, number, ALPHAS, functools.partial(optax.sgd, momentum=MOMENTUM)),
    "LibAUC's `EntLoss` and Adam": Contender(of_libauc, number, ALPHAS),
    OURS: Contender(tracked, lambda: nx.track_init(0.0), BETAS),
    '`gain="auto"`': Contender(self_setting, lambda: nx.track_init(0.0, gain="auto")),
}


def score(w: dict[str, Array], x: Array) -> Array:
    return jnp.tanh(x @ w["in"] + w["shift"]) @ w["out"] + w["bias"]


def losses_of(w: dict[str, Array], data: Data) -> Array:
    """Logistic losses, one per row."""
    return jax.nn.softplus(-data.y * score(w, data.x))


def first_weights(key: Array, features: int) -> dict[str, Array]:
    inner, outer = jax.random.split(key)
    return {
        "in": jax.random.normal(inner, (features, HIDDEN)) / features**0.5,
        "shift": jnp.zeros(HIDDEN),
        "out": jax.random.normal(outer, (HIDDEN,)) / HIDDEN**0.5,
        "bias": jnp.zeros(()),
    }


def run(contender: Contender, rate: Any, beta: Any, first: Any, data: Data, drawn: Array) -> Any:
    """The weights after as many steps as ``drawn`` has batches."""
    optimizer = contender.optimizer(lambda t: rate * (1 - t / STEPS))

    def step(carry: Any, rows: Array) -> Any:
        w, last, memory, state = carry
        batch = Data(data.x[rows], data.y[rows])
        loss = lambda w: contender.loss(losses_of(w, batch), losses_of(last, batch), memory, beta)
        grad, memory = jax.grad(loss, has_aux=True)(w)
        updates, state = optimizer.update(grad, state)
        return (optax.apply_updates(w, updates), w, memory, state), None

    start = first, first, contender.start(), optimizer.init(first)
    return jax.lax.scan(step, start, drawn)[0][0]


def batches(key: Array, rows: int, n: int) -> Array:
    """The rows of all steps."""
    one = lambda t: jax.random.randint(jax.random.fold_in(key, t), (rows,), 0, n)
    return jax.vmap(one)(jnp.arange(STEPS))


def examples() -> tuple[np.ndarray, np.ndarray]:
    if SMALL:
        X = np.random.default_rng(0).normal(size=(60, 4))
        return X, np.where(X[:, 0] > 0, 1, -1)
    X, y = nx.datasets.libsvm("svmguide1")
    return (X - X.mean(0)) / X.std(0), np.where(y > 0, 1, -1)


def split(seed: int) -> tuple[Data, Data]:
    """Rows to train on, with some labels turned, and rows held out."""
    X, y = examples()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X))
    half = len(X) // 2
    of = lambda rows: Data(jnp.asarray(X[rows]), jnp.asarray(y[rows], X.dtype))
    train, test = of(order[half:]), of(order[:half])
    turned = np.where(rng.random(len(train.y)) < TURNED, -1, 1)
    return train._replace(y=train.y * turned), test


def finals(contender: Contender, rows: int, seeds: list[int], rates: Any, betas: Any) -> dict[str, Any]:
    """Exact robust loss of the training rows, and errors on the others: (betas, rates, seeds)."""
    pairs = [split(seed) for seed in seeds]
    train, test = (jax.tree.map(lambda *a: jnp.stack(a), *of) for of in zip(*pairs, strict=True))
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds))

    def lane(beta: Array, rate: Array, key: Array, train: Data, test: Data) -> Any:
        drawn = batches(key, rows, len(train.x))
        w = run(contender, rate, beta, first_weights(key, train.x.shape[1]), train, drawn)
        value, _ = alone(losses_of(w, train), train.y, (), beta)
        return jnp.where(jnp.isfinite(value), value, jnp.inf), jnp.mean(test.y * score(w, test.x) <= 0)

    over_seeds = jax.vmap(lane, (None, None, 0, 0, 0))
    over_rates = jax.vmap(over_seeds, (None, 0, None, None, None))
    over = jax.jit(jax.vmap(over_rates, (0, None, None, None, None)))
    value, error = over(jnp.asarray(betas), jnp.asarray(rates), keys, train, test)
    return {"value": np.asarray(value), "error": np.asarray(error)}


def cell(contender: Contender, rows: int) -> dict[str, Any]:
    tuning = [1_000_000 + k for k in range(TUNING)]
    found = finals(contender, rows, tuning, RATES, contender.betas)["value"].mean(axis=2)
    i, j = np.unravel_index(np.argmin(found), found.shape)
    chosen = {"beta": contender.betas[i], "rate": RATES[j]}
    ends = finals(contender, rows, list(range(SEEDS)), [chosen["rate"]], [chosen["beta"]])
    return {**chosen, "tuning": found.tolist(), **{k: x[0, 0].tolist() for k, x in ends.items()}}


def measure() -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for rows in ROWS:
        cells[str(rows)] = {}
        for name, contender in CONTENDERS.items():
            one = cells[str(rows)][name] = cell(contender, rows)
            shown = with_error(np.asarray(one["value"]))
            print(f"{rows} {name}: {shown} rate {one['rate']} beta {one['beta']}", flush=True)
    return cells


def check(steps: int = 100, rows: int = 4, rate: float = 0.03, alpha: float = -2.0) -> dict[str, Any]:
    """The largest distance to the weights of LibAUC's own loss and optimiser, on equal batches."""
    import torch
    from libauc.losses import EntLossClassification
    from libauc.optimizers import SCENT

    data, _ = split(0)
    drawn = batches(jax.random.key(0), rows, len(data.x))[:steps]
    first = first_weights(jax.random.key(0), data.x.shape[1])
    w = {name: torch.tensor(np.asarray(part), requires_grad=True) for name, part in first.items()}
    loss = EntLossClassification(data_size=1, alpha=alpha)
    loss.nu = loss.nu.double()
    optimizer = SCENT(w.values(), lr=rate, momentum=MOMENTUM)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / STEPS)
    x, y = (torch.tensor(np.asarray(a)) for a in data)
    for batch in torch.tensor(np.asarray(drawn)):
        optimizer.zero_grad()
        scores = (x[batch] @ w["in"] + w["shift"]).tanh() @ w["out"] + w["bias"]
        losses = torch.nn.functional.softplus(-y[batch] * scores)
        value = loss(losses[None] / TEMPERATURE, torch.tensor([0]))["loss"]
        (TEMPERATURE * value).backward()
        optimizer.step()
        falling.step()
    ours = run(CONTENDERS[THEIRS], rate, alpha, first, data, drawn)
    far = max(np.abs(ours[name] - part.detach().numpy()).max() for name, part in w.items())
    assert far < 1e-7, far
    return {"libauc": importlib.metadata.version("libauc"), "far": float(far)}


def values_table(cells: dict[str, Any], key: str, unit: float) -> Table:
    word = lambda of: with_error(np.asarray(of[key]), unit=unit)
    return Table(
        ["rows a step", *CONTENDERS],
        [[rows, *(word(found[name]) for name in CONTENDERS)] for rows, found in cells.items()],
    )


def difference_table(cells: dict[str, Any]) -> Table:
    lines = []
    for rows, found in cells.items():
        for name, of in found.items():
            more = [100 * (np.asarray(of[key]) - found[OURS][key]) for key in ("value", "error")]
            differences = ["–", "–"] if name == OURS else [with_error(x, "+") for x in more]
            beta = of["beta"] if len(CONTENDERS[name].betas) > 1 else "–"
            lines.append([rows, name, *differences, of["rate"], beta])
    columns = ["rows a step", "loss", "robust loss, hundredths more", "errors, percent more"]
    return Table([*columns, "learning rate", "beta, or α"], lines)


def write(kept: dict[str, Any]) -> None:
    cells = kept["cells"]
    fill(
        "tracked-results.md",
        {
            "robust values": values_table(cells, "value", 100).to_markdown(),
            "robust errors": values_table(cells, "error", 100).to_markdown(),
            "robust differences": difference_table(cells).to_markdown(),
        },
    )


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    in_parts(__doc__, "tracked_robust.json", check, measure, write)
