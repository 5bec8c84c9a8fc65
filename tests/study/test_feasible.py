"""What is no projection onto a convex set is found out."""

import functools

import jax
import jax.numpy as jnp
import pytest

import nestax as nx
from nestax.study.check.feasible import doubts_about_projection

P = nx.projections
W = jnp.full(6, 1 / 6)
GOOD = {
    "simplex": P.simplex,
    "box": functools.partial(P.box, lower=0.0, upper=0.2),
    "budget": functools.partial(P.budget, lower=0.0, upper=0.3),
    "one point": functools.partial(P.budget, lower=0.0, upper=1 / 6),
    "l1 ball": functools.partial(P.l1_ball, scale=0.01),
    "l2 ball": P.l2_ball,
    "halfspace": functools.partial(P.halfspace, a=W, b=0.1),
    "own": lambda w: w / jnp.maximum(1, jnp.linalg.norm(w)),
    "rows": lambda w, metric=None: P.Each(P.simplex)(
        w.reshape(2, 3), metric=None if metric is None else metric.reshape(2, 3)
    ).ravel(),
}
BAD = {
    "not idempotent": lambda w: w / 2,
    "no convex set": lambda w: w / jnp.linalg.norm(w),
    "not the nearest": jnp.abs,
    "in that norm": lambda w, metric=None: P.simplex(w),
}


def over(project, dtype):
    return nx.Problem(
        [nx.Level(lambda w, x: x * w.sum(), jnp.ones(3, dtype))], W.astype(dtype), project=project
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", GOOD)
def test_projections_are_not_doubted(name, dtype):
    problem = over(GOOD[name], dtype)
    assert doubts_about_projection(problem, problem.w0, jax.random.key(0)) == []


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("words", BAD)
def test_others_are(words, dtype):
    problem = over(BAD[words], dtype)
    (sentence,) = doubts_about_projection(problem, problem.w0, jax.random.key(0))
    assert "so that" in sentence or "nearest" in sentence
    assert words.split()[-1] in sentence


def test_the_report_says_so():
    report = nx.check(over(lambda w: w / 2, float))
    assert not report.ok
    assert "project= moves a point that it has just returned" in str(report)
