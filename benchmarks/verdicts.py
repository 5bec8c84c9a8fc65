"""Whether what a run says of itself is so: 62 runs, some of which have converged.

    python benchmarks/verdicts.py

The runs were chosen before the rule was written, and are sorted by the truth: a run has converged if it
has come 99 % of the way from the start to the least value of F that a long exact run finds, and has not
if it has come less than 95 %.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import nestax as nx
from script import few, parser, size

jax.config.update("jax_enable_x64", True)


class Case(NamedTuple):
    """A problem with F as a function of the weights, and its least value."""

    problem: nx.Problem
    value: Callable[[Any], float]
    least: Callable[[], float]


class Row(NamedTuple):
    """What became of a case: the share of the way that it has come, the truth, and the verdict."""

    name: str
    share: float
    true: str
    arrived: bool | None


STEPS = size(20_000, small=20)


def least_of(problem: nx.Problem, rates: tuple[float, ...]) -> float:
    """The least value that exact gradients find at any of some rates."""
    lanes = nx.sweep(
        problem,
        lambda s: (nx.Exact(), optax.sgd(s.lr)),
        settings=nx.grid(lr=rates),
        seeds=1,
        steps=STEPS,
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


def exact(problem: nx.Problem, *rates: float) -> Case:
    """A case whose least value is found by exact gradients at some rates."""
    value = lambda w: float(problem.value(w))
    return Case(problem, value, functools.cache(lambda: least_of(problem, rates)))


def known(problem: nx.Problem, least: float, value: Callable[[Any], float] | None = None) -> Case:
    """A case whose least value is known."""
    return Case(problem, value or (lambda w: float(problem.value(w))), lambda: least)


def cases() -> dict[str, Case]:
    percent = nx.datasets.synthetic_returns(3_000, 10)
    linear = nx.Problem([nx.Level(lambda w, r: r @ w, np.ones((50, 2)) + 0.1)], np.zeros(2))
    return {
        "deviation": exact(nx.problems.mean_deviation(percent), 0.01, 0.1),
        "deviation of fractions": exact(nx.problems.mean_deviation(percent / 100), 3.0, 30.0),
        "variance": exact(nx.problems.mean_variance(percent), 0.01, 0.1),
        "variance of fractions": exact(nx.problems.mean_variance(percent / 100), 30.0, 300.0),
        "regression": exact(regression(), 0.1, 0.3),
        "regression × 1e-6": exact(regression(1e-6), 1e5, 3e5),
        "regression × 1e6": exact(regression(1e6), 1e-7, 3e-7),
        "regression, float32": exact(regression().replace(w0=np.zeros(4, np.float32)), 0.1, 0.3),
        "entropic": exact(entropic(), 0.03, 0.1),
        "logistic in a box": exact(logistic(), 0.1, 0.5),
        "beside a saddle": known(saddle().replace(w0=np.array([0.1, 1.0])), -0.25),
        "on a saddle": known(saddle().replace(w0=np.array([0.0, 0.0])), -0.25),
        "unbounded": known(linear, -1e9),
        "simulated": known(simulated(), (0.1 / 5.1) ** 2 + 0.5 / 5.1**2, simulated_value),
    }


def cosine(rate: float, steps: int) -> optax.Schedule:
    return optax.cosine_decay_schedule(rate, steps)


Run = tuple[str, Any, Any, dict[str, Any]]


def runs() -> list[Run]:
    """Problem, method, step and settings; batches of 16 unless told otherwise."""
    smvr, plain, own, whole = nx.SMVR(0.1), nx.Plain(), nx.SelfTuning(), nx.Exact()
    snapshots, sgd, adam = nx.SnapshotSMVR(), optax.sgd, optax.adam
    dying = optax.exponential_decay(0.003, 10, 0.7)
    out: list[Run] = [
        ("deviation", whole, sgd(0.1), {"steps": 3_000}),
        ("deviation", smvr, sgd(0.05), {"steps": 4_000}),
        ("deviation", own, sgd(0.05), {"steps": 4_000}),
        ("deviation", snapshots, sgd(0.1), {"steps": 2_000}),
        ("deviation", smvr, sgd(0.05), {"steps": 4_000, "record_every": 400}),
        ("deviation", own, sgd(cosine(0.2, 4_000)), {"steps": 4_000}),
        ("variance", snapshots, sgd(0.1), {"steps": 3_000}),
        ("variance", whole, sgd(0.1), {"steps": 3_000}),
        ("variance of fractions", snapshots, sgd(300.0), {"steps": 3_000}),
        ("deviation of fractions", smvr, sgd(5.0), {"steps": 6_000}),
        ("regression", plain, adam(0.01), {"steps": 3_000}),
        ("regression", plain, adam(0.003), {"steps": 8_000, "batch_size": 1}),
        ("regression", smvr, nx.steps.Normalized(cosine(0.02, 3_000)), {"steps": 3_000}),
        ("regression, float32", smvr, sgd(0.02), {"steps": 3_000}),
        ("entropic", own, adam(0.01), {"steps": 4_000}),
        ("entropic", smvr, sgd(0.05), {"steps": 4_000}),
        ("entropic", whole, sgd(0.1), {"steps": 1_000}),
        ("entropic", smvr, sgd(0.05), {"steps": 20_000, "output": "average"}),
        ("logistic in a box", smvr, sgd(0.1), {"steps": 4_000}),
        ("logistic in a box", own, sgd(0.1), {"steps": 4_000}),
        ("logistic in a box", whole, sgd(0.3), {"steps": 2_000}),
        ("beside a saddle", smvr, sgd(0.05), {"steps": 3_000}),
        ("simulated", own, sgd(0.02), {"steps": 4_000}),
        ("simulated", own, adam(cosine(0.05, 3_000)), {"steps": 3_000}),
        ("deviation", smvr, sgd(1e-6), {"steps": 4_000}),
        ("deviation", smvr, sgd(1e-4), {"steps": 4_000}),
        ("deviation", smvr, sgd(100.0), {"steps": 4_000}),
        ("deviation", smvr, sgd(0.01), {"steps": 30}),
        ("deviation", smvr, sgd(dying), {"steps": 4_000}),
        ("deviation of fractions", smvr, sgd(0.01), {"steps": 2_000}),
        ("variance of fractions", smvr, sgd(0.1), {"steps": 2_000}),
        ("variance of fractions", whole, sgd(0.1), {"steps": 2_000}),
        ("variance", plain, sgd(30.0), {"steps": 2_000}),
        ("regression", plain, sgd(0.35), {"steps": 2_000, "batch_size": 1}),
        ("regression × 1e-6", smvr, sgd(0.02), {"steps": 3_000}),
        ("regression", plain, adam(1e-5), {"steps": 3_000}),
        ("regression", plain, adam(3.0), {"steps": 1_000, "batch_size": 1}),
        ("entropic", own, sgd(1e-4), {"steps": 2_000}),
        ("entropic", smvr, adam(1e-5), {"steps": 2_000}),
        ("entropic", smvr, sgd(1e-4), {"steps": 2_000, "record_every": 400}),
        ("entropic", smvr, sgd(0.002), {"steps": 600, "output": "average"}),
        ("logistic in a box", smvr, sgd(1e-4), {"steps": 2_000}),
        ("logistic in a box", smvr, sgd(0.01), {"steps": 20}),
        ("logistic in a box", smvr, sgd(-0.1), {"steps": 2_000}),
        ("on a saddle", smvr, sgd(0.05), {"steps": 1_000}),
        ("regression", smvr, sgd(0.0), {"steps": 1_000}),
        ("unbounded", plain, sgd(0.1), {"steps": 1_000}),
        ("unbounded", plain, sgd(cosine(0.1, 1_000)), {"steps": 1_000}),
        ("simulated", own, sgd(1e-5), {"steps": 4_000}),
        ("simulated", smvr, sgd(0.002), {"steps": 30}),
    ]
    for name, scale in (("", 1.0), (" × 1e-6", 1e-6), (" × 1e6", 1e6)):
        out += [
            (f"regression{name}", plain, sgd(0.02 / scale), {"steps": 3_000}),
            (f"regression{name}", smvr, sgd(0.02 / scale), {"steps": 3_000}),
            (f"regression{name}", plain, sgd(0.005 / scale), {"steps": 40}),
            (f"regression{name}", smvr, sgd(1e-5 / scale), {"steps": 3_000}),
        ]
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
    parser(__doc__).parse_args()
    all_cases = few(cases(), 2)
    rows = []
    for name, method, step, settings in runs():
        if name not in all_cases:
            continue
        case = all_cases[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", nx.ConvergenceWarning)
            result = nx.minimize(case.problem, method, step, **({"batch_size": 16} | settings))
        first, last = case.value(jnp.asarray(case.problem.w0)), case.value(result.w)
        share = (first - last) / (first - case.least()) if first > case.least() else 1.0
        true = "yes" if share >= 0.99 else "no" if share < 0.95 else "neither"
        rows.append(Row(name, share, true, result.verdict.arrived))
        print(f"{name:25s} {100 * max(share, -9.99):8.2f} %  {result.verdict}", flush=True)
    print(counted(rows))


if __name__ == "__main__":
    main()
