"""Information gain and log marginals of Gaussian models, whose closed forms are known."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.compare import assert_same

import nestax as nx

VARIANCE = np.asarray([1.0, 0.5, 0.25])
NOISE = 0.6
DESIGN = np.asarray([0.3, 0.2, 0.9])


def prior(key):
    return jnp.sqrt(jnp.asarray(VARIANCE)) * jax.random.normal(key, (3,))


def simulate(w, cause, key):
    return w @ cause + NOISE * jax.random.normal(key)


def log_prob(w, cause, outcome):
    return -(((outcome - w @ cause) / NOISE) ** 2) / 2


def gain(w):
    """log √(1 + wᵀΣw/σ²): what one linear measurement tells of a Gaussian cause."""
    return np.log1p(np.sum(VARIANCE * np.asarray(w) ** 2) / NOISE**2) / 2


def on_ball(w):
    return w / jnp.maximum(1, jnp.linalg.norm(w))


def experiment(**options):
    return nx.problems.information_gain(
        prior, simulate, log_prob, jnp.asarray(DESIGN), project=on_ball, **options
    )


def test_information_gain_is_the_closed_form():
    """Over outcomes that never come back, by nested means."""
    problem = experiment()
    assert problem.endless
    interval = nx.evaluate(problem, problem.w0, draws=1_500)
    assert abs(interval.value + gain(DESIGN)) < 3 * interval.stderr
    assert interval.stderr < 0.04


@pytest.mark.slow
def test_the_best_design_measures_what_is_known_least():
    """On a ball: along the first axis."""
    best = gain([1, 0, 0])
    rate = optax.cosine_decay_schedule(0.1, 600)
    run = nx.minimize(
        experiment(visit=32), optimizer=optax.sgd(rate), steps=600, batch_size=8, progress=False
    )
    assert best - gain(run.w) < 0.1 * (best - gain(DESIGN))
    kept = experiment(outcomes=400)
    assert (kept.blocks.blocks, kept.endless) == (400, False)
    run = nx.minimize(kept, nx.SOX(0.3, 0.3), optax.sgd(rate), steps=600, batch_size=4, progress=False)
    assert best - gain(run.w) < 0.1 * (best - gain(DESIGN))


def factors(A, x, key):
    """log p(x|z) of x = A z + noise."""
    r = (x - A @ jax.random.normal(key, (2,))) / 0.7
    return -r @ r / 2 - 2 * jnp.log(0.7 * jnp.sqrt(2 * jnp.pi))


def marginal(A, X):
    """Minus the mean log density of N(0, AAᵀ + 0.49)."""
    C = A @ A.T + 0.49 * np.eye(2)
    return np.mean([x @ np.linalg.solve(C, x) for x in X]) / 2 + np.linalg.slogdet(2 * np.pi * C)[1] / 2


def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, 2)) @ [[1.0, 0.0], [0.5, 0.8]] + 0.7 * rng.normal(size=(60, 2))


def test_log_marginal_is_the_closed_form():
    A = np.asarray([[0.5, 0.0], [0.2, 0.5]])
    problem = nx.problems.log_marginal(rows(), factors, A)
    interval = nx.evaluate(problem, jnp.asarray(A), draws=20_000)
    assert abs(interval.value - marginal(A, rows())) < 0.02


@pytest.mark.slow
def test_log_marginal_is_maximised():
    """With memory of every row, nearer to the optimum than at the start by far."""
    A = np.asarray([[0.5, 0.0], [0.2, 0.5]])
    problem = nx.problems.log_marginal(rows(), factors, A, visit=20)
    rate = optax.cosine_decay_schedule(0.05, 1_500)
    run = nx.minimize(
        problem, nx.SOX(0.5, 0.5), optax.sgd(rate), steps=1_500, batch_size=16, progress=False
    )
    C = np.cov(rows().T, bias=True) + np.outer(*[rows().mean(0)] * 2)
    values, vectors = np.linalg.eigh(C)
    best = vectors @ np.diag(np.sqrt(np.maximum(values - 0.49, 0)))  # probabilistic PCA
    left = marginal(np.asarray(run.w), rows()) - marginal(best, rows())
    assert 0 <= left < 0.1 * (marginal(A, rows()) - marginal(best, rows()))


def coin(seen):
    """A coin whose chance the design moves, though no outcome moves with it."""
    chance = lambda w, cause: jax.nn.sigmoid(w @ cause)

    def log_prob(w, cause, outcome):
        p = chance(w, cause)
        return jnp.log(jnp.where(outcome == 1, p, 1 - p))

    toss = lambda w, cause, key: seen(jax.random.bernoulli(key, chance(w, cause)))
    return nx.problems.information_gain(prior, toss, log_prob, jnp.asarray(DESIGN))


def test_outcomes_may_stand_still_where_the_design_changes_nothing():
    """At w = 0 neither an outcome nor its likelihood moves with w."""
    squared = lambda w, cause, key: (w**2) @ cause + NOISE * jax.random.normal(key)
    likely = lambda w, cause, outcome: log_prob(w**2, cause, outcome)
    nx.problems.information_gain(prior, squared, likely, jnp.zeros(3))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: nx.problems.information_gain(3, simulate, log_prob, 0.0), "prior must be a function"),
        (
            lambda: nx.problems.information_gain(prior, simulate, log_prob, jnp.ones(2)),
            "prior, simulate, log_prob and w0 do not fit together",
        ),
        (
            lambda: nx.problems.information_gain(prior, simulate, lambda *_: jnp.nan, jnp.ones(3)),
            "log_prob must be finite",
        ),
        (lambda: experiment(outcomes=0), "outcomes must be a whole number"),
        (lambda: coin(lambda toss: toss), "simulate returns bool: outcomes must be continuous"),
        (lambda: coin(lambda toss: 1.0 * toss), "do not move with w"),
        (lambda: nx.evaluate(experiment(), jnp.asarray(DESIGN)), "say how many"),
        (lambda: experiment().value(jnp.asarray(DESIGN)), "endlessly many outer draws"),
        (lambda: nx.problems.log_marginal(rows(), 3, np.eye(2)), "log_weight must be a function"),
        (lambda: nx.problems.log_marginal(rows(), factors, np.eye(3)), "do not fit together"),
        (
            lambda: nx.problems.log_marginal(rows(), lambda w, x, key: jnp.log(0 * w[0, 0]), np.eye(2)),
            "the log weights of row 0 give -inf",
        ),
        (lambda: nx.problems.log_marginal(np.full((2, 2), np.nan), factors, np.eye(2)), "NaN"),
    ],
)
def test_refusals(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()


def test_a_ratio_has_a_logarithm():
    floor = experiment().levels[0]
    assert_same(floor.project(jnp.asarray(-1.0)) > 0, True)
