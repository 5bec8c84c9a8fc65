"""Whether the draws of an inner step may serve its derivative as well: few-shot learning in small.

Omniglot at 14 × 14 and a network of 8 filters, five classes, 50 tasks of 10 support images a class, of
which an inner step sees one; 16 tasks a step, Adam with a learning rate of 0.003. Two tables of
docs/meta-learning.md, in some fifteen minutes on two cores:

draws-noise      gradients without memory at the start, and after some steps along those of one batch a
                 level, against ∇F with all support images
draws-accuracy   accuracy on test tasks after adapting to one image a class, and to all ten

    python benchmarks/maml_draws.py
"""

import jax
import numpy as np
import optax

import nestax as nx
from nestax.parts import draw_batches
from nestax.table import Table
from pages import fill
from real_data import omniglot
from script import few, parser, size

from experiments.networks import convolutional, in_one_vector

TASKS = size(50, small=4)
TEST_TASKS = size(200, small=4)
VISIT = size(16, small=2)
INNER_STEPS = size(5, small=1)
ROWS = size(10, small=2)
SIDE = size(14, small=7)
FILTERS = size(8, small=2)
LR = 0.003
STEPS = size(400, small=4)
#: After so many steps noise is looked at.
LOOKS = size((0, 100, 300), small=(1,))
SEEDS = 2
SIZES = {f"step {k}": 1 for k in range(1, INNER_STEPS + 1)} | {"query": ROWS}
REPEATS = size(60, small=3)


def problem_of() -> nx.Problem:
    images = omniglot(SIDE)
    network = in_one_vector(convolutional(5, side=SIDE, filters=FILTERS))
    test = images.tasks(TEST_TASKS, support=ROWS, query=ROWS, test=True)
    return nx.problems.maml(
        network.apply,
        images.tasks(TASKS, support=ROWS, query=ROWS),
        network.init,
        visit=VISIT,
        inner_steps=INNER_STEPS,
        inner_lr=0.1,
        score={"one": test.with_shots(1), "all": test},
    )


def mean_and_noise(problem, estimator, w, rows: int, repeats: int) -> tuple[np.ndarray, float]:
    """Mean and root mean square deviation of the gradient in all tasks, from their first estimates."""
    sizes = (rows,) * INNER_STEPS + (ROWS,)

    @jax.jit
    def gradient(key):
        batches = draw_batches(problem, estimator, key, 0, sizes, every_block=True)
        return estimator.init(problem, w, batches)[0].grad

    each = np.stack([gradient(key) for key in jax.random.split(jax.random.key(0), repeats)])
    mean = each.mean(axis=0)
    return mean, float(np.sqrt(np.sum((each - mean) ** 2, axis=1).mean()))


def noise(problem: nx.Problem) -> Table:
    rows = []
    for steps in LOOKS:
        w = problem.start(jax.random.key(0))
        if steps:
            run = nx.minimize(
                problem,
                nx.Plain(),
                optax.adam(LR),
                steps=steps,
                batch_size=SIZES,
                record=[],
                progress=False,
            )
            w = run.w
        true, _ = mean_and_noise(problem, nx.PerBlock(nx.Plain()), w, ROWS, 1)
        size = np.linalg.norm(true)
        for draws, estimator in {
            "one batch": nx.Plain(),
            "separate": nx.AdjointSMVR(1.0, mode="fresh"),
        }.items():
            mean, spread = mean_and_noise(problem, nx.PerBlock(estimator), w, 1, REPEATS)
            cosine = mean @ true / np.linalg.norm(mean) / size
            rows.append([steps, draws, round(float(cosine), 2), round(spread / size, 2)])
    return Table(["after steps", "draws", "cosine of mean and ∇F", "noise / |∇F|"], rows)


METHODS = {
    "no memory": (lambda beta: nx.Plain(), (1.0,)),
    "SCSC": (lambda beta: nx.PerBlock(nx.SCSC(beta)), (0.5, 0.9)),
    'ProductSMVR(mode="reuse")': (
        lambda beta: nx.PerBlock(nx.ProductSMVR(beta, mode="reuse")),
        (0.5, 0.9),
    ),
    'AdjointSMVR(mode="reuse")': (
        lambda beta: nx.PerBlock(nx.AdjointSMVR(beta, mode="reuse")),
        (0.5, 0.9),
    ),
    'AdjointSMVR(mode="fresh")': (
        lambda beta: nx.PerBlock(nx.AdjointSMVR(beta, mode="fresh")),
        (0.5, 0.9),
    ),
}


def accuracy(problem: nx.Problem) -> Table:
    rows = []
    for name, (build, betas) in few(METHODS, small=1).items():
        runs = nx.sweep(
            problem,
            lambda s, build=build: (build(s.beta), optax.adam(LR)),
            settings=nx.grid(beta=betas),
            seeds=SEEDS,
            steps=STEPS,
            batch_size=SIZES,
            record=["one", "all"],
            record_every=STEPS // 4,
            progress=False,
        )
        for k, beta in enumerate(betas):
            one, whole = (100 * runs.records[column][k] for column in ("one", "all"))
            means = [round(float(x), 1) for x in one.mean(axis=0)[1:]]
            last = [round(float(x), 1) for x in (one[:, -1].std(), whole[:, -1].mean())]
            rows.append([name, "–" if len(betas) == 1 else beta, *means, *last])
            print(*rows[-1], flush=True)
    quarters = [f"{STEPS * k // 4} steps" for k in (1, 2, 3, 4)]
    return Table(["method", "beta", *quarters, "deviation", "ten images"], rows)


if __name__ == "__main__":
    parser(__doc__).parse_args()
    chain = problem_of()
    parts = {"draws-noise": noise(chain), "draws-accuracy": accuracy(chain)}
    fill("meta-learning.md", {name: table.to_markdown() for name, table in parts.items()})
