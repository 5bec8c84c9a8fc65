"""Few-shot learning as everybody does it, on Omniglot: Adam on episodes, with five inner steps.

Every step takes some tasks with fixed support images, all of them in every inner step, so the problem
has one level. Runs by name, each kept as a JSON file in benchmarks/results/maml_episodes; seeds run one
after the other.

    python benchmarks/maml_episodes.py 1-shot-long  # computes a run, unless it is kept; needs a GPU
    python benchmarks/maml_episodes.py              # writes the table of docs/meta-learning.md
"""

import json
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax

import nestax as nx
from nestax.table import Table
from pages import fill
from real_data import omniglot
from script import SMALL, parser, results, size

from experiments.maml import INNER_STEPS as PUBLISHED_STEPS
from experiments.maml import QUERY, WAYS
from experiments.networks import convolutional, in_one_vector

INNER_STEPS = size(PUBLISHED_STEPS, small=1)
INNER_LR = 0.1
SIDE = size(28, small=7)
FILTERS = size(64, small=2)
TEST_TASKS = size(400, small=4)
RECORDS = size(20, small=2)


class Plan(NamedTuple):
    """A run. The learning rate is constant, or falls to zero along half a cosine."""

    shots: int
    steps: int
    tasks: int
    visit: int = 32
    lr: float = 0.001
    falls: bool = False
    seeds: int = 3


PLANS = {
    "5-shot": Plan(5, 1_000, 20_000, seeds=2),
    # As many tasks as those of Figure 4 that have a memory, and as many a step.
    "1-shot-200-tasks": Plan(1, 1_000, 200, visit=16),
    "5-shot-200-tasks": Plan(5, 1_000, 200, visit=16),
    "1-shot-long": Plan(1, 30_000, 200_000, lr=0.002, falls=True, seeds=1),
}
if SMALL:
    PLANS = {"small": Plan(1, 4, 8, visit=2, falls=True, seeds=2)}


def run(plan: Plan) -> dict:
    """Test accuracy along the run, seeds × records, and seconds for 1,000 steps with their records."""
    images = omniglot(SIDE)
    network = in_one_vector(convolutional(WAYS, side=SIDE, filters=FILTERS))
    pool = images.tasks(plan.tasks, ways=WAYS, support=plan.shots, query=QUERY)
    test = images.tasks(TEST_TASKS, ways=WAYS, support=5, query=15, test=True).with_shots(plan.shots)
    problem = nx.problems.maml(
        network.apply,
        pool,
        network.init,
        visit=plan.visit,
        inner_steps=INNER_STEPS,
        inner_lr=INNER_LR,
        score={"test": test},
    )
    lr = optax.cosine_decay_schedule(plan.lr, plan.steps) if plan.falls else plan.lr

    every = plan.steps // RECORDS

    def train(steps: int, seed: int = 0) -> nx.Result:
        result = nx.minimize(
            problem,
            nx.Plain(),
            optax.adam(lr),
            steps=steps,
            seed=seed,
            record=["test"],
            batch_size={f"step {k}": plan.shots for k in range(1, INNER_STEPS + 1)} | {"query": QUERY},
            record_every=every,
            progress=False,
        )
        if result.status is not nx.Status.SUCCESS:
            raise SystemExit(f"the run was not finished: {result.message}")
        return result

    train(every)  # compiles
    took = []
    for steps in (every, 2 * every):
        began = time.perf_counter()
        train(steps)
        took.append(time.perf_counter() - began)
    results = [train(plan.steps, seed) for seed in range(plan.seeds)]
    return {
        "plan": list(plan),
        "step": results[0].records["step"].tolist(),
        "test": [result.records["test"].tolist() for result in results],
        "seconds": 1_000 * (took[1] - took[0]) / every,
        "device": jax.devices()[0].device_kind,
    }


def file_of(name: str) -> Path:
    return results(f"maml_episodes/{name}.json")


def table() -> Table:
    columns = ["shots", "tasks", "a step", "lr", "steps", "runs", "test", "deviation", "s per 1,000"]
    rows = []
    for name in PLANS:
        if not file_of(name).is_file():
            continue
        kept = json.loads(file_of(name).read_text())
        plan = Plan(*kept["plan"])
        test = 100 * np.asarray(kept["test"])
        rate = f"{plan.lr:g}{' to 0' if plan.falls else ''}"
        last = test[:, -1]
        rows.append(
            [
                plan.shots,
                plan.tasks,
                plan.visit,
                rate,
                kept["step"][-1],
                len(last),
                round(float(last.mean()), 1),
                round(float(last.std()), 1) if len(last) > 1 else "–",
                round(kept["seconds"], 1),
            ]
        )
    return Table(columns, rows)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PLANS))
    names = arguments.parse_args().names
    for name in PLANS if SMALL else names:
        if not file_of(name).is_file():
            file_of(name).write_text(json.dumps(run(PLANS[name])))
    if not names:
        fill("meta-learning.md", {"episodes": table().to_markdown()})
