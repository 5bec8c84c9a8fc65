"""What a tracker costs in a step of ResNet-18, in PyTorch and in JAX, for docs/tracked-results.md.

    make tracked-cost      on a machine with little else to do; five minutes

Images of 32 × 32, Adam, 16 rows a step. Steps with and without the tracker take turns in one process. As
the difference is smaller than their noise, the loss is also timed alone, with its derivative, from the
scores of the network on; that difference over the time of a step is the share of the tracker.
"""

import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

import nestax as nx
import nestax.torch as nt
from measure import Timed, compare
from nestax.table import Table
from network_models import CLASSES, NETWORKS, SMALL_NETWORKS
from pages import fill
from script import SMALL, parser, results, size

BATCH = size(16, small=2)
WIDTHS = size((64, 128, 256, 512), small=(8, 16))
SIDE = size(32, small=4)
TABLE = size(1_000_000, small=100)
#: Of the data in Cox's loss, which go over all of them in every step.
SURVIVAL = size(100_000, small=100)
KINDS = ("one memory", "a table", "risks")
BETA = 0.1
STEPS = size((1, 3), small=(1, 2))
ROUNDS = size(4, small=1)
#: Of the loss alone.
MANY = size((100, 600), small=(1, 2))

LABELS = np.arange(BATCH) % CLASSES
INDEX = np.random.default_rng(0).choice(SURVIVAL, BATCH, replace=False)
TIME = np.random.default_rng(1).exponential(size=SURVIVAL)
EVENT = np.arange(SURVIVAL) % 2 == 0
AT_RISK = TIME[INDEX][None, :] >= TIME[INDEX][:, None]


class Block(torch.nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, fan_in: int, width: int, stride: int):
        super().__init__()
        conv = lambda a, stride: torch.nn.Conv2d(a, width, 3, stride, 1, bias=False)
        norm = lambda: torch.nn.GroupNorm(8, width)
        self.body = torch.nn.Sequential(
            conv(fan_in, stride), norm(), torch.nn.ReLU(), conv(width, 1), norm()
        )
        same = fan_in == width
        other = torch.nn.Conv2d(fan_in, width, 1, stride, bias=False)
        self.shortcut = torch.nn.Identity() if same else other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def residual() -> torch.nn.Module:
    """The network of ``network_models.residual``."""
    layers = [torch.nn.Conv2d(3, WIDTHS[0], 3, 1, 1, bias=False), torch.nn.GroupNorm(8, WIDTHS[0])]
    layers.append(torch.nn.ReLU())
    fan_in = WIDTHS[0]
    for k, width in enumerate(WIDTHS):
        for first in (True, False):
            layers.append(Block(fan_in, width, 2 if first and k else 1))
            fan_in = width
    pool = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    return torch.nn.Sequential(*layers, *pool, torch.nn.Linear(fan_in, CLASSES))


# Losses of scores, with and without memory


def torch_losses() -> dict[str, dict[str, Callable[[torch.Tensor], torch.Tensor]]]:
    labels = torch.from_numpy(LABELS)
    index = torch.from_numpy(INDEX)
    entropy = lambda scores: torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    robust = nt.KLRobust(temperature=1.0, beta=BETA)
    rows = nt.LogMeanExp(TABLE, beta=BETA)
    own = lambda scores: scores[:, 0].mean()
    cox = nt.Cox(TIME, EVENT)
    at_risk = torch.from_numpy(AT_RISK)
    return {
        "one memory": {
            "without": lambda scores: entropy(scores).logsumexp(0),
            "with": lambda scores: robust(entropy(scores)),
        },
        "a table": {
            "without": lambda scores: scores.logsumexp(1).mean() - own(scores),
            "with": lambda scores: rows(scores, index).mean() - own(scores),
        },
        "risks": {
            "without": lambda scores: (
                scores[:, 0].masked_fill(~at_risk, -torch.inf).logsumexp(1).mean() - own(scores)
            ),
            "with": lambda scores: cox(scores[:, 0], index),
        },
    }


def jax_losses() -> dict[str, dict[str, Any]]:
    """Of scores and state; the latter is handed on where there is none."""
    entropy = lambda scores: optax.softmax_cross_entropy_with_integer_labels(scores, LABELS)
    own = lambda scores: jnp.mean(scores[:, 0])

    def in_table(scores: Any, state: Any, index: Any) -> Any:
        each, state = nx.losses.log_mean_exp(scores, state, index, beta=BETA)
        return jnp.mean(each) - own(scores), state

    return {
        "one memory": {
            "without": lambda scores, state, index: (jax.nn.logsumexp(entropy(scores)), state),
            "with": lambda scores, state, index: nx.losses.kl_robust(
                entropy(scores), state, temperature=1.0, beta=BETA
            ),
        },
        "a table": {
            "without": lambda scores, state, index: (
                jnp.mean(jax.nn.logsumexp(scores, 1)) - own(scores),
                state,
            ),
            "with": in_table,
        },
        "risks": {
            "without": lambda scores, state, index: (
                jnp.mean(jax.nn.logsumexp(jnp.where(AT_RISK, scores[:, 0], -jnp.inf), 1)) - own(scores),
                state,
            ),
            "with": lambda scores, state, index: nx.losses.cox(scores[:, 0], state, index),
        },
    }


# Programs to be timed


def torch_steps(loss: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[int], None]:
    torch.manual_seed(0)
    model = residual()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x = torch.randn(BATCH, 3, SIDE, SIDE)

    def run(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model(x)).backward()
            optimizer.step()

    return run


def torch_alone(loss: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[int], None]:
    scores = torch.randn(BATCH, CLASSES, requires_grad=True)

    def run(steps: int) -> None:
        for _ in range(steps):
            scores.grad = None
            loss(scores).backward()

    return run


def first_state(kind: str) -> Any:
    if kind == "risks":
        return nx.losses.risk_sets(TIME, EVENT, dtype=jnp.float32)
    return nx.track_init(jnp.zeros((), jnp.float32), n=TABLE if kind == "a table" else None)


def jax_steps(loss: Any, kind: str) -> Callable[[int], None]:
    network = (SMALL_NETWORKS if SMALL else NETWORKS)["residual"]
    w = network.init(jax.random.key(0))
    x = network.inputs(jax.random.key(1), BATCH)
    optimizer = optax.adam(1e-4)

    def step(w: Any, opt_state: Any, state: Any, index: Any) -> Any:
        of = lambda w: loss(network.apply(w, x, jnp.float32), state, index)
        grad, after = jax.grad(of, has_aux=True)(w)
        updates, opt_state = optimizer.update(grad, opt_state)
        return optax.apply_updates(w, updates), opt_state, after

    compiled = jax.jit(step, donate_argnums=(0, 1, 2))
    return repeated(compiled, (w, optimizer.init(w), first_state(kind)))


def jax_alone(loss: Any, kind: str) -> Callable[[int], None]:
    def step(scores: Any, state: Any, index: Any) -> Any:
        return jax.grad(loss, has_aux=True)(scores, state, index)

    scores = jax.random.normal(jax.random.key(0), (BATCH, CLASSES))
    return repeated(jax.jit(step, donate_argnums=(0, 1)), (scores, first_state(kind)))


def repeated(step: Any, start: Any) -> Callable[[int], None]:
    kept = [start]
    index = jnp.asarray(INDEX)

    def run(steps: int) -> None:
        for _ in range(steps):
            kept[0] = step(*kept[0], index)
        jax.block_until_ready(kept[0])

    return run


def measured(steps: dict[str, Any], alone: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of all cores together; ratios of steps and the share of the tracker, in percent."""
    whole = compare({name: Timed(run, *STEPS) for name, run in steps.items()}, ROUNDS)
    part = compare({name: Timed(run, *MANY) for name, run in alone.items()}, ROUNDS)
    more = part["with"].cpu - part["without"].cpu
    return {
        "step": whole["without"].cpu / 1e3,
        "with": whole["with"].cpu / 1e3,
        "tracker": more / 1e3,
        "share": 100 * more / whole["without"].cpu,
    }


def bytes_of_a_row() -> dict[str, list[float]]:
    """With beta, and with gains that set themselves: of PyTorch and of JAX, in single precision."""
    n = 1000
    per_row = lambda arrays: sum(x.nbytes for x in arrays if x.ndim) / n
    number = jnp.zeros((), jnp.float32)
    return {
        "PyTorch": [per_row(nt.Tracked(n, **how).buffers()) for how in HOW],
        "JAX": [per_row(jax.tree.leaves(nx.track_init(number, n, how.get("gain")))) for how in HOW],
    }


HOW: list[dict[str, Any]] = [{"beta": BETA}, {"gain": "auto"}]


def measure(kind: str) -> dict[str, Any]:
    """With one kind of memory, in both frameworks."""
    programs = {
        "PyTorch": (torch_losses()[kind], torch_steps, torch_alone),
        "JAX": (
            jax_losses()[kind],
            functools.partial(jax_steps, kind=kind),
            functools.partial(jax_alone, kind=kind),
        ),
    }
    found = {}
    for framework, (losses, steps, alone) in programs.items():
        of = lambda make, losses=losses: {name: make(loss) for name, loss in losses.items()}
        one = found[f"{framework}, {kind}"] = measured(of(steps), of(alone))
        print(framework, kind, one, flush=True)
    return found


def cost_table(found: dict[str, Any]) -> Table:
    lines = []
    for kind in KINDS:
        for framework in ("PyTorch", "JAX"):
            one = found[f"{framework}, {kind}"]
            ratio = f"{one['with'] / one['step']:.3f}"
            tracker = f"{1e3 * one['tracker']:.0f}"
            lines.append(
                [framework, kind, f"{one['step']:.0f}", ratio, tracker, f"{one['share']:.2f} %"]
            )
    columns = ["", "memory", "step, ms", "with over without", "tracker alone, µs", "share of a step"]
    return Table(columns, lines)


def main() -> None:
    options = parser(__doc__)
    options.add_argument(
        "--only", choices=KINDS, help="one kind of memory; what is kept of others stays"
    )
    only = options.parse_args().only
    path = results("tracked_cost.json")
    found = json.loads(path.read_text()) if only else {}
    found["bytes"] = bytes_of_a_row()
    for kind in (only,) if only else KINDS:
        found |= measure(kind)
    path.write_text(json.dumps(found))
    rows = [[name, *(f"{x:.0f}" for x in both)] for name, both in found["bytes"].items()]
    fill(
        "tracked-results.md",
        {
            "cost": cost_table(found).to_markdown(),
            "bytes": Table(["bytes of a row", "`beta=`", '`gain="auto"`'], rows).to_markdown(),
        },
    )


if __name__ == "__main__":
    main()
