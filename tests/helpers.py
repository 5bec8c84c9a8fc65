"""Small problems, each with its levels and Jacobians written out in NumPy, and a hand-driven run."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import nestax as nx
import nestax.loop.compiled as compiled_programs
import nestax.loop.lanes as lanes
from nestax.parts.settings import with_schedules
from nestax.steps.descent import step_of

STEPS, BATCH, FIRST_BATCH, ROWS = 12, 3, 5, 40


class NumpyLevel(NamedTuple):
    """One level on flat vectors: ``value(x, *draw)`` and ``jac(x, *draw)``, outputs × inputs."""

    value: Callable[..., Any]
    jac: Callable[..., Any]
    project: Callable[[np.ndarray], np.ndarray] = lambda u: u

    def f(self, x, draws):
        return np.mean([np.atleast_1d(self.value(x, *draw)) for draw in draws], axis=0)

    def J(self, x, draws):
        return np.mean([np.atleast_2d(self.jac(x, *draw)) for draw in draws], axis=0)


class Case(NamedTuple):
    """A problem, the same levels in NumPy, a step size, and the projection of w in NumPy."""

    problem: nx.Problem
    levels: tuple[NumpyLevel, ...]
    lr: float
    project: Callable[[np.ndarray], np.ndarray] = lambda w: w

    @property
    def w0(self):
        return flat(self.problem.w0)


def flat(tree) -> np.ndarray:
    """All leaves, raveled in order, as one vector."""
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def assert_same(actual, expected, tolerance=1e-12):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def rng_of(name: str) -> np.random.Generator:
    return np.random.default_rng([ord(c) for c in name])


def sigmoid(s):
    return 1 / (1 + np.exp(-s))


# One level: logistic loss


def logistic(w, draw):
    a, y = draw
    return jnp.logaddexp(0.0, a @ w) - y * (a @ w)


def one_level() -> Case:
    rng = rng_of("one level")
    rows = (rng.normal(size=(ROWS, 4)), rng.choice([0.0, 1.0], ROWS))
    problem = nx.Problem([nx.Level(logistic, rows, name="loss")], w0=rng.normal(size=4))
    level = NumpyLevel(
        value=lambda w, a, y: np.log1p(np.exp(a @ w)) - y * (a @ w),
        jac=lambda w, a, y: (sigmoid(a @ w) - y) * a,
    )
    return Case(problem, (level,), lr=0.2)


# Two levels, 4 → 3 → 1


def affine(w, draw):
    A, b = draw
    return A @ w + b


def waves(u, c):
    return c @ jnp.sin(u) + u @ u / 2


def two_levels() -> Case:
    rng = rng_of("two levels")
    inner = (
        rng.normal(size=(3, 4)) + 0.5 * rng.normal(size=(ROWS, 3, 4)),
        rng.normal(size=(ROWS, 3)),
    )
    outer = 1 + rng.normal(size=(ROWS, 3))
    problem = nx.Problem(
        [nx.Level(affine, inner, name="affine"), nx.Level(waves, outer, name="waves")],
        w0=rng.normal(size=4),
    )
    levels = (
        NumpyLevel(value=lambda w, A, b: A @ w + b, jac=lambda w, A, b: A),
        NumpyLevel(value=lambda u, c: c @ np.sin(u) + u @ u / 2, jac=lambda u, c: c * np.cos(u) + u),
    )
    return Case(problem, levels, lr=0.05)


# Three levels, 4 → 3 → 2 → 1, noise in every value and every Jacobian


#: Holds every mean of the first level along the runs here, but not every tracked value.
RANGE = (-0.14, 0.79)


def squash(w, draw):
    A, b = draw
    return jnp.tanh(A @ w) + b


def into_range(u):
    return jnp.clip(u, *RANGE)


def quadratic(u, draw):
    B, c = draw
    return B @ (u * u) + c * u[:2]


def bowl(v, draw):
    s, t = draw
    return s @ v + t * (v @ v) / 2


def bowl_data(rng):
    return (rng.normal(size=(ROWS, 2)), 1 + rng.uniform(size=ROWS))


def three_levels() -> Case:
    rng = rng_of("three levels")
    first = (
        rng.normal(size=(3, 4)) + 0.4 * rng.normal(size=(ROWS, 3, 4)),
        0.3 * rng.normal(size=(ROWS, 3)),
    )
    second = (
        0.5 * rng.normal(size=(2, 3)) + 0.3 * rng.normal(size=(ROWS, 2, 3)),
        1 + 0.5 * rng.normal(size=(ROWS, 2)),
    )
    problem = nx.Problem(
        [
            nx.Level(squash, first, project=into_range, name="squash"),
            nx.Level(quadratic, second, name="quadratic"),
            nx.Level(bowl, bowl_data(rng), name="bowl"),
        ],
        w0=0.5 * rng.normal(size=4),
    )
    levels = (
        NumpyLevel(
            value=lambda w, A, b: np.tanh(A @ w) + b,
            jac=lambda w, A, b: (1 - np.tanh(A @ w) ** 2)[:, None] * A,
            project=lambda u: np.clip(u, *RANGE),
        ),
        NumpyLevel(
            value=lambda u, B, c: B @ u**2 + c * u[:2],
            jac=lambda u, B, c: 2 * B * u + np.hstack([np.diag(c), np.zeros((2, 1))]),
        ),
        NumpyLevel(value=lambda v, s, t: s @ v + t * v @ v / 2, jac=lambda v, s, t: s + t * v),
    )
    return Case(problem, levels, lr=0.05)


# Portfolio: inputs handed on unchanged, a projected value, a deterministic level, a simplex

RISK, DELTA = 0.2, 0.1


def simplex_by_sorting(w):
    descending = np.sort(w)[::-1]
    excess = (np.cumsum(descending) - 1) / np.arange(1, w.size + 1)
    support = np.flatnonzero(descending > excess)[-1]
    return np.maximum(w - excess[support], 0)


def portfolio() -> Case:
    problem = nx.problems.mean_deviation(
        nx.datasets.synthetic_returns(200, 5), risk=RISK, delta=DELTA
    ).with_data(variance=nx.datasets.synthetic_returns(200, 5, seed=1))

    def deviation_jac(yx, r):
        y, x = yx[0], yx[1:]
        off = r @ x - y
        return np.vstack([np.eye(6)[0], 2 * off * np.concatenate([[-1.0], r])])

    levels = (
        NumpyLevel(
            value=lambda x, r: np.concatenate([[r @ x], x]),
            jac=lambda x, r: np.vstack([r, np.eye(5)]),
        ),
        NumpyLevel(
            value=lambda yx, r: np.array([yx[0], (r @ yx[1:] - yx[0]) ** 2]),
            jac=deviation_jac,
            project=lambda yz: np.array([yz[0], max(yz[1], 0.0)]),
        ),
        NumpyLevel(
            value=lambda yz: -yz[0] + RISK * np.sqrt(yz[1] + DELTA),
            jac=lambda yz: np.array([-1.0, RISK / (2 * np.sqrt(yz[1] + DELTA))]),
        ),
    )
    return Case(problem, levels, lr=0.02, project=simplex_by_sorting)


# Trees: dictionaries of weights, values and draws; some outputs see only some inputs


def tree_inner(w, draw):
    return {
        "grid": jnp.tanh(draw["A"] @ w["b"]),
        "kept": w["a"],
        "mean": draw["c"] @ w["a"],
    }


def tree_middle(u, draw):
    m, s = draw
    return {
        "left": m * jnp.sum(u["grid"] ** 2) + u["mean"],
        "right": (s + u["mean"]) * u["kept"],
    }


def tree_outer(v, draw):
    e, q = draw
    return q @ v["right"] + e * v["left"] ** 2 / 2 + v["right"] @ v["right"] / 2


def tree_inner_numpy() -> NumpyLevel:
    def grid(w, A):
        return np.tanh(A @ w[2:].reshape(2, 2))

    def jac(w, A, c):
        J = np.zeros((7, 6))
        J[:4, 2:] = np.einsum("ij,ik,jl->ijkl", 1 - grid(w, A) ** 2, A, np.eye(2)).reshape(4, 4)
        J[4:6, :2] = np.eye(2)
        J[6, :2] = c
        return J

    value = lambda w, A, c: np.concatenate([grid(w, A).ravel(), w[:2], [c @ w[:2]]])
    return NumpyLevel(value, jac)


def tree_middle_numpy() -> NumpyLevel:
    def jac(u, m, s):
        J = np.zeros((3, 7))
        J[0, :4], J[0, 6] = 2 * m * u[:4], 1
        J[1:, 4:6], J[1:, 6] = np.diag(s + u[6]), u[4:6]
        return J

    def value(u, m, s):
        return np.concatenate([[m * np.sum(u[:4] ** 2) + u[6]], (s + u[6]) * u[4:6]])

    return NumpyLevel(value, jac)


def tree() -> Case:
    rng = rng_of("tree")
    inner = {
        "A": rng.normal(size=(2, 2)) + 0.3 * rng.normal(size=(ROWS, 2, 2)),
        "c": 1 + 0.5 * rng.normal(size=(ROWS, 2)),
    }
    middle = (0.5 + 0.3 * rng.normal(size=ROWS), 0.5 + 0.3 * rng.normal(size=(ROWS, 2)))
    outer = (1 + rng.uniform(size=ROWS), rng.normal(size=(ROWS, 2)))
    problem = nx.Problem(
        [
            nx.Level(tree_inner, inner, name="inner"),
            nx.Level(tree_middle, middle, name="middle"),
            nx.Level(tree_outer, outer, name="outer"),
        ],
        w0={"a": 0.4 * rng.normal(size=2), "b": 0.6 * rng.normal(size=(2, 2))},
    )
    outer_level = NumpyLevel(
        value=lambda v, e, q: q @ v[1:] + e * v[0] ** 2 / 2 + v[1:] @ v[1:] / 2,
        jac=lambda v, e, q: np.concatenate([[e * v[0]], q + v[1:]]),
    )
    return Case(problem, (tree_inner_numpy(), tree_middle_numpy(), outer_level), lr=0.05)


CASES = {
    "one_level": one_level,
    "two_levels": two_levels,
    "three_levels": three_levels,
    "portfolio": portfolio,
    "tree": tree,
}


#: What laws over every estimator range over; two levels show nothing that three do not.
LAW_CASES = tuple(name for name in CASES if name != "two_levels")


@functools.cache
def noisy(name: str) -> Case:
    return CASES[name]()


@functools.cache
def quiet(name: str) -> Case:
    """The same chain where all rows of a level are equal: stochastic in form, without noise."""
    case = noisy(name)
    data = {
        level.name: jax.tree.map(lambda x, k=k: jnp.repeat(x[k : k + 1], len(x), 0), level.source.data)
        for k, level in enumerate(case.problem.levels)
        if not level.deterministic
    }
    return case._replace(problem=case.problem.with_data(**data))


# A run by hand


class Run(NamedTuple):
    """Lists over the steps 0..T; an estimate belongs to the weights of the same entry.

    draws[t][i][name] is a list of draws, each a tuple of NumPy arrays; [()] for a deterministic level.
    """

    w: list
    estimate: list
    state: list
    batches: list

    @property
    def weights(self) -> np.ndarray:
        return np.stack([flat(w) for w in self.w])

    @property
    def grads(self) -> np.ndarray:
        return np.stack([flat(e.grad) for e in self.estimate])

    @property
    def values(self) -> np.ndarray:
        return np.stack([e.value for e in self.estimate])

    @property
    def draws(self) -> list:
        return [
            [{name: _rows(b) for name, b in by_pass.items()} for by_pass in batches]
            for batches in self.batches
        ]


def drive(problem, estimator, lr=None, *, passes=None) -> Run:
    """w ← step(w, estimate), new draws, update (or refresh): what the loop does, step by step.

    lr: a number for w ← Π(w − lr·grad); a step rule; None for the one the method is published with.
    passes: what is drawn, if not exactly what the estimator asks for.
    """
    levels = len(problem.levels)
    rule = step_of(estimator, problem) if lr is None else lr
    estimator = estimator.defaults(problem, STEPS, (BATCH,) * levels)
    if isinstance(rule, nx.steps.AbstractStep):
        rule = with_schedules(rule, STEPS, "float64")
        opt_state = rule.init(problem.w0)
    passes = tuple(passes or estimator.passes)
    from_population = estimator.refresh_batch == "population"
    population = population_batches(problem, passes) if from_population else None
    first = estimator.refresh_batch if isinstance(estimator.refresh_batch, int) else FIRST_BATCH
    batches = population or draws_at(problem, passes, 0, first)
    w = problem.project(problem.w0)
    estimate, state = compiled_init(estimator, problem, w, batches)
    run = Run([w], [estimate], [state], [batches])
    for step in range(1, STEPS + 1):
        if isinstance(rule, nx.steps.AbstractStep):
            w, opt_state = compiled_step(rule, problem, w, estimate, opt_state)
        else:
            w = problem.project(jax.tree.map(lambda x, g: x - rule * g, w, estimate.grad))
        if estimator.period is not None and step % estimator.period == 0:
            batches = population or draws_at(problem, passes, step, first)
            estimate, state = compiled_refresh(estimator, problem, w, batches, state)
        else:
            batches = draws_at(problem, passes, step, BATCH)
            estimate, state = compiled_update(estimator, problem, w, batches, state)
        for column, entry in zip(run, (w, estimate, state, batches), strict=True):
            column.append(entry)
    return run


def accepted(**options) -> dict[str, Any]:
    """The compiler options that this version of XLA knows."""
    known = {}
    for name, value in options.items():
        try:
            jax.jit(lambda x: x).lower(1.0).compile(compiler_options={name: value})
            known[name] = value
        except jax.errors.JaxRuntimeError:
            continue
    return known


# A dozen steps take less time than compiling them, so compile quickly rather than well.
quick_jit = functools.partial(
    eqx.filter_jit,
    compiler_options=accepted(xla_backend_optimization_level=0, xla_cpu_use_fusion_emitters=False),
)


@quick_jit
def compiled_step(rule, problem, w, estimate, state):
    return rule.update(problem, w, estimate.grad, estimate.aux, state)


@quick_jit
def compiled_init(estimator, problem, w, batches):
    return estimator.init(problem, w, batches)


@quick_jit
def compiled_update(estimator, problem, w, batches, state):
    return estimator.update(problem, w, batches, state)


@quick_jit
def compiled_refresh(estimator, problem, w, batches, state):
    return estimator.refresh(problem, w, batches, state)


_DRAWN: dict[Any, Any] = {}


def draws_at(problem, passes, step, size):
    """The batches of one step; those of all steps are drawn together, once per problem."""
    key = (id(problem), passes, size)
    if key not in _DRAWN:
        sizes = (size,) * len(problem.levels)
        one = lambda t: nx.draw_batches(problem, passes, jax.random.key(0), t, sizes)
        batches = jax.device_get(jax.vmap(one)(jnp.arange(STEPS + 1)))
        _DRAWN[key] = (problem, batches)  # holding the problem keeps its id from being used again
    return jax.tree.map(lambda x: x[step], _DRAWN[key][1])


def population_batches(problem, passes):
    return tuple(
        dict.fromkeys(passes, None if level.source is None else level.source.population())
        for level in problem.levels
    )


def _rows(batch) -> list:
    leaves = [] if batch is None else [np.asarray(x) for x in jax.tree.leaves(batch.draws)]
    return list(zip(*leaves, strict=True)) if leaves else [()]


# The estimators that laws range over

MODES = ("fresh", "lagged", "reuse")


def storm_family(beta) -> dict[str, Any]:
    """Every estimator that tracks values by STORM and has no snapshot."""
    return (
        {"smvr": nx.SMVR(beta)}
        | {f"adjoint_{mode}": nx.AdjointSMVR(beta, mode) for mode in MODES}
        | {f"product_{mode}": nx.ProductSMVR(beta, mode) for mode in MODES}
    )


def every_estimator(beta=0.3) -> dict[str, Any]:
    return storm_family(beta) | {
        "snapshot": nx.SnapshotSMVR(beta, period=5),
        "plain": nx.Plain(),
        "exact": nx.Exact(),
    }


def steps_memory(compiled) -> Any:
    """What the compiled steps of a run take, as the compiler tells it."""
    carry = [jax.ShapeDtypeStruct(*of) for of in compiled.carried().values()]
    numbers = [jnp.zeros((), jnp.int32)] * 3
    program = compiled_programs._program(lanes.advance, compiled.structure)
    return program.lower(jax.tree.leaves(compiled.all), carry, *numbers).compile().memory_analysis()
