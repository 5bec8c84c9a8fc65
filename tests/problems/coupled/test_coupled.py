"""Average precision and contrastive loss against their definitions, and what memory per block buys."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
from tests.support.compare import assert_same
from tests.support.compiled import quick_jit

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


def partial_by_loops(X, y, w, scale, surrogate, other=None, threshold=None):
    h, risks = X @ w, []
    for i in np.flatnonzero(y):
        losses = [surrogate(h[j] - h[i]) for j in np.flatnonzero(1 - y)]
        risks.append(scale * np.log(np.mean([np.exp(loss / scale) for loss in losses])))
    if other is None:
        return np.mean(risks)
    return threshold + other * (np.mean([np.exp((r - threshold) / other) for r in risks]) - 1)


def queries():
    """Seven queries of 2 to 9 documents, in no order; one has nothing relevant."""
    rng = np.random.default_rng(4)
    query = rng.permutation(np.repeat(list("abcdefg"), [2, 9, 4, 5, 3, 6, 7]))
    y = rng.integers(0, 4, len(query)) * (query != "c")
    return rng.standard_normal((len(query), 4)), y, query


def gain_by_loops(X, y, query, w, margin):
    h, each = X @ w, []
    for q in sorted(set(query)):
        own = np.flatnonzero(query == q)
        best = sum((2.0**v - 1) / np.log2(2 + k) for k, v in enumerate(sorted(y[own])[::-1]))
        total = 0.0
        for i in own:
            rank = 1 + sum(max(0, 1 + (h[j] - h[i]) / margin) ** 2 for j in own if j != i)
            total += (2.0 ** y[i] - 1) / np.log2(1 + rank)
        each += [total / best] if best else []
    return -np.mean(each)


def logistic(s):
    return np.log(1 + np.exp(s))


def tower(w, x):
    return w["model"] @ x


@functools.cache
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
            nx.problems.contrastive(x, z, temperature=0.3, visit=4),
            W,
            contrast_by_loops(x, z, W, 0.3),
        ),
        "two towers": (
            nx.problems.contrastive(
                x,
                z[:, :4],
                model=tower,
                partner=lambda w, v: w["partner"] @ v,
                w0={"model": W, "partner": W[:, :4]},
                learn_temperature=True,
                symmetric=True,
                l2=0.1,
                visit=4,
            ),
            {"model": {"model": W, "partner": W[:, 1:]}, "temperature": np.asarray(0.4)},
            (
                contrast_by_loops(x @ W.T, z[:, :4] @ W[:, 1:].T, np.eye(2), 0.4)
                + contrast_by_loops(z[:, :4] @ W[:, 1:].T, x @ W.T, np.eye(2), 0.4)
            )
            / 2
            + 0.05 * (np.sum(W**2) + np.sum(W[:, 1:] ** 2)),
        ),
        "ndcg": (
            nx.problems.ndcg(*queries(), margin=0.8, visit=4),
            w,
            gain_by_loops(*queries(), w, 0.8),
        ),
        "partial AUC, one-way": (
            nx.problems.partial_auc(X, y, temperature=0.6, visit=4),
            w,
            partial_by_loops(X, y, w, 0.6, logistic),
        ),
        "partial AUC, squared hinge": (
            nx.problems.partial_auc(X, y, temperature=5.0, surrogate="squared hinge", visit=4),
            w,
            partial_by_loops(X, y, w, 5.0, lambda s: max(0.0, 1 + s) ** 2),
        ),
        "partial AUC, two-way": (
            nx.problems.partial_auc(X, y, temperature=0.6, positive_temperature=0.9, visit=4),
            {"model": jnp.asarray(w), "threshold": jnp.asarray(0.4)},
            partial_by_loops(X, y, w, 0.6, logistic, 0.9, 0.4),
        ),
    }


CASES = (
    "average precision",
    "contrastive",
    "two towers",
    "ndcg",
    "partial AUC, one-way",
    "partial AUC, squared hinge",
    "partial AUC, two-way",
)


@pytest.mark.parametrize("name", CASES)
def test_value_is_the_definition(name):
    """The closed form, the passes over the pairs, and loops; derivatives and ranges are right."""
    problem, w, value = cases()[name]
    w = jax.tree.map(jnp.asarray, w)
    penalty = lambda w: 0 if problem.penalty is None else problem.penalty(w)
    both = quick_jit(lambda w: (problem.value(w), problem.chain_value(w) + penalty(w)))(w)
    assert_same(both, [value] * 2)
    report = nx.check(problem, w=w)
    assert report.ok, str(report)
    assert report.exact_error < 1e-12


@pytest.mark.slow
def test_pairs_in_parts_are_all_pairs(monkeypatch):
    """The closed forms and their gradients, cut up."""
    for name in CASES:
        problem, w, _ = cases()[name]
        w = jax.tree.map(jnp.asarray, w)
        both = lambda w, problem=problem: problem.value_and_grad(w)
        monkeypatch.setattr("nestax.problems.coupled.pairs.PAIRS_AT_ONCE", 2**22)
        whole = jax.jit(both)(w)
        monkeypatch.setattr("nestax.problems.coupled.pairs.PAIRS_AT_ONCE", 100)
        jax.tree.map(assert_same, jax.jit(lambda w, both=both: both(w))(w), whole)


def test_temperatures_choose_the_rows_that_count():
    """λ → ∞ is the whole area, λ → 0 the worst pair of each; the best threshold is a soft maximum."""
    X, y = ranking()
    w = np.asarray([0.5, -1.0, 0.3, 0.7])
    h = X @ w
    losses = logistic(h[y == 0][None, :] - h[y == 1][:, None])
    of = lambda **options: nx.problems.partial_auc(X, y, **options)
    assert_same(of(temperature=1e7).value(jnp.asarray(w)), losses.mean(), 1e-6)
    assert_same(of(temperature=1e-2).value(jnp.asarray(w)), losses.max(1).mean(), 0.05)
    problem = of(temperature=0.6, positive_temperature=0.9)
    risks = 0.6 * np.log(np.exp(losses / 0.6).mean(1))
    best = 0.9 * np.log(np.exp(risks / 0.9).mean())
    value = jax.jit(
        jax.value_and_grad(lambda a: problem.value({"model": jnp.asarray(w), "threshold": a}))
    )
    assert_same(value(jnp.asarray(best))[0], best)
    assert abs(float(value(jnp.asarray(best))[1])) < 1e-12
    assert_same(problem.w0["threshold"], np.log(2))  # all scores are equal at the start


def test_partial_auc_comes_to_its_optimum():
    """A convex problem, by full gradients of SciPy and by four draws in four blocks a step."""
    X, y = ranking()
    problem = nx.problems.partial_auc(X, y, temperature=0.5, visit=4, l2=0.1)
    both = jax.jit(lambda w: problem.value_and_grad(w))
    found = scipy.optimize.minimize(lambda w: both(jnp.asarray(w)), np.zeros(4), jac=True, tol=1e-10)
    run = nx.minimize(
        problem,
        nx.SOX(0.2, 0.1),
        optax.sgd(optax.cosine_decay_schedule(0.05, 4_000)),
        steps=4_000,
        batch_size=4,
        record=["exact_value"],
        progress=False,
    )
    start = run.records["exact_value"][0]
    assert run.records["exact_value"][-1] - found.fun < 0.02 * (start - found.fun)


def network(w, x):
    return jnp.tanh(x @ w["inner"]) @ w["outer"]


def test_a_model_of_ones_own_is_evaluated_once_for_every_row():
    """That is, its draws are shared; it learns."""
    X, y = ranking()
    w0 = {"inner": jnp.asarray(np.random.default_rng(2).normal(size=(4, 3))), "outer": jnp.ones(3)}
    for build in (nx.problems.average_precision, nx.problems.partial_auc):
        assert not build(X, y).blocks.shared
        assert build(X, y, shared=True).blocks.shared
        problem = build(X, y, model=network, w0=w0, visit=4)
        assert problem.blocks.shared
        run = nx.minimize(
            problem, nx.SOX(0.3, 0.3), optax.adam(0.03), steps=300, batch_size=8, progress=False
        )
        values = run.records["exact_value"]
        assert values[-1] < values[0] - 0.05


def ndcg_of(h, y, query):
    """The true one, of the order by scores."""
    each = []
    for q in sorted(set(query)):
        gains = 2.0 ** y[query == q] - 1
        discount = 1 / np.log2(2 + np.arange(len(gains)))
        if gains.any():
            each.append(gains[np.argsort(-h[query == q])] @ discount / (np.sort(gains)[::-1] @ discount))
    return np.mean(each)


@pytest.mark.slow
def test_ndcg_bounds_the_true_one_and_learns_an_order():
    X, _, query = queries()
    y = np.digitize(X @ [1.0, -0.5, 0.2, 0.0], [0.0, 0.8, 1.6])
    problem = nx.problems.ndcg(X, y, query, visit=8, margin=0.3)
    rng = np.random.default_rng(0)
    for _ in range(5):
        w = rng.normal(size=4)
        assert problem.value(jnp.asarray(w)) >= -ndcg_of(X @ w, y, query)
    run = nx.minimize(
        problem, nx.SOX(0.3, 0.3), optax.adam(0.02), steps=800, batch_size=4, progress=False
    )
    assert ndcg_of(X @ np.asarray(run.w), y, query) > 0.95


@pytest.mark.slow
def test_a_learned_temperature_stays_warm_and_an_encoder_learns():
    """Its least value is in the feasible set, and the loss falls below that of the first temperature."""
    x, z = views()
    w0 = {"inner": jnp.asarray(np.random.default_rng(2).normal(size=(5, 8))), "outer": jnp.eye(8)[:, :3]}
    problem = nx.problems.contrastive(
        x,
        z,
        model=lambda w, v: jnp.tanh(v @ w["inner"]) @ w["outer"],
        w0=w0,
        temperature=0.5,
        learn_temperature=True,
        visit=6,
    )
    assert problem.blocks.shared
    assert_same(problem.project({"model": w0, "temperature": jnp.asarray(-1.0)})["temperature"], 0.05)
    run = nx.minimize(
        problem, nx.SOX(0.3, 0.3), optax.adam(0.02), steps=400, batch_size=8, progress=False
    )
    assert run.records["exact_value"][-1] < run.records["exact_value"][0] - 0.5
    assert 0.05 <= float(run.w["temperature"]) < 0.5


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
    cold = nx.problems.contrastive(*np.float32(views()), temperature=0.05)
    u = cold.levels[0].project({"x": jnp.asarray([-1.0, 1e30], jnp.float32)})
    assert np.isfinite(jax.vmap(jax.grad(jnp.log))(u["x"])).all()


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: nx.problems.average_precision(np.ones((4, 2)), np.ones(4)), "every label is 1"),
        (lambda: nx.problems.partial_auc(np.ones((4, 2)), np.zeros(4)), "every label is 0"),
        (lambda: nx.problems.partial_auc(np.ones((4, 2)), [0, 1, 2, 0]), "1 for rows .* others; got 2"),
        (lambda: nx.problems.partial_auc(*ranking(), temperature=0), "temperature must be positive"),
        (
            lambda: nx.problems.partial_auc(*ranking(), positive_temperature=-1),
            "must be positive; got -1",
        ),
        (
            lambda: nx.problems.partial_auc(*ranking(), surrogate="hinge"),
            "one of logistic, squared hinge",
        ),
        (
            lambda: nx.problems.partial_auc(*ranking(), w0=np.full(4, 1e4)),
            "the loss of the worst pair is .* raise the temperature",
        ),
        (
            lambda: nx.problems.partial_auc(*ranking(), model=lambda w, x: x[:2] * w, w0=np.ones(())),
            "do not fit together",
        ),
        (
            lambda: nx.problems.average_precision(*ranking(), model=lambda w, x: w / 0, w0=np.ones(())),
            "the loss of row 0 of the data is",
        ),
        (lambda: nx.problems.average_precision(*ranking(), margin=0), "margin must be positive"),
        (lambda: nx.problems.average_precision(*ranking(), visit=99), "visit must be at most"),
        (lambda: nx.problems.contrastive(np.ones((4, 2)), np.ones((5, 2))), "of one shape"),
        (
            lambda: nx.problems.ndcg(np.ones((3, 2)), [1, 0, 1], ["a", "b", "a"]),
            "query b has one document, which nothing can be ranked before: leave it out",
        ),
        (lambda: nx.problems.ndcg(np.ones((2, 2)), [0, 0], [1, 1]), "no document is relevant"),
        (
            lambda: nx.problems.ndcg(np.ones((2, 2)), [0, -1], [1, 1]),
            "relevance of at least 0 .* got -1",
        ),
        (
            lambda: nx.problems.ndcg(np.ones((2, 2)), [0, 1], [1]),
            "query must hold one label for each of the 2",
        ),
        (
            lambda: nx.problems.ndcg(np.ones((4, 2)), [0, 1] * 2, [1, 1, *2 * [np.nan]]),
            "none may be missing",
        ),
        (
            lambda: nx.problems.ndcg(np.ones((2, 2)), [0, 1], np.array(["a", None])),
            "query must hold labels of one type",
        ),
        (lambda: nx.problems.contrastive(*views(), temperature=0.01), "at least 0.05"),
        (lambda: nx.problems.contrastive(*views(), model=network), "needs its starting weights"),
        (lambda: nx.problems.contrastive(*views(), partner=network), "give both, or neither"),
        (
            lambda: nx.problems.contrastive(*views(), model=lambda w, x: w @ x, w0=np.ones(5)),
            r"vectors of one length for both views; got shapes \(\) and \(\)",
        ),
        (
            lambda: nx.problems.contrastive(*views(), model=lambda w, x: w @ x, w0=np.ones((2, 3))),
            "model and views do not fit together: ",
        ),
        (
            lambda: nx.problems.contrastive(*views(), w0=np.full((2, 5), np.nan)),
            "are not finite at the start",
        ),
        (lambda: nx.problems.contrastive(np.full((4, 2), np.nan), np.ones((4, 2))), "NaN"),
    ],
)
def test_refusals(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()
