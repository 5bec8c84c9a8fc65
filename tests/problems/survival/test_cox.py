"""Cox's partial likelihood against loops over rows: ties, strata, late entry; and its optimum."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize

import nestax as nx

ROWS = 40
CASES = {
    "breslow": {"ties": "breslow"},
    "efron": {"ties": "efron"},
    "strata": {"strata": True},
    "late": {"entry": True},
    "all": {"strata": True, "entry": True},
}


def made(seed=0, **case):
    """Rows with ties, and the arguments that a case asks for."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, 3))
    time = np.ceil(8 * rng.exponential(size=ROWS) / np.exp(X @ [1.0, -0.5, 0.0]))
    event = rng.random(ROWS) < 0.7
    given = {"ties": case.get("ties", "efron")}
    if "strata" in case:
        given["strata"] = np.array(["a", "b", "c"])[rng.integers(3, size=ROWS)]
    if "entry" in case:
        given["entry"] = np.floor(time * rng.uniform(-0.5, 1, ROWS)).clip(max=time - 1)
    return X, time, event, given


def value(w, X, time, event, ties, strata=None, entry=None, l2=0.0):
    """F, by loops over events and rows."""
    strata = np.zeros(len(X)) if strata is None else strata
    entry = np.full(len(X), -np.inf) if entry is None else entry
    h = X @ w
    terms = []
    for s in np.unique(strata):
        for when in np.unique(time[event & (strata == s)]):
            tied = [i for i in range(len(X)) if time[i] == when and event[i] and strata[i] == s]
            rest = [j for j in range(len(X)) if entry[j] < when <= time[j] and strata[j] == s]
            at_risk, together = np.exp(h[rest]).sum(), np.exp(h[tied]).sum()
            for k, i in enumerate(tied):
                terms.append(np.log(at_risk - (ties == "efron") * k / len(tied) * together) - h[i])
    return np.mean(terms) + l2 / 2 * w @ w


@pytest.mark.parametrize("case", CASES)
def test_both_closed_forms_are_the_loops(case):
    X, time, event, given = made(**CASES[case])
    exact = nx.problems.exact_cox(X, time, event, **given, l2=0.3)
    problem = nx.problems.cox(X, time, event, **given, l2=0.3)
    w = np.array([0.3, -1.0, 0.5])
    written = lambda w: value(w, X, time, event, **given, l2=0.3)
    np.testing.assert_allclose(exact.value(w), written(w), rtol=1e-12)
    np.testing.assert_allclose(problem.value(jnp.asarray(w)), written(w), rtol=1e-12)
    step = 1e-5 * np.eye(3)
    slope = [(written(w + e) - written(w - e)) / 2e-5 for e in step]
    grad, hessian = exact.grad_and_hessian(w)
    np.testing.assert_allclose(grad, slope, atol=1e-8)
    np.testing.assert_allclose(exact.grad(w), grad, rtol=1e-12)
    np.testing.assert_allclose(jax.grad(problem.value)(jnp.asarray(w)), grad, rtol=1e-9, atol=1e-12)
    bend = [(exact.grad(w + e) - exact.grad(w - e)) / 2e-5 for e in step]
    np.testing.assert_allclose(hessian, bend, atol=1e-7)


@pytest.mark.parametrize("case", CASES)
def test_the_blocks_are_the_loops(case):
    """The chain over all its draws, without the closed form."""
    X, time, event, given = made(**CASES[case])
    problem = nx.problems.cox(X, time, event, **given, visit=3)
    w = jnp.asarray([0.3, -1.0, 0.5])
    np.testing.assert_allclose(problem.chain_value(w), problem.value(w), rtol=1e-12)


def test_draws_come_from_risk_sets_alone():
    X, time, event, given = made(**CASES["strata"])
    problem = nx.problems.cox(X, time, event, **given, visit=5)
    source, sets = problem.levels[0].source, problem.levels[0].fn.sets
    seen = source.draw_in(jnp.arange(source.blocks), jax.random.key(0), jnp.asarray(3), 50)
    place = jax.vmap(source.batch)(seen).draws
    order = np.lexsort((event, -time, np.unique(given["strata"], return_inverse=True)[1]))
    who, case = order[np.asarray(place)], order[np.asarray(sets.events)][:, None]
    assert (time[who] >= time[case]).all()
    assert (given["strata"][who] == given["strata"][case]).all()


@pytest.mark.parametrize("case", CASES)
def test_newton_finds_the_optimum(case):
    X, time, event, given = made(**CASES[case])
    found = nx.problems.exact_cox(X, time, event, **given).least()
    other = minimize(lambda w: value(w, X, time, event, **given), np.zeros(3), tol=1e-12)
    assert found.found
    np.testing.assert_allclose(found.w, other.x, atol=1e-5)
    exact = nx.problems.exact_cox(X, time, event, **given)
    assert np.abs(exact.grad(found.w)).max() < 1e-12
    assert found.value == exact.value(found.w) <= other.fun + 1e-14


def test_columns_may_say_the_same():
    X, time, event, given = made()
    twice = np.column_stack([X, X[:, 0], np.ones(ROWS)])
    one, two = (nx.problems.exact_cox(x, time, event, **given).least() for x in (X, twice))
    assert two.found
    np.testing.assert_allclose(two.value, one.value, rtol=1e-12)


def test_events_in_the_order_of_a_feature_have_no_optimum():
    time = np.arange(1.0, 11.0)
    exact = nx.problems.exact_cox(-time[:, None], time, np.ones(10))
    assert not exact.least().found
    assert nx.problems.exact_cox(-time[:, None], time, np.ones(10), l2=0.1).least().found


def test_small_batches_come_to_the_optimum():
    X, time, event, given = made()
    exact = nx.problems.exact_cox(X, time, event, **given)
    problem = nx.problems.cox(X, time, event, **given, visit=4, optimum=exact.least().value)
    decay = optax.linear_schedule(0.3, 0.0, 2_000)
    result = nx.minimize(problem, nx.SOX(0.2), optax.sgd(decay), steps=2_000, batch_size=4, seed=0)
    gap = result.records["gap"]
    assert 0 <= gap[-1] < 0.01 * gap[0]


def test_any_model():
    X, time, event, given = made()
    net = lambda w, x: jnp.tanh(x @ w["in"]) @ w["out"]
    w0 = {"in": jnp.ones((3, 2)) * jnp.array([1.0, -0.5]), "out": jnp.array([1.0, 0.3])}
    problem = nx.problems.cox(X, time, event, **given, model=net, w0=w0, visit=3)
    np.testing.assert_allclose(problem.chain_value(w0), problem.value(w0), rtol=1e-12)


def test_memory_grows_with_the_rows():
    """For 100,000 rows the squares would be 40 GB."""
    rng = np.random.default_rng(0)
    n = 100_000
    time, event = rng.exponential(size=n), rng.random(n) < 0.3
    problem = nx.problems.cox(np.ones((n, 1)), time, event)
    assert sum(x.size for x in jax.tree.leaves(problem) if hasattr(x, "size")) < 12 * n
    left = n - np.flatnonzero(event[np.argsort(time)])
    np.testing.assert_allclose(problem.value(problem.w0), np.mean(np.log(left)), rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"event": np.zeros(ROWS)}, "no row has an event"),
        ({"event": np.full(ROWS, 2)}, "event must be 1 or 0, or True or False; row 0 has 2"),
        ({"time": -np.ones(ROWS)}, "time must be finite and at least 0; row 0 has -1"),
        ({"time": np.ones(3)}, r"one number per row of the data; got \(3,\)"),
        ({"strata": ["a"]}, "strata must hold one label for each of the 40 rows"),
        ({"strata": [None, "a"] * 20}, "strata must hold labels of one type, and none may be missing"),
        ({"strata": [np.nan, 1.0] * 20}, "none may be missing"),
        ({"entry": np.ones(2)}, "entry must be one time for each of the 40 rows"),
        ({"entry": np.full(ROWS, 1e9)}, "entry must be before time; row 0 came at 1e"),
        ({"entry": np.full(ROWS, np.nan)}, "entry must be before time; row 0 came at nan"),
        ({"ties": "exact"}, "ties must be one of efron, breslow"),
        ({"X": np.full((ROWS, 3), np.inf)}, "X "),
        ({"X": np.ones((3, 3))}, "X "),
    ],
)
def test_one_sentence_each(change, sentence):
    X, time, event, given = made()
    arguments = {"X": X, "time": time, "event": event, **given} | change
    for make in (nx.problems.cox, nx.problems.exact_cox):
        with pytest.raises(ValueError, match=sentence) as error:
            make(**arguments)
        assert "\n" not in str(error.value)


def test_visits_and_risks_that_are_too_large():
    X, time, event, _ = made()
    with pytest.raises(nx.ProblemError, match=f"visit must be .* number of events, {event.sum()}"):
        nx.problems.cox(X, time, event, visit=99)
    with pytest.raises(nx.ProblemError, match="the loss of row 0 of the data is"):
        nx.problems.cox(X, time, event, w0=np.full(3, 1e200))
