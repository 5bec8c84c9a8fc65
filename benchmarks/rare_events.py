"""A rare class, which most batches do not hold: is memory that sets itself ever worse than none?

    python benchmarks/rare_events.py           everything, into docs/memory.md; ten minutes on one core
    python benchmarks/rare_events.py --torch   the modules of PyTorch instead, printed; some cells

Class-balanced loss of a linear score, log(e^(mean of the rare class) + e^(mean of the others)), with
0.3 to 5 % of the rows in the rare class; Adam at 0.003, 6,000 steps, twelve seeds, the same draws for
all methods. F is that of the population, mean over the last fifth of a run.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import nestax as nx
from nestax.table import Table
from pages import fill
from script import parser, size

ROWS = 20_000
SHARES = size((0.003, 0.01, 0.02, 0.05), small=(0.05,))
BATCHES = size((2, 4, 16), small=(4,))
SEEDS = size(12, small=2)
STEPS = size(6_000, small=20)
RECORDS = size(20, small=5)
LATE = RECORDS // 5
RATE = 3e-3


@functools.cache
def rows(share: float) -> tuple[np.ndarray, np.ndarray]:
    """Five covariates, all of them larger by one in the rare class."""
    rng = np.random.default_rng(0)
    y = (np.arange(ROWS) < round(ROWS * share)).astype(np.float32)
    return (rng.normal(size=(ROWS, 5)) + y[:, None]).astype(np.float32), y


def losses(share: float) -> Callable[..., dict[str, Any]]:
    def of_row(w: dict[str, Any], row: tuple[Any, Any]) -> dict[str, Any]:
        x, y = row
        loss = jax.nn.softplus((1 - 2 * y) * (x @ w["slope"] + w["shift"]))
        return {"rare": y * loss / share, "others": (1 - y) * loss / (1 - share)}

    return of_row


def together(means: dict[str, Any]) -> Any:
    return jnp.logaddexp(means["rare"], means["others"])


def start() -> dict[str, Any]:
    return {"slope": jnp.zeros(5), "shift": jnp.zeros(())}


def problem(share: float, simulator: bool = False) -> nx.Problem:
    data: Any = rows(share)
    if simulator:
        x, y = map(jnp.asarray, data)

        def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            row = jax.random.randint(key, (), 0, ROWS)
            return x[row], y[row]

        data = nx.Sampler(draw)
    return nx.Problem([nx.Level(losses(share), data), nx.Level(together)], start())


def ends(share: float, batch: int, simulator: bool, method: Any) -> np.ndarray:
    """F at the end of every run of ``nx.sweep``."""
    chain = problem(share, simulator).replace(metrics={"F": problem(share).value})
    runs = nx.sweep(
        chain,
        lambda setting: (method, optax.adam(setting.lr)),
        settings=nx.grid(lr=[RATE]),
        seeds=SEEDS,
        steps=STEPS,
        batch_size=batch,
        record=["F"],
        record_every=STEPS // RECORDS,
        progress=False,
    )
    return runs.records["F"][0, :, -LATE:].mean(axis=1)


def tracked_ends(share: float, batch: int, memory: bool) -> np.ndarray:
    """The same in a loop of one's own, with ``nx.track`` or without."""
    x, y = map(jnp.asarray, rows(share))
    each = jax.vmap(losses(share), (None, 0))
    adam = optax.adam(RATE)
    whole = problem(share).value

    def loss(w: Any, before: Any, state: Any, row: Any) -> tuple[Any, Any]:
        now = each(w, (x[row], y[row]))
        if not memory:
            return together(jax.tree.map(jnp.mean, now)), state
        means, state = nx.track(now, state, gain="auto", previous=each(before, (x[row], y[row])))
        return together(means), state

    def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
        w, before, state, moments = carry
        row = jax.random.randint(key, (batch,), 0, ROWS)
        grad, state = jax.grad(loss, has_aux=True)(w, before, state, row)
        updates, moments = adam.update(grad, moments)
        return (optax.apply_updates(w, updates), w, state, moments), None

    def run(seed: jax.Array) -> jax.Array:
        keys = jax.random.split(jax.random.key(seed), (RECORDS, STEPS // RECORDS))
        empty = nx.track_init({"rare": 0.0, "others": 0.0}, gain="auto")
        first = (start(), start(), empty, adam.init(start()))

        def stride(carry: Any, keys: jax.Array) -> tuple[Any, Any]:
            carry, _ = jax.lax.scan(step, carry, keys)
            return carry, whole(carry[0])

        return jax.lax.scan(stride, first, keys)[1][-LATE:].mean()

    return np.asarray(jax.jit(jax.vmap(run))(jnp.arange(SEEDS)))


def torch_ends(share: float, batch: int, memory: bool, seeds: int) -> np.ndarray:
    """The same with a module of PyTorch."""
    import torch

    from nestax.torch import Tracked

    x, y = map(torch.tensor, rows(share))
    found = []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        score = torch.nn.Linear(5, 1)
        torch.nn.init.zeros_(score.weight), torch.nn.init.zeros_(score.bias)
        before = torch.nn.Linear(5, 1)
        tracked = Tracked(shape=(2,), gain="auto")
        adam = torch.optim.Adam(score.parameters(), RATE)

        def of(model: Any, x: Any, y: Any) -> Any:
            loss = torch.nn.functional.softplus((1 - 2 * y) * model(x)[:, 0])
            return torch.stack([y * loss / share, (1 - y) * loss / (1 - share)], 1)

        late = []
        for t in range(STEPS):
            row = torch.randint(ROWS, (batch,), generator=generator)
            now = of(score, x[row], y[row])
            with torch.no_grad():
                old = of(before if t else score, x[row], y[row])
                before.load_state_dict(score.state_dict())
            means = tracked(now, previous=old) if memory else now.mean(0)
            adam.zero_grad()
            means.logsumexp(0).backward()
            adam.step()
            if (t + 1) % (STEPS // RECORDS) == 0:
                late.append(of(score, x, y).mean(0).logsumexp(0).item())
        found.append(np.mean(late[-LATE:]))
    return np.asarray(found)


def row_of(kind: str, share: float, batch: int, plain: np.ndarray, ours: np.ndarray) -> list[Any]:
    difference = ours - plain
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    cells = [f"{plain.mean():.3f}", f"{ours.mean():.3f}", f"{ours.max():.3f}"]
    return [kind, f"{share:.1%}", batch, *cells, f"{difference.mean():+.3f} ± {error:.3f}"]


HEAD = ["draws", "rare rows", "batch", "Plain", "memory", "its worst run", "difference"]


def measured() -> Table:
    found = []
    for kind, simulator in (("rows", False), ("a simulator", True)):
        for share in SHARES:
            for batch in BATCHES:
                runs = [ends(share, batch, simulator, m) for m in (nx.Plain(), nx.SelfTuning())]
                found.append(row_of(kind, share, batch, *runs))
                print(*found[-1], flush=True)
    for share in SHARES:
        for batch in BATCHES:
            runs = [tracked_ends(share, batch, memory) for memory in (False, True)]
            found.append(row_of("nx.track", share, batch, *runs))
            print(*found[-1], flush=True)
    return Table(HEAD, found)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--torch", action="store_true", help="the modules of PyTorch")
    if options.parse_args().torch:
        for share in SHARES[:2]:
            runs = [torch_ends(share, 4, memory, size(4, small=1)) for memory in (False, True)]
            print(*row_of("nestax.torch", share, 4, *runs), flush=True)
        sys.exit()
    fill("memory.md", {"rare events": measured().to_markdown()})
