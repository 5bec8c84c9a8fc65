"""Checks for levels and methods of your own."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

import nestax.linear_oracles as linear_oracles
import nestax.projections as projections
import nestax.trees as trees
from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.blocks import Blocks
from nestax.estimators import Plain
from nestax.loop.plan import Meter
from nestax.parts.estimator import AbstractEstimator, Batches, Calls, Estimate, draw_batches
from nestax.parts.tables import visited_in
from nestax.problems.convex_chain import convex_chain
from nestax.run.sweep import grid, sweep
from nestax.steps.descent import step_of


def check_batched(level: Level, single: Level, x: PyTree, *, draws: int = 8, seed: int = 0) -> None:
    """Raises unless a ``batched=True`` level agrees with its one-draw form on a batch at ``x``.

    Compares the mean value, and the mean Jacobian through pullbacks of random directions.
    """
    source: Any = single.source
    shapes = jax.eval_shape(lambda: x)
    many = level.bind(shapes)
    alone = single.bind(shapes)
    batch = source.draw(jax.random.key(seed), jnp.asarray(0), draws)
    value, pull = many.value_and_pull(x, batch)
    expected, expected_pull = alone.value_and_pull(x, batch)
    leaves, treedef = jax.tree.flatten(expected)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    direction = treedef.unflatten(
        [jax.random.normal(k, y.shape, y.dtype) for k, y in zip(keys, leaves, strict=True)]
    )
    for what, a, b in (
        ("value", value, expected),
        ("Jacobian", pull(direction), expected_pull(direction)),
    ):
        for got, want in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            close = float(np.finfo(want.dtype).eps) ** 0.5
            np.testing.assert_allclose(
                got,
                want,
                rtol=close,
                atol=close,
                err_msg=f"the batched form of level {level.name!r} has another {what}",
            )


# Methods

#: Steps that the laws look at; draws per level; samples of the run to the optimum.
STEPS = 6
BATCH = 3
SAMPLES = 60_000
RUN_BATCH = 4
#: Blocks, and how many are visited, for methods with memory of every block.
BLOCKS = 4
VISIT = 2
#: The ball that holds the optimum of the test problems, for methods with a feasible set.
BALL = 6.0


def check_method(method: Any, *, samples: int = SAMPLES) -> list[str]:
    """Runs the conformance suite on a method; raises AssertionError with a sentence, or returns the
    names of the checks that passed.

    ``keeps_its_structure``: ``update`` (and ``refresh``) return estimate and state with the structure,
    shapes and dtypes of ``init``, under jit and vmap, in float32 and in the default precision.
    ``makes_the_calls_it_declares``: ``passes`` and ``outer_passes`` are what is evaluated.
    ``keeps_values_in_range``: tracked values lie in the range that a level declares, and belong with the
    gradient to the weights that ``lag`` says.
    ``is_exact_without_noise``: where all draws are equal and the weights rest, value and gradient are
    those of F, from the start and at every update.
    ``reaches_the_optimum``: the published pair (or plain descent), untuned, brings a small convex
    problem to 1 % of the initial gap, and below where the method without memory ends.

    Args:
        method: an estimator, or a class that needs no arguments. A method for one or two levels, or
            with a deterministic outer level, says so in ``about`` and is given such a problem.
        samples: budget of the last check.
    """
    method = method() if isinstance(method, type) else method
    if not isinstance(method, AbstractEstimator):
        raise TypeError(f"check_method takes an estimator or its class; got {method!r}.")
    checks: list[Callable[..., None]] = [
        keeps_its_structure,
        makes_the_calls_it_declares,
        keeps_values_in_range,
        is_exact_without_noise,
        functools.partial(reaches_the_optimum, samples=samples),
    ]
    names = [getattr(check, "func", check).__name__ for check in checks]
    for name, check in zip(names, checks, strict=True):
        try:
            check(method)
        except AssertionError:
            raise
        except Exception as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else ""
            raise AssertionError(
                f"{type(method).__name__}: {name} met {type(error).__name__}: {first}"
            ) from error
    return names


def example_problem(method: AbstractEstimator, **options: Any) -> Problem:
    """A convex chain with noise in every value and Jacobian, of the kind that the method is made for.

    It has a feasible set where the method's own step rule needs one. For a method with memory of every
    block the rows are copied into four blocks, of which two are visited: the same F and optimum.
    """
    about = method.about
    levels = about.levels or 3
    sets: dict[str, Any] = {}
    free = convex_chain(levels, outer_exact=about.outer_exact, **options)
    try:
        step_of(method, free).check(free)
    except ValueError:
        sets = {
            "project": functools.partial(projections.l2_ball, scale=BALL),
            "linear_oracle": functools.partial(linear_oracles.l2_ball, radius=BALL),
        }
    if sets:
        free = convex_chain(levels, outer_exact=about.outer_exact, **options, **sets)
    return _in_blocks(free) if method.blocks == "table" else free


def _in_blocks(problem: Problem) -> Problem:
    levels = []
    for level in problem.levels:
        rows: Any = getattr(level.source, "data", None)
        copies = jax.tree.map(lambda x: jnp.broadcast_to(x, (BLOCKS, *x.shape)), rows)
        levels.append(level if rows is None else level.replace(data=Blocks(copies, visit=VISIT)))
    return problem.replace(levels=levels, exact=None)


def _ready(method: AbstractEstimator, problem: Problem) -> tuple[Any, Any]:
    """Returns the method with its defaults, and a function from a step to its batches."""
    method.check(problem)
    sizes = (BATCH,) * len(problem.levels)
    ready = method.defaults(problem, STEPS, sizes)

    def batches(step: Any, first: bool, restart: bool = False) -> Batches:
        """Of the start, of a restart, or of an ordinary step."""
        table = first and not restart and ready.blocks == "table"
        if first and ready.refresh_batch == "population":
            return tuple(
                dict.fromkeys(passes, None if level.source is None else level.source.population())
                for level, passes in zip(problem.levels, ready.level_passes(problem), strict=True)
            )
        draws = ready.refresh_batch if first and ready.refresh_batch else BATCH
        sizes = (int(draws),) * len(problem.levels)
        return draw_batches(problem, ready, jax.random.key(0), step, sizes, every_block=table)

    return ready, batches


def keeps_its_structure(method: AbstractEstimator) -> None:
    """``update`` and ``refresh`` return what ``init`` returns, in every dtype, under jit and vmap."""
    wide = example_problem(method)
    narrow = trees.cast(wide, jnp.float32)
    narrow = narrow.replace(w0=jnp.asarray(narrow.w0, jnp.float32), exact=None)
    for problem in {str(p.dtype): p for p in (wide, narrow)}.values():
        ready, batches = _ready(method, problem)
        first, later = jax.eval_shape(lambda: (batches(0, True), batches(1, False)))  # noqa: B023
        start = jax.eval_shape(lambda b: ready.init(problem, problem.w0, b), first)  # noqa: B023
        assert isinstance(start, tuple) and isinstance(start[0], Estimate), (  # noqa: PT018
            f"{type(method).__name__}.init must return (nx.Estimate(value, grad, aux), state)"
        )
        update = functools.partial(ready.update, problem)
        ends = {"update": jax.eval_shape(jax.jit(update), problem.w0, later, start[1])}
        if ready.period is not None:
            ends["refresh"] = jax.eval_shape(
                lambda b, s: ready.refresh(problem, problem.w0, b, s),  # noqa: B023
                jax.eval_shape(lambda: batches(1, True, restart=True)),  # noqa: B023
                start[1],
            )
        two_lanes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), (problem.w0, later, start[1])
        )
        jax.eval_shape(jax.vmap(update), *two_lanes)
        for name, end in ends.items():
            _same_types(f"{type(method).__name__}.{name} ({problem.dtype})", start, end)
        wrong = [
            jax.tree_util.keystr(path)
            for path, x in jax.tree.leaves_with_path(start)
            if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype != problem.dtype
        ]
        assert not wrong, f"{type(method).__name__}.init turns {problem.dtype} into another at {wrong}"


def _same_types(what: str, start: Any, end: Any) -> None:
    assert jax.tree.structure(start) == jax.tree.structure(end), (
        f"{what} returns another structure than init:\n{jax.tree.structure(end)}\nafter\n"
        f"{jax.tree.structure(start)}"
    )
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(start)]
    kinds = ([(x.shape, str(x.dtype)) for x in jax.tree.leaves(tree)] for tree in (start, end))
    for path, before, after in zip(paths, *kinds, strict=True):
        assert before == after, f"{what} returns {after} at {path}, where init returns {before}"


def keeps_values_in_range(method: AbstractEstimator) -> None:
    """Makes one update on a chain whose innermost level has a range that is always left."""
    plain = example_problem(method)
    levels = plain.levels
    if len(levels) > 1:
        levels = (levels[0].replace(project=lambda u: jnp.clip(u, -0.1, 0.1)), *levels[1:])
    problem = eqx.tree_at(lambda p: p.levels, plain, levels)
    ready, batches = _ready(method, problem)
    w = jax.tree.map(lambda x: x + 0.1, problem.w0)

    @eqx.filter_jit
    def run() -> Any:
        _, state = ready.init(problem, problem.w0, batches(0, True))
        return ready.update(problem, w, batches(1, False), state)[1]

    name = type(method).__name__
    trackers = ready.trackers(run())
    for level, value in zip(levels, trackers.value or (), strict=False):
        moved = float(optax.tree.norm(optax.tree.sub(level.project(value), value)))
        assert moved == 0, (
            f"{name} lets the value of level {level.name!r} leave its range by {moved:.1e}"
        )
    assert jax.tree.structure(trackers.w) == jax.tree.structure(w), (
        f"{name}: trackers(state).w must be the weights that its gradient belongs to; got {trackers.w!r}"
    )
    want, when = (w, "the current weights") if ready.lag == 0 else (problem.w0, "those one step ago")
    at = trackers.w
    if trees.shapes_of(at) != trees.shapes_of(want):  # a row per block: those that were visited
        at = jax.tree.map(lambda x: x[visited_in(batches(1, False))], at)
    off = float(optax.tree.norm(optax.tree.sub(at, want)))
    assert off == 0 and ready.lag < 2, (  # noqa: PT018
        f"{name} declares lag = {ready.lag}, so that its gradient belongs to {when}, but trackers say "
        "that it belongs to others"
    )


def makes_the_calls_it_declares(method: AbstractEstimator) -> None:
    """Counts evaluations while ``init`` and ``update`` are traced."""
    plain = example_problem(method)
    counters = [Counter(level.fn) for level in plain.levels]
    levels = [level.replace(fn=fn) for level, fn in zip(plain.levels, counters, strict=True)]
    problem = eqx.tree_at(lambda p: p.levels, plain, tuple(levels))
    ready, batches = _ready(method, problem)
    for counter in counters:
        counter.take()
    _, state = jax.eval_shape(lambda: ready.init(problem, problem.w0, batches(0, True)))
    for counter in counters:
        counter.take()
    jax.eval_shape(lambda s: ready.update(problem, problem.w0, batches(1, False), s), state)
    for level, counter, passes in zip(levels, counters, ready.level_passes(problem), strict=True):
        made = counter.take()
        if level.deterministic:
            continue
        points = sum(max(calls) for calls in passes.values())
        declared = Calls(points, sum(calls.derivatives for calls in passes.values()))
        assert made == declared, (
            f"{type(method).__name__} evaluates level {level.name!r} at {made.values} points, with "
            f"derivatives at {made.derivatives}; its passes declare {declared.values} and "
            f"{declared.derivatives}"
        )
    meter = Meter(problem, ready, (BATCH,) * len(levels), (BATCH,) * len(levels))
    drawn = sum(
        BATCH * len(passes) * level.source.cost
        for level, passes in zip(levels, ready.level_passes(problem), strict=True)
        if level.source is not None and ready.period != 1
    )
    assert ready.period == 1 or meter.per_step.samples == drawn


class Counter:
    """A level's function that counts its evaluations and how many of them are differentiated."""

    def __init__(self, fn: Callable[..., Any]):
        self.values = self.derivatives = 0
        self.core = jax.custom_jvp(fn)

        @self.core.defjvp
        def derivative(primals: Any, tangents: Any) -> Any:  # pyright: ignore[reportUnusedFunction]
            self.derivatives += 1
            return jax.jvp(fn, primals, tangents)

    def __call__(self, *args: Any) -> Any:
        self.values += 1
        return self.core(*args)

    def take(self) -> Calls:
        made = Calls(self.values, self.derivatives)
        self.values = self.derivatives = 0
        return made


def is_exact_without_noise(method: AbstractEstimator) -> None:
    """Equal rows and resting weights: the estimate is exact at every update."""
    problem = example_problem(method, noise=0.0)
    ready, batches = _ready(method, problem)

    @eqx.filter_jit
    def run() -> Any:
        start, state = ready.init(problem, problem.w0, batches(0, True))

        def update(state: Any, step: Any) -> Any:
            estimate, state = ready.update(problem, problem.w0, batches(step, False), state)
            return state, estimate

        _, later = jax.lax.scan(update, state, jnp.arange(1, STEPS))
        stacked = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), start, later)
        return problem.value_and_grad(problem.w0), stacked

    (value, grad), stacked = run()
    estimates = [jax.tree.map(lambda x, t=t: x[t], stacked) for t in range(STEPS)]
    # Rounding of some hundred operations, far below what a wrong formula would make.
    tolerance = float(np.finfo(np.asarray(value).dtype).eps) ** 0.75
    for step, estimate in enumerate(estimates):
        for what, got, want in (("value", estimate.value, value), ("gradient", estimate.grad, grad)):
            error = float(optax.tree.norm(optax.tree.sub(got, want)))
            assert error <= tolerance * (1 + float(optax.tree.norm(want))), (
                f"{type(method).__name__}: without noise and with resting weights the {what} is off by "
                f"{error:.1e} after {step} updates"
            )


def reaches_the_optimum(method: AbstractEstimator, samples: int = SAMPLES) -> None:
    """1 % of the initial gap, and less than the method without memory; both untuned."""
    problem = example_problem(method)
    runs = _run(problem, method, samples)
    name = type(method).__name__
    gap = _late_gap(runs)
    start = float(runs.records["gap"][0, 0, 0])
    assert gap <= 0.01 * start, (
        f"{name} ends at a gap of {gap:.1e} on a problem that starts at {start:.1e}: more than 1 %, "
        f"with batches of {RUN_BATCH} and the step rule that published_step(problem) tells; if it needs "
        "shorter steps, let that return nx.steps.Descent(0.01)"
    )
    if not isinstance(method, Plain):
        plain = _plain_gap(method.about.levels, method.about.outer_exact, problem, samples)
        assert gap < plain, f"{name} ends at a gap of {gap:.1e}, no better than Plain's {plain:.1e}"


def _run(problem: Problem, method: AbstractEstimator, samples: int) -> Any:
    return sweep(
        problem,
        lambda s: method,
        settings=grid(any=[0.0]),
        seeds=3,
        samples=samples,
        batch_size=RUN_BATCH,
        record=["gap"],
        progress=False,
    ).whole()


def _late_gap(runs: Any) -> float:
    """Computes the mean over seeds and over the last fifth of the run; infinite if any diverged."""
    curve = runs.records["gap"][0].mean(axis=0)
    late = float(curve[-max(1, len(curve) // 5) :].mean())
    return late if np.isfinite(late) else float("inf")


_PLAIN: dict[Any, float] = {}


def _plain_gap(levels: int | None, outer_exact: bool, problem: Problem, samples: int) -> float:
    """Where the method without memory ends on the same problem; the same for many methods."""
    sets = (problem.feasible is None, problem.blocks is None)
    key = (levels, outer_exact, *sets, samples, str(problem.dtype))
    if key not in _PLAIN:
        _PLAIN[key] = _late_gap(_run(problem, Plain(), samples))
    return _PLAIN[key]
