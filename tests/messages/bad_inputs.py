"""Inputs that cannot be used, and the sentence that each of them gets.

    python tests/messages/bad_inputs.py

writes the tables of docs/messages.md. A case is what somebody typed: a line of Python, or a command.
"""

import contextlib
import shlex
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from typer.testing import CliRunner

import nestax as nx
from nestax.cli import app
from nestax.table import Table

PAGE = Path(__file__).parent.parent.parent / "docs" / "messages.md"
BEGIN = "<!-- messages: begin -->"
END = "<!-- messages: end -->"
OURS = Path(nx.__file__).parent
ROWS = nx.datasets.synthetic_returns(40, 3)
LABELS = np.arange(40) % 2


def product(w, row):
    return row @ w


def last(u):
    return u * u


def branches(w, row):
    return row @ w if w[0] > 0 else w[0]


def throws(w, row):
    return row @ (w + np.random.normal(size=3))  # noqa: NPY002


def forgets(w, row):
    pass


def loops(w, row):
    return sum(row[k] for k in range(int(w[0])))


def on_the_host(w, row):
    return float(row @ w)


def by_numpy(w, row):
    return np.dot(np.asarray(row), w)


def made() -> dict[str, Any]:
    """What the lines of Python see."""
    with jax.enable_x64(False):  # as a reader has it
        problem = nx.problems.mean_deviation(ROWS)
    level = nx.Level(product, ROWS, name="mean")

    def chain(fn: Any, data: Any = ROWS, **more: Any) -> nx.Problem:
        return nx.Problem([nx.Level(fn, data, **more), nx.Level(last)], jnp.zeros(3))

    normal = nx.Conditional(nx.Sampler(jax.random.normal), lambda x, key: x, visit=2)
    with jax.enable_x64(False):
        endless = nx.Problem([nx.Level(lambda w, draw: w * draw[1], normal), nx.Level(last)], 1.0)

    def run(*args: Any, **changes: Any) -> nx.Result:
        method = args or (nx.SMVR(), optax.sgd(0.1))
        return nx.minimize(problem, *method, **({"steps": 3, "batch_size": 2} | changes))

    def sweep(settings: Any, **changes: Any) -> nx.Sweep:
        build = lambda s: (nx.SMVR(beta=s.beta), optax.sgd(0.1))
        return nx.sweep(
            problem, build, **({"settings": settings, "seeds": 2, "steps": 3, "batch_size": 2} | changes)
        )

    def own(batches: Any) -> Any:
        return nx.SMVR().init(problem, problem.w0, batches)

    with jax.enable_x64(False):
        one, table = nx.track_init(0.0), nx.track_init(0.0, n=5)
    seen = {"problem": problem, "endless": endless, "level": level, "one": one, "table": table}
    return globals() | seen | {"chain": chain, "run": run, "sweep": sweep, "own": own}


#: By heading. ``chain(fn, data)`` is a problem of two levels, ``run(...)`` a short ``nx.minimize``.
CASES: dict[str, list[str]] = {
    "A problem": [
        'nx.Problem([level, nx.Level(last)], "0.5")',
        'nx.Problem([level, nx.Level(last)], {"a": jnp.zeros(3), "b": "wide"})',
        "nx.Problem([level, nx.Level(last)], jnp.arange(3))",
        "nx.Problem([level, nx.Level(last)], [0.0, 0.0, 0.0])",
        "nx.minimize(problem.replace(w0=jnp.full(3, jnp.nan)), nx.SMVR(), steps=3)",
        "nx.Problem([], jnp.zeros(3))",
        "nx.Problem([product, last], jnp.zeros(3))",
        "nx.Problem([nx.Level(last)], jnp.zeros(()))",
        "nx.Problem([level], jnp.zeros(4))",
        "nx.Problem([level, level], jnp.zeros(3))",
        "nx.Problem([nx.Level(lambda w, row: row * w, ROWS)], jnp.zeros(3))",
        "problem.replace(project=lambda w: w[:2])",
        "problem.replace(project=0.5)",
        "problem.with_data(means=ROWS)",
    ],
    "Rows": [
        'chain(product, np.array([["a", "b", "c"]]))',
        "chain(product, np.array([[1.0, None, 2.0]]))",
        'chain(product, np.array(["2024-01-01"], "datetime64[D]"))',
        "chain(product, np.where(ROWS > 0.1, np.nan, ROWS))",
        "chain(product, np.full((4, 3), 1e308))",
        "chain(product, np.zeros((0, 3)))",
        "chain(product, 3.0)",
        "chain(product, (ROWS, ROWS[:5]))",
        'chain(product, "returns.npy")',
        "chain(product, lambda key: key)",
        "chain(product, nx.Sampler(lambda key: np.random.normal(size=3)))",
        "chain(product, [[1.0, 2.0, 3.0]] * 4)",
        "nx.Population(ROWS, weights=np.zeros(40))",
    ],
    "The function of a level": [
        "chain(branches)",
        "chain(throws)",
        "chain(forgets)",
        "chain(loops)",
        "chain(on_the_host)",
        "chain(by_numpy)",
        "chain(lambda w: w.sum())",
        "chain(product, args=ROWS)",
        "chain(lambda w, row, scale: scale * row @ w, args=2.0)",
        "nx.Level(ROWS, product)",
        "chain(lambda w, row: jnp.sign(row @ w).astype(int))",
    ],
    "Blocks": [
        "nx.Blocks([ROWS, ROWS[:, :2]], visit=1)",
        "nx.Blocks([nx.Sampler(jax.random.normal), ROWS], visit=1)",
        "nx.Blocks(np.ones((4, 3)), visit=5)",
        "nx.Conditional(ROWS, visit=41)",
        "nx.Conditional(ROWS, np.zeros((0, 3)), visit=2)",
        "nx.Conditional(lambda key: key, ROWS, visit=2)",
        "nx.Conditional(ROWS, ROWS, visit=2, ranges=(np.zeros(40, int), np.zeros(40, int)))",
        "nx.Conditional(ROWS, ROWS, visit=2, ranges=([0], [1]))",
        "nx.problems.average_precision(ROWS, np.zeros(40))",
        "nx.problems.average_precision(ROWS, np.arange(39))",
        "nx.problems.average_precision(ROWS, LABELS, model=lambda w, x: w / 0, w0=jnp.ones(()))",
        "nx.problems.average_precision(ROWS, LABELS, model=lambda w, x: w * x, w0=jnp.ones(()))",
        "nx.problems.partial_auc(ROWS, np.ones(40))",
        "nx.problems.partial_auc(ROWS, LABELS, temperature=0)",
        'nx.problems.partial_auc(ROWS, LABELS, surrogate="hinge")',
        'nx.problems.ndcg(ROWS[:3], [2, 0, 1], ["a", "a", "b"])',
        "nx.problems.ndcg(ROWS, np.zeros(40), LABELS)",
        "nx.problems.contrastive(ROWS, ROWS[:30])",
        "nx.problems.contrastive(ROWS, ROWS, model=lambda w, x: w @ x, w0=jnp.ones(3))",
        "nx.problems.contrastive(ROWS, ROWS, temperature=0.001)",
        "nx.problems.bellman(transitions=(ROWS, ROWS[:, 0]), discount=0.9)",
        "nx.problems.bellman(transitions=(ROWS, ROWS[:, 0], ROWS), discount=1.0)",
        "nx.problems.bellman(transitions=(ROWS, ROWS[:, 0], ROWS), two=True, discount=0.9)",
        "nx.problems.bellman(states=ROWS, simulate=lambda s, key: s[:2], discount=0.9)",
        "nx.problems.log_marginal(ROWS, lambda w, x, key: jnp.log(0 * w), jnp.ones(()))",
        "nx.minimize(endless, nx.SOX(), optax.sgd(0.1), steps=3)",
        "nx.minimize(endless, nx.SMVR(), optax.sgd(0.1), steps=3)",
        "endless.value(jnp.ones(()))",
        "nx.evaluate(endless, jnp.ones(()))",
        "nx.problems.partial_auc(1e6 * ROWS, LABELS, w0=jnp.ones(3))",
    ],
    "Settings": [
        "nx.SMVR(beta=-0.1)",
        'nx.SMVR(beta="0.1")',
        "nx.SMVR(beta=float('nan'))",
        "nx.SMVR(lr=0)",
        "run(nx.SMVR(), optax.sgd(0.0))",
        "run(optax.sgd(0.1))",
        'run("SMRV")',
        "run(nx.SMVR(), 0.1)",
        "run(nx.SMVR(lr=0.1), optax.sgd(0.1))",
        "nx.minimize(problem)",
        "nx.minimize(ROWS, nx.SMVR(), optax.sgd(0.1), steps=3)",
    ],
    "A tracker in a loss": [
        "nx.track(1.0, one)",
        "nx.track(1.0, one, beta=1.5)",
        "nx.track(1.0, one, beta=optax.constant_schedule(0.1))",
        "nx.track(1.0, 0.0, beta=0.1)",
        "nx.track(1.0, nx.track(1.0, one, beta=0.1), beta=0.1)",
        "nx.track(1, one, beta=0.1)",
        "nx.track(jnp.ones(2), one, beta=0.1)",
        "nx.track(jnp.ones(2), table, beta=0.1)",
        "nx.track(jnp.ones(2), table, [3, 5], beta=0.1)",
        "nx.track(jnp.ones(2), table, [3, 3], beta=0.1)",
        "nx.track(jnp.ones(3), table, [0, 1], beta=0.1)",
        "nx.track(jnp.array([1.0, jnp.nan]), table, [0, 1], beta=0.1)",
        'nx.track(jnp.ones(1), one, gain="auto", previous=jnp.ones(1))',
        'nx.track(jnp.ones(1), None, gain="auto", previous=jnp.ones(1))',
        "nx.track_init((3,))",
        "nx.equinox.Tracked(beta=0.1)(1.0, one)",
        "nx.losses.kl_robust(jnp.mean(jnp.ones(4)), one, temperature=1.0, beta=0.1)",
        "nx.losses.cox(jnp.ones(4), one, [0, 1, 2, 3])",
        "nx.losses.info_nce(jnp.ones((1, 1)), table, [0], temperature=1.0, beta=0.1)",
    ],
    "Batches of a loop of your own": [
        "own(ROWS)",
        "own([nx.Batch(ROWS), nx.Batch(ROWS), None])",
        'own([{"value": ROWS}, {"value": ROWS}, {}])',
        'own([{"values": nx.Batch(ROWS)}, {"value": nx.Batch(ROWS)}, {}])',
        'own([{"value": nx.Batch(ROWS)}, {"value": nx.Batch(ROWS)}])',
        'own([{"value": nx.Batch(ROWS)}, {"value": nx.Batch(ROWS[0])}, {}])',
        'own([{"value": nx.Batch(ROWS)}, {"value": nx.Batch(ROWS[:0])}, {}])',
        'own([{"value": nx.Batch(ROWS)}, {"value": nx.Batch((ROWS, LABELS))}, {}])',
    ],
    "A run": [
        "run(steps=0)",
        "run(steps=10.5)",
        "run(steps=None)",
        "run(steps=10, samples=1_000)",
        "run(batch_size=0)",
        'run(batch_size={"means": 4})',
        "run(seed=0.5)",
        "run(record_every=0)",
        'run(record=["valeu"])',
        "run(record=3)",
        'run(output="best")',
        "run(callback=3)",
        "run(callback=lambda record: 3)",
        "run(stop=nx.stop.Patience(-1))",
        "run(stop=nx.stop.Gap(1e-3))",
        "run(stop=nx.stop.Seconds(-1))",
        "run(start=3)",
        "run(checkpoint=True)",
        "run(stop=3)",
        "sweep({})",
        'sweep(nx.grid(beta="0.1"))',
        "sweep(nx.grid(lr=[0.1, 0.2]))",
        "sweep(nx.grid(beta=[0.1]), seeds=0)",
        'nx.load("nothing.safetensors")',
    ],
    "Commands": [
        "nestax portfolio nothing.csv",
        "nestax portfolio synthetic --method SMRV",
        "nestax portfolio synthetic --lr 0",
        "nestax portfolio synthetic --risk high",
        "nestax portfolio synthetic --out .",
        "nestax compare --methods Plain,SMRV",
        "nestax compare --seeds 0",
        "nestax cite Smith",
        "nestax data fetch austral",
        "nestax portfolioo",
        "nestax resume nothing",
    ],
}


class Answer(NamedTuple):
    """What a case is answered with.

    kind: the error, the warning, or the exit code.
    ours: whether a line of nestax says it, and not one of the packages below.
    """

    kind: str
    words: str
    ours: bool


def answer(case: str, space: dict[str, Any]) -> Answer:
    if case.startswith("nestax "):
        done = CliRunner().invoke(app, shlex.split(case)[1:])
        boxed = [line.strip("│ ") for line in done.stderr.splitlines() if line.startswith("│")]
        words = " ".join(boxed) or done.stderr.strip()  # Typer draws a box around what it refuses itself
        return Answer(f"exit code {done.exit_code}", words, done.exit_code == 2)
    try:
        with warnings.catch_warnings(record=True) as told, jax.enable_x64(False):
            warnings.simplefilter("always")
            eval(case, space)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1].filename
        return Answer(type(error).__name__, str(error), Path(place).is_relative_to(OURS))
    if told:
        return Answer(
            told[0].category.__name__, str(told[0].message), told[0].filename in ("<string>", __file__)
        )
    return Answer("nothing", "", False)


def tables(folder: Path) -> str:
    """All cases with their sentences, in Markdown; of those with several lines the first."""
    space = made()
    (folder / "notes.txt").write_text("not made by a run")
    parts = []
    with contextlib.chdir(folder):
        for heading, cases in CASES.items():
            rows = [[f"`{case}`", answer(case, space).words.splitlines()[0]] for case in cases]
            parts.append(f"## {heading}\n\n{Table(['typed', 'answered'], rows).to_markdown()}")
    return "\n\n".join(parts)


def written(page: str, new: str) -> str:
    """The page with new tables between its marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{new}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(written(PAGE.read_text(), tables(Path(folder))))
