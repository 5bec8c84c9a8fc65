"""Ready portfolios against a cone solver and closed forms, and the sets that their weights come from."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
from scipy.optimize import linprog

import nestax as nx
from nestax import problems
from nestax.problems.portfolio.log_utility import growth
from nestax.programs import TRACES

ROWS = nx.datasets.synthetic_returns(300, 6)
MEAN = ROWS.mean(axis=0)
COVARIANCE = np.cov(ROWS.T, bias=True)
LOW, HIGH = np.linspace(-0.2, 0.0, 6), np.linspace(0.5, 0.25, 6)
DELTA = 1e-4
WIDTH = 0.1 * ROWS.std(axis=0).mean()
FAMILY = [
    problems.mean_deviation,
    problems.mean_semideviation,
    problems.mean_variance,
    problems.mean_cvar,
    problems.log_utility,
]
UNBOUNDED = pytest.mark.parametrize("constraint", ["budget", "free"])


# The set {lower ≤ w ≤ upper, Σw = total}


def projected(w, lower, upper, total=1.0):
    """The same projection by halving in extended precision."""
    w, lower, upper = (np.asarray(x, np.longdouble) for x in (w, lower, upper))
    low, high = (w - upper).min(), (w - lower).max()
    for _ in range(200):
        middle = (low + high) / 2
        if np.clip(w - middle, lower, upper).sum() >= total:
            low = middle
        else:
            high = middle
    return np.clip(w - low, lower, upper).astype(np.float64)


@pytest.mark.parametrize("size", [1, 7, 300])
def test_projection_is_exact(size):
    rng = np.random.default_rng(size)
    points = rng.normal(size=(40, size)) * 10.0 ** rng.integers(-3, 2, (40, 1))
    inside = rng.normal(size=(40, size)) / size
    inside += (1 - inside.sum(axis=1, keepdims=True)) / size
    lower, upper = (inside + sign * rng.exponential(1 / size, (40, size)) for sign in (-1, 1))
    found = jax.jit(jax.vmap(nx.projections.budget))(points, lower, upper)
    expected = np.stack([projected(*each) for each in zip(points, lower, upper, strict=True)])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=0, atol=1e-13)
    assert np.all((lower <= found) & (found <= upper))


def test_projection_is_that_of_a_cone_solver():
    point = np.random.default_rng(0).normal(size=6)
    x = cp.Variable(6)
    goal = cp.Minimize(cp.sum_squares(x - point))
    cp.Problem(goal, [cp.sum(x) == 1, x >= LOW, x <= HIGH]).solve(solver="CLARABEL")
    np.testing.assert_allclose(nx.projections.budget(jnp.asarray(point), LOW, HIGH), x.value, atol=1e-7)


@pytest.mark.parametrize(
    ("w", "lower", "upper", "expected"),
    [
        ([0.2, 0.3, 0.5], 0.0, 1.0, [0.2, 0.3, 0.5]),
        ([7.0, -3.0, 1.0], 0.0, 1 / 3, [1 / 3, 1 / 3, 1 / 3]),
        ([7.0, -3.0, 1.0], [0.5, 0.2, 0.3], 1.0, [0.5, 0.2, 0.3]),
        ([2.0, 2.0, 0.0], 0.0, 1.0, [0.5, 0.5, 0.0]),
        ([9.0, 1.0, 0.0], [0.0, 0.25, -1.0], [0.5, 0.25, 1.0], [0.5, 0.25, 0.25]),
    ],
)
def test_points_inside_single_points_ties_and_fixed_entries(w, lower, upper, expected):
    found = nx.projections.budget(jnp.asarray(w), jnp.asarray(lower), jnp.asarray(upper))
    np.testing.assert_allclose(found, expected, atol=1e-15)


def test_sets_of_trees_have_a_free_total_and_keep_their_dtype():
    w = {"a": jnp.asarray([3.0, -1.0], "float32"), "b": jnp.asarray(2.5, "float32")}
    upper = {"a": jnp.asarray([1.5, 9.0]), "b": jnp.asarray(9.0)}
    found = nx.projections.budget(w, 0, upper, total=2.0)
    vertex = nx.linear_oracles.budget(jax.tree.map(jnp.negative, w), 0, upper, total=2.0)
    for tree, a, b in [(found, [1.25, 0.0], 0.75), (vertex, [1.5, 0.0], 0.5)]:
        np.testing.assert_allclose(tree["a"], a)
        np.testing.assert_allclose(tree["b"], b)
        assert tree["a"].dtype == jnp.float32


def test_a_bad_number_stays_visible():
    assert np.isnan(nx.projections.budget(jnp.asarray([0.5, jnp.nan]), 0, 1)).any()


def test_linear_minimisation_is_that_of_a_linear_solver():
    for v in np.random.default_rng(1).normal(size=(5, 6)):
        best = linprog(v, A_eq=np.ones((1, 6)), b_eq=[1.0], bounds=np.column_stack([LOW, HIGH]))
        np.testing.assert_allclose(
            nx.linear_oracles.budget(jnp.asarray(v), LOW, HIGH), best.x, atol=1e-12
        )


# The optimum of every problem on bounded sets


def deviation(x, _):
    return -MEAN @ x + 0.2 * cp.norm(cp.hstack([(ROWS - MEAN) @ x / 300**0.5, DELTA**0.5]))


def semideviation(x, _):
    below = cp.pos(MEAN @ x - ROWS @ x) / 300**0.5
    return -MEAN @ x + 0.2 * cp.norm(cp.hstack([below, DELTA**0.5]))


def half_variance(x, _):
    return -MEAN @ x + 0.05 / 2 * cp.sum_squares((ROWS - MEAN) @ x) / 300


def smooth_cvar(x, a):
    return -MEAN @ x + 0.2 * (a + WIDTH * cp.sum(cp.logistic((-ROWS @ x - a) / WIDTH)) / 300 / 0.05)


def cvar(x, a):
    return -MEAN @ x + 0.2 * (a + cp.sum(cp.pos(-ROWS @ x - a)) / 300 / 0.05)


def shrunk_growth(x, _):
    return -cp.sum(cp.log(1 + (ROWS + 0.5 * (MEAN.mean() - MEAN)) @ x / 100)) / 3


def solved(goal, limits):
    """The least value, and the weights, by a cone solver."""
    x, a = cp.Variable(6), cp.Variable()
    goal = cp.Minimize(goal(x, a))
    tight = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
    cp.Problem(goal, [cp.sum(x) == 1, *limits(x)]).solve(solver="CLARABEL", **tight)
    return goal.value, x.value


def in_the_box(x):
    return [x >= LOW, x <= HIGH]


def descended(problem, lr, steps=2_000):
    return nx.minimize(
        problem, nx.Exact(), optax.sgd(lr), steps=steps, record=["exact_value"], record_every=steps
    )


CASES = {
    "mean_deviation": (problems.mean_deviation, {"delta": DELTA}, deviation, 0.3),
    "mean_semideviation": (problems.mean_semideviation, {"delta": DELTA}, semideviation, 0.5),
    "mean_variance": (problems.mean_variance, {}, half_variance, 1.0),
    "mean_cvar": (problems.mean_cvar, {}, smooth_cvar, 0.2),
    "log_utility": (problems.log_utility, {}, shrunk_growth, 2.0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_optimum_in_a_box_is_that_of_a_cone_solver(name):
    make, settings, goal, lr = CASES[name]
    problem = make(ROWS, constraint="box", bounds=(LOW, HIGH), **settings)
    best, weights = solved(goal, in_the_box)
    found = descended(problem, lr)
    holdings = found.w["x"] if name == "mean_cvar" else found.w
    assert abs(found.records["exact_value"][-1] - best) < 1e-9
    np.testing.assert_allclose(holdings, weights, atol=1e-5)
    assert np.any(weights < LOW + 1e-6)
    report = nx.check(problem, w=jax.tree.map(lambda x: x + 0.01 * jnp.arange(x.size), problem.w0))
    assert report.ok, report


@pytest.mark.erratum("E16")
def test_the_optimum_on_the_simplex_is_that_of_a_cone_solver():
    best, weights = solved(deviation, lambda x: [x >= 0])
    found = descended(problems.mean_deviation(ROWS, delta=DELTA), 0.3)
    assert abs(found.records["exact_value"][-1] - best) < 1e-9
    np.testing.assert_allclose(found.w, weights, atol=1e-5)


def test_smoothing_costs_at_most_what_is_said():
    sharp, _ = solved(cvar, in_the_box)
    smooth, _ = solved(smooth_cvar, in_the_box)
    assert 0 < smooth - sharp < 0.2 * WIDTH * np.log(2) / 0.05


def test_snapshots_find_the_optimum_in_a_box():
    best, _ = solved(semideviation, in_the_box)
    problem = problems.mean_semideviation(
        ROWS, delta=DELTA, constraint="box", bounds=(LOW, HIGH), optimum=best
    )
    run = nx.minimize(
        problem,
        nx.SnapshotSMVR(beta=0.01),
        optax.sgd(0.1),
        steps=1_500,
        batch_size=16,
        record=["gap"],
        record_every=1_500,
    )
    assert run.records["gap"][0] > 1e-2
    assert abs(run.records["gap"][-1]) < 1e-7


# The optimum of two problems on unbounded sets


def least_variance():
    x = np.linalg.solve(COVARIANCE, np.ones(6))
    return x / x.sum()


def stationary_at(problem, x):
    """F is convex: a feasible point that a projected gradient step does not move is the optimum."""
    value, grad = problem.value_and_grad(jnp.asarray(x))
    np.testing.assert_allclose(problem.project(jnp.asarray(x)), x, rtol=0, atol=1e-14)
    np.testing.assert_allclose(problem.stationarity(jnp.asarray(x), grad), 0, atol=1e-13)
    np.testing.assert_allclose(problem.optimum, value, rtol=1e-12)


@UNBOUNDED
@pytest.mark.erratum("E17")
def test_the_optimum_of_mean_deviation_without_bounds_is_known(constraint):
    risk, delta = 0.3, 0.25
    problem = problems.mean_deviation(ROWS, risk=risk, delta=delta, constraint=constraint)
    start = least_variance() if constraint == "budget" else np.zeros(6)
    ahead = MEAN - MEAN @ start if constraint == "budget" else MEAN
    s2 = ahead @ np.linalg.solve(COVARIANCE, ahead)
    size = np.sqrt((start @ COVARIANCE @ start + delta) / (risk**2 - s2))
    stationary_at(problem, start + size * np.linalg.solve(COVARIANCE, ahead))


@UNBOUNDED
def test_the_optimum_of_mean_variance_without_bounds_is_known(constraint):
    problem = problems.mean_variance(ROWS, risk=0.4, constraint=constraint)
    start = least_variance() if constraint == "budget" else np.zeros(6)
    ahead = MEAN - MEAN @ start if constraint == "budget" else MEAN
    stationary_at(problem, start + np.linalg.solve(COVARIANCE, ahead) / 0.4)


def test_a_run_without_constraint_reaches_the_known_optimum():
    problem = problems.mean_deviation(ROWS, risk=0.3, delta=0.25, constraint="free")
    run = nx.minimize(problem, nx.Exact(), optax.sgd(0.5), steps=2_000, record_every=2_000)
    assert run.records["gap"][0] > 1e-2
    assert abs(run.records["gap"][-1]) < 1e-12
    assert run.records["grad_norm"][-1] < 1e-9


def test_a_given_optimum_is_kept():
    for make in (problems.mean_deviation, problems.mean_variance):
        assert make(ROWS, risk=0.3, constraint="free", optimum=-5.0).optimum == -5.0


# What goes in


class Table:
    def __array__(self, dtype=None, copy=None):
        return np.asarray(ROWS, dtype)


@pytest.mark.parametrize("returns", [ROWS.tolist(), jnp.asarray(ROWS), pd.DataFrame(ROWS), Table()])
def test_returns_may_be_anything_that_is_an_array(returns):
    np.testing.assert_array_equal(problems.mean_variance(returns).levels[0].source.data, ROWS)


@pytest.mark.parametrize("make", FAMILY, ids=lambda make: make.__name__)
def test_percent_and_fractions_are_the_same_problem(make):
    unit = {
        "mean_deviation": {"delta": DELTA / 1e4},
        "mean_semideviation": {"delta": DELTA / 1e4},
        "mean_variance": {"risk": 5.0},
        "log_utility": {"unit": 1.0},
    }
    settings = CASES[make.__name__][1]
    percent = make(ROWS, **settings)
    fractions = make(ROWS / 100, **(settings | unit.get(make.__name__, {})))
    value = percent.value(percent.w0)
    np.testing.assert_allclose(100 * fractions.value(fractions.w0), value, rtol=1e-10)


@pytest.mark.parametrize("make", FAMILY, ids=lambda make: make.__name__)
def test_single_precision_and_a_single_asset(make):
    with jax.enable_x64(False):
        problem = make(ROWS[:, :1], constraint="box", bounds=(0, 1))
        assert problem.value(problem.w0).dtype == jnp.float32
        assert np.isfinite(problem.value(problem.w0))


def test_other_bounds_never_trace():
    def run(cap):
        problem = problems.mean_variance(ROWS, constraint="box", bounds=(0, cap))
        return nx.minimize(problem, nx.SMVR(), optax.sgd(1.0), steps=20, record=["value"]).w

    tight = run(0.2)
    before = dict(TRACES)
    wide = run(0.4)
    assert before == TRACES
    assert tight.max() <= 0.2 < wide.max() <= 0.4


def test_frank_wolfe_steps_are_for_bounded_weights():
    v = jnp.asarray([1.0, -2.0, 0.5, 3.0, -1.0, 0.0])
    vertex = problems.mean_variance(ROWS, constraint="box", bounds=(LOW, HIGH)).linear_oracle(v)
    np.testing.assert_array_equal(vertex, nx.linear_oracles.budget(v, LOW, HIGH))
    for problem in (problems.mean_cvar(ROWS), problems.mean_variance(ROWS, constraint="budget")):
        with pytest.raises(nx.ProblemError, match="FrankWolfe needs Problem"):
            nx.minimize(problem, nx.Exact(), nx.steps.FrankWolfe(0.1), steps=1)


def test_a_box_starts_at_its_point_next_to_equal_weights():
    problem = problems.mean_variance(ROWS, constraint="box", bounds=([0.4, 0, 0, 0, 0, 0], 0.5))
    np.testing.assert_allclose(problem.w0, [0.4, *[0.12] * 5], atol=1e-15)


def test_the_threshold_starts_at_the_value_at_risk():
    w0 = problems.mean_cvar(ROWS, tail=0.1).w0
    assert np.mean(-ROWS @ np.asarray(w0["x"]) > w0["a"]) == 0.1


def test_the_logarithm_goes_on_as_its_tangent():
    x, r = jnp.asarray([0.5, 0.5]), jnp.asarray([10.0, -20.0])
    loss = lambda wealth: growth((100 * (wealth - 0.95), x), r, 100.0, 0.3)
    slope = jax.grad(loss)
    np.testing.assert_allclose(loss(0.31), -100 * np.log(0.31), rtol=1e-12)
    np.testing.assert_allclose(loss(-4.0), -100 * (np.log(0.3) - 4.3 / 0.3), rtol=1e-12)
    np.testing.assert_allclose([slope(-4.0), slope(0.3)], -100 / 0.3, rtol=1e-12)


def test_the_floor_of_the_logarithm_is_half_of_the_least_wealth():
    _, floor = problems.log_utility(ROWS, shrink=0).levels[1].args
    np.testing.assert_allclose(floor, (1 + ROWS.min() / 100) / 2, rtol=1e-12)


BOX = {"constraint": "box"}
HOLE = np.where(ROWS[7, 2] == ROWS, np.nan, ROWS)
TWINS = ROWS[:, [0, 1, 1]]
CRASH = np.where(ROWS[7, 2] == ROWS, -101.0, ROWS)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: problems.mean_deviation(ROWS[0]), "returns must be a table, periods × assets; got an"),
        (lambda: problems.mean_variance([["2020-01-01", 0.1]] * 3), "without dates or names: could not"),
        (lambda: problems.mean_cvar([[1.0, 2.0], [1.0]]), "returns must be a table of numbers"),
        (lambda: problems.mean_deviation(ROWS[:1]), r"at least two periods \(rows\).*got 1 × 6"),
        (lambda: problems.mean_deviation(ROWS[:, :0]), "got 300 × 0"),
        (lambda: problems.log_utility(HOLE), "returns has 1 entries .* first at row 7, column 2"),
        (lambda: problems.mean_cvar(np.where(ROWS < -4, -np.inf, ROWS)), "NaN or infinite"),
        (lambda: problems.mean_deviation(ROWS, risk=-1), "risk must be at least 0 and finite; got -1"),
        (lambda: problems.mean_variance(ROWS, risk=np.nan), "risk must be at least 0"),
        (lambda: problems.mean_semideviation(ROWS, delta=0), "delta must be positive and finite; got 0"),
        (lambda: problems.mean_cvar(ROWS, tail=5), r"tail must be in \(0, 1\); got 5"),
        (lambda: problems.mean_cvar(ROWS, width=0), "width must be positive"),
        (lambda: problems.mean_cvar(np.ones((4, 2))), "the same in every period"),
        (lambda: problems.log_utility(ROWS, shrink=1.5), r"shrink must be in \[0, 1\]; got 1.5"),
        (lambda: problems.log_utility(ROWS, unit=0), "unit must be positive"),
        (lambda: problems.log_utility(ROWS, unit=1), "returns of row .* Check unit=1 "),
        (lambda: problems.log_utility(CRASH), "returns of row 7 can leave a portfolio with nothing"),
        (lambda: problems.mean_deviation(ROWS, constraint="simplx"), "simplex, box, budget, free; got"),
        (lambda: problems.mean_cvar(ROWS, constraint="free"), "constraint must be one of simplex, box;"),
        (lambda: problems.mean_deviation(ROWS, bounds=(0, 0.1)), 'bounds belong to constraint="box"'),
        (lambda: problems.mean_deviation(ROWS, **BOX), r"bounds must be \(low, high\).* got None"),
        (lambda: problems.mean_deviation(ROWS, **BOX, bounds=0.1), r"such as \(0, 0.1\), .*; got 0.1"),
        (lambda: problems.mean_deviation(ROWS, **BOX, bounds=(0, [0.5] * 5)), "each of the 6 assets"),
        (lambda: problems.mean_deviation(ROWS, **BOX, bounds=(0.5, 0.1)), "finite, low ≤ high"),
        (lambda: problems.mean_deviation(ROWS, **BOX, bounds=(0, np.inf)), "bounds must be finite"),
        (lambda: problems.mean_variance(ROWS, **BOX, bounds=(0, 0.1)), "upper ones to 0.6"),
        (lambda: problems.mean_variance(ROWS, **BOX, bounds=(0.2, 0.5)), "lower ones add up to 1.2"),
        (lambda: problems.mean_deviation(ROWS, risk=0.01, constraint="free"), "risk must be above 0.09"),
        (lambda: problems.mean_deviation(ROWS, risk=0.01, constraint="budget"), "F has no minimum"),
        (lambda: problems.mean_variance(ROWS, risk=0, constraint="budget"), "must be positive under"),
        (lambda: problems.mean_deviation(TWINS, constraint="free"), "covariance of these 3 has rank 2"),
    ],
)
@pytest.mark.erratum("E17")
def test_bad_input_gets_one_sentence(make, sentence):
    with pytest.raises((nx.ProblemError, nx.SettingError), match=sentence) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_caps_that_add_up_to_one_are_allowed_whatever_the_rounding():
    assert np.full(6, 1 / 6).sum() < 1
    problem = problems.mean_variance(ROWS, constraint="box", bounds=(0, 1 / 6))
    np.testing.assert_allclose(problem.w0, 1 / 6, atol=1e-15)


def test_a_tail_of_most_periods_is_doubted():
    with pytest.warns(UserWarning, match=r"tail=0.95 is more than half .* has tail=0.05"):
        problems.mean_cvar(ROWS, tail=0.95)
