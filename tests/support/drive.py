"""A run by hand, step by step, and the draws that it sees."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tests.support.compare import flat
from tests.support.compiled import compiled_init, compiled_refresh, compiled_step, compiled_update

import nestax as nx
from nestax.parts.settings import with_schedules
from nestax.steps.descent import step_of

STEPS = 12
BATCH = 3
FIRST_BATCH = 5


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
        return [self.drawn(t) for t in range(len(self.batches))]

    def drawn(self, t: int) -> list:
        """The draws of one step."""
        return [{name: _rows(b) for name, b in by_pass.items()} for by_pass in self.batches[t]]


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
    everywhere = estimator.blocks == "table"
    batches = population or draws_at(problem, passes, 0, first, everywhere)
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


_DRAWN: dict[Any, Any] = {}


def draws_at(problem, passes, step, size, every_block=False):
    """The batches of one step; those of all steps are drawn together, once per problem."""
    key = (id(problem), passes, size, every_block)
    if key not in _DRAWN:
        sizes = (size,) * len(problem.levels)
        one = lambda t: nx.draw_batches(problem, passes, jax.random.key(0), t, sizes, every_block)
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
