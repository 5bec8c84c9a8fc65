"""Whether what a run says of itself is so: thirty runs that have converged, and thirty that have not.

    python benchmarks/verdicts.py

The runs were chosen before the rule was written, and are sorted by the truth: a run has converged if it
has come 99 % of the way from the start to the least value of F that a long exact run finds, and has not
if it has come less than 95 %.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import nestax as nx
from script import parser

jax.config.update("jax_enable_x64", True)


@dataclasses.dataclass
class Case:
    """A run, and whether it has converged.

    start, least: F at the start, and the least value that is known; of a simulator as formulas tell.
    value: F at given weights.
    """

    name: str
    run: Callable[[], nx.Result]
    converged: bool
    least: float
    value: Callable[[Any], float]
    w0: Any


class Row(NamedTuple):
    """What became of a case: the share of the way that it has come, the truth, and the verdict."""

    name: str
    share: float
    true: str
    arrived: bool | None


def least_of(problem: nx.Problem, rates: tuple[float, ...], steps: int = 20_000) -> float:
    """The least value that exact gradients find at any of some rates."""
    lanes = nx.sweep(
        problem,
        lambda s: (nx.Exact(), optax.sgd(s.lr)),
        settings=nx.grid(lr=rates),
        seeds=1,
        steps=steps,
        record=["exact_value"],
    )
    return float(np.nanmin(lanes.records["exact_value"]))


def regression(scale: float = 1.0, rows: int = 400, seed: int = 0) -> nx.Problem:
    """Least squares of four columns, one level."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4))
    y = x @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.3 * rng.normal(size=rows)
    level = nx.Level(lambda w, r: (r[:4] @ w - r[4]) ** 2, np.c_[x, y])
    return nx.Problem([level, nx.Level(lambda u: scale * u)], np.zeros(4))


def entropic(rows: int = 400, seed: int = 1) -> nx.Problem:
    """log E exp of squared errors: two levels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    y = np.tanh(x @ np.array([0.5, -1.0, 0.5])) + 0.2 * rng.normal(size=rows)
    level = nx.Level(lambda w, r: jnp.exp((r[:3] @ w - r[3]) ** 2), np.c_[x, y])
    return nx.Problem([level, nx.Level(jnp.log)], np.zeros(3))


def logistic(seed: int = 2) -> nx.Problem:
    """The deviation of logistic losses beside their mean, in a box: three levels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(500, 5))
    y = np.sign(x @ np.array([2.0, -1.0, 0.0, 0.5, 0.0]) + rng.normal(size=500))
    rows = x * y[:, None]
    loss = lambda w, r: jnp.logaddexp(0.0, -r @ w)
    levels = [
        nx.Level(lambda w, r: (loss(w, r), w), rows),
        nx.Level(lambda u, r: (u[0], (loss(u[1], r) - u[0]) ** 2), rows),
        nx.Level(lambda u: u[0] + 0.5 * jnp.sqrt(u[1] + 1e-4)),
    ]
    return nx.Problem(levels, np.zeros(5), project=lambda w: jnp.clip(w, -1.0, 1.0))


def simulated() -> nx.Problem:
    """(E z·w − 1)² + |w|²/10 with z = (1, 2) + noise, from a simulator; F is known as a formula."""
    draw = nx.Sampler(lambda key: jnp.array([1.0, 2.0]) + jax.random.normal(key, (2,)))
    levels = [
        nx.Level(lambda w, z: (z @ w, w), draw),
        nx.Level(lambda u: (u[0] - 1) ** 2 + u[1] @ u[1] / 10),
    ]
    return nx.Problem(levels, np.array([-1.0, -1.0]))


def simulated_value(w: Any) -> float:
    w = np.asarray(w)
    return float((np.array([1.0, 2.0]) @ w - 1) ** 2 + w @ w / 10)


def saddle() -> nx.Problem:
    """x⁴/4 − x²/2 + y²/2 with noise that changes nothing at x = 0."""
    rows = np.random.default_rng(3).normal(size=(200, 1))
    level = nx.Level(lambda w, r: (w[0] ** 2 * (1 + 0.1 * r[0]), w[1] ** 2), rows)
    return nx.Problem(
        [level, nx.Level(lambda u: u[0] ** 2 / 4 - u[0] / 2 + u[1] / 2)], np.array([0.0, 1.0])
    )


def cases() -> list[Case]:
    out: list[Case] = []
    percent = nx.datasets.synthetic_returns(3_000, 10)
    portfolios = {
        "deviation": nx.problems.mean_deviation(percent),
        "variance": nx.problems.mean_variance(percent),
    }
    fractions = nx.problems.mean_variance(percent / 100)
    deviation_of_fractions = nx.problems.mean_deviation(percent / 100)

    def add(
        name: str,
        problem: nx.Problem,
        converged: bool,
        least: float,
        method: Any,
        step: Any,
        **more: Any,
    ):
        run = lambda: nx.minimize(problem, method, step, **({"batch_size": 16} | more))
        out.append(Case(name, run, converged, least, lambda w: float(problem.value(w)), problem.w0))

    least = {
        "deviation": least_of(portfolios["deviation"], (0.01, 0.1)),
        "variance": least_of(portfolios["variance"], (0.01, 0.1)),
        "fractions": least_of(fractions, (30.0, 300.0)),
        "deviation of fractions": least_of(deviation_of_fractions, (3.0, 30.0)),
        "regression": least_of(regression(), (0.1, 0.3), 3_000),
        "entropic": least_of(entropic(), (0.03, 0.1), 5_000),
        "logistic": least_of(logistic(), (0.1, 0.5), 5_000),
        "saddle": -0.25,
        "simulated": (0.1 / 5.1) ** 2 + 0.1 * 5.0 / 5.1**2,
    }
    good = portfolios["deviation"]
    add("deviation, Exact", good, True, least["deviation"], nx.Exact(), optax.sgd(0.1), steps=3_000)
    add("deviation, SMVR", good, True, least["deviation"], nx.SMVR(0.1), optax.sgd(0.05), steps=4_000)
    add(
        "deviation, SelfTuning",
        good,
        True,
        least["deviation"],
        nx.SelfTuning(),
        optax.sgd(0.05),
        steps=4_000,
    )
    add(
        "deviation, snapshots",
        good,
        True,
        least["deviation"],
        nx.SnapshotSMVR(),
        optax.sgd(0.1),
        steps=2_000,
    )
    add(
        "deviation, few records",
        good,
        True,
        least["deviation"],
        nx.SMVR(0.1),
        optax.sgd(0.05),
        steps=4_000,
        record_every=400,
    )
    add(
        "deviation, cosine",
        good,
        True,
        least["deviation"],
        nx.SelfTuning(),
        optax.sgd(optax.cosine_decay_schedule(0.2, 4_000)),
        steps=4_000,
    )
    add(
        "variance, snapshots",
        portfolios["variance"],
        True,
        least["variance"],
        nx.SnapshotSMVR(),
        optax.sgd(0.1),
        steps=3_000,
    )
    add(
        "variance, Exact",
        portfolios["variance"],
        True,
        least["variance"],
        nx.Exact(),
        optax.sgd(0.1),
        steps=3_000,
    )
    add(
        "fractions, their own rate",
        fractions,
        True,
        least["fractions"],
        nx.SnapshotSMVR(),
        optax.sgd(300.0),
        steps=3_000,
    )
    add(
        "deviation of fractions",
        deviation_of_fractions,
        True,
        least["deviation of fractions"],
        nx.SMVR(0.1),
        optax.sgd(5.0),
        steps=6_000,
    )
    for scale in (1e-6, 1.0, 1e6):
        for name, method in {"Plain": nx.Plain(), "SMVR": nx.SMVR(0.1)}.items():
            add(
                f"regression × {scale:g}, {name}",
                regression(scale),
                True,
                scale * least["regression"],
                method,
                optax.sgd(0.02 / scale),
                steps=3_000,
            )
    add(
        "regression, Adam",
        regression(),
        True,
        least["regression"],
        nx.Plain(),
        optax.adam(0.01),
        steps=3_000,
    )
    add(
        "regression, Adam, batch 1",
        regression(),
        True,
        least["regression"],
        nx.Plain(),
        optax.adam(0.003),
        steps=8_000,
        batch_size=1,
    )
    add(
        "regression, normalised, falling",
        regression(),
        True,
        least["regression"],
        nx.SMVR(0.1),
        nx.steps.Normalized(optax.cosine_decay_schedule(0.02, 3_000)),
        steps=3_000,
    )
    add(
        "entropic, SelfTuning",
        entropic(),
        True,
        least["entropic"],
        nx.SelfTuning(),
        optax.adam(0.01),
        steps=4_000,
    )
    add(
        "entropic, SMVR", entropic(), True, least["entropic"], nx.SMVR(0.1), optax.sgd(0.05), steps=4_000
    )
    add("entropic, Exact", entropic(), True, least["entropic"], nx.Exact(), optax.sgd(0.1), steps=1_000)
    add(
        "entropic, average",
        entropic(),
        True,
        least["entropic"],
        nx.SMVR(0.1),
        optax.sgd(0.05),
        steps=20_000,
        output="average",
    )
    add("logistic, box", logistic(), True, least["logistic"], nx.SMVR(0.1), optax.sgd(0.1), steps=4_000)
    add(
        "logistic, box, SelfTuning",
        logistic(),
        True,
        least["logistic"],
        nx.SelfTuning(),
        optax.sgd(0.1),
        steps=4_000,
    )
    add(
        "logistic, box, Exact",
        logistic(),
        True,
        least["logistic"],
        nx.Exact(),
        optax.sgd(0.3),
        steps=2_000,
    )
    add(
        "saddle left by noise",
        saddle().replace(w0=np.array([0.1, 1.0])),
        True,
        least["saddle"],
        nx.SMVR(0.1),
        optax.sgd(0.05),
        steps=3_000,
    )
    add(
        "float32",
        regression().replace(w0=np.zeros(4, np.float32)),
        True,
        least["regression"],
        nx.SMVR(0.1),
        optax.sgd(0.02),
        steps=3_000,
    )

    slow = good
    add(
        "deviation, rate 1e-6",
        slow,
        False,
        least["deviation"],
        nx.SMVR(0.1),
        optax.sgd(1e-6),
        steps=4_000,
    )
    add(
        "deviation, rate 1e-4",
        slow,
        False,
        least["deviation"],
        nx.SMVR(0.1),
        optax.sgd(1e-4),
        steps=4_000,
    )
    add(
        "deviation, rate 100",
        slow,
        False,
        least["deviation"],
        nx.SMVR(0.1),
        optax.sgd(100.0),
        steps=4_000,
    )
    add("deviation, 30 steps", slow, False, least["deviation"], nx.SMVR(0.1), optax.sgd(0.01), steps=30)
    add(
        "deviation, rate dies",
        slow,
        False,
        least["deviation"],
        nx.SMVR(0.1),
        optax.sgd(optax.exponential_decay(0.003, 10, 0.7)),
        steps=4_000,
    )
    add(
        "deviation of fractions, rate of percent",
        deviation_of_fractions,
        False,
        least["deviation of fractions"],
        nx.SMVR(0.1),
        optax.sgd(0.01),
        steps=2_000,
    )
    add(
        "variance of fractions, rate of percent",
        fractions,
        False,
        least["fractions"],
        nx.SMVR(0.1),
        optax.sgd(0.1),
        steps=2_000,
    )
    add(
        "variance of fractions, Exact",
        fractions,
        False,
        least["fractions"],
        nx.Exact(),
        optax.sgd(0.1),
        steps=2_000,
    )
    add(
        "variance, rate 30",
        portfolios["variance"],
        False,
        least["variance"],
        nx.Plain(),
        optax.sgd(30.0),
        steps=2_000,
    )
    for scale in (1e-6, 1.0, 1e6):
        add(
            f"regression × {scale:g}, 40 steps",
            regression(scale),
            False,
            scale * least["regression"],
            nx.Plain(),
            optax.sgd(0.005 / scale),
            steps=40,
        )
        add(
            f"regression × {scale:g}, rate too small",
            regression(scale),
            False,
            scale * least["regression"],
            nx.SMVR(0.1),
            optax.sgd(1e-5 / scale),
            steps=3_000,
        )
    add(
        "regression, rate at the edge",
        regression(),
        False,
        least["regression"],
        nx.Plain(),
        optax.sgd(0.35),
        steps=2_000,
        batch_size=1,
    )
    add(
        "regression, wrong unit × 1e-6",
        regression(1e-6),
        False,
        1e-6 * least["regression"],
        nx.SMVR(0.1),
        optax.sgd(0.02),
        steps=3_000,
    )
    add(
        "regression, Adam 1e-5",
        regression(),
        False,
        least["regression"],
        nx.Plain(),
        optax.adam(1e-5),
        steps=3_000,
    )
    add(
        "regression, Adam 3",
        regression(),
        False,
        least["regression"],
        nx.Plain(),
        optax.adam(3.0),
        steps=1_000,
        batch_size=1,
    )
    add(
        "entropic, rate too small",
        entropic(),
        False,
        least["entropic"],
        nx.SelfTuning(),
        optax.sgd(1e-4),
        steps=2_000,
    )
    add(
        "entropic, Adam 1e-5",
        entropic(),
        False,
        least["entropic"],
        nx.SMVR(0.1),
        optax.adam(1e-5),
        steps=2_000,
    )
    add(
        "entropic, few records",
        entropic(),
        False,
        least["entropic"],
        nx.SMVR(0.1),
        optax.sgd(1e-4),
        steps=2_000,
        record_every=400,
    )
    add(
        "entropic, average of a long way",
        entropic(),
        False,
        least["entropic"],
        nx.SMVR(0.1),
        optax.sgd(0.002),
        steps=600,
        output="average",
    )
    add(
        "logistic, rate too small",
        logistic(),
        False,
        least["logistic"],
        nx.SMVR(0.1),
        optax.sgd(1e-4),
        steps=2_000,
    )
    add(
        "logistic, 20 steps",
        logistic(),
        False,
        least["logistic"],
        nx.SMVR(0.1),
        optax.sgd(0.01),
        steps=20,
    )
    add(
        "logistic, wrong way",
        logistic(),
        False,
        least["logistic"],
        nx.SMVR(0.1),
        optax.sgd(-0.1),
        steps=2_000,
    )
    add(
        "saddle",
        saddle().replace(w0=np.array([0.0, 0.0])),
        False,
        least["saddle"],
        nx.SMVR(0.1),
        optax.sgd(0.05),
        steps=1_000,
    )
    add("rate 0", regression(), False, least["regression"], nx.SMVR(0.1), optax.sgd(0.0), steps=1_000)
    linear = nx.Problem([nx.Level(lambda w, r: r @ w, np.ones((50, 2)) + 0.1)], np.zeros(2))
    add("unbounded", linear, False, -1e9, nx.Plain(), optax.sgd(0.1), steps=1_000)
    add(
        "unbounded, falling rate",
        linear,
        False,
        -1e9,
        nx.Plain(),
        optax.sgd(optax.cosine_decay_schedule(0.1, 1_000)),
        steps=1_000,
    )

    def simulate(name: str, converged: bool, method: Any, step: Any, **more: Any):
        problem = simulated()
        run = lambda: nx.minimize(problem, method, step, **({"batch_size": 16} | more))
        out.append(Case(name, run, converged, least["simulated"], simulated_value, problem.w0))

    simulate("simulated, SelfTuning", True, nx.SelfTuning(), optax.sgd(0.02), steps=4_000)
    simulate(
        "simulated, SelfTuning, cosine",
        True,
        nx.SelfTuning(),
        optax.adam(optax.cosine_decay_schedule(0.05, 3_000)),
        steps=3_000,
    )
    simulate("simulated, rate too small", False, nx.SelfTuning(), optax.sgd(1e-5), steps=4_000)
    simulate("simulated, 30 steps", False, nx.SMVR(0.1), optax.sgd(0.002), steps=30)
    return out


def counted(rows: list[Row]) -> dict[str, int]:
    """How often the verdict was wrong."""
    alarms = [row for row in rows if row.true == "yes" and row.arrived is False]
    missed = [row for row in rows if row.true == "no" and row.arrived]
    unknown = [row for row in rows if row.true != "neither" and row.arrived is None]
    true = [row.true for row in rows]
    return {
        "converged": true.count("yes"),
        "not": true.count("no"),
        "in between": true.count("neither"),
        "false alarms": len(alarms),
        "missed": len(missed),
        "not known": len(unknown),
    }


def main() -> None:
    options = parser(__doc__).parse_args()
    rows = []
    for case in cases()[:: 20 if options.small else 1]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", nx.ConvergenceWarning)
            result = case.run()
        first, last = case.value(jnp.asarray(case.w0)), case.value(result.w)
        share = (first - last) / (first - case.least) if first > case.least else 1.0
        true = "yes" if share >= 0.99 else "no" if share < 0.95 else "neither"
        rows.append(Row(case.name, share, true, result.verdict.arrived))
        print(f"{case.name:45s} {100 * max(share, -9.99):8.2f} %  {result.verdict}", flush=True)
    print(counted(rows))


if __name__ == "__main__":
    main()
