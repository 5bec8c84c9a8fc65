"""Average precision and contrastive loss against their definitions, and what memory per block buys."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.compare import assert_same

import nestax as nx


def ranking(seed=0):
    """48 rows, a quarter of them positive, that a line separates badly."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((48, 4))
    y = (X @ [1.0, -0.5, 0.2, 0.0] + rng.standard_normal(48) > 0.9).astype(float)
    return X, y


def views(seed=0):
    """24 things with two signal columns that both views share, among noise."""
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((24, 2))
    view = lambda: np.hstack([shared + 0.2 * rng.standard_normal((24, 2)), rng.standard_normal((24, 3))])
    return view(), view()


def precision_by_loops(X, y, w, margin):
    h, total, positives = X @ w, 0.0, np.flatnonzero(y)
    for i in positives:
        losses = [max(0.0, margin + h[j] - h[i]) ** 2 for j in range(len(y))]
        total += sum(loss for loss, label in zip(losses, y, strict=True) if label) / sum(losses)
    return -total / len(positives)


def contrast_by_loops(X, Z, W, temperature):
    unit, total = lambda v: v / np.linalg.norm(v), 0.0
    for i in range(len(X)):
        c = [unit(W @ X[i]) @ unit(W @ Z[j]) for j in range(len(X))]
        total += np.log(np.mean([np.exp((c[j] - c[i]) / temperature) for j in range(len(X)) if j != i]))
    return total / len(X)


def cases():
    X, y = ranking()
    x, z = views()
    rng = np.random.default_rng(1)
    w, W = rng.standard_normal(4), rng.standard_normal((2, 5))
    return {
        "average precision": (
            nx.problems.average_precision(X, y, margin=0.7, visit=4),
            w,
            precision_by_loops(X, y, w, 0.7),
        ),
        "contrastive": (
            nx.problems.global_contrastive(x, z, temperature=0.3, visit=4),
            W,
            contrast_by_loops(x, z, W, 0.3),
        ),
    }


@pytest.mark.parametrize("name", ["average precision", "contrastive"])
def test_value_is_the_definition(name):
    """The closed form, the passes over the pairs, and loops; derivatives and ranges are right."""
    problem, w, value = cases()[name]
    w = jnp.asarray(w)
    assert_same(problem.value(w), value)
    assert_same(eqx.filter_jit(problem.chain_value)(w), value)
    report = nx.check(problem, w=w)
    assert report.ok, str(report)
    assert report.exact_error < 1e-12


def best(problem, method, optimiser, rates, steps, batch_size):
    """The lowest exact value that the last records have in the mean over seeds, over learning rates."""
    runs = nx.sweep(
        problem,
        lambda s: (method, optimiser(s.lr)),
        settings=nx.grid(lr=rates),
        seeds=3,
        steps=steps,
        batch_size=batch_size,
        init_batch_size=20,
        record=["exact_value"],
        record_every=steps // 20,
        progress=False,
    )
    late = runs.records["exact_value"][:, :, -5:].mean(axis=(1, 2))
    return float(np.where(np.isfinite(late), late, np.inf).min())


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(nx.SOX(0.1, 0.1), marks=pytest.mark.slow),
        pytest.param(nx.MSVR(0.1, 0.1), marks=pytest.mark.slow),
        pytest.param(nx.PerBlock(nx.AdjointSMVR(0.1, mode="fresh")), marks=pytest.mark.slow),
        pytest.param(nx.BlockSMVR(0.1), marks=pytest.mark.slow),
    ],
    ids=lambda m: type(m).__name__,
)
def test_memory_per_block_ranks_better_than_plain_batches(method):
    """One draw in four blocks a step, whose ratio is 0 or 1: the same steps, each with its best rate."""
    problem = cases()["average precision"][0]
    run = lambda method: best(problem, method, optax.sgd, [0.01, 0.03, 0.1, 0.3], 1000, 1)
    assert run(method) < run(nx.Plain()) - 0.05


@pytest.mark.slow
def test_averages_per_block_contrast_better_than_plain_batches():
    """One negative in four blocks a step: without memory log e^s is linear, and none is nearer."""
    problem = cases()["contrastive"][0]
    run = lambda method: best(problem, method, optax.adam, [0.01, 0.03, 0.1], 1000, 1)
    assert run(nx.SOX(0.5, 0.1)) < run(nx.Plain()) - 0.1


def test_ranges_hold_what_trackers_become():
    """A batch without positives, or one with all hinges at zero, leaves finite values and gradients."""
    ranks, precision = cases()["average precision"][0].levels
    for tracked, inside in {
        (3.0, 1.0): (2.0, 2.0),
        (-1.0, 0.5): (0.0, 0.5),
        (0.1, -2.0): (0.0, 0.0),
        (0.2, 0.5): (0.2, 0.5),
    }.items():
        assert_same(ranks.project(tracked), inside)
    assert_same(precision.value((0.0, 0.0), None), -1)
    cold = nx.problems.global_contrastive(*np.float32(views()), temperature=0.05)
    u = cold.levels[0].project(jnp.asarray([-1.0, 1e30], jnp.float32))
    assert np.isfinite(jax.vmap(jax.grad(jnp.log))(u)).all()


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: nx.problems.average_precision(np.ones((4, 2)), np.ones(4)), "every label is 1"),
        (lambda: nx.problems.average_precision(*ranking(), margin=0), "margin must be positive"),
        (lambda: nx.problems.average_precision(*ranking(), visit=99), "visit must be at most"),
        (lambda: nx.problems.global_contrastive(np.ones((4, 2)), np.ones((5, 2))), "of one shape"),
        (lambda: nx.problems.global_contrastive(*views(), temperature=0.01), "at least 0.05"),
        (lambda: nx.problems.global_contrastive(np.full((4, 2), np.nan), np.ones((4, 2))), "finite"),
    ],
)
def test_refusals(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()
